"""What is known of a dataset's samples before any is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import is_stageable, native
from gpuloader.foreign import describe_dtype
from gpuloader.sources.block import Chunked, Column

Field = tuple[np.dtype[Any] | None, tuple[int, ...] | None]
"""A field's dtype, None for Python objects, and the shape of a sample's value, None if it varies."""


@dataclass(frozen=True, slots=True)
class SampleFields:
    """Each field's dtype and shape; `kind` is 'tuple', 'dict', or 'value' for samples of a single value."""

    kind: str
    fields: Mapping[str, Field]

    def describe(self) -> str:
        """Return how a sample holds its fields, in words."""
        if self.kind == "value":
            return "single values"
        names = list(self.fields)
        return f"dicts with the keys {names}" if self.kind == "dict" else f"tuples of {len(names)}"


def name_dtype(dtype: np.dtype[Any] | None) -> str:
    """Return the name of a field's dtype in errors."""
    return "Python objects" if dtype is None else describe_dtype(dtype)


def describe_field(field: Field) -> str:
    """Return the dtype of a field, and its shape if it is not a number.

    >>> describe_field((np.dtype("float32"), ())), describe_field((np.dtype("int64"), (2,)))
    ('float32', 'int64 of shape (2,)')
    >>> describe_field((np.dtype("int64"), None)), describe_field((None, None))
    ('int64 of varying shape', 'Python objects')
    """
    dtype, shape = field
    if dtype is None or shape == ():
        return name_dtype(dtype)
    return f"{name_dtype(dtype)} of {'varying shape' if shape is None else f'shape {shape}'}"


def of_arrays(kind: str, names: Iterable[str] | None, arrays: Sequence[Any]) -> SampleFields:
    """Return the fields of samples that are rows of arrays, whose first axis counts the samples.

    >>> of_arrays("tuple", None, [np.zeros((5, 3)), np.array(["a"])]).fields
    {'0': (dtype('float64'), (3,)), '1': (None, None)}
    """
    keys = map(str, range(len(arrays))) if names is None else names
    return SampleFields(kind, {name: _of_array(array) for name, array in zip(keys, arrays, strict=True)})


def of_columns(
    columns: Mapping[str, Column], dtypes: Mapping[str, np.dtype[Any]] | None = None
) -> SampleFields:
    """Return the fields of samples that lie in columns, whose numbers may be converted to other `dtypes`.

    >>> of_columns({"x": np.zeros(2)}, {"x": np.dtype("float32")}).fields
    {'x': (dtype('float32'), ())}
    """
    found: dict[str, Field] = {}
    for name, column in columns.items():
        # All pieces of a column are alike, and the first is the one that is most likely in memory already.
        piece: Any = column.piece(0) if isinstance(column, Chunked) else column
        if isinstance(piece, Ragged):
            field: Field = np.dtype(piece.values.dtype), None
        else:
            field = _of_array(piece) if isinstance(piece, np.ndarray) else (None, None)
        found[name] = (dtypes or {}).get(name, field[0]), field[1]
    return SampleFields("dict", found)


def _of_array(array: Any) -> Field:
    dtype = np.dtype(array.dtype)
    return (native(dtype), tuple(array.shape[1:])) if is_stageable(dtype) else (None, None)
