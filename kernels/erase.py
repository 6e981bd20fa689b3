"""`erase`: fill a rectangle of each image with a color, in place, on the device or in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.kernels.dtypes import WORDS
from gpuloader.kernels.launching import Library, check_array, find_device, launch, make_struct, spread
from gpuloader.kernels.windows import (
    Layout,
    as_pixels,
    check_images,
    geometry_type,
)

ENTRIES = tuple(f"erase<{word}>" for size, word in WORDS.items() if size <= 8)

_MOST_COLORS = 64
_EACH = 8  # values of an image for each thread; rectangles are a part of it
_IMAGES = geometry_type("samples", "channels", "height", "width", "planar", "colored")
_COLOR = np.dtype([("bits", np.uint64, _MOST_COLORS)])


def erase(
    images: Any,
    windows: Any,
    *,
    color: ArrayLike = 0,
    layout: Layout = "CHW",
    stream: Any = None,
) -> Any:
    """Fill a rectangle of every image with a color, in place on the device, and return the images.

    Parameters
    ----------
    images : cupy.ndarray
        The images, shape (n, height, width, channels) or (n, channels, height, width) depending on `layout`.
        Any dtype of 1, 2, 4 or 8 bytes; at least 1 channel; fewer than 2**31 values per sample; contiguous.
    windows : cupy.ndarray
        For every sample: top, left, height and width of its rectangle. Shape (n, 4), int32. What reaches over
        the edge of the image is cut off; a rectangle without height or width fills nothing.
    color : float or sequence of float
        One number for all channels, or one for each of up to 64.
    layout : {"HWC", "CHW"}
        The layout of the images.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the images' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype.
    ValueError
        An array has another shape, is not contiguous, or is on another device; the color does not fit.
    """
    counts, values = _check(images, windows, color, layout, "cupy")
    device = find_device(images=images, windows=windows)
    if images.size:
        bits = np.zeros((values.size, 8), np.uint8)  # of each value, in the low bytes
        bits[:, : values.itemsize] = values.reshape(-1, 1).view(np.uint8)
        colors = np.zeros((), _COLOR)
        colors["bits"][: values.size] = bits.view("<u8")[:, 0]
        items = -(-images.size // len(images) // _EACH)
        arguments = images, windows, make_struct(_IMAGES, **counts), colors
        grid = spread(items, counts["samples"])
        launch("erase", f"erase<{WORDS[images.itemsize]}>", grid, arguments, device, stream)
    return images


def erase_on_host(
    images: NDArray[Any],
    windows: NDArray[np.int32],
    *,
    color: ArrayLike = 0,
    layout: Layout = "CHW",
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Fill a rectangle of every image with a color, in place: the twin of `erase`.

    Examples
    --------
    >>> images = np.zeros((1, 1, 2, 3), np.uint8)
    >>> erase_on_host(images, np.array([[0, 1, 1, 9]], np.int32), color=7).tolist()
    [[[[0, 7, 7], [0, 0, 0]]]]
    """
    _, values = _check(images, windows, color, layout, "numpy")
    for picture, (top, left, tall, wide) in zip(as_pixels(images, layout), windows.tolist(), strict=True):
        rows = slice(max(top, 0), max(top + tall, 0))
        picture[rows, max(left, 0) : max(left + wide, 0)] = values
    return images


def _check(
    images: Any, windows: Any, color: ArrayLike, layout: str, library: Library
) -> tuple[dict[str, int], NDArray[Any]]:
    """Return the kernel's geometry, and the color in the dtype of the images."""
    channels, height, width = check_images(images, layout, library)
    check_array("windows", windows, library, shape=(len(images), 4), dtypes=[np.int32])
    try:
        values = np.asarray(color, images.dtype).reshape(-1)
    except OverflowError as error:
        raise ValueError(f"color must fit into {images.dtype}, got {color!r}") from error
    if values.size not in (1, channels) or values.size > _MOST_COLORS:
        raise ValueError(
            f"color must be one number, or one number for each of {channels} channels, of which there may be "
            f"{_MOST_COLORS}; got {color!r}"
        )
    counts = {
        "samples": len(images),
        "channels": channels,
        "height": height,
        "width": width,
        "planar": int(layout == "CHW"),
        "colored": int(values.size > 1),
    }
    return counts, values
