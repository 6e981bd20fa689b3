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
    launch,
    make_struct,
    obtain,
    obtain_on_device,
    spread,
)
from gpuloader.kernels.windows import (
    Layout,
    as_pixels,
    check_layout,
    check_window,
    cut_windows,
    geometry_type,
    join_shape,
    measure,
)

_SIZES = (1, 2, 4, 8)

ENTRIES = tuple(f"crop<{WORDS[size]}>" for size in _SIZES)

_PICTURES = geometry_type("planes", "height", "width", "pixel", "out_height", "out_width")


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
        items = counts["planes"] * counts["out_height"] * -(-counts["out_width"] * counts["pixel"] // 4)
        entry = f"crop<{WORDS[images.itemsize]}>"
        arguments = images, windows, result, make_struct(_PICTURES, **counts)
        launch("crop", entry, spread(items, counts["samples"]), arguments, device, stream)
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
    """Return the shape of the result, and the kernel's geometry."""
    check_array("images", images, library, shape=(None,) * 4)
    if images.dtype.itemsize not in _SIZES or images.dtype.kind not in "biuf":
        raise TypeError(f"images must hold numbers of 1, 2, 4 or 8 bytes, got {images.dtype}")
    check_layout("layout", layout)
    channels, height, width = measure(images, layout)
    out_height, out_width = check_window(size, height, width)
    samples = len(images)
    check_array("windows", windows, library, shape=(samples, 3), dtypes=[np.int32])
    planes, pixel = (1, channels) if layout == "HWC" else (channels, 1)
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
