"""`crop`: cut windows out of images, mirrored on request, on the device or in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.dtypes import WORDS
from gpuloader.kernels.launching import (
    Library,
    check_array,
    find_word,
    launch,
    make_struct,
    obtain,
    obtain_on_device,
    spread_images,
)
from gpuloader.kernels.windows import (
    Layout,
    as_pixels,
    check_images,
    check_window,
    cut_windows,
    geometry_type,
    join_shape,
)

_LEAST_WORD, _LANE = 4, 16  # bytes that are stored at once, and that a lane stores of a row
_MOST_BYTES, _MOST_ROWS = 2**30, 2**32  # of a row, and in all: the kernel counts them in 32 bits

ENTRIES = tuple(f"crop<{word}>" for size, word in WORDS.items() if size >= _LEAST_WORD)

_PICTURES = geometry_type("samples", "planes", "height", "width", "pixel", "out_height", "out_width")


def crop(
    images: Any,
    size: Sequence[int],
    windows: Any,
    *,
    layout: Layout = "HWC",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return a window of every image, on the device; each may be mirrored left to right.

    Parameters
    ----------
    images : cupy.ndarray
        The images, shape (n, height, width, channels) or (n, channels, height, width) depending on `layout`.
        Any dtype of 1, 2, 4 or 8 bytes; at least 1 channel; fewer than 2**31 values per sample; contiguous.
    size : (int, int)
        Height and width of the windows, at most those of the images.
    windows : cupy.ndarray
        For every sample: top, left, and whether to mirror left to right (0 or not 0). Shape (n, 3), int32.
        The window is cut out first, then mirrored. A window that reaches over the edge is moved inside.
    layout : {"HWC", "CHW"}
        The layout of the images and of the result.
    out : cupy.ndarray or None
        The array to write to, with the result's shape and dtype; contiguous, not overlapping the images.
        None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the images' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype.
    ValueError
        An array has another shape, is not contiguous, or is on another device; a size is out of range.
    """
    shape, counts = _check(images, size, windows, layout, "cupy")
    result, device = obtain_on_device(out, shape, images.dtype, images=images, windows=windows)
    if result.size:
        row = counts["out_width"] * counts["pixel"]
        word = max(find_word(row, result.data.ptr), _LEAST_WORD)
        words = -(-row // word) + (row % word > 0 or result.data.ptr % word > 0)  # a row may begin within one
        grid = spread_images(counts["samples"], counts["out_height"], words, counts["planes"], _LANE // word)
        arguments = images, windows, result, make_struct(_PICTURES, **counts)
        launch("crop", f"crop<{WORDS[word]}>", grid, arguments, device, stream)
    return result


def crop_on_host(
    images: NDArray[Any],
    size: Sequence[int],
    windows: NDArray[np.int32],
    *,
    layout: Layout = "HWC",
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return a window of every image, each mirrored left to right on request: the twin of `crop`.

    Examples
    --------
    >>> images = np.arange(6, dtype=np.uint8).reshape(1, 2, 3, 1)
    >>> crop_on_host(images, (1, 2), np.array([[1, 1, 1]], np.int32)).ravel().tolist()
    [5, 4]
    """
    shape, _ = _check(images, size, windows, layout, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", shape, [images.dtype])
    cut_windows(as_pixels(images, layout), windows, as_pixels(result, layout))
    return result


def _check(
    images: Any, size: Sequence[int], windows: Any, layout: str, library: Library
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the shape of the result, and the kernel's geometry, where `pixel` is in bytes."""
    channels, height, width = check_images(images, layout, library)
    out_height, out_width = check_window(size, height, width)
    samples = len(images)
    check_array("windows", windows, library, shape=(samples, 3), dtypes=[np.int32])
    planes, pixel = (1, channels) if layout == "HWC" else (channels, 1)
    pixel *= images.itemsize
    if width * pixel >= _MOST_BYTES:
        raise ValueError(f"rows of images must have fewer than {_MOST_BYTES} bytes, got {width * pixel}")
    if samples * planes * height >= _MOST_ROWS:
        raise ValueError(f"images must have fewer than {_MOST_ROWS} rows in all, got shape {images.shape}")
    counts = {
        "samples": samples,
        "planes": planes,
        "height": height,
        "width": width,
        "pixel": pixel,
        "out_height": out_height,
        "out_width": out_width,
    }
    return (samples, *join_shape(channels, out_height, out_width, layout)), counts
