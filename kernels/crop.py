"""`crop` and `erase`: cut a window out of each image, or fill one; and the layouts of images.

Other kernels that take images use the layouts and checks of this module, and `normalize` also cuts windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.checks import check_word
from gpuloader.kernels.cast import NUMBER_WORDS, WORDS, find_word
from gpuloader.kernels.launching import Work, by_value, check_size, declare, spread, spread_images, takes

Layout = Literal["HWC", "CHW"]
LAYOUTS = ("HWC", "CHW")

# The shape of images, in either layout.
IMAGES = ("samples", None, None, None)

_LEAST_WORD, _LANE = 4, 16  # bytes that are stored at once, and bytes of a row that a lane stores
_MOST_BYTES, _MOST_ROWS = 2**30, 2**32  # of a row, and in all: the kernel counts them in 32 bits
_MOST_VALUES, _MOST_SAMPLES = 2**31, 2**32  # values per sample: the kernels count in 32 bits
_MOST_COLORS = 64
_ERASED = 8  # values of an image for each thread; rectangles are a part of it

ENTRIES = {"crop<{}>": (tuple(WORDS.values())[2:],), "erase<{}>": (NUMBER_WORDS,)}


@declare(images=takes(shape=IMAGES), windows=takes("int32", shape=("windows", 3)))
def crop(
    images: Any,
    size: Sequence[int],
    windows: Any,
    *,
    layout: Layout = "HWC",
    out: Any = None,
    stream: Any = None,
) -> Work:
    """Return a window of every image; each may be mirrored left to right.

    Images have numbers of 1, 2, 4 or 8 bytes, and fewer than 2**31 values per sample. Each row of `windows`
    is top, left, and whether to mirror (0 or not 0). The window, of height and width `size`, is cut out
    first, then mirrored. A window that reaches beyond the edge is moved inside. If there are n times as many
    images as windows, n images in a row share one, like the frames of a clip.

    >>> images = np.arange(6, dtype=np.uint8).reshape(1, 2, 3, 1)
    >>> crop.on_host(images, (1, 2), np.array([[1, 1, 1]], np.int32)).ravel().tolist()
    [5, 4]
    """
    channels, height, width = check_images(images, layout)
    out_height, out_width = check_window(size, height, width)
    # The kernel knows neither dtypes nor layouts: an image is planes of rows of pixels, and these have bytes.
    planes, pixel = (1, channels) if layout == "HWC" else (channels, 1)
    pixel *= images.itemsize
    samples = len(windows)
    frames = len(images) // max(samples, 1)
    if frames * samples != len(images):
        raise ValueError(
            f"there must be one window for each image or for each {frames} in a row, got {samples} "
            f"for {len(images)}"
        )
    if width * pixel >= _MOST_BYTES:
        raise ValueError(f"rows of images must have fewer than {_MOST_BYTES} bytes, got {width * pixel}")
    if len(images) * planes * height >= _MOST_ROWS:
        raise ValueError(f"images must have fewer than {_MOST_ROWS} rows in all, got shape {images.shape}")

    def on_host(result: NDArray[Any]) -> None:
        cut_windows(as_hwc(images, layout), np.repeat(windows, frames, 0), as_hwc(result, layout))

    def on_device(result: Any) -> Iterator[Any]:
        row = out_width * pixel
        # Rows that do not begin at a multiple of 4 are also stored in words of 4, and their ends byte by
        # byte.
        word = max(find_word(row, result.data.ptr), _LEAST_WORD)
        words = -(-row // word) + (row % word > 0 or result.data.ptr % word > 0)  # a row may begin within one
        # The frames of a clip are planes of it.
        grid = spread_images(samples, out_height, words, planes * frames, _LANE // word)
        counts = by_value([samples, planes * frames, height, width, pixel, out_height, out_width])
        yield f"crop<{WORDS[word]}>", grid, (images, windows, result, counts)

    shape = (len(images), *join_shape(channels, out_height, out_width, layout))
    return Work(shape, images.dtype, on_host, on_device)


@declare(images=takes(shape=IMAGES, written=True), windows=takes("int32", shape=("samples", 4)))
def erase(
    images: Any, windows: Any, *, color: ArrayLike = 0, layout: Layout = "CHW", stream: Any = None
) -> Work:
    """Fill a rectangle of every image with a color, in place, and return the images.

    Images are those of `crop`. Each row of `windows` is top, left, height and width of a rectangle. Parts
    beyond the edge of the image are cut off. The color is one number for all channels, or one for each of up
    to 64 channels.

    >>> images = np.zeros((1, 1, 2, 3), np.uint8)
    >>> erase.on_host(images, np.array([[0, 1, 1, 9]], np.int32), color=7).tolist()
    [[[[0, 7, 7], [0, 0, 0]]]]
    """
    channels, height, width = check_images(images, layout)
    try:
        values = np.asarray(color, images.dtype).reshape(-1)
    except OverflowError as error:
        raise ValueError(f"color must fit into {images.dtype}, got {color!r}") from error
    if values.size not in (1, channels) or values.size > _MOST_COLORS:
        raise ValueError(
            f"color must be one number, or one number for each of {channels} channels, of which there may be "
            f"{_MOST_COLORS}; got {color!r}"
        )

    def on_host(result: NDArray[Any]) -> None:
        for image, (top, left, tall, wide) in zip(as_hwc(result, layout), windows.tolist(), strict=True):
            # A negative end of a slice would count from the other end.
            image[max(top, 0) : max(top + tall, 0), max(left, 0) : max(left + wide, 0)] = values

    def on_device(result: Any) -> Iterator[Any]:
        # The color's bits in the low bytes of words of 64: dtypes of one size share a kernel.
        bits = np.zeros((_MOST_COLORS, 8), np.uint8)
        bits[: values.size, : values.itemsize] = values.reshape(-1, 1).view(np.uint8)
        counts = by_value([len(images), channels, height, width, layout == "CHW", values.size > 1])
        # The host does not know how large the rectangles are; blocks with nothing to do end immediately.
        grid = spread(-(-images.size // len(images) // _ERASED), len(images))
        yield f"erase<{WORDS[images.itemsize]}>", grid, (result, windows, counts, by_value(bits, np.uint8))

    return Work(images.shape, images.dtype, on_host, on_device, into=images)


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
    check_word("out_layout", layout, LAYOUTS)  # a kernel with one layout has checked it before
    return (height, width, channels) if layout == "HWC" else (channels, height, width)


def as_hwc(images: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return a view of images as (n, height, width, channels)."""
    return images if layout == "HWC" else images.transpose(0, 2, 3, 1)


def check_images(images: Any, layout: str) -> tuple[int, int, int]:
    """Return the channels, height and width of images that a kernel moves as words, or raise.

    >>> check_images(np.zeros((8, 32, 40, 3), bool), "HWC")
    (3, 32, 40)
    """
    if images.dtype.itemsize not in (1, 2, 4, 8) or images.dtype.kind not in "biuf":
        raise TypeError(f"images must hold numbers of 1, 2, 4 or 8 bytes, got {images.dtype}")
    return measure(images, layout)


def measure(images: Any, layout: str, most_channels: int | None = None) -> tuple[int, int, int]:
    """Return the channels, height and width of a batch of images, or raise if a kernel cannot count them.

    >>> measure(np.zeros((8, 32, 40, 3), np.uint8), "HWC")
    (3, 32, 40)
    """
    check_word("layout", layout, LAYOUTS)
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


def check_window(size: object, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of windows of images of this size, or raise.

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
        # Moved inside, not refused, as on the device, where a check would wait for the copy of the windows.
        y = min(max(top, 0), pixels.shape[1] - height)
        x = min(max(left, 0), pixels.shape[2] - width)
        window = image[y : y + height, x : x + width]
        out[...] = window[:, ::-1] if flip else window
