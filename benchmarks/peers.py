"""The same work through other loaders, where they are installed; as their users would write it."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.measure import Candidate

Reader = Callable[[], Iterator[Any]]


def batch_candidates(reader: Reader, count: int) -> dict[str, Candidate]:
    """Return the peers' candidates for a reader of ready batches."""
    return _candidates(reader, count, batch_size=None)


def sample_candidates(reader: Reader, count: int, batch_size: int = 100) -> dict[str, Candidate]:
    """Return the peers' candidates for a reader of samples."""
    return _candidates(reader, count, batch_size)


def _candidates(reader: Reader, count: int, batch_size: int | None) -> dict[str, Candidate]:
    found: dict[str, Candidate] = {}
    if importlib.util.find_spec("torch"):
        found["torch DataLoader, no worker"] = lambda: _consume(_torch(reader, batch_size, 0), count)
        found["torch DataLoader, 1 worker"] = lambda: _consume(_torch(reader, batch_size, 1), count)
    if importlib.util.find_spec("paddle"):
        found["paddle DataLoader, no worker"] = lambda: _consume(_paddle(reader, batch_size), count)
    return found


def _consume(loader: Any, count: int) -> float:
    start = perf_counter()
    for batch in loader:
        del batch
    return (perf_counter() - start) / count * 1e6


def _torch(reader: Reader, batch_size: int | None, workers: int) -> Any:
    import torch.utils.data

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            for item in reader():
                # A sample's arrays are collated by torch; ready batches become tensors without a copy.
                yield item if batch_size else [torch.from_numpy(array) for array in item]

    return torch.utils.data.DataLoader(Stream(), batch_size=batch_size, num_workers=workers)


def _paddle(reader: Reader, batch_size: int | None) -> Any:
    import paddle

    class Stream(paddle.io.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return (tuple(item) for item in reader())

    if batch_size:
        return paddle.io.DataLoader(Stream(), batch_size=batch_size, return_list=True)
    # batch_size=None hands ready batches through, converted to tensors one by one.
    return paddle.io.DataLoader(Stream(), batch_size=None, return_list=True)


def wait(milliseconds: float) -> Callable[[], None]:
    """Return a function that waits, as for a disk or a device."""
    import time

    return lambda: time.sleep(milliseconds / 1000)


def multiply(milliseconds: float) -> Callable[[], None]:
    """Return a function that multiplies matrices for about so long."""
    size = 192
    left = np.random.default_rng(0).random((size, size), np.float32)
    start = perf_counter()
    for _ in range(50):
        left @ left
    rounds = max(1, round(milliseconds / 1000 / ((perf_counter() - start) / 50)))

    def work() -> None:
        for _ in itertools.repeat(None, rounds):
            left @ left

    return work
