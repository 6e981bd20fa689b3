"""Readers of MNIST, as in Paddle's ``paddle.dataset.mnist``. Nothing is downloaded.

The digits come from the first of these that exists:

1. the file or folder that the environment variable ``GPULOADER_MNIST`` names: see `sources.mnist.load`;
2. the folder ``~/.cache/paddle/dataset/mnist``, into which Paddle downloads;
3. the digits in this package, a part of MNIST. Using them gives a warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import warn

if TYPE_CHECKING:
    from gpuloader.sources.mnist import DigitSet, Mnist

__all__ = ["test", "train"]

Digits = Callable[[], Iterator[tuple[NDArray[np.float32], int]]]

_AT_ONCE = 100


def train() -> Digits:
    """Return a reader of the training digits: 60,000 of the full data, 4,500 of the digits in the package.

    Returns
    -------
    callable
        A reader of (image, label): float32 of shape (784,) from -1 for the background to 1, and an integer.

    Raises
    ------
    FileNotFoundError
        ``GPULOADER_MNIST`` names no file or folder.
    DataFileError
        Raised while reading: the file is damaged or has another format.

    Examples
    --------
    >>> import gpuloader, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # these are the digits in the package
    ...     batches = gpuloader.batch(train(), batch_size=16)
    >>> batch = next(batches())
    >>> np.array([image for image, _ in batch]).shape, [label for _, label in batch][:5]
    ((16, 784), [5, 0, 4, 1, 9])
    """
    return _make_reader(("train", "valid"))


def test() -> Digits:
    """Return a reader of the test digits: 10,000 of the full data, 500 of the digits in the package.

    Returns and raises what `train` does.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # these are the digits in the package
    ...     digits = test()
    >>> image, label = next(digits())
    >>> image.shape, float(image.min()), float(image.max()), label
    ((784,), -1.0, 1.0, 7)
    """
    return _make_reader(("test",))


test.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for one of its own


def _make_reader(names: tuple[str, ...]) -> Digits:
    path = _find()

    def read() -> Iterator[tuple[NDArray[np.float32], int]]:
        digits = _load(path)
        for name in names:
            yield from _scaled(getattr(digits, name))

    return read


def _find() -> str | None:
    """Return the path of the digits, or None for those in the package."""
    named = os.environ.get("GPULOADER_MNIST")
    if named:
        if not Path(named).exists():
            raise FileNotFoundError(f"the variable GPULOADER_MNIST names {named!r}, which does not exist")
        return named
    downloaded = Path.home() / ".cache" / "paddle" / "dataset" / "mnist"
    if len(list(downloaded.glob("*-idx?-ubyte*"))) == 4:  # images and labels, for training and for testing
        return str(downloaded)
    warn(
        "reading the 5,000 digits in the package: for all 70,000, set the environment variable "
        "GPULOADER_MNIST to a mnist.json.gz or to a folder with the four IDX files"
    )
    return None


@lru_cache(maxsize=1)
def _load(path: str | None) -> Mnist:
    from gpuloader.sources.mnist import load  # imported late: not every program reads MNIST

    return load(path)


def _scaled(digits: DigitSet) -> Iterator[tuple[NDArray[np.float32], Any]]:
    """Yield digits whose gray levels k are k / 255 * 2 - 1, with the same bits as Paddle's."""
    labels = digits.labels.tolist()
    for start in range(0, len(digits), _AT_ONCE):
        stop = start + _AT_ONCE
        images = digits.images[start:stop] * 256  # the levels, exactly
        images /= 255.0
        images *= 2.0
        images -= 1.0
        yield from zip(images, labels[start:stop], strict=True)
