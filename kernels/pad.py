"""`pad`: turn rows of varying length into one dense array."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.cast import WORDS, find_word
from gpuloader.kernels.launching import Work, by_value, check_size, declare, spread_rows, takes

_WIDE = {16: "Wide<4>", 8: "Wide<2>", 4: "Wide<1>", 2: WORDS[2], 1: WORDS[1]}
ENTRIES = {"pad<{}>": (tuple(_WIDE.values()),)}

_PATTERN = 16


@declare(values=takes(shape=("steps", ...)), row_splits=takes("int64", shape=(None,)))
def pad(
    values: Any, row_splits: Any, longest: int, fill: float = 0, *, out: Any = None, stream: Any = None
) -> Work:
    """Return rows of varying length as a dense array of shape (n, longest, ...), with short rows filled up.

    The values are the steps of all rows, one row after another; row i spans ``row_splits[i]`` to
    ``row_splits[i + 1]``. Splits that decrease or lie outside the values are clamped, and rows longer than
    `longest` are truncated. `fill` must fit the values' dtype.

    >>> pad.on_host(np.array([1, 2, 3, 4]), np.array([0, 3, 4]), longest=3, fill=-1).tolist()
    [[1, 2, 3], [4, -1, -1]]
    """
    if not row_splits.size:
        raise ValueError("row_splits must have one more entry than there are rows, got no entry")
    itemsize = values.dtype.itemsize
    if values.dtype.kind in "SUMm" or not itemsize or _PATTERN % itemsize:
        raise TypeError(f"values must be numbers of up to {_PATTERN} bytes, got {values.dtype}")
    rows, longest = row_splits.size - 1, check_size("longest", longest, 0, 2**40)
    element = _check_fill(fill, values.dtype)

    def on_host(result: NDArray[Any]) -> None:
        # Clamped, not refused, as on the device, where a check would wait for the copy of the splits.
        begins = np.clip(row_splits[:-1], 0, len(values))
        lengths = np.clip(row_splits[1:], begins, len(values)) - begins
        steps = np.arange(longest)
        filled = steps < lengths[:, None]
        result[...] = element
        result[filled] = values[(begins[:, None] + steps)[filled]]

    def on_device(result: Any) -> Iterator[Any]:
        step = itemsize * math.prod(values.shape[1:])
        size = find_word(longest * step, result.data.ptr)
        if size < 4:  # such words are read whole, so no row may end within one
            size = find_word(itemsize, size)
        # Repeated to the largest word: a word's position in its row tells which part of the pattern it takes.
        pattern = by_value(np.repeat(element, _PATTERN // itemsize), values.dtype)
        geometry = by_value([rows, longest, len(values), step], np.uint64)
        arguments = values, row_splits, result, geometry, pattern
        yield f"pad<{_WIDE[size]}>", spread_rows(rows, max(longest * step // size, 1)), arguments

    return Work((rows, longest, *values.shape[1:]), values.dtype, on_host, on_device)


def _check_fill(fill: object, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the fill as an array of one element, or raise `ValueError` if it does not fit the dtype."""
    try:
        element = np.array(fill, dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"fill must fit into {dtype}, got {fill!r}: {error}") from None
    if element.ndim:
        raise ValueError(f"fill must be one number, got shape {element.shape}")
    # NumPy would silently drop a fraction.
    if dtype.kind in "iu" and element != fill:
        raise ValueError(f"fill must fit into {dtype}, got {fill!r}")
    return element
