"""Changes of a picture's colors as Pillow makes them: the definition of the kernel `recolor`, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CHANGES = ("brightness", "contrast", "saturation", "hue")
"""What can be changed. In the kernel's numbers, the first is 1."""

Integers = NDArray[np.int32]


def recolor_picture(
    picture: NDArray[np.uint8], changes: Sequence[tuple[float, float]], contrasts: int | None = None
) -> NDArray[np.uint8]:
    """Return a picture with changed colors.

    The changes are those of Pillow's ``ImageEnhance``, and of torchvision's ``adjust_hue``.

    Parameters
    ----------
    picture : numpy.ndarray
        The pixels, uint8 of shape (height, width, channels), with 1 or 3 channels.
    changes : sequence of (float, float)
        What to change, by its number, and by how much: a factor; for hue, an integer from 0 to 255, in parts
        of the color wheel. Numbers that are not those of `CHANGES` change nothing.
    contrasts : int or None
        How many changes of contrast are made, at most; None makes all.

    Examples
    --------
    >>> red = np.array([[[200, 0, 0]]], np.uint8)
    >>> [recolor_picture(red, [change])[0, 0].tolist() for change in [(1, 0.5), (2, 0), (3, 0), (4, 127)]]
    [[100, 0, 0], [60, 60, 60], [60, 60, 60], [0, 200, 198]]
    """
    pixels = picture.astype(np.int32)
    made = 0
    for number, amount in changes:
        if number == 1:
            pixels = _blend(np.int32(0), pixels, amount)
        elif number == 2 and (contrasts is None or made < contrasts):
            made += 1
            gray = _find_gray(pixels)
            mean = (2 * int(gray.sum(dtype=np.int64)) + gray.size) // (2 * max(gray.size, 1))
            pixels = _blend(np.int32(mean), pixels, amount)
        elif number == 2:
            break
        elif number == 3:
            pixels = _blend(_find_gray(pixels), pixels, amount)
        elif number == 4 and pixels.shape[2] == 3:
            pixels = _shift_hue(pixels, int(amount))
    return pixels.astype(np.uint8)


def _find_gray(pixels: Integers) -> Integers:
    if pixels.shape[2] == 1:
        return pixels
    return (pixels @ np.array([[19595], [38470], [7471]], np.int32) + 0x8000) >> 16


def _blend(start: Integers | np.int32, pixels: Integers, amount: float) -> Integers:
    """Return pixels between a start and what they are, or beyond; in float, cut to an integer."""
    with np.errstate(over="ignore", invalid="ignore"):
        added = (pixels - start).astype(np.float32) * np.float32(amount)
        blended = added + np.asarray(start, np.float32)
    inside = np.where(blended > 0, np.minimum(blended, np.float32(255)), np.float32(0))
    result: Integers = np.where(blended >= 255, np.float32(255), inside).astype(np.int32)
    return result


def _shift_hue(pixels: Integers, shift: int) -> Integers:
    """Return pixels whose hue is shifted in Pillow's HSV, which is rounded to bytes."""
    most, range_ = pixels.max(2), np.ptp(pixels, 2)
    width = np.maximum(range_, 1)
    turned = ((_find_hue(pixels, most, width) + shift) & 255) * 6
    saturation = 255 * range_ // np.maximum(most, 1)
    sector, rest = turned // 255, turned % 255
    whole = 255 * 255
    low = (2 * most * (255 - saturation) + 255) // (2 * 255)
    falling = (2 * most * (whole - saturation * rest) + whole) // (2 * whole)
    rising = (2 * most * (whole - saturation * (255 - rest)) + whole) // (2 * whole)
    red = np.choose(sector % 6, [most, falling, low, low, rising, most])
    green = np.choose(sector % 6, [rising, most, most, falling, low, low])
    blue = np.choose(sector % 6, [low, low, rising, most, most, falling])
    result: Integers = np.where((range_ == 0)[..., None], pixels, np.stack([red, green, blue], 2))
    return result


def _find_hue(pixels: Integers, most: Integers, width: Integers) -> Integers:
    """Return the hue of colors, 0 to 254, rounded as Pillow does: by way of floats and doubles."""
    left = (most[..., None] - pixels).astype(np.float32) / width[..., None].astype(np.float32)
    _, green, blue = np.moveaxis(left, 2, 0)
    wide_red, wide_green, wide_blue = np.moveaxis(left.astype(np.float64), 2, 0)
    sector = np.where(
        pixels[..., 0] == most,
        blue - green,
        np.where(
            pixels[..., 1] == most,
            (2.0 + wide_red - wide_blue).astype(np.float32),
            (4.0 + wide_green - wide_red).astype(np.float32),
        ),
    )
    turn = np.fmod(sector.astype(np.float64) / 6.0 + 1.0, 1.0).astype(np.float32)
    result: Integers = (turn.astype(np.float64) * 255.0).astype(np.int32)
    return result
