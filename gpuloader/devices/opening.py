"""Opens the device of a place, and chooses default places; `open_device` is the only way to a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import cast

from gpuloader.devices.base import Device
from gpuloader.devices.host import HostDevice
from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, CustomPlace, Place
from gpuloader.errors import PlaceError


@cache
def _open(place: CPUPlace | CUDAPlace | CUDAPinnedPlace) -> Device:
    if isinstance(place, CPUPlace):
        return HostDevice()
    from gpuloader.devices.cuda import CudaDevice, current_index, require_cuda

    if isinstance(place, CUDAPinnedPlace):
        require_cuda(0)
        return HostDevice(locker=CudaDevice(current_index()))
    require_cuda(place.index)
    return CudaDevice(place.index)


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
    return _open(place)


_guarded: ContextVar[Place | None] = ContextVar("gpuloader_place", default=None)


@contextmanager
def use_place(place: Place) -> Iterator[None]:
    """Make `place` the default place inside a ``with`` block, in this thread.

    >>> with use_place(CUDAPlace(1)):
    ...     default_place()
    CUDAPlace(1)
    """
    token = _guarded.set(place)
    try:
        yield
    finally:
        _guarded.reset(token)


def guarded_place() -> Place | None:
    """Return the place of the innermost `use_place`, or None outside of any."""
    return _guarded.get()


def default_place(local_rank: int = 0) -> Place:
    """Return the place of the innermost `use_place`, or else the best one available.

    That is a GPU if CuPy can use one, otherwise the CPU. With several GPUs, `local_rank`, the number of this
    process on its machine, selects one. If a launcher shows each process only its own GPU, there is no choice
    to make.

    Raises
    ------
    PlaceError
        There are several GPUs, but fewer than processes.
    """
    guarded = guarded_place()
    if guarded is not None:
        return guarded
    try:
        open_device(CUDAPlace(0))
    except PlaceError:
        return CPUPlace()
    if not local_rank:
        return CUDAPlace(0)
    from gpuloader.devices.cuda import require_cuda

    count = require_cuda(0)
    if 1 < count <= local_rank:
        raise PlaceError(
            f"local rank {local_rank} has no GPU: this process sees {count}, numbered from 0; start one "
            "process per GPU, or pass places"
        )
    return CUDAPlace(local_rank if count > 1 else 0)


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
