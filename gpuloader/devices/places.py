"""Places: values that name where batches are delivered, and the devices that stand behind them.

A place can be created, compared and pickled on any machine. Only `open_device` checks whether its device
exists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

from gpuloader.checks import check_count
from gpuloader.devices.base import Device
from gpuloader.devices.host import HostDevice
from gpuloader.errors import PlaceError
from gpuloader.foreign import current_cuda_device, name_place


@dataclass(frozen=True, slots=True)
class CPUPlace:
    """Host memory; batches are NumPy arrays that lie in the staging slot itself.

    >>> CPUPlace() == CPUPlace(), CPUPlace()
    (True, CPUPlace())
    """


@dataclass(frozen=True, slots=True)
class CUDAPinnedPlace:
    """Pinned host memory; batches are NumPy arrays that a GPU copies from at full speed.

    >>> CUDAPinnedPlace()
    CUDAPinnedPlace()
    """


@dataclass(frozen=True, slots=True)
class CUDAPlace:
    """The memory of one GPU; batches are CuPy arrays.

    Parameters
    ----------
    index : int
        The GPU's index among the visible ones, from 0.

    Raises
    ------
    PlaceError
        `index` is not an integer of 0 or more. Whether the GPU exists is checked on first use.

    >>> CUDAPlace(1), CUDAPlace(0) == CUDAPlace(0)
    (CUDAPlace(1), True)
    """

    index: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.index, bool) or not isinstance(self.index, int) or self.index < 0:
            raise PlaceError(f"a CUDA place needs a device index of 0 or more, got {self.index!r}")

    def __repr__(self) -> str:
        return f"CUDAPlace({self.index})"


@dataclass(frozen=True, slots=True, eq=False)
class CustomPlace:
    """A place with its own device object; loaders get a simulated device this way.

    Parameters
    ----------
    device : object
        An implementation of `gpuloader.devices.base.Device`.
    """

    device: object


Place = CPUPlace | CUDAPlace | CUDAPinnedPlace | CustomPlace


def parse_place(place: object) -> Place:
    """Return the place named by a place, a string, a ``torch.device`` or a Paddle place.

    Strings are Paddle's 'cpu', 'gpu', 'gpu:N' and 'gpu_pinned', and PyTorch's 'cuda' and 'cuda:N'.

    Raises
    ------
    PlaceError
        The argument is none of these.

    >>> parse_place("gpu:1"), parse_place("cuda:1"), parse_place("cpu")
    (CUDAPlace(1), CUDAPlace(1), CPUPlace())
    """
    if isinstance(place, CPUPlace | CUDAPlace | CUDAPinnedPlace | CustomPlace):
        return place
    given = name_place(place)
    named = given if isinstance(given, str) else ""
    if named == "cpu":
        return CPUPlace()
    if named == "gpu_pinned":
        return CUDAPinnedPlace()
    # To PyTorch users, 'cuda' is the device that they have made current; Paddle's 'gpu' is the first one.
    if named == "cuda":
        return CUDAPlace(current_cuda_device())
    if match := re.fullmatch(r"(?:gpu|cuda)(?::(\d+))?", named):
        return CUDAPlace(int(match[1] or 0))
    raise PlaceError(
        f"not a place: {place!r}; pass CPUPlace(), CUDAPlace(index), CUDAPinnedPlace(), a torch.device of "
        "type 'cpu' or 'cuda', or one of the strings 'cpu', 'gpu:0', 'cuda:0', 'gpu_pinned'"
    )


def parse_places(places: object) -> tuple[Place, ...]:
    """Return one place or several as a tuple; each may be anything that `parse_place` accepts.

    Raises
    ------
    PlaceError
        An argument is not a place, or the list is empty.

    >>> parse_places([CPUPlace(), "gpu:0"])
    (CPUPlace(), CUDAPlace(0))
    """
    given = places if isinstance(places, Iterable) and not isinstance(places, str) else (places,)
    if parsed := tuple(map(parse_place, given)):
        return parsed
    raise PlaceError("got an empty list of places; pass at least one place")


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return `device_count` CPU places; None means the environment variable CPU_NUM, or 1 if it is not set.

    Raises
    ------
    ValueError
        The count is not an integer of 1 or more.

    >>> cpu_places(2)
    [CPUPlace(), CPUPlace()]
    """
    return [CPUPlace() for _ in range(_count_places(device_count))]


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Return `device_count` places in pinned host memory; None counts as for `cpu_places`.

    Raises
    ------
    ValueError
        The count is not an integer of 1 or more.

    >>> cuda_pinned_places(2)
    [CUDAPinnedPlace(), CUDAPinnedPlace()]
    """
    return [CUDAPinnedPlace() for _ in range(_count_places(device_count))]


def _count_places(device_count: int | None) -> int:
    return read_cpu_num() if device_count is None else check_count("device_count", device_count)


def read_cpu_num() -> int:
    """Return the environment variable CPU_NUM, an integer of 1 or more; 1 if it is not set, as in Paddle."""
    text = os.environ.get("CPU_NUM", "").strip()
    if not text:
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"the environment variable CPU_NUM must be an integer of 1 or more, got {text!r}")
    return int(text)


def cuda_places(device_ids: int | list[int] | tuple[int, ...] | None = None) -> list[CUDAPlace]:
    """Return one place per GPU.

    Parameters
    ----------
    device_ids : int, list of int or None
        Indices of the GPUs. None means those in the environment variable FLAGS_selected_gpus ("0,1"), or all
        visible GPUs if it is not set.

    Raises
    ------
    PlaceError
        An index is not an integer of 0 or more, or no index was given and no GPU can be used.

    >>> cuda_places([0, 1])
    [CUDAPlace(0), CUDAPlace(1)]
    """
    if device_ids is None:
        selected = os.environ.get("FLAGS_selected_gpus", "").strip()  # noqa: SIM112 - Paddle's spelling
        if selected:
            parts = [part.strip() for part in selected.split(",")]
            if not all(part.isdecimal() for part in parts):
                raise PlaceError(f"FLAGS_selected_gpus must list device indices, e.g. 0,1; got {selected!r}")
            device_ids = [int(part) for part in parts]
        else:
            from gpuloader.devices.cuda import require_cuda

            device_ids = list(range(require_cuda(0)))
    indices = [device_ids] if isinstance(device_ids, int) else device_ids
    return [CUDAPlace(index) for index in indices]


_within: ContextVar[Place | None] = ContextVar("gpuloader_place", default=None)


@contextmanager
def use_place(place: Place) -> Iterator[None]:
    """Make `place` the default place inside a ``with`` block, in this thread.

    >>> with use_place(CUDAPlace(1)):
    ...     default_place()
    CUDAPlace(1)
    """
    token = _within.set(place)
    try:
        yield
    finally:
        _within.reset(token)


def guarded_place() -> Place | None:
    """Return the place of the innermost `use_place`, or None outside of any."""
    return _within.get()


def default_place(local_rank: int = 0) -> Place:
    """Return the place of the innermost `use_place`; otherwise a GPU if CuPy can use one, or else the CPU.

    If there are several GPUs, `local_rank`, the number of this process on its machine, selects one. Raises
    `PlaceError` if there are several GPUs, but fewer than processes.
    """
    if (within := _within.get()) is not None:
        return within
    # Counting GPUs initializes the driver but creates no context, so asking costs no memory of any GPU.
    from gpuloader.devices.cuda import require_cuda, warn_if_broken

    try:
        count = require_cuda(0)
    except PlaceError:
        warn_if_broken()
        return CPUPlace()
    # Some launchers show each process only its own GPU. Then there is nothing to choose, whatever the rank.
    if 1 < count <= local_rank:
        raise PlaceError(
            f"local rank {local_rank} has no GPU: this process sees {count}, numbered from 0; start one "
            "process per GPU, or pass places"
        )
    return CUDAPlace(local_rank if count > 1 else 0)


_opened: dict[Place, Device] = {}


def open_device(place: Place) -> Device:
    """Return the device of a place; equal places share one device object.

    Raises
    ------
    PlaceError
        The place needs a GPU, but CuPy, the driver, or a device with that index is missing.

    >>> open_device(CPUPlace()).name
    'cpu'
    """
    if isinstance(place, CustomPlace):
        return cast("Device", place.device)
    if (device := _opened.get(place)) is not None:
        return device
    if isinstance(place, CPUPlace):
        device = HostDevice()
    else:
        # `cuda` examines the machine. The device itself is imported only if a GPU can be used.
        from gpuloader.devices.cuda import current_index, require_cuda

        require_cuda(place.index if isinstance(place, CUDAPlace) else 0)
        from gpuloader.devices.cuda_device import CudaDevice

        if isinstance(place, CUDAPlace):
            device = CudaDevice(place.index)
        else:
            # Pinning needs a context, and pinned memory serves all GPUs. The current GPU has a context, or
            # will get one anyway; on any other GPU, it would cost about 500 MiB.
            device = HostDevice("gpu_pinned", CudaDevice(current_index()))
    # Several threads may open a place at the same time. All get the first one's device, because a device
    # keeps a list of what it has yet to free.
    return _opened.setdefault(place, device)
