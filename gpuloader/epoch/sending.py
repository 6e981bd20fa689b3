"""Copies to a device outside an epoch: a single batch, and whole arrays for programs to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpuloader.devices.base import Device, DeviceMemory, tell_capture
from gpuloader.epoch.device_slots import find_slot
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import Array
from gpuloader.foreign import is_on_host
from gpuloader.staging import Arena, Layout, Lease, Slot, arrange, lease_views


def send(writers: Sequence[Callable[[Array], None]], layout: Layout, device: Device) -> list[Any]:
    """Copy a single batch to a device, in memory allocated for it, and return its arrays there.

    Each writer fills one array of the layout.
    """
    nbytes = max(layout.nbytes, 1)
    if device.direct and device.locker is not None:
        arena = Arena(nbytes, device.locker)
        slot = Slot(arena.bytes, arena, in_ring=False)
    else:
        # Pinning memory for a single copy costs more than it saves.
        region = np.empty(nbytes, np.uint8)
        slot = Slot(region, region, in_ring=False)
    for view, write in zip(slot.views(layout), writers, strict=True):
        write(view)
    if device.direct:
        return lease_views(slot, layout, deque())
    # A single copy has nothing to overlap with, so it is issued on the user's stream and waited for.
    stream, done = device.consumer_stream(), device.event()
    if device.is_capturing(stream):
        raise tell_capture(device.name)
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
    """
    # Two small pinned slots alternate: while one is copied, the host fills the other.
    layout = arrange(tuple((array.shape, array.dtype) for array in arrays))
    memory = device.alloc(layout.nbytes) if memory is None else memory
    stream = device.stream()
    staging = Arena(2 * UPLOAD_NBYTES, device.locker)
    slots = [Slot(staging.bytes[start : start + UPLOAD_NBYTES], staging) for start in (0, UPLOAD_NBYTES)]
    done = [device.event(), device.event()]  # count as reached until they are recorded
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


# Registers additional streams that use a batch.


def record_stream(batch: Any, stream: Any) -> None:
    """Tell the loader that a batch on a GPU is also used on `stream`, so its memory is not reused too early.

    Call it while you hold the batch. After you drop the batch, the next copy into its memory also waits for
    your work on `stream`.

    Don't use PyTorch's ``tensor.record_stream`` for this: on memory that PyTorch has not allocated, such as a
    batch's, it silently does nothing.

    This orders nothing else: before you read the batch on `stream`, make `stream` wait for the stream that
    the batch was delivered to.

    Any thread may call it. For batches in host memory it does nothing.

    Parameters
    ----------
    batch : array, tensor, or a dict, list or tuple of them
        What the loader returned, or a part of it. All arrays of a batch share its memory, so one of them is
        enough.
    stream : object
        A stream with ``__cuda_stream__`` or ``cuda_stream``, such as those of PyTorch, CuPy and cuda.core.
        For a batch on a simulated device, one of its streams.

    Raises
    ------
    ValueError
        An array on a GPU is not in a loader's memory, such as the result of a computation.
    TypeError
        `stream` is not a stream.
    LoaderError
        `stream` belongs to a GPU different from the batch's.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader, record_stream
    >>> from gpuloader.testing import simulated_places
    >>> [place] = simulated_places(1)
    >>> main, side = place.device.consumer_stream(), place.device.stream()
    >>> for numbers in DataLoader(np.arange(6), places=place, batch_size=2):
    ...     ready = place.device.event()
    ...     place.device.record(ready, main); place.device.wait(side, ready)
    ...     seen = numbers.launch_read(side)  # a kernel on another stream
    ...     record_stream(numbers, side)
    >>> place.device.finish(side); seen[0].tolist()
    [4, 5]
    """
    for array in _list_arrays(batch):
        slot = find_slot(array)
        if slot is not None:
            slot.add_stream(stream)
        elif not is_on_host(array) and 0 not in array.shape:
            raise ValueError(
                f"an array of {type(array).__module__} with shape {tuple(array.shape)} does not lie in the "
                "memory of a loader's batch; pass what the loader returned, and for results of computations "
                "call your framework's own function, such as tensor.record_stream"
            )


def _list_arrays(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif isinstance(batch, Ragged):
        batch = (batch.values, *batch.row_splits)
    elif hasattr(batch, "shape"):
        yield batch
        return
    elif not isinstance(batch, list | tuple):
        return
    for part in batch:
        yield from _list_arrays(part)
