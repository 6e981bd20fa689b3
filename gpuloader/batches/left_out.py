"""Leaves samples out of a batch that has been staged."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.stream import StagedBatch
from gpuloader.errors import SampleError
from gpuloader.fields.image_regions import Encoded
from gpuloader.fields.spec import Array
from gpuloader.staging.layout import FieldLayout, Layout

# Batches that samples were left out of: where their rows are missing, and how the others move up.


class Gaps:
    """The samples left out of one batch; the other samples of a part lie at its beginning.

    Parameters
    ----------
    size : int
        The samples that the batch should have.

    Examples
    --------
    >>> gaps = Gaps(6)
    >>> gaps.begin(0, 3).append(1), gaps.begin(3, 6).append(5)
    (None, None)
    >>> gaps.keys("abcdef"), gaps.close_up(["a", "c", None, "d", "e", None])
    (['a', 'c', 'd', 'e'], ['a', 'c', 'd', 'e'])
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: dict[int, tuple[int, list[int]]] = {}

    def begin(self, start: int, stop: int) -> list[int]:
        """Return the list for the positions that are left out of a part."""
        bad: list[int] = []
        self._parts[start] = stop, bad
        return bad

    @property
    def count(self) -> int:
        """The number of samples left out."""
        return sum(len(bad) for _, bad in self._parts.values())

    @property
    def left(self) -> int:
        """The number of samples that the batch has."""
        return self._size - self.count

    def check(self) -> None:
        """Raise `SampleError` if no sample is left."""
        refuse_empty(self.left, self._size)

    def drop(self, rows: Collection[int]) -> None:
        """Leave out further samples, given their numbers among those that are left."""
        left = self.keys(range(self._size))
        for position in [left[row] for row in rows]:
            start = max(start for start in self._parts if start <= position)
            self._parts[start][1].append(position)

    def keys(self, indices: Sequence[Any]) -> list[Any]:
        """Return the indices of the samples that are left."""
        bad = {position for _, part in self._parts.values() for position in part}
        return [index for position, index in enumerate(indices) if position not in bad]

    def close_up(self, rows: Any) -> Any:
        """Return the rows that are left, one behind the other; those of an array move within it."""
        taken = [
            row for start, (stop, bad) in sorted(self._parts.items()) for row in range(start, stop - len(bad))
        ]
        if not isinstance(rows, np.ndarray):
            return [rows[row] for row in taken]
        for to, row in enumerate(taken):
            if to != row:
                rows[to] = rows[row]
        return rows

    @contextmanager
    def locate(self) -> Iterator[None]:
        """Make the position of a sample from the row that a `SampleError` raised within the block names."""
        try:
            yield
        except SampleError as error:
            if error.index is not None and error.dataset_index is None:
                error.index = self._position(error.index)
            raise

    def _position(self, row: int) -> int:
        start = max(start for start in self._parts if start <= row)
        stop, bad = self._parts[start]
        good = [position for position in range(start, stop) if position not in bad]
        return good[row - start] if row - start < len(good) else row


def refuse_empty(left: int, size: int) -> None:
    """Raise `SampleError` if none of a batch's `size` samples is left.

    >>> refuse_empty(1, 4)
    """
    if not left:
        raise SampleError(
            f"none of the batch's {size} samples can be decoded, so on_bad='skip' leaves nothing; "
            "check the files, or use larger batches"
        )


def shorten(layout: Layout, count: int) -> Layout:
    """Return the layout of a batch of only `count` samples, in a slot laid out for more."""
    fields = tuple(
        FieldLayout(field.offset, (count, *field.shape[1:]), field.dtype) for field in layout.fields
    )
    if not fields:
        return layout
    last = fields[-1]
    return Layout(fields, last.offset + math.prod(last.shape) * last.dtype.itemsize)


def leave_out(staged: StagedBatch, count: int, bad: Collection[int]) -> None:
    """Leave the samples at these positions out of a batch of `count`: its rows move up within the slot.

    The bytes of `Encoded` pictures stay where they are; only their pixels are counted anew. Random numbers
    that were drawn once for the whole batch stay the same.

    Raises
    ------
    SampleError
        No sample is left.
    """
    fields = list(staged.layout.fields)
    views: list[Array] = staged.slot.views(staged.layout)
    rows = np.array([row for row in range(count) if row not in bad], np.int64)
    refuse_empty(len(rows), count)
    changed: list[Array | None] = []
    first = 0
    for level in staged.levels:
        arrays = views[first : first + 1 + level]
        first += 1 + level
        changed += _take_encoded(arrays, rows) if level == Encoded.level else _take_ragged(arrays, rows)
    changed += [view[rows] for view in views[first:]]  # random draws
    for number, (view, array) in enumerate(zip(views, changed, strict=True)):
        if array is not None:
            fields[number] = replace(fields[number], shape=array.shape)
            view.reshape(-1)[: array.size] = array.reshape(-1)
    staged.layout = Layout(tuple(fields), staged.layout.nbytes, staged.layout.turned)
    staged.objects = tuple([column[row] for row in rows.tolist()] for column in staged.objects)
    staged.skipped += len(bad)


def _take_encoded(arrays: list[Array], rows: NDArray[np.int64]) -> list[Array | None]:
    _, splits, geometry, room = arrays
    counts = np.diff(splits)[rows]
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return [None, ends, geometry[rows], np.empty((int(ends[-1]), *room.shape[1:]), room.dtype)]


def _take_ragged(arrays: list[Array], rows: NDArray[np.int64]) -> list[Array | None]:
    """Return some rows of a dense field, or of one of sequences."""
    values, *levels = arrays
    taken: list[Array | None] = []
    for splits in levels:
        parts = [np.arange(splits[row], splits[row + 1], dtype=np.int64) for row in rows.tolist()]
        taken.append(np.cumsum([0, *map(len, parts)], dtype=np.int64))
        rows = np.concatenate(parts) if parts else rows[:0]
    return [values[rows], *taken]
