"""Blocks of samples in columns, as column files store them, so that no row becomes a Python object.

An iterable dataset whose samples lie in columns may offer ``iter_blocks(size)`` in addition to
``__iter__``. It yields the same samples in the same order, `size` per block and possibly fewer in the last.
The loader then copies from the columns straight into its slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.fields.ragged import Ragged

Rows = slice | NDArray[np.int64]
"""Rows of a column: a slice with a start and a stop but no step, or an array of row numbers from 0."""


class WholeList(list[Any]):
    """A list that is one value of a sample; the loader does not split it into one field per element."""


class Objects(Protocol):
    """A column of values that are not numbers."""

    def take(self, rows: Rows) -> list[Any]:
        """Return the values of some rows as Python objects."""


Column = NDArray[Any] | Ragged | Objects
"""One row per sample. Arrays and `Ragged` columns of level 1 are staged; objects stay Python objects."""


@dataclass(frozen=True, slots=True)
class Part:
    """Selected rows of columns that share their first dimension.

    Attributes
    ----------
    columns : mapping of str to column
        The columns by name.
    rows : slice or numpy.ndarray
        The selected rows.
    """

    columns: Mapping[str, Column]
    rows: Rows

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)


class Block:
    """Samples in columns: the rows of several parts in turn. A sample is a dict with one value per column.

    Parameters
    ----------
    parts : sequence of Part
        One part or more, all with the same columns.

    Examples
    --------
    >>> columns = {"image": np.arange(8).reshape(4, 2), "label": np.arange(4)}
    >>> block = Block([Part(columns, slice(3, 4)), Part(columns, np.array([1, 0]))])
    >>> [(sample["image"].tolist(), int(sample["label"])) for sample in block]
    [([6, 7], 3), ([2, 3], 1), ([0, 1], 0)]
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.parts[0].columns)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            rows = part.rows
            for row in range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist():
                yield {name: _value(column, row) for name, column in part.columns.items()}

    def pieces(self, name: str) -> list[tuple[Any, Rows]]:
        """Return a column as it is stored: its parts, each with the selected rows."""
        return [(part.columns[name], part.rows) for part in self.parts]


def _value(column: Column, row: int) -> Any:
    if isinstance(column, np.ndarray):
        return column[row]
    if isinstance(column, Ragged):
        (splits,) = column.row_splits
        return column.values[splits[row] : splits[row + 1]]
    return column.take(slice(row, row + 1))[0]


def row_parts(column: Ragged, rows: Rows) -> list[NDArray[Any]]:
    """Return the values of rows of varying length, one array per row.

    >>> column = Ragged(np.arange(5), (np.array([0, 3, 3, 5]),))
    >>> [part.tolist() for part in row_parts(column, slice(0, 3))]
    [[0, 1, 2], [], [3, 4]]
    """
    (splits,) = column.row_splits
    if isinstance(rows, slice):
        starts, stops = splits[rows], splits[rows.start + 1 : rows.stop + 1]
    else:
        starts, stops = splits[rows], splits[rows + 1]
    return [column.values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


def gives_blocks(dataset: object) -> bool:
    """Return whether a dataset's samples can be read in blocks.

    They cannot if a class derived from the one with ``iter_blocks`` overrides ``__iter__``, because that
    ``__iter__`` would not run.
    """
    for kind in type(dataset).__mro__:
        if "iter_blocks" in vars(kind):
            return True
        if "__iter__" in vars(kind):
            return False
    return False
