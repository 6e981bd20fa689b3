"""Where a loader's batches land, and how a step is divided among the places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuloader.devices.base import Device
from gpuloader.devices.opening import open_device
from gpuloader.devices.outputs import Output, find_capture, open_output
from gpuloader.devices.places import Place
from gpuloader.epoch.device_slots import StaticSlot
from gpuloader.errors import BadValue
from gpuloader.staging.arena import PageLocker
from gpuloader.system.cores import Cores, find_cores_near


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a loader's batches land, and how a step is divided among the places.

    Attributes
    ----------
    places : tuple of Place
        Where batches land.
    devices : tuple of Device
        One for each place.
    outputs : tuple of Output
        The framework whose arrays the user gets, one for each place.
    prefetch : int
        Steps copied to devices ahead of the consumer; 0 if all places are hosts, where nothing is copied.
    drop_last : bool
        Whether to leave out a last step that has no batch for every place.
    shards : int
        How many parts each batch is cut into; 1 if each place gets a batch of its own.
    remainder : str
        What to do with samples of a batch that do not divide evenly: 'error', 'drop' or 'pad'.
    statics : tuple of StaticSlot
        One for each place, in which all its batches are delivered; empty if each batch has a slot of its own.
    urgent : bool
        Whether the kernels of transforms go ahead of those on streams of normal priority.
    near : set of int
        The processor cores near all GPUs, on which slots and workers belong; empty if no cores are nearer.
    """

    places: tuple[Place, ...]
    devices: tuple[Device, ...]
    outputs: tuple[Output, ...]
    prefetch: int
    drop_last: bool
    shards: int = 1
    remainder: str = "error"
    statics: tuple[StaticSlot, ...] = ()
    urgent: bool = False
    near: Cores = frozenset()

    @classmethod
    def of(
        cls,
        places: Sequence[Place],
        output: str | None,
        stream: object,
        *,
        prefetch: int,
        drop_last: bool,
        shards: int = 1,
        remainder: str = "error",
        static: bool = False,
        urgent: bool = False,
    ) -> Delivery:
        """Open the devices and outputs of these places.

        Raises
        ------
        ValueError
            Batches cannot have fixed addresses, because JAX copies every array.
        PlaceError
            A place needs a GPU that is missing, or the output's arrays cannot lie on a place.
        MissingPackage
            The output's framework is not installed.

        >>> from gpuloader.devices.places import CPUPlace
        >>> Delivery.of([CPUPlace()], None, None, prefetch=2, drop_last=True).prefetch
        0
        """
        if static and output == "jax":
            raise BadValue(
                "static=True gives batches fixed addresses, but output='jax' delivers copies where JAX "
                "puts them; pass another output, or leave static out"
            )
        devices = tuple(open_device(place) for place in places)
        outputs = tuple(open_output(output, device, stream) for device in devices)
        prefetch = 0 if all(device.direct for device in devices) else prefetch
        statics = tuple(StaticSlot(device) for device in devices) if static else ()
        return cls(
            tuple(places),
            devices,
            outputs,
            prefetch,
            drop_last,
            shards,
            remainder,
            statics,
            urgent,
            _near(devices),
        )

    @property
    def slots(self) -> tuple[StaticSlot | None, ...]:
        """For each place, the slot in which all its batches are delivered, or None."""
        return self.statics or (None,) * len(self.devices)

    def refuse_another(self) -> None:
        """Raise `Misuse` if an epoch is running that delivers in the same memory as another one would."""
        for static in self.statics:
            static.refuse_another()

    def refuse_capture(self) -> None:
        """Raise `LoaderError` if the calling thread captures a graph, before anything else is called."""
        for device, output in zip(self.devices, self.outputs, strict=True):
            if (error := find_capture(device, output.stream())) is not None:
                raise error

    def open_codecs(self) -> None:
        """Open what decodes pictures on each device; raises the errors of `Device.codec`."""
        for device in self.devices:
            device.codec()

    @property
    def on_host(self) -> bool:
        """Whether every batch lands on a host."""
        return all(device.direct for device in self.devices)

    @property
    def has_host(self) -> bool:
        """Whether some batches land on a host."""
        return any(device.direct for device in self.devices)

    @property
    def locker(self) -> PageLocker | None:
        """The device that page-locks host memory for all others; None if no device copies from it."""
        return next((device.locker for device in self.devices if device.locker is not None), None)

    @property
    def pads(self) -> bool:
        """Whether a place's part of a batch may end in repeated samples."""
        return self.shards > 1 and self.remainder == "pad"


def _near(devices: Sequence[Device]) -> Cores:
    copying = [device for device in devices if not device.direct]
    return find_cores_near(lambda: [device.bus_id() for device in copying]) if copying else frozenset()
