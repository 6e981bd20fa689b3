"""`recolor`: change the colors of images as Pillow does, and normalize them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.kernels.compiler import CPP_TYPES
from gpuloader.kernels.crop import IMAGES, Layout, join_shape, measure
from gpuloader.kernels.launching import Work, by_value, check_size, declare, obtain, spread, takes
from gpuloader.kernels.normalize import CHANNELS, TARGETS, plan_finish
from gpuloader.sources.images.decoding import load_pillow
from gpuloader.sources.images.resampling import CHANGES, load_operations

ENTRIES = {"measure<{}>": (CHANNELS,), "recolor<{}, {}>": (CHANNELS, TARGETS)}

# How many times the contrast of an image can be changed.
MOST_CONTRASTS = 8

# How many parts of each image are summed separately.
PARTS = 32

_THREADS = 256  # of a block that sums
_EACH, _MANY = 4, 2**22  # pixels that a thread recolors; for that many pixels or more, four times as many


@declare(
    images=takes("uint8", shape=IMAGES),
    numbers=takes("float32", shape=("samples", None)),
    sums=takes("uint64", optional=True),
)
def recolor(
    images: Any,
    numbers: Any,
    *,
    first: int = 0,
    contrasts: int = 0,
    sums: Any = None,
    mean: ArrayLike = 0.0,
    std: ArrayLike = 1.0,
    scale: float = 1.0,
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    out: Any = None,
    stream: Any = None,
) -> Work:
    """Return images with changed colors, normalized.

    The pixels are those of Pillow's ``ImageEnhance`` and of torchvision's ``adjust_hue``, after each change
    rounded to bytes. Then ``(x * scale - mean) / std`` is computed as `normalize` does.

    Parameters
    ----------
    images : array
        The images, uint8 of shape (n, height, width, 1 or 3), fewer than 2**31 values per image.
    numbers, first : array, int
        The changes of each image, from column `first` on: pairs of what to change, and by how much. 1 is
        brightness, 2 contrast, 3 saturation, each by a factor; 4 is hue, by an integer from 0 to 255 in
        parts of the color wheel. Other numbers change nothing.
    contrasts : int
        The most changes of contrast per image, 0 to 8. If an image's contrast changes more often, its later
        changes are left out.
    sums : array or None
        Memory for the device's sums, uint64 of shape (n, contrasts, 32). None allocates it.
    mean, std, scale, out_layout, dtype, out, stream
        As for `normalize`; also dtype uint8, which is not normalized.

    >>> import pytest
    >>> _ = pytest.importorskip("PIL")
    >>> red = np.array([[[[200, 0, 0]]]], np.uint8)
    >>> darker_gray = np.array([[1, 0.5, 3, 0]], np.float32)
    >>> recolor.on_host(red, darker_gray, dtype="uint8", out_layout="HWC").ravel().tolist()
    [30, 30, 30]
    """
    channels, height, width = measure(images, "HWC")
    samples, row = numbers.shape
    first = check_size("first", first, 0)
    if row < first or (row - first) % 2:
        raise ValueError(f"numbers must have pairs from column {first} on, got shape {numbers.shape}")
    contrasts = check_size("contrasts", contrasts, 0, MOST_CONTRASTS + 1)
    target, held, constants, write = plan_finish(channels, mean, std, scale, out_layout, dtype)

    def on_host(result: NDArray[Any]) -> None:
        pixels = np.empty_like(images)
        for made, image, changes in zip(pixels, images, numbers[:, first:].tolist(), strict=True):
            pairs = list(zip(changes[::2], changes[1::2], strict=True))
            made[...] = recolor_image(image, pairs, contrasts)
        write(pixels, result)

    def on_device(result: Any) -> Iterator[Any]:
        # A change of contrast needs the mean of the whole gray image at that point. So a launch precedes each
        # change and sums parts; the next launches add up the parts' sums. In integers, because their sum does
        # not depend on the order of threads.
        shape = samples, contrasts, PARTS
        parts = None
        if contrasts:
            parts = obtain("sums", sums, shape, np.uint64, result.device, stream)
        counts = by_value([samples, height * width, out_layout == "CHW", row, first, contrasts])
        for contrast in range(contrasts):
            grid = spread(PARTS * _THREADS, samples)
            yield f"measure<{channels}>", grid, (images, numbers, parts, counts, np.uint32(contrast))
        # If a device is full anyway, threads look up their image's means less often.
        each = _EACH * 4 if samples * height * width >= _MANY else _EACH
        grid = spread(-(-height * width // each), samples)
        arguments = images, numbers, parts, result, counts, constants
        yield f"recolor<{channels}, {CPP_TYPES[target]}>", grid, arguments

    return Work((samples, *join_shape(channels, height, width, out_layout)), held, on_host, on_device)


def recolor_image(
    image: NDArray[np.uint8], changes: Sequence[tuple[float, float]], contrasts: int | None = None
) -> NDArray[np.uint8]:
    """Return one image whose colors Pillow has changed: the definition of `recolor`, which has such pairs.

    >>> import pytest
    >>> _ = pytest.importorskip("PIL")
    >>> red = np.array([[[200, 0, 0]]], np.uint8)
    >>> [recolor_image(red, [change])[0, 0].tolist() for change in [(1, 0.5), (2, 0), (3, 0), (4, 127)]]
    [[100, 0, 0], [60, 60, 60], [60, 60, 60], [0, 200, 198]]
    """
    picture = load_pillow().fromarray(image.squeeze(2) if image.shape[2] == 1 else image)
    made = 0
    for number, amount in changes:
        if number == 2:
            if made == contrasts:
                break  # the device has no mean for this one, so it makes none of the later changes either
            made += 1
        if number in (1, 2, 3, 4):
            change = load_operations()[CHANGES[int(number) - 1]]
            picture = change(picture, amount / 255 if number == 4 else amount)
    return np.asarray(picture).reshape(image.shape)
