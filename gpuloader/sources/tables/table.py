"""`TableDataset`: the rows of a data frame, an Arrow table or a dict of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.sources.array_rows import ArrayRows
from gpuloader.sources.block import Block, Part
from gpuloader.sources.dataset_base import Dataset
from gpuloader.sources.indexing import as_rows, locate
from gpuloader.sources.sample_fields import SampleFields, describe_field, of_columns
from gpuloader.sources.tables.columns import read_columns

_SHOWN = 8  # columns in a description


class TableDataset(Dataset[dict[str, Any]]):
    """The rows of a table; a sample is a dict with one value per column.

    `DataLoader` makes one of every data frame, Arrow table and dict of columns that it is given. Make it
    yourself to combine tables with other datasets.

    Numbers and booleans are taken column by column from the table's own memory, without Python code per row.
    Columns of lists of numbers become arrays of more dimensions if all lists have the same length, and need
    the loader's `ragged` or `pad` if not. Text stays text: a batch holds a list of it, with None for nulls.
    So does any other value, such as a date. Categories become their values; pass ``frame["name"].cat.codes``
    to train on their numbers. An index of pandas is not read. Tensors of dtypes that NumPy lacks, such as
    bfloat16, stay tensors.

    A slice, or a list, array or tensor of row numbers or booleans, selects several rows at once. They come in
    columns: a dict with an array, a `Ragged` or a list per column. Slices do not copy numbers.

    Parameters
    ----------
    table : pandas.DataFrame, polars.DataFrame, pyarrow.Table or mapping
        The table; a mapping has one array, list, tensor or series per column. Numbers are not copied, except
        booleans of Arrow and Polars, columns that are not contiguous, and nested lists of Python.

    Raises
    ------
    TypeError
        The value is not a table, or is a Polars ``LazyFrame``, which has not been read yet.
    ValueError
        There are no columns, two have the same name, or they differ in length.
    DataFileError
        A column of numbers has a null, which no number can represent, or a tensor is not dense or not in host
        memory. The message names the column.
    MissingPackage
        A Polars frame has a column that is not of numbers, and pyarrow is not installed.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> table = TableDataset({"x": [0.5, 1.5, 2.5], "name": ["a", "b", "c"]})
    >>> table[1], len(table), table.names
    ({'x': np.float64(1.5), 'name': 'b'}, 3, ('x', 'name'))
    >>> table[[2, 0]]
    {'x': array([2.5, 0.5]), 'name': ['c', 'a']}
    >>> table
    <TableDataset: 3 rows of x (float64), name (Python objects)>
    >>> for batch in DataLoader(table, places="cpu", batch_size=2):
    ...     print(batch)
    {'x': array([0.5, 1.5]), 'name': ['a', 'b']}
    {'x': array([2.5]), 'name': ['c']}
    """

    def __init__(self, table: Any) -> None:
        self._columns, self._length = read_columns(table)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in the table's order."""
        return tuple(self._columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, as a data frame calls them; the same as `names`."""
        return self.names

    def __repr__(self) -> str:
        fields = self._sample_fields().fields.items()
        columns = [f"{name} ({describe_field(field)})" for name, field in fields]
        count = "1 row" if len(self) == 1 else f"{len(self):,} rows"
        more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        return f"<{type(self).__name__}: {count} of {', '.join(columns[:_SHOWN])}{more}>"

    def __getitem__(self, index: Any) -> dict[str, Any]:
        if isinstance(index, str):
            raise TypeError(
                f"a TableDataset is indexed by row, got the text {index!r}; for the values of a column, "
                f"write table[:][{index!r}]"
            )
        rows = locate(self, index)
        if isinstance(rows, int):
            return next(iter(Block([Part(self._columns, slice(rows, rows + 1))])))
        return Block([Part(self._columns, rows)]).columns()

    def __len__(self) -> int:
        return self._length

    def take_block(self, indices: Sequence[int] | NDArray[np.int64]) -> Block:
        """Return the samples at `indices` in columns; raise `IndexError` if there is no such sample."""
        return Block([Part(self._columns, as_rows(self, indices, self._length))])

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples at once."""
        return list(self.take_block(indices))

    def _sample_fields(self) -> SampleFields:
        return of_columns(self._columns)

    def _array_rows(self) -> ArrayRows | None:
        columns = self._columns
        if not all(isinstance(column, np.ndarray) for column in columns.values()):
            return None
        return ArrayRows(tuple(columns.values()), names=self.names)  # type: ignore[arg-type]
