"""`TableDataset`: the rows of a data frame, an Arrow table or a dict of columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataFileError, SampleError, import_package
from gpuloader.fields.convert import check_mask
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import is_stageable, native
from gpuloader.foreign import as_array, how_to_read, is_instance, name_table
from gpuloader.sources.array_rows import ArrayRows
from gpuloader.sources.block import Block, Column, Part, Rows, SampleFields, WholeList, of_columns
from gpuloader.sources.column_dataset import ColumnDataset
from gpuloader.sources.tables.arrow import check_nulls, column_of, refuse_nulls

# The columns of data frames, Arrow tables and dicts, in the form in which the loader reads them.


class Listed:
    """A column of Python objects, such as text; a list in it counts as one value.

    >>> Listed(["a", "b", "c"]).take(np.array([2, 0]))
    ['c', 'a']
    """

    def __init__(self, values: list[Any]) -> None:
        self._values = [WholeList(value) if isinstance(value, list | tuple) else value for value in values]

    def take(self, rows: Rows) -> list[Any]:
        """Return the values of some rows."""
        if isinstance(rows, slice):
            return self._values[rows]
        return [self._values[row] for row in rows.tolist()]


class Coded:
    """A column of a few different objects, stored as numbers; a negative number means None.

    >>> Coded(["cat", "dog"], np.array([1, 1, 0, -1])).take(slice(1, 4))
    ['dog', 'cat', None]
    """

    def __init__(self, values: list[Any], codes: NDArray[np.integer]) -> None:
        self._values = [*values, None]
        self._codes = codes

    def take(self, rows: Rows) -> list[Any]:
        """Return the values of some rows."""
        return [self._values[code] for code in self._codes[rows].tolist()]


def read_columns(table: Any) -> tuple[dict[str, Column], int]:
    """Return the columns of a table by name, and the number of rows.

    Raises
    ------
    TypeError
        The value is not a table, or is a table that has not been read yet.
    ValueError
        There are no columns, two have the same name, or they differ in length.
    DataFileError
        A column of numbers has a null or a masked element, or a value is not a column. The error names the
        column.
    MissingPackage
        A column of Polars is not of numbers, and pyarrow is not installed.

    Examples
    --------
    >>> read_columns({"label": [1, 2], "boxes": [[3], [4, 5]]})[0]["boxes"].row_splits[0]
    array([0, 1, 3])
    """
    if line := how_to_read(table):
        raise TypeError(f"a {type(table).__name__} has not been read yet: pass {line}")
    columns, lengths = dict[str, Column](), dict[str, int]()
    for label, values in _list_columns(table):
        name = str(label)
        if name in columns:
            raise ValueError(f"several columns of the table have the name {name!r}; rename all but one")
        try:
            columns[name], lengths[name] = _read(values, name)
        except SampleError as error:  # masked, or a tensor that is not dense
            raise DataFileError(error.problem, column=name) from None
    if not columns:
        raise ValueError("the table has no columns")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns must have the same number of rows, got {lengths}")
    return columns, next(iter(lengths.values()))


def _list_columns(table: Any) -> Iterable[tuple[object, Any]]:
    if isinstance(table, list) and name_table(table):
        table = _join(table)
    if is_instance(table, "pyarrow", "Table", "RecordBatch"):
        return zip(table.schema.names, table.columns, strict=True)
    if is_instance(table, "polars", "DataFrame"):
        return ((series.name, series) for series in table.get_columns())
    if is_instance(table, "pandas", "DataFrame"):
        return ((name, table.iloc[:, at]) for at, name in enumerate(table.columns))
    if isinstance(table, Mapping):
        return table.items()
    raise TypeError(
        "a table must be a data frame of pandas or Polars, a table of Arrow, a list of these, or a dict of "
        f"columns, got {type(table).__name__}; pass a column as {{'name': column}}"
    )


def _join(tables: list[Any]) -> Any:
    """Return the rows of tables that follow one another; raise `ValueError` if their schemas differ."""
    module = "pandas" if is_instance(tables[0], "pandas", "DataFrame") else "polars"
    try:
        if not is_instance(tables[0], module, "DataFrame"):
            import pyarrow as pa

            return pa.concat_tables([pa.table(one) for one in tables])
        # pandas would fill columns that a frame lacks with NaN, and round whole numbers next to floats.
        schemas = [[*zip(one.columns, one.dtypes, strict=True)] for one in tables]
        if odd := [one for one in schemas if one != schemas[0]]:
            raise TypeError(f"{schemas[0]} and {odd[0]}")
        return sys.modules[module].concat(tables)
    except (AttributeError, TypeError, ValueError) as error:  # Arrow's errors, too, are ValueErrors
        raise ValueError(f"a list of tables must hold tables of one schema: {error}") from error


def _read(values: Any, name: str) -> tuple[Column, int]:
    """Return one column and its length."""
    check_mask(values.values if isinstance(values, Ragged) else values)
    if isinstance(values, Ragged):
        return values, len(values)
    if is_instance(values, "pyarrow", "Array", "ChunkedArray"):
        return _from_arrow(values, name), len(values)
    if is_instance(values, "pandas", "Series", "Index"):
        return _from_pandas(values, name), len(values)
    if is_instance(values, "polars", "Series"):
        return _from_polars(values, name), len(values)
    no_column = isinstance(values, str | bytes) or is_instance(values, "pyarrow", "Table", "RecordBatch")
    if no_column or not (hasattr(values, "__len__") or hasattr(values, "__array__")):
        raise DataFileError(f"expected one value per row, got {type(values).__name__}", column=name)
    if isinstance(values, Sequence):
        return _from_list(values, name), len(values)
    array = as_array(values)
    return _from_array(array, name), len(array)


def _from_arrow(values: Any, name: str) -> Column:
    import pyarrow as pa

    if not isinstance(values, pa.ChunkedArray):
        values = pa.chunked_array([values])
    check_nulls(values, name)
    return column_of(values, name)


def _from_polars(series: Any, name: str) -> Column:
    if (series.dtype.is_numeric() or str(series.dtype) == "Boolean") and not series.null_count():
        array = series.to_numpy()
        if is_stageable(array.dtype):
            return _from_array(array, name)
    if str(series.dtype) == "Object":
        return _from_list(series.to_list(), name)
    import_package("pyarrow", f"reading column {name!r}, a column of {series.dtype} in Polars,", "parquet")
    return _from_arrow(series.to_arrow(), name)


def _from_pandas(series: Any, name: str) -> Column:
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes, categories = series.cat.codes.to_numpy(), series.cat.categories
        if isinstance(categories.dtype, np.dtype) and is_stageable(categories.dtype):
            refuse_nulls(int(series.isna().sum()), len(series), name)
            return _from_array(categories.to_numpy()[codes], name)
        return Coded(categories.tolist(), codes)
    if isinstance(dtype, pd.SparseDtype):
        series = series.sparse.to_dense()
        dtype = series.dtype
    if isinstance(dtype, pd.ArrowDtype) or getattr(dtype, "storage", "") == "pyarrow":
        return _from_arrow(series.array.__arrow_array__(), name)
    if isinstance(dtype, np.dtype):
        if is_stageable(dtype):
            return _from_array(series.to_numpy(), name)
    elif hasattr(dtype, "numpy_dtype"):  # numbers that may be null, such as Int64
        refuse_nulls(int(series.isna().sum()), len(series), name)
        return _from_array(series.to_numpy(dtype=dtype.numpy_dtype), name)
    found = series.infer_objects()
    if found.dtype != dtype:
        return _from_pandas(found, name)
    # pandas has several objects that mean a missing value.
    missing = series.isna()
    return _from_list([None if gone else value for value, gone in zip(series, missing, strict=True)], name)


def _from_array(array: NDArray[Any], name: str) -> Column:
    if array.ndim == 0:
        raise DataFileError(f"expected one value per row, got the single value {array}", column=name)
    if not is_stageable(array.dtype):
        return _from_list(list(array) if array.dtype.kind in "Mm" else array.tolist(), name)
    # Rows of non-contiguous columns cannot be gathered in one call.
    return np.ascontiguousarray(array, native(array.dtype))


def _from_list(values: Sequence[Any], name: str) -> Column:
    """Return a column of Python values: numbers, lists of numbers, or anything else unchanged."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, bool | int | float | complex | np.generic):
        given = [value for value in values if value is not None]
        try:
            array = np.asarray(given)
        except ValueError:  # lists among them
            return Listed(list(values))
        if array.ndim == 1 and is_stageable(array.dtype):
            refuse_nulls(len(values) - len(given), len(values), name)
            return array
    elif isinstance(first, list | tuple) or hasattr(first, "__array__"):
        return _from_sequences(values, name)
    return Listed(list(values))


def _from_sequences(values: Sequence[Any], name: str) -> Column:
    """Return a column of lists or arrays: one array if all have the same shape, otherwise a `Ragged`."""
    arrays: list[NDArray[Any]] = []
    for value in [value for value in values if value is not None]:
        try:
            array = as_array(value)
        except ValueError:  # lists of different lengths, or a tensor that is not dense
            return Listed(list(values))
        if not array.ndim or (array.size and not is_stageable(array.dtype)):
            return Listed(list(values))
        arrays.append(array)
    refuse_nulls(len(values) - len(arrays), len(values), name)
    filled = [array for array in arrays if array.size] or [np.empty(0)]
    dtype = np.result_type(*{array.dtype for array in filled})
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays).astype(dtype, copy=False)
    if {array.shape[1:] for array in filled} != {filled[0].shape[1:]}:
        return Listed(list(values))
    splits = np.array([0, *np.cumsum(list(map(len, arrays)))], np.int64)
    return Ragged(np.concatenate(filled).astype(dtype, copy=False), (splits,))


_SHOWN = 8  # columns in a description


class TableDataset(ColumnDataset):
    """The rows of a table; a sample is a dict with one value per column.

    `DataLoader` makes a `TableDataset` from every data frame, Arrow table and dict of columns. Make it
    yourself to combine tables with other datasets.

    Numbers and booleans are taken column by column from the table's own memory, without Python code per row.
    Columns of lists of numbers become arrays of more dimensions if all lists have the same length, and need
    the loader's `ragged` or `pad` if not. Text, dates and other values stay as they are: a batch holds a list
    of them, with None for nulls. Categories become their values; pass ``frame["name"].cat.codes`` to train on
    their numbers. A pandas index is not read. Tensors of dtypes that NumPy lacks, such as bfloat16, stay
    tensors.

    A slice, or a list, array or tensor of row numbers or booleans, selects several rows, in columns: a dict
    with an array, a `Ragged` or a list per column. Slices do not copy numbers.

    Parameters
    ----------
    table : pandas.DataFrame, polars.DataFrame, pyarrow.Table, list or mapping
        The table. A mapping has one array, list, tensor or series per column. A list has data frames of one
        library, or Arrow tables or record batches, whose rows follow one another. Numbers are not copied,
        except booleans of Arrow and Polars, columns that are not contiguous, lists of data frames of pandas,
        and nested Python lists.

    Raises
    ------
    TypeError
        The value is not a table, or has not been read yet, such as a Polars ``LazyFrame``.
    ValueError
        There are no columns, two have the same name, they differ in length, or the tables of a list differ in
        their schemas.
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

    columns = names  # as a data frame calls them

    def __repr__(self) -> str:
        known = self._sample_fields()
        columns = [f"{name} ({known.describe_field(name)})" for name in known.fields]
        count = "1 row" if len(self) == 1 else f"{len(self):,} rows"
        more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        return f"<{type(self).__name__}: {count} of {', '.join(columns[:_SHOWN])}{more}>"

    def _take(self, rows: Rows) -> Block:
        return Block([Part(self._columns, rows)])

    def _sample_fields(self) -> SampleFields:
        return of_columns(self._columns)

    def _array_rows(self) -> ArrayRows | None:
        columns = self._columns
        if not all(isinstance(column, np.ndarray) for column in columns.values()):
            return None
        return ArrayRows(tuple(columns.values()), names=self.names)  # type: ignore[arg-type]
