"""How much a loader costs over a bare loop that copies each batch into one reused buffer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.measure import Result, interleave
from gpuloader import DataLoader
from gpuloader.sources import mnist

Reader = Callable[[], Iterator[Any]]
BARE = "bare loop"


def ready_batches(repeats: int) -> Result:
    """Time batches of 32 x 784 float32 with labels, made once and yielded again and again."""
    count = 3_000
    images = np.random.default_rng(0).random((32, 784), np.float32)
    labels = np.arange(32).reshape(32, 1)

    def reader() -> Iterator[Any]:
        yield from itertools.repeat([images, labels], count)

    candidates = {
        BARE: lambda: bare_batches(reader, [images, labels]) / count * 1e6,
        "gpuloader, asynchronous": lambda: consume(load_batches(reader, 8, True)) / count * 1e6,
        "gpuloader, synchronous": lambda: consume(load_batches(reader, 8, False)) / count * 1e6,
        **peers.batch_candidates(reader, count),
    }
    return Result(
        "ready batches, 32 x 784 float32",
        "µs a batch",
        BARE,
        "at most 40 asynchronous, 25 synchronous",
        interleave(candidates, repeats),
    )


def images(repeats: int) -> Result:
    """Time batches of 64 x 3 x 224 x 224 uint8.

    The source batch and the bare loop's one buffer, 19 MB, may both stay in the last-level cache, and so
    may the slot of the synchronous loader. With a thread one slot is filled while another is in use and a
    third waits: the bare loop over three buffers in turn, 38 MB, is what a copy costs then.
    """
    count = 60
    pictures = np.random.default_rng(0).integers(0, 255, (64, 3, 224, 224), np.uint8)
    labels = np.arange(64)

    def reader() -> Iterator[Any]:
        yield from itertools.repeat([pictures, labels], count)

    # Made once: reserving a hundred MB belongs to the start of a run and not to each epoch of it.
    loaders = {
        "gpuloader, asynchronous": load_batches(reader, 4, True),
        "gpuloader, synchronous": load_batches(reader, 4, False),
    }
    candidates = {
        BARE: lambda: bare_batches(reader, [pictures, labels]) / count * 1e6,
        "bare loop, three buffers in turn": lambda: bare_batches(reader, [pictures, labels], 3) / count * 1e6,
        **{name: lambda loader=loader: consume(loader) / count * 1e6 for name, loader in loaders.items()},
        **peers.batch_candidates(reader, count),
    }
    return Result(
        "images, 64 x 3 x 224 x 224 uint8",
        "µs a batch",
        BARE,
        "0.85 of the bare loop's bandwidth",
        interleave(candidates, repeats),
    )


def samples(repeats: int) -> Result:
    """Time single digits, a float32 row and an int label each, batched by 100."""
    digits = mnist.sample().train
    rounds = 5

    def reader() -> Iterator[Any]:
        for _ in range(rounds):
            yield from mnist.sample_reader(digits)()

    return _samples("samples, a row of 784 float32 each", reader, rounds * len(digits), repeats)


def list_samples(repeats: int) -> Result:
    """Time single digits as JSON holds them, a list of 784 Python floats and an int each."""
    digits = mnist.sample().train
    rows = [
        (image.tolist(), int(label)) for image, label in zip(digits.images[:400], digits.labels, strict=False)
    ]

    def reader() -> Iterator[Any]:
        for _ in range(5):
            yield from rows

    return _samples("samples, a list of 784 floats each", reader, 5 * len(rows), repeats)


def _samples(case: str, reader: Reader, count: int, repeats: int) -> Result:
    candidates = {
        BARE: lambda: bare_samples(reader) / count * 1e6,
        "gpuloader, asynchronous": lambda: consume(load_samples(reader, True)) / count * 1e6,
        "gpuloader, synchronous": lambda: consume(load_samples(reader, False)) / count * 1e6,
        **peers.sample_candidates(reader, count),
    }
    return Result(case, "µs a sample", BARE, "0.7 of the bare loop's rate", interleave(candidates, repeats))


def bare_batches(reader: Reader, like: list[Any], turns: int = 1) -> float:
    """Return the seconds it takes to copy every batch into one reused buffer a field, or `turns` in turn."""
    buffers = itertools.cycle([[np.empty_like(array) for array in like] for _ in range(turns)])
    start = perf_counter()
    for batch, targets in zip(reader(), buffers, strict=False):
        for buffer, array in zip(targets, batch, strict=True):
            buffer[...] = array
    return perf_counter() - start


def bare_samples(reader: Reader) -> float:
    """Return the seconds it takes to write every sample into a row of one reused buffer a field."""
    rows, labels = np.empty((100, 784), np.float32), np.empty((100, 1), np.int64)
    start = perf_counter()
    for index, (image, label) in enumerate(reader()):
        rows[index % 100] = image
        labels[index % 100] = label
    return perf_counter() - start


def load_batches(reader: Reader, capacity: int, asynchronous: bool) -> Any:
    """Return a loader of ready batches."""
    loader = DataLoader.from_generator(capacity=capacity, return_list=True, use_double_buffer=asynchronous)
    return loader.set_batch_generator(reader, places="cpu")


def load_samples(reader: Reader, asynchronous: bool) -> Any:
    """Return a loader of samples, with the feeds of MNIST."""
    from gpuloader import data

    loader = DataLoader.from_generator(
        [data("image", [None, 784]), data("label", [None, 1], "int64")],
        capacity=8,
        use_double_buffer=asynchronous,
    )
    return loader.set_sample_generator(reader, batch_size=100, places="cpu")


def consume(loader: Any) -> float:
    """Return the seconds it takes to take every step and drop it, as the bare loop drops its batch."""
    start = perf_counter()
    for batch in loader:
        del batch
    return perf_counter() - start
