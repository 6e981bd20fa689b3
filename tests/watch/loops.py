"""Loaders whose batches are counted, timed and traced."""

import time

import numpy as np

from tests.loading import read_batches
from tests.sample_sets import Made


def read_zeros(count=5, places="cpu", **options):
    """Return a loader of `count` batches of 256 bytes."""
    return read_batches(lambda: ([np.zeros((4, 8))] for _ in range(count)), places, **options)


def read_slowly(count, wait, **options):
    """Return a loader of `count` batches that take `wait` seconds each."""
    return read_batches(lambda: ([np.zeros(4)] for _ in range(count) if time.sleep(wait) is None), **options)


class Waiting(Made):
    """Samples that take time without computing, like reads from a disk."""

    def __init__(self, count=800, wait=0.001, make=np.float32):
        super().__init__(make, count)
        self.wait = wait

    def __getitem__(self, index):
        time.sleep(self.wait)
        return super().__getitem__(index)
