"""`crop`: windows of pictures, mirrored where asked, on the device or in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.dtypes import WORDS
from gpuloader.kernels.launching import (
    Library,
    check_array,
    check_size,
    find_device,
    launch,
    obtain,
    spread,
)

_SIZES = (1, 2, 4, 8)
_MOST_VALUES = 2**31  # of a sample: the kernel counts them in 32 bits

ENTRIES = tuple(f"crop<{WORDS[size]}>" for size in _SIZES)

_COUNTS = ("planes", "height", "width", "pixel", "out_height", "out_width")
_PICTURES = np.dtype([("samples", np.uint64), *((name, np.int32) for name in _COUNTS)], align=True)


def crop(
    images: Any,
    size: Sequence[int],
    windows: Any,
    *,
    layout: Literal["HWC", "CHW"] = "HWC",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return a window of every picture, mirrored left to right where asked, on the device.

    Parameters
    ----------
    images : cupy.ndarray
        Shape (n, height, width, channels) or (n, channels, height, width), as `layout` says; any dtype of 1,
        2, 4 or 8 bytes; 1 channel at least; fewer than 2**31 values a sample; contiguous.
    size : (int, int)
        Height and width of the windows, at most those of the images.
    windows : cupy.ndarray
        Shape (n, 3), int32: top, left, and whether to flip left and right (0 or not 0), for every sample.
        The window is cut out first, then flipped; one that reaches over the edge is moved inside.
    layout : {"HWC", "CHW"}
        Of the images, and of the result.
    out : cupy.ndarray or None
        Of the result's shape and dtype, contiguous, apart from the images; None makes a new one.
    stream : cupy.cuda.Stream or None
        Where the kernel runs; None is the current stream of the images' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or of another dtype.
    ValueError
        An array has another shape, is not contiguous, or lies on another device; a size is out of range.
    """
    shape, counts = _check(images, size, windows, layout, "cupy")
    device = find_device(images=images, windows=windows)
    result = obtain("out", out, "cupy", shape, [images.dtype], device)
    if result.size:
        geometry = np.zeros((), _PICTURES)
        for name, value in counts.items():
            geometry[name] = value
        items = counts["planes"] * counts["out_height"] * -(-counts["out_width"] * counts["pixel"] // 4)
        entry = f"crop<{WORDS[images.itemsize]}>"
        arguments = images, windows, result, geometry
        launch("crop", entry, spread(items, counts["samples"]), arguments, device, stream)
    return result


def crop_on_host(
    images: NDArray[Any],
    size: Sequence[int],
    windows: NDArray[np.int32],
    *,
    layout: Literal["HWC", "CHW"] = "HWC",
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return a window of every picture, mirrored left to right where asked: the twin of `crop`.

    Examples
    --------
    >>> images = np.arange(6, dtype=np.uint8).reshape(1, 2, 3, 1)
    >>> crop_on_host(images, (1, 2), np.array([[1, 1, 1]], np.int32)).ravel().tolist()
    [5, 4]
    """
    shape, _ = _check(images, size, windows, layout, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", shape, [images.dtype])
    pixels, target = (array if layout == "HWC" else array.transpose(0, 2, 3, 1) for array in (images, result))
    cut_windows(pixels, windows, target)
    return result


def cut_windows(pixels: NDArray[Any], windows: NDArray[np.int32], target: NDArray[Any]) -> None:
    """Write windows of images of pixels into `target`, (n, height, width, channels) both."""
    height, width = target.shape[1:3]
    for image, out, (top, left, flip) in zip(pixels, target, windows.tolist(), strict=True):
        y = min(max(top, 0), pixels.shape[1] - height)
        x = min(max(left, 0), pixels.shape[2] - width)
        window = image[y : y + height, x : x + width]
        out[...] = window[:, ::-1] if flip else window


def check_window(size: object, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of windows of images of this size, or raise as `crop` does."""
    if not isinstance(size, Sequence) or len(size) != 2:
        raise ValueError(f"size must be (height, width), got {size!r}")
    return (
        check_size("height in size", size[0], 0, height + 1),
        check_size("width in size", size[1], 0, width + 1),
    )


def _check(
    images: Any, size: Sequence[int], windows: Any, layout: str, library: Library
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the shape of the result, and what the kernel counts."""
    check_array("images", images, library, shape=(None,) * 4)
    if images.dtype.itemsize not in _SIZES or images.dtype.kind not in "biuf":
        raise TypeError(f"images must hold numbers of 1, 2, 4 or 8 bytes, got {images.dtype}")
    if layout not in ("HWC", "CHW"):
        raise ValueError(f"layout must be 'HWC' or 'CHW', got {layout!r}")
    samples, *rest = images.shape
    height, width, channels = rest if layout == "HWC" else (rest[1], rest[2], rest[0])
    if not channels:
        raise ValueError(f"images must have 1 channel or more, got none of {layout} {images.shape}")
    if channels * height * width >= _MOST_VALUES:
        raise ValueError(f"images must have fewer than {_MOST_VALUES} values each, got shape {images.shape}")
    tall, wide = check_window(size, height, width)
    check_array("windows", windows, library, shape=(samples, 3), dtypes=[np.int32])
    planes, pixel = (1, channels) if layout == "HWC" else (channels, 1)
    shape = (samples, tall, wide, channels) if layout == "HWC" else (samples, channels, tall, wide)
    sizes = planes, height, width, pixel, tall, wide
    return shape, {"samples": samples, **dict(zip(_COUNTS, sizes, strict=True))}
