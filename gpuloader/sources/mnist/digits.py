"""`Mnist` and `DigitSet`: handwritten digits in memory, independent of the file they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
