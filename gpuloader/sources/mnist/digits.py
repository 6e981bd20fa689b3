"""MNIST in memory: `Mnist` and `DigitSet`, the digits in the package, and readers of digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count

PIXELS = 28 * 28
HIGHEST_LABEL = 9
GREY_LEVELS = 256
"""Gray level k of the original files becomes the float k / 256, so pixels lie in [0, 1)."""
MAXIMUM_IMAGES = 70_000
"""The images in all of MNIST: 60,000 training and 10,000 test images. No reader accepts more."""


@dataclass(frozen=True, slots=True, eq=False)
class DigitSet:
    """Images of digits and their labels.

    Attributes
    ----------
    images : ndarray of float32, shape (n, 784)
        Gray levels in [0, 1), row by row of the 28 x 28 image; 0 is the background.
    labels : ndarray of int64, shape (n,)
        The digits in the images, 0 to 9.

    Examples
    --------
    >>> digits = DigitSet(np.zeros((3, 784), np.float32), np.array([5, 0, 4]))
    >>> len(digits)
    3
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Mnist:
    """The three sets of MNIST.

    Attributes
    ----------
    train : DigitSet
        The training set: 50,000 images in the full data.
    valid : DigitSet
        The validation set, for choosing hyperparameters: 10,000 images in the full data.
    test : DigitSet
        The test set, for the final evaluation: 10,000 images in the full data.
    """

    train: DigitSet
    valid: DigitSet
    test: DigitSet


def from_bytes(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> DigitSet:
    """Return a set made from gray levels 0 to 255 and labels, both as bytes.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, ...)
        The images, 784 pixels each.
    labels : ndarray of uint8, shape (n,)
        The labels.

    Returns
    -------
    DigitSet
        The digits, with k / 256 for gray level k, which float32 represents exactly.

    Examples
    --------
    >>> images = np.full((1, 28, 28), 64, np.uint8)
    >>> from_bytes(images, np.array([7], np.uint8)).images[0, 0].item()
    0.25
    """
    levels: NDArray[Any] = images.reshape(len(images), PIXELS)
    return DigitSet(
        np.multiply(levels, np.float32(1 / GREY_LEVELS), dtype=np.float32), labels.astype(np.int64)
    )


def sample() -> Mnist:
    """Return the 5,000 digits in the package: 4,000 for training, 500 for validation, 500 for testing.

    They are the first digits of each set of the full data.

    Returns
    -------
    Mnist
        The three sets, in the same form as from the full files; 15.7 MB.

    Examples
    --------
    >>> digits = sample()
    >>> digits.train.images.shape, digits.test.labels[:3].tolist()
    ((4000, 784), [7, 2, 1])
    """
    packed = resources.files("gpuloader.sources.mnist").joinpath("mnist-5k.npz")
    with packed.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        train, valid, test = (
            from_bytes(arrays[f"{name}_images"], arrays[f"{name}_labels"])
            for name in ("train", "valid", "test")
        )
    return Mnist(train, valid, test)


def reader(
    digits: DigitSet,
    batch_size: int = 100,
    shuffle: bool = True,
    seed: int | None = None,
    *,
    flat_labels: bool = False,
) -> Callable[[], Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]]:
    """Return a reader of ready batches that visits every digit once per epoch; the last batch may be short.

    Parameters
    ----------
    digits : DigitSet
        The digits to read.
    batch_size : int
        Digits per batch, 1 or more.
    shuffle : bool
        True draws a new order each time the reader is called. False keeps the order of `digits`.
    seed : int or None
        The seed of the orders. The epochs of one reader differ, and readers with the same seed agree epoch by
        epoch. None draws other orders in each run. A reader that runs in its own process begins each epoch
        from the random state it was sent with, so every epoch there has the same order.
    flat_labels : bool
        True returns labels of shape (n,) rather than (n, 1). A squared error against predictions of shape
        (n, 1) then broadcasts over all pairs: see `gpuloader.demo.linear`.

    Returns
    -------
    callable
        A reader for `set_batch_generator`. It returns an iterator of (images, labels): float32 of shape
        (n, 784) and float32 of shape (n, 1), or (n,) with `flat_labels`. Batches are copies.

    Raises
    ------
    ValueError
        The batch size is not an integer of 1 or more.

    Examples
    --------
    >>> read = reader(sample().test, batch_size=300, seed=0)
    >>> [(images.shape, labels.shape) for images, labels in read()]
    [((300, 784), (300, 1)), ((200, 784), (200, 1))]
    """
    size = check_count("batch_size", batch_size)
    orders = np.random.default_rng(seed)
    labels = digits.labels.astype(np.float32)
    if not flat_labels:
        labels = labels.reshape(-1, 1)

    def read() -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        # Drawn here, not at the first batch, so that overlapping epochs get their orders as they begin.
        order: NDArray[Any] = orders.permutation(len(digits)) if shuffle else np.arange(len(digits))
        chosen = (order[start : start + size] for start in range(0, len(order), size))
        return ((digits.images[indices], labels[indices]) for indices in chosen)

    return read


def sample_reader(digits: DigitSet) -> Callable[[], Iterator[tuple[NDArray[np.float32], int]]]:
    """Return a reader of single digits in order, for `set_sample_generator`.

    Parameters
    ----------
    digits : DigitSet
        The digits to read.

    Returns
    -------
    callable
        A reader that returns an iterator of (image, label): a view of shape (784,) into `digits.images`, and
        an integer.

    Examples
    --------
    >>> image, label = next(sample_reader(sample().test)())
    >>> image.shape, label
    ((784,), 7)
    """
    return lambda: zip(digits.images, digits.labels.tolist(), strict=True)
