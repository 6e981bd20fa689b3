"""Batches that samples were left out of: where their rows are missing, and how the others move up."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.staging.layout import FieldLayout, Layout


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
