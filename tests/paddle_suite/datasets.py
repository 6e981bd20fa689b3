"""Datasets for the cases, made of a library's own base classes."""

import numpy as np

WIDTH = 32


def sample(index):
    """Return picture and label number `index`: always the same ones."""
    rng = np.random.default_rng(index)
    return rng.random(WIDTH, "float32"), rng.integers(0, 9, (1,))


def batch_of(index, size):
    """Return a whole batch as one sample."""
    images, labels = zip(*(sample(index * size + offset) for offset in range(size)), strict=True)
    return np.stack(images), np.stack(labels)


def pictures(lib, count, make=sample):
    """Return a map-style dataset of `count` samples."""

    class Pictures(lib.io.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, index):
            return make(index)

    return Pictures()


def stream(lib, count, make=sample):
    """Return an iterable dataset of `count` samples; every worker yields all of them."""

    class Stream(lib.io.IterableDataset):
        def __iter__(self):
            return (make(index) for index in range(count))

    return Stream()
