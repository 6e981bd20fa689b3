"""`Mnist` and `DigitSet`: handwritten digits in memory, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIXELS = 28 * 28
HIGHEST_LABEL = 9
GREY_LEVELS = 256
"""A grey level k of the original files is the float k / 256, so pixels lie in [0, 1)."""
MAXIMUM_IMAGES = 70_000
"""All of MNIST: 60,000 training and 10,000 test images. No source reads more."""


@dataclass(frozen=True, slots=True, eq=False)
class DigitSet:
    """Images and what they show.

    Attributes
    ----------
    images : ndarray of float32, shape (n, 784)
        Grey levels in [0, 1), 0 being the background, row by row of the 28 x 28 image.
    labels : ndarray of int64, shape (n,)
        The digits, 0 to 9.

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
        What a model learns from; 50,000 images in the full set.
    valid : DigitSet
        What its settings are chosen on; 10,000.
    test : DigitSet
        What it is judged on at the end; 10,000.
    """

    train: DigitSet
    valid: DigitSet
    test: DigitSet


def from_bytes(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> DigitSet:
    """Return a set from grey levels 0 to 255 and labels as bytes.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, ...) with 784 pixels an image
    labels : ndarray of uint8, shape (n,)

    Returns
    -------
    DigitSet
        With k / 256 for grey level k, which float32 holds exactly.

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
