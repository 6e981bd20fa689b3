"""The bare loops that a careful engineer would write: one thread, one set of buffers, no checks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import Loader
from benchmarks.peers.cases import Case
from benchmarks.peers.samples import Arrays, Stream

Batch = list[NDArray[Any]]


class BareTake:
    """Batches of a shuffled dataset of arrays, gathered by `np.take` into one buffer per field."""

    def __init__(self, dataset: Arrays, batch_size: int) -> None:
        self._fields = [dataset.images, dataset.labels]
        self._order = np.random.default_rng(0).permutation(len(dataset))
        self._size = batch_size
        self._buffers = [np.empty((batch_size, *field.shape[1:]), field.dtype) for field in self._fields]

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._order), self._size):
            chosen = self._order[start : start + self._size]
            for field, buffer in zip(self._fields, self._buffers, strict=True):
                np.take(field, chosen, axis=0, out=buffer[: len(chosen)], mode="clip")
            yield self._buffers


class BareLoop:
    """Batches of any dataset, each sample written into its row of one buffer per field."""

    def __init__(self, dataset: Any, batch_size: int, *, shuffle: bool) -> None:
        self._dataset = dataset
        self._size = batch_size
        order = np.random.default_rng(0).permutation(len(dataset)) if shuffle else np.arange(len(dataset))
        self._order: list[int] = order.tolist()
        self._buffers = _buffers_for(dataset[0], batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._order), self._size):
            for row, index in enumerate(self._order[start : start + self._size]):
                for buffer, value in zip(self._buffers, self._dataset[index], strict=True):
                    buffer[row] = value
            yield self._buffers


class BareStream:
    """Batches of a stream of samples, each written into its row of one buffer per field."""

    def __init__(self, stream: Stream, batch_size: int) -> None:
        self._stream = stream
        self._size = batch_size
        image, label = stream.items[0]
        self._buffers = _buffers_for((np.asarray(image, np.float32), np.int64(label)), batch_size)

    def __iter__(self) -> Iterator[Batch]:
        images, labels = self._buffers
        samples = iter(self._stream)
        while chosen := list(itertools.islice(samples, self._size)):
            for row, (image, label) in enumerate(chosen):
                images[row] = image
                labels[row] = label
            yield self._buffers


class BareCopy:
    """Ready batches, each copied into one set of buffers, or into several sets in turn."""

    def __init__(self, stream: Stream, sets: int = 1) -> None:
        self._stream = stream
        self._sets = [[np.empty_like(field) for field in stream.items[0]] for _ in range(sets)]

    def __iter__(self) -> Iterator[Batch]:
        for batch, buffers in zip(self._stream, itertools.cycle(self._sets), strict=False):
            for buffer, field in zip(buffers, batch, strict=True):
                buffer[...] = field
            yield buffers


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return the bare loop and, for large batches, one over three buffers, as a prefetching reader uses."""
    dataset = case.make(case.length)
    match case.name:
        case "arrays":
            return {"np.take": BareTake(dataset, case.size)}
        case "stream" | "stream_lists":
            return {"bare loop": BareStream(dataset, case.size)}
        case "ready":
            return {"bare loop": BareCopy(dataset)}
        case "ready_images":
            return {"bare loop": BareCopy(dataset), "three buffers in turn": BareCopy(dataset, 3)}
    return {"bare loop": BareLoop(dataset, case.size, shuffle=case.shuffle)}


def touch(batch: Batch) -> object:
    """Read the first number of the first array."""
    return batch[0].item(0)


def _buffers_for(sample: Any, batch_size: int) -> Batch:
    values = [np.asarray(value) for value in sample]
    return [np.empty((batch_size, *value.shape), value.dtype) for value in values]
