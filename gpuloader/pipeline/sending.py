"""Copies to a device outside the pipeline: a single batch, and whole arrays for programs to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuloader.devices.base import Device, DeviceMemory
from gpuloader.devices.interop import find_capture
from gpuloader.fields.spec import Array
from gpuloader.staging.arena import Arena
from gpuloader.staging.layout import Layout, arrange
from gpuloader.staging.lease import Lease, lease_views
from gpuloader.staging.ring import Slot


def send(writers: Sequence[Callable[[Array], None]], layout: Layout, device: Device) -> list[Any]:
    """Copy a single batch to a device, in memory allocated for it, and return its arrays there.

    Each writer fills one array of the layout.
    """
    nbytes = max(layout.nbytes, 1)
    if device.direct and device.locker is not None:
        arena = Arena(nbytes, device.locker)
        slot = Slot(arena.bytes, arena, in_ring=False)
    else:
        # Page-locking memory for a single copy costs more than it saves.
        region = np.empty(nbytes, np.uint8)
        slot = Slot(region, region, in_ring=False)
    for view, write in zip(slot.views(layout), writers, strict=True):
        write(view)
    if device.direct:
        return lease_views(slot, layout, deque())
    stream, done = device.consumer_stream(), device.event()
    if (error := find_capture(device, stream)) is not None:
        raise error
    memory = device.alloc(layout.nbytes)
    device.copy_async(memory, slot, layout.nbytes, stream)
    device.record(done, stream)
    device.synchronize(done)
    return device.views(memory, layout, Lease(memory, deque()))


UPLOAD_NBYTES = 8 << 20
"""The bytes of each of the two staging slots through which `upload` copies whole arrays to a device."""


def upload(arrays: Sequence[Array], device: Device, memory: DeviceMemory | None = None) -> list[Any]:
    """Copy whole arrays to a device, in chunks, and return them there, for programs to read.

    They are placed in `memory` as `arrange` lays them out; None allocates memory for them.

    Raises
    ------
    StagingMemoryError
        The device has too little memory.
    """
    layout = arrange(tuple((array.shape, array.dtype) for array in arrays))
    memory = device.alloc(layout.nbytes) if memory is None else memory
    stream = device.stream()
    staging = Arena(2 * UPLOAD_NBYTES, device.locker)
    slots = [Slot(staging.bytes[start : start + UPLOAD_NBYTES], staging) for start in (0, UPLOAD_NBYTES)]
    done = [device.event(), device.event()]
    turn = 0
    for field, array in zip(layout.fields, arrays, strict=True):
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, data.size, UPLOAD_NBYTES):
            chunk = data[start : start + UPLOAD_NBYTES]
            slot, event = slots[turn], done[turn]
            device.synchronize(event)  # wait for the copy from this slot two chunks ago
            slot.bytes[: chunk.size] = chunk
            device.copy_async(memory, slot, chunk.size, stream, field.offset + start)
            device.record(event, stream)
            turn = 1 - turn
    for event in done:
        device.synchronize(event)
    return device.arrays(memory, layout)
