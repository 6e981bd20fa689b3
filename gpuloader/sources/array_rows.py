"""Datasets that consist of arrays: their samples are rows, which are gathered without any Python code."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Sequence, Set, Sized
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.errors import BadIndex
from gpuloader.fields.convert import check_mask
from gpuloader.fields.spec import is_stageable
from gpuloader.foreign import as_array, needs_gradient
from gpuloader.order.order import IndexArray
from gpuloader.sources.block import Rows


class IndexedRows(Protocol):
    """The row of each sample, as an int64 array or as a rule that computes it."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, samples: Any, /) -> IndexArray:
        """Return the rows of a slice or an array of samples."""


class ArrayRows(NamedTuple):
    """The arrays that a dataset reads from."""

    arrays: tuple[NDArray[Any], ...]  # one per field, in native byte order
    rows: IndexedRows | None = None  # the row of each sample in the arrays; None if sample i is row i
    names: tuple[str, ...] | None = None  # the keys if a sample is a dict; None if it is a tuple
    bare: bool = False  # whether a sample is just the row of the only array, not a tuple or a dict


READING = frozenset(("__getitem__", "__getitems__", "__len__"))
"""A class that defines one of these overrides how samples are read; bulk methods of its bases ignore that."""


def own_method(dataset: object, name: str, overriding: Set[str] = READING) -> Any:
    """Return a method that reads several samples at once, or None."""
    # If a subclass of the class with the method overrides how samples are read, the user's code, which may
    # augment each sample, would not run.
    decides = {name, *overriding}
    for kind in type(dataset).__mro__:
        if not decides.isdisjoint(vars(kind)):
            return getattr(dataset, name, None) if name in vars(kind) else None
    return None


def reads_like(dataset: object, *bases: type) -> bool:
    """Return whether a dataset is of one of these classes, or of a subclass that reads in the same way."""
    for kind in type(dataset).__mro__:
        if kind in bases or not READING.isdisjoint(vars(kind)):
            return kind in bases
    return False


def find_arrays(dataset: object) -> ArrayRows | None:
    """Return the arrays that a dataset reads from, with each sample's row; None if Python code reads them.

    >>> import numpy as np
    >>> from gpuloader import Subset, TensorDataset
    >>> found = find_arrays(Subset(TensorDataset(np.array([5, 6, 7])), [-1, 0]))
    >>> found.arrays, found.rows
    ((array([5, 6, 7]),), array([2, 0]))
    """
    find: Callable[[], ArrayRows | None] | None = own_method(dataset, "_array_rows")
    found = None if find is None else find()
    # Arrays in a foreign byte order must be converted; only the path through samples does that.
    return found if found is not None and all(array.dtype.isnative for array in found.arrays) else None


def held_by(dataset: object) -> list[Any]:
    """Return what a dataset of this package takes its rows from: tensors and indices, also nested ones."""
    held: list[Any] = []
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        if name in ("tensors", "indices"):
            held.append(value)
        elif name in ("dataset", "datasets"):
            for one in [value] if name == "dataset" else value:
                held += held_by(one)
    return held


def check_array(position: int, values: ArrayLike) -> NDArray[Any]:
    """Return array number `position` of a dataset as a NumPy array whose first axis counts the samples."""
    held: Any = values
    try:
        check_mask(values)
        # Its rows keep the gradient, so there is no reason to warn yet.
        array = as_array(held.detach() if needs_gradient(held) else held)
    except (TypeError, ValueError, RuntimeError) as error:  # SampleError: masked, or not dense
        raise TypeError(
            f"array {position}: cannot make an array of numbers from {type(values).__name__}: {error}"
        ) from None
    if not is_stageable(array.dtype):
        raise TypeError(f"array {position} must hold numbers or booleans, got dtype {array.dtype}")
    if array.ndim == 0:
        raise ValueError(f"array {position} must have a first dimension, got the single number {array}")
    return array


# What an index stands for: one sample, or several. All datasets of the package share these rules.


def locate(dataset: Sized, index: object) -> int | Rows:
    """Return which samples of a dataset an index stands for, counted from the front.

    The index is a whole number of any type, a slice, or a list, range, NumPy array, tensor or series of whole
    numbers or of one boolean per sample. The result is an int for a single sample. For several, it is a slice
    if the index is a slice without a step, else an array of one dimension. Any other index raises
    `IndexError` or `TypeError`.

    >>> locate("abcd", -1), locate("abcd", [2, -4]), locate("abcd", slice(1, None))
    (3, array([2, 0]), slice(1, 4, None))
    >>> locate("abcd", [True, False, False, True])
    array([0, 3])
    """
    if type(index) is int:  # first, because nearly all indices are
        return check_index(dataset, index)
    if isinstance(index, slice):
        start, stop, step = index.indices(len(dataset))
        return slice(start, max(start, stop)) if step == 1 else np.arange(start, stop, step)
    dimensions = getattr(index, "ndim", None)
    is_array = bool(dimensions) or (dimensions is None and hasattr(index, "__array__"))
    if not (is_array or isinstance(index, list | range)):
        return check_index(dataset, index)
    try:
        found = np.asarray(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_indices(dataset, f"{type(index).__name__}, which is not an array: {error}") from None
    # An empty list has the dtype float64.
    if not found.size and found.ndim == 1:
        return np.empty(0, np.int64)
    if found.ndim != 1:
        raise _no_indices(dataset, f"{type(index).__name__} of {found.dtype} and shape {found.shape}")
    if found.dtype.kind == "b":
        if len(found) != len(dataset):
            raise IndexError(f"{_count(dataset)} takes a mask of {len(dataset)} booleans, got {len(found)}")
        return np.flatnonzero(found)
    if found.dtype.kind not in "iu":
        raise _no_indices(dataset, f"{type(index).__name__} of {found.dtype}")
    return check_rows(dataset, found, len(dataset))


def check_index(dataset: Sized, index: object) -> int:
    """Return `index` counted from the front; raise `IndexError` or `TypeError` if it does not name a sample.

    >>> check_index("abc", -1)
    2
    """
    number: SupportsIndex = index  # type: ignore[assignment]  # checked by the next line
    try:
        position = operator.index(number)
    except TypeError:
        raise _no_indices(dataset, reprlib.repr(index)) from None
    length = len(dataset)
    if not -length <= position < length:
        # Paddle raises ValueError for a negative index out of range, so this error is both.
        kind = BadIndex if position < 0 else IndexError
        raise kind(f"{_count(dataset)} has no sample {position}")
    return position + length if position < 0 else position


def check_rows(
    dataset: object, indices: Sequence[int] | NDArray[np.integer], length: int
) -> NDArray[np.int64]:
    """Return a dataset's indices counted from the front, or raise `IndexError` if one is out of range.

    >>> check_rows("abcd", [-1, 0], 4)
    array([3, 0])
    """
    rows = np.asarray(indices)
    outside = np.flatnonzero((rows < -length) | (rows >= length))
    if outside.size:
        raise (BadIndex if rows[outside[0]] < 0 else IndexError)(
            f"{_count(dataset, length)} has no sample {rows[outside[0]]}, "
            f"listed at position {outside[0]} of the indices"
        )
    return np.where(rows < 0, rows + length, rows).astype(np.int64, copy=False)


def as_rows(dataset: Sized, indices: Sequence[int] | NDArray[np.int64], length: int) -> Rows:
    """Return indices as rows from 0 to below `length`: as a slice if they are consecutive and not negative.

    Other rows may be the array that was given.

    >>> as_rows("abcd", [1, 2, 3], 4), as_rows("abcd", [-1, 0], 4)
    (slice(1, 4, None), array([3, 0]))
    """
    if isinstance(indices, range) and indices.step == 1 and 0 <= indices.start < indices.stop <= length:
        return slice(indices.start, indices.stop)
    rows = np.asarray(indices)
    if rows.dtype.kind not in "iu":  # NumPy would cut off fractions, and parse text
        rows = np.array([check_index(dataset, index) for index in indices])
    rows = rows.astype(np.int64, copy=False)
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, 0)
    # A slice is read as a view and copied in one piece. In an ordered epoch, most batches are slices.
    if 0 <= first <= last < length and last - first == len(rows) - 1 and (rows[1:] - rows[:-1] == 1).all():
        return slice(first, last + 1)
    if len(rows) and rows.min() >= 0 and rows.max() < length:
        return rows
    return check_rows(dataset, rows, length)


def _no_indices(dataset: object, got: str) -> TypeError:
    return TypeError(
        f"{type(dataset).__name__} takes an index, a slice, or a list, array or tensor of indices or of "
        f"booleans, got {got}"
    )


def _count(dataset: Any, length: int | None = None) -> str:
    return f"{type(dataset).__name__} of {len(dataset) if length is None else length} samples"
