"""Resizing a picture as Pillow does: the definition of the kernel `resample`, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Interpolation = Literal["bilinear", "bicubic"]

INTERPOLATIONS = ("bilinear", "bicubic")

_BITS = 22  # of a weight's fraction


def resize_on_host(
    region: NDArray[np.uint8],
    box: Sequence[float],
    size: Sequence[int],
    interpolation: Interpolation = "bilinear",
    window: Sequence[int] | None = None,
    corner: Sequence[int] = (0, 0),
) -> NDArray[np.uint8]:
    """Return a box of one picture, resized as Pillow does it in two calls, the first along x.

    Parameters
    ----------
    region : numpy.ndarray
        The part of the picture that the result depends on, or more of it; shape (height, width, channels).
    box : sequence of float
        Left, top, right and bottom in the picture.
    size : (int, int)
        Height and width of the result.
    interpolation : {"bilinear", "bicubic"}
        The filter.
    window : sequence of int or None
        Height and width to resize the box to, and top and left of the result in there; None resizes the box
        to `size`.
    corner : (int, int)
        The region's first row and column in the picture.

    Examples
    --------
    >>> picture = np.array([[[0], [100], [200], [100]]], np.uint8)
    >>> resize_on_host(picture, (0, 0, 4, 1), (1, 2)).ravel().tolist()
    [71, 143]
    """
    left, top, right, bottom = box
    tall, wide, y, x = (*size, 0, 0) if window is None else window
    # What the result has of the resized box; the rest is black.
    rows, columns = range(max(-y, 0), min(tall - y, size[0])), range(max(-x, 0), min(wide - x, size[1]))
    result = np.zeros((*size, region.shape[2]), np.uint8)
    if rows and columns:
        shifted = range(rows.start + y, rows.stop + y), range(columns.start + x, columns.stop + x)
        extents = (range(one, one + length) for one, length in zip(corner, region.shape, strict=False))
        down = find_weights(next(extents), top, bottom, tall, shifted[0], interpolation)
        across = find_weights(next(extents), left, right, wide, shifted[1], interpolation)
        begin, end = int(down.first[0]), int(down.first[-1] + down.counts[-1])
        lines = _resize_rows(region[begin:end].swapaxes(0, 1), across).swapaxes(0, 1)
        inside = result[rows.start : rows.stop, columns.start : columns.stop]
        inside[...] = _resize_rows(lines, down._replace(first=down.first - begin))
    return result


class Weights(NamedTuple):
    """The weights of the outputs along one axis.

    Attributes
    ----------
    first, counts : numpy.ndarray
        The first input pixel of each output, counted from the region's first, and their number; int64.
    weights : numpy.ndarray
        Shape (outputs, taps), int32, in units of 2**-22; 0 beyond an output's own.
    """

    first: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: NDArray[np.int32]


@lru_cache(maxsize=256)
def find_weights(
    region: range, low: float, high: float, whole: int, outputs: range, interpolation: Interpolation
) -> Weights:
    """Return the weights that Pillow uses to resize a part of an axis.

    Every operation is rounded to double by itself, in Pillow's order, so that the kernel finds the same bits.

    Parameters
    ----------
    region : range
        The pixels of the picture that are there, along the axis.
    low, high : float
        The part's edges, which are rounded to float32.
    whole : int
        The pixels that the part is resized to.
    outputs : range
        Which of them to return the weights of.
    interpolation : {"bilinear", "bicubic"}
        The filter.

    Examples
    --------
    >>> weights = find_weights(range(4), 0.0, 4.0, 2, range(2), "bilinear")
    >>> weights.first.tolist(), (weights.weights / 2**22).round(3).tolist()
    ([0, 1], [[0.429, 0.429, 0.143, 0.0, 0.0], [0.143, 0.429, 0.429, 0.0, 0.0]])
    """
    start, end = np.float32(low), np.float32(high)
    step = float(end - start) / whole
    stretch = max(step, 1.0)
    support = stretch * (2.0 if interpolation == "bicubic" else 1.0)
    center = float(start) + (np.array(outputs) + 0.5) * step
    ends = (center - support + 0.5).astype(np.int64), (center + support + 0.5).astype(np.int64)
    first, last = (np.clip(end, region.start, region.stop) for end in ends)
    count = last - first
    taps = np.arange(int(np.ceil(support)) * 2 + 1)
    distance = (taps + first[:, None] - center[:, None] + 0.5) * (1.0 / stretch)
    values = np.where(taps < count[:, None], _weigh(np.abs(distance), interpolation), 0.0)
    total = np.cumsum(values, axis=1)[:, -1:]  # cumsum adds one after the other, like Pillow; sum does not
    values = np.divide(values, total, out=values, where=total != 0)
    rounded = (np.where(values < 0, -0.5, 0.5) + values * 2**_BITS).astype(np.int32)
    found = Weights(first - region.start, count, rounded)
    for array in found:
        array.flags.writeable = False
    return found


def _weigh(x: NDArray[np.float64], interpolation: Interpolation) -> NDArray[np.float64]:
    """Return a filter's values at distances from its center."""
    if interpolation == "bilinear":
        return np.where(x < 1, 1 - x, 0.0)
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _resize_rows(rows: NDArray[np.uint8], weights: Weights) -> NDArray[np.uint8]:
    """Return weighted sums of rows, rounded to bytes."""
    sums = np.full((len(weights.first), *rows.shape[1:]), 1 << (_BITS - 1), np.int32)
    wide = rows.astype(np.int32)
    for tap in range(int(weights.counts.max(initial=0))):
        chosen = np.minimum(weights.first + tap, len(rows) - 1)
        sums += wide[chosen] * weights.weights[:, tap].reshape(-1, *[1] * (rows.ndim - 1))
    result: NDArray[np.uint8] = np.clip(sums >> _BITS, 0, 255).astype(np.uint8)
    return result
