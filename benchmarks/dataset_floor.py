"""What a careful person would write without a loader: one thread, one set of buffers, no checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.dataset_samples import Arrays

Batch = list[NDArray[Any]]


class BareTake:
    """Batches of a shuffled data set of arrays, by `np.take` into one buffer a field."""

    def __init__(self, dataset: Arrays, batch_size: int) -> None:
        self._fields = [dataset.images, dataset.labels]
        self._order = np.random.default_rng(0).permutation(len(dataset))
        self._size = batch_size
        self._buffers = [np.empty((batch_size, *field.shape[1:]), field.dtype) for field in self._fields]

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._order), self._size):
            chosen = self._order[start : start + self._size]
            for field, buffer in zip(self._fields, self._buffers, strict=True):
                np.take(field, chosen, axis=0, out=buffer, mode="clip")
            yield self._buffers


class BareLoop:
    """Batches of any data set: each sample is fetched and written into its row of one buffer a field."""

    def __init__(self, dataset: Any, batch_size: int, *, shuffle: bool) -> None:
        self._dataset = dataset
        self._size = batch_size
        order = np.random.default_rng(0).permutation(len(dataset)) if shuffle else np.arange(len(dataset))
        self._order: list[int] = order.tolist()
        like = [np.asarray(value) for value in dataset[0]]
        self._buffers = [np.empty((batch_size, *value.shape), value.dtype) for value in like]

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._order), self._size):
            for row, index in enumerate(self._order[start : start + self._size]):
                for buffer, value in zip(self._buffers, self._dataset[index], strict=True):
                    buffer[row] = value
            yield self._buffers


def turn(loader: Iterable[Any], touch: Callable[[Any], object], least: float = 0.2) -> float:
    """Return the microseconds a batch of whole epochs takes, as many as fill `least` seconds.

    Of each batch the consumer reads one number, the very first, and drops it.
    """
    count, start = 0, perf_counter()
    while True:
        for batch in loader:
            touch(batch[0])
            count += 1
            del batch
        seconds = perf_counter() - start
        if seconds >= least:
            return seconds / count * 1e6


def touch(array: NDArray[Any]) -> object:
    """Read the first number of an array."""
    return array.item(0)
