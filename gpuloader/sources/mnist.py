"""MNIST: the digits as arrays, from gzip JSON, IDX files, or the sample that ships in the package."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.spec import check_count

PIXELS = 784
"""Of one image, 28 rows of 28."""


@dataclass(frozen=True, slots=True, eq=False)
class DigitSet:
    """Images and their labels.

    Attributes
    ----------
    images : numpy.ndarray
        Shape (count, 784), float32, from 0 up to but not including 1.
    labels : numpy.ndarray
        Shape (count,), int64, 0 to 9.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Mnist:
    """The three sets: train, valid and test."""

    train: DigitSet
    valid: DigitSet
    test: DigitSet


def load(path: str | os.PathLike[str] | None = None) -> Mnist:
    """Load MNIST.

    Parameters
    ----------
    path : path-like or None
        A gzip JSON file, or a folder with the four IDX files. None: the sample in the package.

    Raises
    ------
    FileNotFoundError
        There is no such file, or the folder lacks one of the four.
    DataFileError
        The file is truncated, foreign, or larger than MNIST can be.

    Examples
    --------
    >>> len(load().train)
    4000
    """
    from gpuloader.sources.idx import load_idx
    from gpuloader.sources.mnist_json import load_json

    if path is None:
        return sample()
    return load_idx(path) if Path(path).is_dir() else load_json(path)


def sample() -> Mnist:
    """Return the 5,000 digits in the package: 4,000 to train, 500 to validate, 500 to test.

    They are the first of each set of the original files.

    >>> digits = sample()
    >>> digits.train.images.shape, digits.test.labels[:3].tolist()
    ((4000, 784), [7, 2, 1])
    """
    with (
        resources.files("gpuloader.sources").joinpath("mnist-5k.npz").open("rb") as file,
        np.load(file) as arrays,
    ):
        return Mnist(
            *(
                from_bytes(arrays[f"{name}_images"], arrays[f"{name}_labels"])
                for name in ("train", "valid", "test")
            )
        )


def from_bytes(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> DigitSet:
    """Return a set from pixels of 0 to 255, scaled by 1/256 as the JSON file stores them.

    >>> from_bytes(np.full((1, 28, 28), 128, np.uint8), np.array([7], np.uint8)).images[0, 0]
    np.float32(0.5)
    """
    flat = images.reshape(len(images), -1)
    return DigitSet(flat.astype(np.float32) / np.float32(256), labels.astype(np.int64))


def batches(
    digits: DigitSet,
    batch_size: int = 100,
    *,
    shuffle: bool = True,
    seed: int | None = None,
    flat_labels: bool = False,
) -> Callable[[], Iterator[tuple[NDArray[Any], NDArray[Any]]]]:
    """Return a reader of ready batches that visits every digit once an epoch, the last batch short.

    Parameters
    ----------
    digits : DigitSet
        What to read.
    batch_size : int
        Digits a batch.
    shuffle : bool
        Draw a new order each epoch.
    seed : int or None
        Of the orders; two readers of one seed give the same epochs.
    flat_labels : bool
        Labels of shape (n,) rather than (n, 1). A squared error against predictions of shape (n, 1) then
        broadcasts over all pairs: see `gpuloader.demo.linear`.

    Returns
    -------
    callable
        For `set_batch_generator`; yields images (n, 784) and labels, both float32.

    Raises
    ------
    ValueError
        The batch size is not an integer of 1 or more.

    Examples
    --------
    >>> reader = batches(sample().test, batch_size=300, seed=0)
    >>> [(images.shape, labels.shape) for images, labels in reader()]
    [((300, 784), (300, 1)), ((200, 784), (200, 1))]
    """
    size = check_count("batch_size", batch_size)
    orders = np.random.default_rng(seed)
    labels = digits.labels.astype(np.float32)
    if not flat_labels:
        labels = labels.reshape(-1, 1)

    def read() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        count = len(digits)
        order = orders.permutation(count) if shuffle else np.arange(count)
        for start in range(0, count, size):
            chosen = order[start : start + size]
            yield digits.images[chosen], labels[chosen]

    return read


def samples(digits: DigitSet) -> Callable[[], Iterator[tuple[NDArray[np.float32], int]]]:
    """Return a reader of single digits in their order, for `set_sample_generator`.

    >>> image, label = next(iter(samples(sample().test)()))
    >>> image.shape, label
    ((784,), 7)
    """

    def read() -> Iterator[tuple[NDArray[np.float32], int]]:
        yield from zip(digits.images, digits.labels.tolist(), strict=True)

    return read
