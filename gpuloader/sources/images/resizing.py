"""Resizes images as Pillow does, bit for bit, and normalizes them, in functions that Numba compiles.

`resampling` decides when. They are plain functions, which also run without Numba, but slowly. They have a
separate file because Numba names its cache after the file, and compiles again whatever has changed in it.

`resize` sums weighted pixels along x, rounds the sums to bytes, and sums those along y, as Pillow does. Each
loop runs over a whole line of values, so that the compiler vectorizes it. For the sums along x, a strip of
rows is transposed first, which places the pixels of a column next to each other. A pixel takes four bytes
there; the fourth is unused. The sums along y are of lines of three bytes per pixel, as the result has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.sources.images.decoding import Pixels
from gpuloader.sources.images.image import Box

Taps = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]
"""Each output's first pixel, its number of pixels, and their weights, in units of 2**-22."""

Pair = tuple[int, int]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Sums = NDArray[np.int32]
Four = tuple[int, int, int, int]

_BITS = 22  # of a weight's fraction, as in Pillow: of 32 bits, that leaves 8 for a pixel and 2 for overshoot
_STRIP = 128  # rows to resize along x at a time
_BLOCK = 16  # rows to transpose at a time: as many lines as fit into the CPU's cache
_HALF = np.int32(1 << (_BITS - 1))
_LIMIT = float(1 << 23)  # of weights, which have 24 bits in the kernel `resample`
# NumPy scalars, because Numba widens a Python int to 64 bits, and then half as many values fit into a
# register.
_SHIFT, _LEAST, _MOST = np.int32(_BITS), np.int32(0), np.int32(255)
_GREEN, _BLUE = np.uint32(8), np.uint32(16)


def resize(
    pixels: Pixels, corner: Pair, box: Box, size: Pair, window: Pair, turn: int, cubic: bool, out: Pixels
) -> None:
    """Write a window of a resized box of an image; pixels outside the resized box are black.

    `pixels` is the part of the image that the result depends on, or more of it, uint8 (height, width, 3), and
    `corner` its top and left in the image. `box` is the left, top, right and bottom, in the image, of what
    becomes `size`, a height and a width. `window` is the top and left of the result in the resized box.
    `turn` mirrors the result: 1 left to right, 2 top to bottom, 3 both. `cubic` chooses the filter, bicubic
    or bilinear. `out` is the result, uint8 (height, width, 3).

    >>> ramp = np.repeat(np.arange(0, 40, 2, np.uint8), 3).reshape(1, 20, 3)
    >>> out = np.empty((1, 4, 3), np.uint8)
    >>> resize(ramp, (0, 0), (0, 0, 20, 1), (1, 4), (0, 0), 1, False, out)
    >>> out[0, :, 0].tolist()
    [33, 24, 14, 5]
    """
    height, width, _ = out.shape
    top, bottom = max(-window[0], 0), min(size[0] - window[0], height)
    left, right = max(-window[1], 0), min(size[1] - window[1], width)
    if top > 0 or left > 0 or bottom < height or right < width:
        out[:] = 0
    if top >= bottom or left >= right:
        return
    rows, columns = bottom - top, right - left
    firsts, counts, weights = find_taps(
        corner[0], pixels.shape[0], box[1], box[3], size[0], window[0] + top, rows, cubic
    )
    across = find_taps(corner[1], pixels.shape[1], box[0], box[2], size[1], window[1] + left, columns, cubic)
    begin, end = firsts[0], firsts[-1] + counts[-1]
    lines = np.empty((end - begin, columns * 3), np.uint8)
    resize_across(pixels[begin:end], across, turn & 1 != 0, lines)
    if turn & 1:
        left, right = width - right, width - left
    sums, flat = np.empty(columns * 3, np.int32), out.reshape(height, -1)
    for row in range(rows):
        line = flat[height - 1 - top - row if turn & 2 else top + row, left * 3 : right * 3]
        weigh_lines(lines, firsts[row] - begin, counts[row], weights[row], sums, line)


def find_taps(
    begin: int, length: int, low: float, high: float, whole: int, start: int, outputs: int, cubic: bool
) -> Taps:
    """Return the taps of a range of outputs along one axis.

    `begin` and `length` are the range of the image's pixels that is available; the taps count from `begin`.
    `low` and `high` are the box's edges, `whole` is the number of pixels to resize the box to, and `start`
    and `outputs` are the first output and the number of outputs.

    >>> firsts, counts, weights = find_taps(0, 4, 0.0, 4.0, 2, 0, 2, False)
    >>> firsts.tolist(), counts.tolist(), (weights / 2**22).round(3)[:, :4].tolist()
    ([0, 1], [3, 3], [[0.429, 0.429, 0.143, 0.0], [0.143, 0.429, 0.429, 0.0]])
    """
    # Pillow rounds the edges to float32. After that, every operation is separately rounded to double, in
    # Pillow's order: sums in another order would change some weights.
    edge = np.float32(low)
    step = np.float64(np.float32(high) - edge) / whole
    stretch = max(step, 1.0)
    support = stretch * 2.0 if cubic else stretch
    shrink = 1.0 / stretch
    most = int(np.ceil(support)) * 2 + 1
    firsts, counts = np.empty(outputs, np.int64), np.empty(outputs, np.int64)
    # Three more than there can be, because `weigh_lines` reads four at a time.
    weights, values = np.zeros((outputs, most + 3), np.int32), np.empty(most, np.float64)
    for output in range(outputs):
        center = np.float64(edge) + (start + output + 0.5) * step
        first = min(max(int(center - support + 0.5), begin), begin + length)
        count = min(max(int(center + support + 0.5), begin), begin + length) - first
        total = 0.0
        for tap in range(count):
            values[tap] = weigh(abs((tap + first - center + 0.5) * shrink), cubic)
            total += values[tap]
        for tap in range(count):
            value = values[tap] / total if total != 0.0 else values[tap]
            rounded = (-0.5 if value < 0.0 else 0.5) + value * (1 << _BITS)
            # Only where pixels of the image are not available does a weight reach the limit.
            weights[output, tap] = np.int32(min(max(rounded, -_LIMIT), _LIMIT - 1.0))
        firsts[output], counts[output] = first - begin, count
    return firsts, counts, weights


def weigh(x: float, cubic: bool) -> float:
    """Return the filter's value at a distance from its center.

    >>> weigh(0.25, False), weigh(0.5, True), weigh(1.5, True), weigh(2.0, True)
    (0.75, 0.5625, -0.0625, 0.0)
    """
    if not cubic:
        return 1.0 - x if x < 1.0 else 0.0
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    if x < 2.0:
        return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return 0.0


def resize_across(pixels: Pixels, taps: Taps, flip: bool, lines: Bytes) -> None:
    """Write rows of pixels, resized along x and optionally mirrored, with three bytes per pixel."""
    firsts, counts, weights = taps
    columns = len(firsts)
    begin, end = firsts[0], firsts[-1] + counts[-1]
    source, result = np.empty((end - begin, _STRIP), np.uint32), np.empty((columns, _STRIP), np.uint32)
    source_bytes, result_bytes = source.view(np.uint8), result.view(np.uint8)
    sums = np.empty(_STRIP * 4, np.int32)
    for start in range(0, len(pixels), _STRIP):
        rows = min(_STRIP, len(pixels) - start)
        transpose_pixels(pixels[start : start + rows, begin:end], source)
        for column in range(columns):
            first = firsts[column] - begin
            line = result_bytes[columns - 1 - column if flip else column, : rows * 4]
            weigh_lines(source_bytes, first, counts[column], weights[column], sums, line)
        transpose_back(result, lines[start : start + rows])


def transpose_pixels(pixels: Pixels, result: Words) -> None:
    """Transpose pixels of shape (rows, columns, 3) into words of shape (columns, at least rows)."""
    for column in range(pixels.shape[1]):
        line = result[column]
        for row in range(len(pixels)):
            red, green, blue = pixels[row, column, 0], pixels[row, column, 1], pixels[row, column, 2]
            line[row] = np.uint32(red) | np.uint32(green) << _GREEN | np.uint32(blue) << _BLUE


def transpose_back(words: Words, result: Bytes) -> None:
    """Transpose words of shape (columns, at least rows) into pixels of three bytes, (rows, columns * 3).

    >>> result = np.empty((2, 3), np.uint8)
    >>> transpose_back(np.array([[0x030201, 0x060504, 9]], np.uint32), result)
    >>> result.tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    for start in range(0, len(result), _BLOCK):
        part = result[start : start + _BLOCK]
        for column in range(len(words)):
            line, red = words[column, start : start + _BLOCK], column * 3
            for row in range(len(part)):
                word = line[row]
                part[row, red] = np.uint8(word)
                part[row, red + 1] = np.uint8(word >> _GREEN)
                part[row, red + 2] = np.uint8(word >> _BLUE)


def weigh_lines(lines: Bytes, first: int, count: int, weights: Sums, sums: Sums, line: Bytes) -> None:
    """Write the weighted sum of lines as bytes; weights are in units of 2**-22, with three 0 after them.

    >>> lines, weights = np.uint8([[0, 3, 255], [9, 4, 255]]), np.int32([1 << 21, 5 << 20, 0, 0])
    >>> line = np.empty(3, np.uint8)
    >>> weigh_lines(lines, 0, 2, weights, np.empty(3, np.int32), line)
    >>> line.tolist()
    [11, 7, 255]
    """
    # Four lines at a time, because reading and writing the sums takes longer than adding a line. Most results
    # need no more than four, and so no sums: one loop for all would be compiled to slower code.
    last = count - 1
    for tap in range(0, count, 4):
        a, b = lines[first + tap], lines[first + min(tap + 1, last)]
        c, d = lines[first + min(tap + 2, last)], lines[first + min(tap + 3, last)]
        four = weights[tap], weights[tap + 1], weights[tap + 2], weights[tap + 3]
        if last < 4:
            for place in range(len(line)):
                line[place] = as_byte(weigh_four(_HALF, four, a[place], b[place], c[place], d[place]))
        else:
            for place in range(len(line)):
                total = _HALF if tap == 0 else sums[place]
                total = weigh_four(total, four, a[place], b[place], c[place], d[place])
                if tap + 4 > last:
                    line[place] = as_byte(total)
                else:
                    sums[place] = total


def weigh_four(total: np.int32, weights: Four, a: int, b: int, c: int, d: int) -> np.int32:
    """Return a sum with four weighted bytes added.

    >>> int(weigh_four(np.int32(1), (1, 2, 3, 4), 1, 1, 1, 2))
    15
    """
    total = np.int32(total + np.int32(weights[0] * np.int32(a)))
    total = np.int32(total + np.int32(weights[1] * np.int32(b)))
    total = np.int32(total + np.int32(weights[2] * np.int32(c)))
    return np.int32(total + np.int32(weights[3] * np.int32(d)))


def as_byte(total: np.int32) -> np.uint8:
    """Return a sum as a byte, after rounding down.

    >>> int(as_byte(np.int32(-5))), int(as_byte(np.int32(7 << 22)))
    (0, 7)
    """
    return np.uint8(min(max(np.int32(total >> _SHIFT), _LEAST), _MOST))


def look_up(tables: NDArray[np.float32], images: Bytes, result: NDArray[np.float32]) -> None:
    """Write the entry of its channel's table for each byte of images of shape (..., channels).

    >>> result = np.empty((1, 1, 2, 1), np.float32)
    >>> look_up(np.arange(256, dtype=np.float32)[None] / 2, np.uint8([[[[3], [8]]]]), result)
    >>> result.ravel().tolist()
    [1.5, 4.0]
    """
    samples, height, width, channels = result.shape
    for sample, channel in np.ndindex(samples, channels):
        for row in range(height):
            for column in range(width):
                result[sample, row, column, channel] = tables[channel, images[sample, row, column, channel]]


CALLED = (find_taps, weigh, resize_across, transpose_pixels, transpose_back, weigh_lines, weigh_four, as_byte)
"""The functions that `resize` calls; these are compiled, too."""
