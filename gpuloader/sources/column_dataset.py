"""The base of map-style datasets whose samples lie in columns, wherever these are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.sources.array_rows import as_rows, locate
from gpuloader.sources.block import Block, Rows
from gpuloader.sources.dataset import Dataset


class ColumnDataset(Dataset[dict[str, Any]]):
    """Samples in columns; a subclass sets `_length` and defines how to take rows.

    A row number selects a sample, a dict with one value per column. A slice, or a list, array or tensor of
    row numbers or booleans, selects several, as a dict with an array, a `Ragged` or a list per column.
    """

    _length: int

    def _take(self, rows: Rows) -> Block:
        """Return the samples of rows that exist."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> dict[str, Any]:
        if isinstance(index, str):
            raise TypeError(
                f"a {type(self).__name__} is indexed by row, got the text {index!r}; for the values of a "
                f"column, write dataset[:][{index!r}]"
            )
        rows = locate(self, index)
        if isinstance(rows, int):
            return next(iter(self._take(slice(rows, rows + 1))))
        return self._take(rows).columns()

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples at once."""
        return list(self._take(as_rows(self, indices, len(self))))

    def take_block(self, indices: Sequence[int] | NDArray[np.int64]) -> Block:
        """Return the samples at `indices` in columns; raise `IndexError` if there is no such sample."""
        return self._take(as_rows(self, indices, len(self)))
