"""Loaders on the CUDA device over the fake runtime, and what tests read of their batches."""

from types import SimpleNamespace

import numpy as np

from tests.fakes_cuda import read
from tests.loading import read_batches


def batches(count):
    return lambda: ([np.full((3, 5), n, np.float32), np.full((3, 1), n)] for n in range(count))


def fake_torch(current):
    """Return PyTorch, with a function that returns the handle of its current stream on a device."""
    cuda = SimpleNamespace(is_initialized=lambda: True)
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_getCurrentRawStream=current))


def load(count, places="gpu:0", **options):
    return read_batches(batches(count), places, capacity=3, **options)


def numbers_of(runtime, batches):
    """Return the numbers of batches, each of which is read once its copy has run, and dropped."""
    numbers = []
    for images, *_ in batches:
        runtime.finish()
        numbers.append(int(read(images)[0, 0]))
        del images, _
    return numbers


def ragged(sizes):
    """Return a reader of batches with these numbers of rows."""
    return lambda: ([np.full((size, 100), n, np.float32)] for n, size in enumerate(sizes))


REFUSED = "gpu:0: its stream is being captured; a loader cannot deliver a batch during a graph capture"
