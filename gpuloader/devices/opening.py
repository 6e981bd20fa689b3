"""Devices: what a place stands on. `open_device` is the one way from a place to its device."""

from __future__ import annotations

import os
from functools import cache
from typing import cast

from gpuloader.base.errors import PlaceError
from gpuloader.devices.base import Device
from gpuloader.devices.host import HostDevice
from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, CustomPlace, Place


@cache
def _open(place: CPUPlace | CUDAPlace | CUDAPinnedPlace) -> Device:
    if isinstance(place, CPUPlace):
        return HostDevice()
    from gpuloader.devices.cuda import CudaDevice, require_cuda

    if isinstance(place, CUDAPinnedPlace):
        require_cuda(0)
        return HostDevice(locker=CudaDevice(0))
    require_cuda(place.index)
    return CudaDevice(place.index)


def open_device(place: Place) -> Device:
    """Return the device a place stands on; the same object for equal places.

    Raises
    ------
    PlaceError
        The place needs a GPU and something is missing: CuPy, the driver, or a device of that index.

    >>> open_device(CPUPlace()).name
    'cpu'
    """
    if isinstance(place, CustomPlace):
        return cast("Device", place.device)
    return _open(place)


def default_place(local_rank: int = 0) -> CPUPlace | CUDAPlace:
    """Return the best place present: a GPU if there is one that CuPy can use, else the CPU.

    Of several GPUs it is the one with the number of this process among those of its machine, `local_rank`; a
    launcher that shows each process a GPU of its own leaves it but one.

    Raises
    ------
    PlaceError
        There are several GPUs, and fewer than processes.
    """
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
            f"process {local_rank} of this machine finds {count} GPUs, numbered from 0: start as many "
            "processes as there are GPUs, or give places"
        )
    return CUDAPlace(local_rank if count > 1 else 0)


def cuda_places(device_ids: int | list[int] | tuple[int, ...] | None = None) -> list[CUDAPlace]:
    """Return one place a GPU.

    Parameters
    ----------
    device_ids : int, list of int or None
        Indices of the GPUs. None means those in the environment variable FLAGS_selected_gpus ("0,1"),
        else all that are visible.

    Raises
    ------
    PlaceError
        An index is not an integer of 0 or more, or none was given and no GPU can be used.

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
