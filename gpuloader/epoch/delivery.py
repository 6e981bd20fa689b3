"""Where a loader's batches land, and how a step is divided among the places."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import filterfalse
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.devices.base import Device
from gpuloader.devices.outputs import Output, open_output
from gpuloader.devices.places import Place, open_device
from gpuloader.epoch.device_slots import StaticSlot
from gpuloader.errors import BadValue, LoaderError
from gpuloader.fields.spec import Array
from gpuloader.staging import Arena, PageLocker
from gpuloader.system.cores import Cores, find_cores_near

# The masks of batches that may end in repeated samples: True for samples that count, False for padding.


class SampleMask(NamedTuple):
    """The mask of one batch in host memory, for a place's device to copy; nobody writes to it."""

    array: Array  # bool, read-only
    bytes: NDArray[np.uint8]  # the same memory
    address: int
    memory: object  # keeps it mapped


@dataclass(slots=True, eq=False, repr=False)
class Masks:
    """The masks of one loader's batches; only the consumer calls it, from one thread at a time.

    >>> masks = Masks()
    >>> masks.get(2, 3).array, masks.get(0, 1).array
    (array([ True,  True, False]), array([False]))
    """

    # The memory holds as many True as False, and each mask is a window around the border between them, so no
    # mask is ever written. Devices copy from it, so it is pinned; it grows with the largest batch.

    locker: PageLocker | None = None
    _longest: int = 0
    _arena: Arena | None = None
    _latest: tuple[tuple[int, int], SampleMask] | None = None  # nearly all batches have the same

    def get(self, own: int, size: int) -> SampleMask:
        """Return the mask of a batch of `size` samples whose first `own` are not padding."""
        if self._latest is not None and self._latest[0] == (own, size):
            return self._latest[1]
        if self._arena is None or size > self._longest:
            self._longest = max(size, 2 * self._longest, 1)
            self._arena = Arena(2 * self._longest, self.locker)
            self._arena.bytes[: self._longest], self._arena.bytes[self._longest :] = 1, 0
        start = self._longest - own
        window = self._arena.bytes[start : start + size]
        array = window.view(bool)
        array.flags.writeable = False  # because later batches share the memory
        self._latest = (own, size), SampleMask(array, window, self._arena.address + start, self._arena)
        return self._latest[1]


def add_mask(batch: Any, mask: Any) -> Any:
    """Return a batch that nobody else holds with its mask: last in a list or tuple, or under ``mask``.

    >>> add_mask(["images", "labels"], "mask"), add_mask({"image": "images"}, "mask")
    (['images', 'labels', 'mask'], {'image': 'images', 'mask': 'mask'})
    """
    if isinstance(batch, MutableMapping):
        if "mask" in batch:
            raise LoaderError(
                "the samples have a field 'mask', which is the key of the mask of a padded shard; rename the "
                "field, or choose uneven='drop'"
            )
        batch["mask"] = mask
        return batch
    if type(batch) in (list, tuple):
        return type(batch)((*batch, mask))
    return [batch, mask]


class Delivery(NamedTuple):
    """Where a loader's batches land, and how a step is divided among the places; made by `of`."""

    places: tuple[Place, ...]
    devices: tuple[Device, ...]  # one for each place, like the next two
    outputs: tuple[Output, ...]  # the framework whose arrays the user gets
    statics: tuple[StaticSlot | None, ...]  # where all batches of a place are delivered; None: in their slots
    prefetch: int  # steps copied to devices ahead of the consumer; 0 if all places are hosts
    drop_last: bool  # whether to leave out a last step that has no batch for every place
    shards: int  # how many parts each batch is cut into; 1 if each place gets a batch of its own
    uneven: str  # what to do with samples that do not divide evenly: 'error', 'drop' or 'pad'
    pads: bool  # whether a place's part of a batch may end in repeated samples
    urgent: bool  # whether kernels of transforms run ahead of kernels on streams of normal priority
    near: Cores  # the cores near all GPUs, for slots and workers; empty if no cores are nearer
    on_host: bool  # whether every batch lands on a host
    has_host: bool  # whether some batches do
    locker: PageLocker | None  # pins host memory for all devices; None if no device copies from it

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
        uneven: str = "error",
        static: bool = False,
        urgent: bool = False,
    ) -> Delivery:
        """Open the devices and outputs of these places.

        Raises `ValueError` for JAX with fixed addresses, and the errors of `open_device` and `open_output`.

        >>> from gpuloader.devices.places import CPUPlace
        >>> Delivery.of([CPUPlace()], None, None, prefetch=2, drop_last=True).prefetch
        0
        """
        # JAX frees an array while kernels that read it may still be queued on streams that it does not
        # expose. So it gets copies, whose addresses are its own.
        if static and output == "jax":
            raise BadValue(
                "static=True gives batches fixed addresses, but output='jax' delivers copies where JAX "
                "puts them; pass another output, or leave static out"
            )
        # Every device is opened before the first output: a missing GPU is the error to report first.
        devices = tuple(map(open_device, places))
        outputs = tuple(map(partial(open_output, output, stream=stream, static=static), devices))
        copying = [*filterfalse(attrgetter("direct"), devices)]
        statics = tuple(map(StaticSlot, devices)) if static else (None,) * len(devices)
        locker = next(filter(None, map(attrgetter("locker"), devices)), None)
        return cls(
            tuple(places),
            devices,
            outputs,
            statics,
            prefetch if copying else 0,
            drop_last,
            shards,
            uneven,
            shards > 1 and uneven == "pad",
            urgent,
            find_cores_near(lambda: [device.bus_id() for device in copying]) if copying else frozenset(),
            not copying,
            len(copying) < len(devices),
            locker,
        )
