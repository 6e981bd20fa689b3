"""The columns of data frames, Arrow tables and dicts, in the form in which the loader reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.errors import DataFileError, SampleError, missing_package
from gpuloader.fields.convert import check_mask
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import is_stageable, native
from gpuloader.fields.tensors import as_array
from gpuloader.sources.block import Column, Rows, WholeList
from gpuloader.sources.recognizing import is_instance
from gpuloader.sources.tables.arrow import check_nulls, column_of, refuse_nulls


class Listed:
    """A column of Python objects, such as text; lists among them are each one value.

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
    """A column of few different objects, stored as their numbers; a negative number is None.

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
        The value is not a table, or is one that has not been read yet.
    ValueError
        There are no columns, two have the same name, or they differ in length.
    DataFileError
        A column of numbers has a null or a masked element, or one value is not a column; the error names the
        column.
    MissingPackage
        A column of Polars is not of numbers, and pyarrow is not installed.

    Examples
    --------
    >>> read_columns({"label": [1, 2], "boxes": [[3], [4, 5]]})[0]["boxes"].row_splits[0]
    array([0, 1, 3])
    """
    if is_instance(table, "polars", "LazyFrame"):
        raise TypeError("a LazyFrame has not been read yet: pass frame.collect()")
    columns: dict[str, Column] = {}
    lengths: dict[str, int] = {}
    for label, values in _list_columns(table):
        name = str(label)
        if name in columns:
            raise ValueError(f"several columns of the table have the name {name!r}; rename all but one")
        columns[name], lengths[name] = _read(values, name)
    if not columns:
        raise ValueError("the table has no columns")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns must have the same number of rows, got {lengths}")
    return columns, next(iter(lengths.values()))


def _list_columns(table: Any) -> Iterable[tuple[object, Any]]:
    if is_instance(table, "pyarrow", "Table", "RecordBatch"):
        return zip(table.schema.names, table.columns, strict=True)
    if is_instance(table, "polars", "DataFrame"):
        return ((series.name, series) for series in table.get_columns())
    if is_instance(table, "pandas", "DataFrame"):
        return ((name, table.iloc[:, at]) for at, name in enumerate(table.columns))
    if isinstance(table, Mapping):
        return table.items()
    raise TypeError(
        "a table must be a data frame of pandas or Polars, a table of Arrow, or a dict of columns, got "
        f"{type(table).__name__}"
    )


def _read(values: Any, name: str) -> tuple[Column, int]:
    """Return one column and its length."""
    try:
        check_mask(values.values if isinstance(values, Ragged) else values)
    except SampleError as error:
        raise DataFileError(error.problem, column=name) from None
    if isinstance(values, Ragged):
        return values, len(values)
    if is_instance(values, "pyarrow", "Array", "ChunkedArray"):
        return _from_arrow(values, name), len(values)
    if is_instance(values, "pandas", "Series", "Index"):
        return _from_pandas(values, name), len(values)
    if is_instance(values, "polars", "Series"):
        return _from_polars(values, name), len(values)
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") or hasattr(values, "__array__")):
        raise DataFileError(f"expected one value per row, got {type(values).__name__}", column=name)
    if isinstance(values, Sequence):
        return _from_list(values, name), len(values)
    try:
        array = as_array(values)
    except SampleError as error:  # a tensor that is not dense
        raise DataFileError(error.problem, column=name) from None
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
    try:
        values = series.to_arrow()
    except ImportError:
        what = f"reading column {name!r}, a column of {series.dtype} in Polars,"
        raise missing_package(what, "pyarrow", "parquet") from None
    return _from_arrow(values, name)


def _from_pandas(series: Any, name: str) -> Column:
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _from_categories(series, name)
    if isinstance(dtype, pd.SparseDtype):
        series = series.sparse.to_dense()
        dtype = series.dtype
    if isinstance(dtype, pd.ArrowDtype) or getattr(dtype, "storage", "") == "pyarrow":
        return _from_arrow(series.array.__arrow_array__(), name)
    if isinstance(dtype, np.dtype):
        if is_stageable(dtype):
            return _from_array(series.to_numpy(), name)
    elif hasattr(dtype, "numpy_dtype"):  # numbers that may be null, such as Int64
        _refuse_missing(series, name)
        return _from_array(series.to_numpy(dtype=dtype.numpy_dtype), name)
    found = series.infer_objects()
    if found.dtype != dtype:
        return _from_pandas(found, name)
    # pandas has several objects for a missing value.
    missing = series.isna()
    return _from_list([None if gone else value for value, gone in zip(series, missing, strict=True)], name)


def _from_categories(series: Any, name: str) -> Column:
    codes, categories = series.cat.codes.to_numpy(), series.cat.categories
    if isinstance(categories.dtype, np.dtype) and is_stageable(categories.dtype):
        _refuse_missing(series, name)
        return _from_array(categories.to_numpy()[codes], name)
    return Coded(categories.tolist(), codes)


def _refuse_missing(series: Any, name: str) -> None:
    refuse_nulls(int(series.isna().sum()), len(series), name)


def _from_array(array: NDArray[Any], name: str) -> Column:
    if array.ndim == 0:
        raise DataFileError(f"expected one value per row, got the single value {array}", column=name)
    if not is_stageable(array.dtype):
        return _from_list(list(array) if array.dtype.kind in "Mm" else array.tolist(), name)
    # Rows of columns that are not contiguous cannot be gathered in one call.
    return np.ascontiguousarray(array, native(array.dtype))


def _from_list(values: Sequence[Any], name: str) -> Column:
    """Return a column of Python values: numbers, lists of numbers, or anything else as it is."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, bool | int | float | complex | np.generic):
        given = [value for value in values if value is not None]
        array = _as_row_of_numbers(given)
        if array is not None:
            refuse_nulls(len(values) - len(given), len(values), name)
            return array
    elif isinstance(first, list | tuple) or hasattr(first, "__array__"):
        return _from_sequences(values, name)
    return Listed(list(values))


def _as_row_of_numbers(values: Sequence[Any]) -> NDArray[Any] | None:
    """Return values as an array of one dimension; None unless all are numbers."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists among them
        return None
    return array if array.ndim == 1 and is_stageable(array.dtype) else None


def _from_sequences(values: Sequence[Any], name: str) -> Column:
    """Return a column of lists or arrays: one array if all have the same shape, a `Ragged` if not."""
    arrays = list(_as_numbers(values))
    if len(arrays) < len(values):
        return Listed(list(values))
    missing = sum(array is None for array in arrays)
    if missing:
        refuse_nulls(missing, len(values), name)
    filled = [array for array in arrays if array is not None and array.size] or [np.empty(0)]
    dtype = np.result_type(*{array.dtype for array in filled})
    if len({array.shape for array in arrays if array is not None}) == 1:
        return np.stack([array for array in arrays if array is not None]).astype(dtype, copy=False)
    if {array.shape[1:] for array in filled} != {filled[0].shape[1:]}:
        return Listed(list(values))
    lengths = [0 if array is None else len(array) for array in arrays]
    splits = np.array([0, *np.cumsum(lengths)], np.int64)
    return Ragged(np.concatenate(filled).astype(dtype, copy=False), (splits,))


def _as_numbers(values: Sequence[Any]) -> Iterator[NDArray[Any] | None]:
    """Yield each list as an array of numbers, and None as it is; stop at what is neither."""
    for value in values:
        if value is None:
            yield None
            continue
        try:
            array = as_array(value)
        except ValueError:  # lists of different lengths, or a tensor that is not dense
            return
        if not array.ndim or (array.size and not is_stageable(array.dtype)):
            return
        yield array
