"""Telling the loader on which further streams a batch is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuloader.devices.foreign_arrays import is_on_host
from gpuloader.fields.ragged import Ragged
from gpuloader.pipeline.device_slots import find_slot


def record_stream(batch: Any, stream: Any) -> None:
    """Tell the loader that a batch on a GPU is also used on `stream`, so its memory is not reused too early.

    Call it while you hold the batch. After you have dropped the batch, the next copy into its memory waits
    for your work on `stream` as well as for that on the stream to which the batch was delivered.

    PyTorch's own ``tensor.record_stream`` does this for memory that PyTorch has allocated. For other memory,
    such as a batch's, it silently does nothing.

    It orders nothing else: make `stream` wait for the stream that the batch was delivered to before you read
    the batch on it.

    Any thread may call it. Batches in host memory need no streams, so for them it does nothing.

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
