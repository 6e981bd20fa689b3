"""Windows of images, as `crop` and `normalize` cut them: checks of arguments, shapes, and the host's copy.

The device's part is in windows.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.launching import Library, check_array, check_size

Layout = Literal["HWC", "CHW"]

LAYOUTS = ("HWC", "CHW")
_MOST_VALUES, _MOST_SAMPLES = 2**31, 2**32  # values per sample: the kernels count in 32 bits


def check_layout(name: str, layout: object) -> None:
    """Raise `ValueError` unless `layout` is "HWC" or "CHW".

    >>> check_layout("layout", "CHW")
    """
    if layout not in LAYOUTS:
        raise ValueError(f"{name} must be 'HWC' or 'CHW', got {layout!r}")


def split_shape(shape: Sequence[int], layout: str) -> tuple[int, int, int]:
    """Return the channels, height and width of an image of this shape.

    >>> split_shape((32, 40, 3), "HWC")
    (3, 32, 40)
    """
    first, second, third = shape
    return (third, first, second) if layout == "HWC" else (first, second, third)


def join_shape(channels: int, height: int, width: int, layout: str) -> tuple[int, int, int]:
    """Return the shape of an image in a layout.

    >>> join_shape(3, 32, 40, "HWC")
    (32, 40, 3)
    """
    return (height, width, channels) if layout == "HWC" else (channels, height, width)


def as_pixels(images: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return a view of images as (n, height, width, channels)."""
    return images if layout == "HWC" else images.transpose(0, 2, 3, 1)


def check_numbers(name: str, array: Any) -> None:
    """Raise `TypeError` unless an array holds numbers that kernels move as words: of 1, 2, 4 or 8 bytes.

    >>> check_numbers("images", np.zeros(3, bool))
    """
    if array.dtype.itemsize not in (1, 2, 4, 8) or array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers of 1, 2, 4 or 8 bytes, got {array.dtype}")


def measure(images: Any, layout: str, most_channels: int | None = None) -> tuple[int, int, int]:
    """Return the channels, height and width of a batch of images.

    Raises
    ------
    ValueError
        There is no channel, there are more than `most_channels`, or a sample has 2**31 values or more.

    Examples
    --------
    >>> measure(np.zeros((8, 32, 40, 3), np.uint8), "HWC")
    (3, 32, 40)
    """
    channels, height, width = split_shape(images.shape[1:], layout)
    if not channels or (most_channels is not None and channels > most_channels):
        expected = "at least 1 channel" if most_channels is None else f"1 to {most_channels} channels"
        raise ValueError(
            f"images must have {expected}, got {channels} in images of shape {images.shape[1:]} "
            f"in layout {layout}"
        )
    if len(images) >= _MOST_SAMPLES:
        raise ValueError(f"there must be fewer than {_MOST_SAMPLES} images, got shape {images.shape}")
    if channels * height * width >= _MOST_VALUES:
        raise ValueError(
            f"images must have fewer than {_MOST_VALUES} values each, got shape {images.shape[1:]}"
        )
    return channels, height, width


def check_images(images: Any, layout: str, library: Library) -> tuple[int, int, int]:
    """Return the channels, height and width of images that a kernel moves as words, or raise as `crop` does.

    >>> check_images(np.zeros((8, 32, 40, 3), np.uint8), "HWC", "numpy")
    (3, 32, 40)
    """
    check_array("images", images, library, shape=(None,) * 4)
    check_numbers("images", images)
    check_layout("layout", layout)
    return measure(images, layout)


def check_window(size: object, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of windows of images of this size, or raise as `crop` does.

    >>> check_window((28, 28), 32, 40)
    (28, 28)
    """
    if not isinstance(size, Sequence) or len(size) != 2:
        raise ValueError(f"size must be (height, width), got {size!r}")
    return (
        check_size("height in size", size[0], 0, height + 1),
        check_size("width in size", size[1], 0, width + 1),
    )


def cut_windows(pixels: NDArray[Any], windows: NDArray[np.int32], target: NDArray[Any]) -> None:
    """Write windows of images into `target`; both are (n, height, width, channels)."""
    height, width = target.shape[1:3]
    for image, out, (top, left, flip) in zip(pixels, target, windows.tolist(), strict=True):
        y = min(max(top, 0), pixels.shape[1] - height)
        x = min(max(left, 0), pixels.shape[2] - width)
        window = image[y : y + height, x : x + width]
        out[...] = window[:, ::-1] if flip else window


def geometry_type(*counts: str) -> np.dtype[Any]:
    """Return the dtype of a kernel's geometry, with the named counts as uint32.

    >>> geometry_type("height", "width").itemsize
    8
    """
    return np.dtype([(name, np.uint32) for name in counts])
