"""`gather`: copy rows of an array in the order of their indices.

`fuse_gathers` merges several launches that gather by the same indices into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.cast import WORDS, find_word
from gpuloader.kernels.launching import KernelLaunch, Work, by_value, count_lanes, declare, spread_rows, takes

_SIZES = {f"gather<{word}>": size for size, word in WORDS.items()}

ENTRIES = {"gather<{}>": (tuple(WORDS.values()),), "gather_fields": ()}

_AHEAD = 4  # words that a lane copies at once


@declare(
    source=takes(shape=("rows", ...)),
    indices=takes("int64", shape=(None,), optional=True),
    span=takes("int64", shape=(2,), optional=True),
)
def gather(source: Any, indices: Any, *, span: Any = None, out: Any = None, stream: Any = None) -> Work:
    """Return ``source[indices]`` for whole rows, of any dtype.

    Indices are from 0 to below the number of rows. The twin checks them. On a device, an index out of range
    reads foreign memory or destroys the CUDA context. A span is the first and the last position in `indices`
    to copy, also unchecked. As many rows are copied as `out` has; if the span is shorter, its last row is
    repeated. Without indices, its positions are row numbers.

    >>> gather.on_host(np.array([[1, 2], [3, 4]]), np.array([1, 1, 0])).tolist()
    [[3, 4], [3, 4], [1, 2]]
    >>> order, span = np.array([4, 2, 0, 3, 1]), np.array([1, 2])
    >>> gather.on_host(np.arange(0, 50, 10), order, span=span, out=np.zeros(3, int)).tolist()
    [20, 0, 0]
    """
    if indices is None and span is None:
        raise TypeError("indices must be an array, unless there is a span")
    if span is not None and out is None:
        raise TypeError("out must be an array if there is a span, which does not say how many rows to copy")
    # The span's numbers are on the device, so that a launch is the same for every batch: `out` has the count.
    count = indices.size if span is None else (*getattr(out, "shape", ()), 0)[0]
    if count and not len(source):
        raise ValueError(f"cannot gather {count} rows from an empty source of shape {source.shape}")

    def on_host(result: NDArray[Any]) -> None:
        rows = indices
        if span is not None:
            positions = np.minimum(np.arange(count) + span[0], span[1])
            rows = positions if indices is None else indices[positions]
        if outside := np.flatnonzero((rows < 0) | (rows >= len(source))).tolist():
            raise IndexError(
                f"indices must be from 0 to {len(source) - 1}, got {rows[outside[0]]} at {outside[0]}"
            )
        np.take(source, rows, axis=0, out=result, mode="clip")  # mode "raise" would buffer the result

    def on_device(result: Any) -> Iterator[Any]:
        row = result.nbytes // count
        # All rows begin at multiples of a word only if both arrays do.
        size = find_word(row, source.data.ptr, result.data.ptr)
        words = row // size
        arguments = source, indices, span, result, np.uint64(count), np.uint64(words)
        yield f"gather<{WORDS[size]}>", spread_rows(count, words, _AHEAD), arguments

    return Work((count, *source.shape[1:]), source.dtype, on_host, on_device)


# A batch from a cache on the device gathers every field by the same rows. Its host time is mostly launches,
# so one launch takes all fields.

_MOST_FIELDS = 8
_THREADS, _ONE = 256, 1 << 16  # of a block, and the numerator of the lanes' inverses
# source, out, words, word, lanes, inverse
_FIELD = np.dtype("u8, u8, u8, u4, u4, u4", align=True)


def fuse_gathers(launches: Sequence[KernelLaunch]) -> list[KernelLaunch]:
    """Return launches that compute the same, with neighboring gathers by the same indices in one launch.

    The arrays must live as long as the launches are repeated.
    """
    fused: list[KernelLaunch] = []
    # Only neighbors: a launch in between may write what a later gather reads.
    for rows, group in groupby(launches, _find_rows):
        neighbors = [*group]
        step = 1 if rows is None else _MOST_FIELDS
        fused += (_fuse(neighbors[first : first + step]) for first in range(0, len(neighbors), step))
    return fused


def _find_rows(launch: KernelLaunch) -> tuple[int, int, int] | None:
    """Return which rows a launch gathers, and how many; None if it is not a gather."""
    if launch.entry not in _SIZES:
        return None
    _, indices, span, _, count, _ = launch.arguments
    return id(indices), id(span), int(count)


def _fuse(gathers: list[KernelLaunch]) -> KernelLaunch:
    if len(gathers) == 1:
        return gathers[0]
    fields = np.zeros(_MOST_FIELDS, _FIELD)
    for number, gathered in enumerate(gathers):
        source, _, _, out, _, words = gathered.arguments
        lanes = count_lanes(int(words))
        # Each field divides a block into lanes along its own rows; multiplying by the inverse avoids a
        # division.
        numbers = words, _SIZES[str(gathered.entry)], lanes, -(-_ONE // lanes)
        fields[number] = source.data.ptr, out.data.ptr, *numbers
    # Fields need different grids. The largest is enough for all, because kernels loop.
    sizes = zip(*(gathered.grid for gathered in gathers), strict=True)
    grid = *map(max, sizes), len(gathers)
    _, indices, span, _, rows, _ = gathers[0].arguments
    arguments = indices, span, rows, by_value(fields, _FIELD)
    return KernelLaunch("gather", "gather_fields", grid, (_THREADS,), arguments)
