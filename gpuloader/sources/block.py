"""Blocks of samples in columns, as column files store them, so that no row becomes a Python object.

An iterable dataset whose samples lie in columns may offer ``iter_blocks(size)`` in addition to ``__iter__``.
It yields the same samples in the same order, `size` per block and possibly fewer in the last. A map-style
dataset may offer ``take_block(indices)`` in addition to ``__getitem__``. It returns the samples at these
indices, or raises `IndexError`. The loader then copies from the columns straight into its slots.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import is_stageable, native
from gpuloader.foreign import describe_dtype, is_tensor, tensor_over, torch_name

Rows = slice | NDArray[np.int64]
"""Rows of a column: a slice with a start, a stop and perhaps a step, or an array of row numbers from 0.

Only `Block.take` makes slices with a step.
"""


class WholeList(list[Any]):
    """A list that is one value of a sample; the loader does not split it into one field per element."""


class Objects(Protocol):
    """A column of values that are not numbers."""

    def take(self, rows: Rows) -> list[Any]:
        """Return the values of some rows as Python objects."""


class PlainObjects:
    """Marks columns of which every value stays one Python object, such as text, and is never a list."""


class Chunked:
    """A column whose rows lie in several pieces, such as the record batches of an Arrow table.

    `make(n)` returns piece n, as `piece(n)` does after the first use: an array, a `Ragged` or objects, the
    same kind for all pieces.

    >>> column = Chunked([2, 3], [np.array([10, 11]), np.array([12, 13, 14])].__getitem__)
    >>> [int(piece[row]) for piece, row in column.find(np.array([3, 0]))]
    [13, 10]
    """

    __slots__ = ("_ends", "_starts", "piece")

    def __init__(self, lengths: Sequence[int], make: Callable[[int], Piece]) -> None:
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        self.piece = lru_cache(_MOST_PIECES)(make)

    def find(self, rows: NDArray[np.int64]) -> Iterator[tuple[Any, int]]:
        """Yield the piece of each row, and its row there."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        for number, row in zip(numbers.tolist(), (rows - self._starts[numbers]).tolist(), strict=True):
            yield self.piece(number), row

    def cut(self, rows: Rows) -> list[tuple[Any, Rows]]:
        """Return the pieces that consecutive rows lie in, each with its rows; other rows are numbered."""
        if not isinstance(rows, slice) or rows.step:
            return [(self, number_rows(rows))]
        first, last = np.searchsorted(self._ends, [rows.start, max(rows.stop - 1, rows.start)], side="right")
        cuts: list[tuple[Any, Rows]] = []
        for number in range(first, min(last, len(self._ends) - 1) + 1):
            start, end = int(self._starts[number]), int(self._ends[number])
            within = slice(max(rows.start - start, 0), min(rows.stop, end) - start)
            if within.start < within.stop or rows.start == rows.stop:
                cuts.append((self.piece(number), within))
        return cuts


Piece = NDArray[Any] | Ragged | Objects
Column = Piece | Chunked
"""One row per sample. Arrays and `Ragged` columns of level 1 are staged; objects stay Python objects."""

_MOST_PIECES = 1 << 16  # the most that a column keeps; each costs a few hundred bytes of Python objects


# Not frozen, because one is made for every batch.
@dataclass(slots=True, eq=False, repr=False)
class Part:
    """Selected rows of columns that share their first dimension."""

    columns: Mapping[str, Column]
    rows: Rows
    # The dtypes that columns of numbers are converted to. Other columns keep theirs.
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        rows = self.rows
        return -((rows.start - rows.stop) // (rows.step or 1)) if isinstance(rows, slice) else len(rows)


class Block:
    """Samples in columns: the rows of one or more parts in turn. A sample is a dict, one value per column.

    >>> columns = {"image": np.arange(8).reshape(4, 2), "label": np.arange(4)}
    >>> block = Block([Part(columns, slice(3, 4)), Part(columns, np.array([1, 0]))])
    >>> [(sample["image"].tolist(), int(sample["label"])) for sample in block]
    [([6, 7], 3), ([2, 3], 1), ([0, 1], 0)]
    >>> block.columns()["label"]
    array([3, 1, 0])
    """

    __slots__ = ("_length", "parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._length = sum(map(len, parts))  # asked for several times per batch

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.parts[0].columns)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            for row in number_rows(part.rows).tolist():
                sample = {name: _value(column, row) for name, column in part.columns.items()}
                for name, dtype in part.dtypes.items():
                    sample[name] = np.asarray(sample[name], dtype)[()]
                yield sample

    def pieces(self, name: str) -> list[tuple[Any, Rows, np.dtype[Any] | None]]:
        """Return a column as it is stored: its parts, with their rows and the dtype to convert them to."""
        found: list[tuple[Any, Rows, np.dtype[Any] | None]] = []
        for part in self.parts:
            column = part.columns[name]
            cuts = column.cut(part.rows) if isinstance(column, Chunked) else [(column, part.rows)]
            found += [(piece, rows, part.dtypes.get(name)) for piece, rows in cuts]
        return found

    def take(self, positions: range | list[int], start: int = 0) -> Block:
        """Return the samples at some positions, in ascending order; the first sample is at `start`.

        >>> block = Block([Part({"x": np.arange(9)}, slice(1, 4)), Part({"x": np.arange(9)}, slice(6, 9))])
        >>> block.take(range(0, 6, 2)).columns(), block.take([10, 13, 13], 10).columns()
        ({'x': array([1, 3, 7])}, {'x': array([1, 6, 6])})
        >>> block.take(range(0, 6, 2)).take(range(0, 3, 2)).columns()
        {'x': array([1, 7])}
        """
        parts: list[Part] = []
        for part in self.parts:
            stop = start + len(part)
            here = positions[bisect_left(positions, start) : bisect_left(positions, stop)]
            if here:
                rows = part.rows
                if isinstance(here, list):
                    rows = number_rows(rows)[np.array(here) - start]
                elif isinstance(rows, slice) and not rows.step:
                    first = rows.start - start  # NumPy copies every so many rows faster without their numbers
                    rows = slice(first + here.start, first + here.stop, here.step if here.step > 1 else None)
                else:
                    rows = number_rows(rows)[here.start - start : here.stop - start : here.step]
                parts.append(Part(part.columns, rows, part.dtypes))
            start = stop
        return Block(parts)

    def columns(self) -> dict[str, Any]:
        """Return the values of all samples by column: an array, a `Ragged` or a list for each."""
        return {name: _join(self.pieces(name)) for name in self.names}


def first_piece(column: Column) -> Any:
    """Return one piece of a column, which tells of what form all of them are."""
    # The first is the most likely to be in memory already.
    return column.piece(0) if isinstance(column, Chunked) else column


def number_rows(rows: Rows) -> NDArray[np.int64]:
    """Return the numbers of selected rows as an array.

    >>> number_rows(slice(1, 3))
    array([1, 2])
    """
    return np.arange(rows.start, rows.stop, rows.step) if isinstance(rows, slice) else rows


def _join(pieces: list[tuple[Any, Rows, np.dtype[Any] | None]]) -> Any:
    """Return the selected rows of the pieces of a column together."""
    kind = first_piece(pieces[0][0])
    if isinstance(kind, np.ndarray):
        parts = [_take(column, rows, kind) for column, rows, _ in pieces]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        dtype = pieces[0][2]
        return _as_seen(joined if dtype is None else joined.astype(dtype, copy=False))
    listed = [value for column, rows, _ in pieces for value in take_each(column, rows)]
    if isinstance(kind, Ragged):
        return Ragged.from_samples(listed, pieces[0][2] or kind.dtype, kind.values.shape[1:])
    return listed


def _take(column: NDArray[Any] | Chunked, rows: Rows, like: NDArray[Any]) -> NDArray[Any]:
    """Return rows of a column of arrays; `like` is one of its pieces."""
    if not isinstance(column, Chunked):
        return column[rows]
    assert not isinstance(rows, slice)
    # Row by row, because adjacent rows of a shuffled batch rarely lie in the same piece.
    taken = np.empty((len(rows), *like.shape[1:]), like.dtype)
    for position, (piece, row) in enumerate(column.find(rows)):
        taken[position] = piece[row]
    return taken


def _as_seen(values: NDArray[Any]) -> Any:
    """Return values as the user sees them: bits of a dtype that only torch has become a tensor."""
    return values if torch_name(values.dtype) is None else tensor_over(values)


def _value(column: Column, row: int) -> Any:
    if isinstance(column, Chunked):
        [(piece, within)] = column.find(np.array([row]))
        return _value(piece, within)
    if isinstance(column, np.ndarray):
        return column[row] if column.dtype.names is None else _as_seen(column[row : row + 1])[0]
    if isinstance(column, Ragged):
        (splits,) = column.row_splits
        return column.values[splits[row] : splits[row + 1]]
    return column.take(slice(row, row + 1))[0]


def take_each(column: Ragged | Objects | Chunked, rows: Rows) -> list[Any]:
    """Return the values of rows that do not form one array: an array per row of a `Ragged`, or objects.

    >>> column = Ragged(np.arange(5), (np.array([0, 3, 3, 5]),))
    >>> [part.tolist() for part in take_each(column, slice(0, 3))]
    [[0, 1, 2], [], [3, 4]]
    """
    if isinstance(column, Chunked):
        assert not isinstance(rows, slice)
        return [_value(piece, row) for piece, row in column.find(rows)]
    if not isinstance(column, Ragged):
        return column.take(rows)
    (splits,) = column.row_splits
    chosen = number_rows(rows)
    bounds = zip(splits[chosen].tolist(), splits[chosen + 1].tolist(), strict=True)
    return [column.values[start:stop] for start, stop in bounds]


# Samples of any schema joined field by field, for datasets that are indexed with several indices.


def join_samples(samples: Sequence[Any]) -> Any:
    """Return samples of one schema joined field by field, as a `TensorDataset` and a `TableDataset` do.

    Numbers, arrays and tensors are stacked, and tuples, lists and dicts are joined entry by entry. Anything
    else becomes a list, and so do samples that differ in type, shape, keys or length.

    >>> join_samples([{"x": np.array([1, 2]), "name": "a"}, {"x": np.array([3, 4]), "name": "b"}])
    {'x': array([[1, 2],
           [3, 4]]), 'name': ['a', 'b']}
    """
    first = samples[0] if samples else None
    if len(set(map(type, samples))) > 1:
        return list(samples)
    if isinstance(first, Mapping) and all(one.keys() == first.keys() for one in samples):
        return {key: join_samples([sample[key] for sample in samples]) for key in first}
    is_sequence = isinstance(first, tuple | list) and not isinstance(first, WholeList)
    if is_sequence and len(set(map(len, samples))) == 1:
        fields = [join_samples(entries) for entries in zip(*samples, strict=True)]
        return fields if isinstance(first, list) else tuple(fields)
    is_number = isinstance(first, int | float | complex | np.generic | np.ndarray)
    if is_number and len({(np.shape(one), getattr(one, "dtype", None)) for one in samples}) == 1:
        joined = np.asarray(samples)
        return joined if is_stageable(joined.dtype) else list(samples)
    if is_tensor(first) and len({(one.shape, one.dtype) for one in samples}) == 1:
        return sys.modules["torch"].stack(list(samples))
    return list(samples)


# What is known about a dataset's samples before any is read, from the columns or arrays that hold them.

Field = tuple[np.dtype[Any] | None, tuple[int, ...] | None]
"""A field's dtype (None for Python objects) and the shape of a sample's value (None if it varies)."""


@dataclass(frozen=True, slots=True)
class SampleFields:
    """Each field's dtype and shape; `kind` is 'tuple', 'dict', or 'value' for samples of a single value."""

    kind: str
    fields: Mapping[str, Field]

    def describe(self) -> str:
        """Describe in words how a sample holds its fields."""
        if self.kind == "value":
            return "single values"
        names = list(self.fields)
        return f"dicts with the keys {names}" if self.kind == "dict" else f"tuples of {len(names)}"

    def describe_field(self, name: str) -> str:
        """Return the dtype of a field, and its shape if it is not a number.

        >>> fields = {"x": (np.dtype("float32"), ()), "y": (np.dtype("int64"), (2,)), "z": (None, None)}
        >>> [*map(SampleFields("dict", fields).describe_field, fields)]
        ['float32', 'int64 of shape (2,)', 'Python objects']
        >>> SampleFields("dict", {"x": (np.dtype("int64"), None)}).describe_field("x")
        'int64 of varying shape'
        """
        dtype, shape = self.fields[name]
        if dtype is None or shape == ():
            return name_dtype(dtype)
        return f"{name_dtype(dtype)} of {'varying shape' if shape is None else f'shape {shape}'}"


def name_dtype(dtype: np.dtype[Any] | None) -> str:
    """Return the name of a field's dtype for error messages."""
    return "Python objects" if dtype is None else describe_dtype(dtype)


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
    """Return the fields of samples in columns; numbers may be converted to other `dtypes`.

    >>> of_columns({"x": np.zeros(2)}, {"x": np.dtype("float32")}).fields
    {'x': (dtype('float32'), ())}
    """
    found: dict[str, Field] = {}
    for name, column in columns.items():
        piece = first_piece(column)
        field: Field = _of_array(piece) if isinstance(piece, np.ndarray) else (None, None)
        if isinstance(piece, Ragged):
            field = np.dtype(piece.values.dtype), None
        found[name] = (dtypes or {}).get(name, field[0]), field[1]
    return SampleFields("dict", found)


def _of_array(array: Any) -> Field:
    dtype = np.dtype(array.dtype)
    return (native(dtype), tuple(array.shape[1:])) if is_stageable(dtype) else (None, None)
