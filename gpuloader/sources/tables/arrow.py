"""Arrow columns in the loader's form: numbers as arrays in Arrow's memory, anything else as objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataFileError, damaged, describe_error
from gpuloader.fields.ragged import Ragged
from gpuloader.sources.block import Chunked, Column, Piece, PlainObjects, Rows, WholeList

if TYPE_CHECKING:
    import pyarrow as pa

_JOINED = 32 << 20
"""Chunks of columns up to this many bytes are joined: finding rows in many costs more than taking them."""


class ArrowObjects:
    """A column of text or other non-numbers, converted to Python objects when its rows are taken."""

    def __init__(self, values: pa.Array, name: str) -> None:
        self._values = values
        self._name = name
        self._is_nested = values.type.num_fields > 0

    def take(self, rows: Rows) -> list[Any]:
        """Return the values of some rows as Python objects, as Arrow converts them.

        Raises
        ------
        DataFileError
            Python cannot represent a value, such as a date beyond the year 9999.
        """
        chosen = self._values[rows] if isinstance(rows, slice) else self._values.take(rows)
        try:
            listed: list[Any] = chosen.to_pylist()
        except (ValueError, OverflowError) as error:
            raise DataFileError(
                f"cannot convert a value of type {self._values.type} to a Python object "
                f"({describe_error(error)}); cast it to another type, or leave the column out",
                column=self._name,
            ) from error
        return [_keep_lists(value) for value in listed] if self._is_nested else listed


class ArrowText(ArrowObjects, PlainObjects):
    """A column of text or bytes."""


def _keep_lists(value: Any) -> Any:
    """Return a value with its lists kept from being split into fields: another row's list may be longer."""
    if isinstance(value, dict):
        return {name: _keep_lists(entry) for name, entry in value.items()}
    return WholeList(value) if isinstance(value, list) else value


def columns_of(table: pa.Table) -> Mapping[str, Column]:
    """Return the columns of a table; columns of numbers are NumPy arrays that share Arrow's memory.

    Numbers and booleans become arrays. Booleans are copied, because Arrow packs eight into a byte. Lists and
    tensors of fixed shape become arrays of more dimensions, and lists of numbers of varying length become a
    `Ragged`. Any other column becomes an `ArrowObjects`. The table must have passed `check_values`.

    Parameters
    ----------
    table : pyarrow.Table
        The table. Columns in several chunks are copied into one chunk.

    Examples
    --------
    >>> import pytest
    >>> pa = pytest.importorskip("pyarrow")
    >>> columns = columns_of(pa.table({"label": [1, 2], "name": ["a", "b"], "words": [[1, 2], [3]]}))
    >>> columns["label"], columns["name"].take(slice(1, 2)), columns["words"].row_splits[0]
    (array([1, 2]), ['b'], array([0, 2, 3]))
    """
    return {
        name: _column(values.chunk(0) if values.num_chunks == 1 else values.combine_chunks(), name)
        for name, values in zip(table.column_names, table.columns, strict=True)
    }


def column_of(values: pa.ChunkedArray, name: str) -> Column:
    """Return a column in the form of `columns_of`, but leave the chunks of a large column separate.

    >>> import pytest
    >>> pa = pytest.importorskip("pyarrow")
    >>> column_of(pa.chunked_array([[1, 2], [3]]), "label")
    array([1, 2, 3])
    """
    if values.num_chunks == 1:
        return _column(values.chunk(0), name)
    if values.nbytes <= _JOINED:
        return _column(values.combine_chunks(), name)
    lengths = [len(chunk) for chunk in values.chunks]
    return Chunked(lengths, lambda number: _column(values.chunk(number), name))


def are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether types differ at most in width or encoding, so that values of one may fit the other.

    >>> import pytest
    >>> pa = pytest.importorskip("pyarrow")
    >>> text = pa.dictionary(pa.int8(), pa.string())
    >>> are_alike(pa.int8(), pa.int64()), are_alike(text, pa.large_string())
    (True, True)
    >>> are_alike(pa.int8(), pa.float32())
    False
    """
    return _name_family(one) == _name_family(other)


def _name_family(kind: pa.DataType) -> str:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _name_family(kind.value_type)
    if _is_list(kind):
        return f"list of {_name_family(kind.value_type)}"
    for family in ("integer", "floating", "decimal", "timestamp"):
        if getattr(types, f"is_{family}")(kind):
            return family
    return str(kind).removeprefix("large_").removesuffix("_view")


def is_rounded(stored: pa.ChunkedArray, cast: pa.ChunkedArray) -> bool:
    """Return whether a cast has rounded floats, also in lists; other casts of like types raise errors.

    >>> import pytest
    >>> pa = pytest.importorskip("pyarrow")
    >>> [is_rounded(column, column.cast("float32")) for column in pa.table({"a": [0.1], "b": [0.5]}).columns]
    [True, False]
    """
    from pyarrow import compute, types

    while _is_list(stored.type):
        stored, cast = compute.list_flatten(stored), compute.list_flatten(cast)
    is_float = types.is_floating(stored.type)
    return is_float and not np.array_equal(stored.to_numpy(), cast.to_numpy(), equal_nan=True)


def is_nested(kind: pa.DataType) -> bool:
    """Return whether values of a type become dicts, or lists that are not rows of numbers.

    >>> import pytest
    >>> pa = pytest.importorskip("pyarrow")
    >>> is_nested(pa.list_(pa.int8())), is_nested(pa.list_(pa.string()))
    (False, True)
    """
    inner = kind.value_type if _is_list(kind) else _fixed_shape(kind)[1]
    return not _is_number(inner) and getattr(kind, "storage_type", kind).num_fields > 0


def check_values(table: pa.Table, *, file: str | None = None, row_group: int | None = None) -> None:
    """Raise `DataFileError` if a column of numbers has a null, or a column of text is not valid UTF-8.

    >>> import pytest
    >>> pa = pytest.importorskip("pyarrow")
    >>> check_values(pa.table({"label": [1, None]}), file="a.parquet", row_group=3)
    Traceback (most recent call last):
    gpuloader.errors.DataFileError: a.parquet, row group 3, column 'label': 1 of 2 values is null, ...
    """
    from pyarrow import ArrowInvalid

    for name, column in zip(table.column_names, table.columns, strict=True):
        advice = "; write data that is not text as binary, or leave the column out"
        with damaged("", ArrowInvalid, advice=advice, file=file, row_group=row_group, column=name):
            check_nulls(column, name)
            column.validate(full=True)


def check_nulls(column: pa.ChunkedArray, name: str) -> None:
    """Raise `DataFileError` if a column of numbers, or of lists of numbers, has a null."""
    refuse_nulls(sum(map(_count_nulls, column.chunks)), len(column), name)


def refuse_nulls(count: int, length: int, name: str) -> None:
    """Raise `DataFileError` if `count` of the values of a column of numbers are null.

    >>> refuse_nulls(2, 8, "age")
    Traceback (most recent call last):
    gpuloader.errors.DataFileError: column 'age': 2 of 8 values are null, which no number can rep...
    """
    if count:
        raise DataFileError(
            f"{count} of {length} values {'is' if count == 1 else 'are'} null, which no number can "
            "represent; fill the nulls, or leave the column out",
            column=name,
        )


def _count_nulls(values: pa.Array) -> int:
    """Return how many numbers, or lists of numbers, are null; 0 for a column of anything else."""
    kind = values.type
    # Numbers are the usual case, and are recognized sooner than what lists may hold.
    if not (_is_number(kind) or _is_number(kind.value_type if _is_list(kind) else _fixed_shape(kind)[1])):
        return 0
    while not values.null_count and not _is_number(values.type):
        values = _inside(values)
    return int(values.null_count)


def _inside(values: pa.Array) -> pa.Array:
    """Return the values inside lists, for these rows only if the array is a slice of a longer one."""
    if hasattr(values.type, "storage_type"):
        return values.storage
    return values.dictionary_decode() if hasattr(values.type, "index_type") else values.flatten()


def _column(values: pa.Array, name: str) -> Piece:
    if _is_list(values.type) and _is_number(values.type.value_type):
        splits = values.offsets.to_numpy().astype(np.int64)
        return Ragged(_numbers(values.flatten()), (splits - splits[0],))
    shape, inner = _fixed_shape(values.type)
    if not _is_number(inner):
        is_text = _name_family(values.type) in ("string", "binary")
        return (ArrowText if is_text else ArrowObjects)(values, name)
    count = len(values)
    while not _is_number(values.type):
        values = _inside(values)
    return _numbers(values).reshape(count, *shape)


def _fixed_shape(kind: pa.DataType) -> tuple[tuple[int, ...], pa.DataType]:
    """Return the shape that all values of a type share, and the type of their elements."""
    from pyarrow import types

    storage = getattr(kind, "storage_type", None)
    shape = getattr(kind, "shape", None)  # tensor types have one, both Arrow's and Ray's
    axes = getattr(kind, "permutation", None) or ()
    held = getattr(storage, "value_type", None)  # None for tensors of varying shape
    if held is not None and shape is not None and None not in shape and list(axes) == sorted(axes):
        while hasattr(held, "value_type"):  # Hugging Face stores a matrix as a list of lists
            held = held.value_type
        return tuple(shape), held
    sizes: list[int] = []
    if types.is_dictionary(kind):
        kind = kind.value_type
    while types.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return tuple(sizes), kind


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _numbers(values: pa.Array) -> NDArray[Any]:
    return np.asarray(values.to_numpy(zero_copy_only=values.type.bit_width > 1))
