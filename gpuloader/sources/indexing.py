"""What an index stands for: one sample, or several at once. All datasets of the package share these rules."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence, Sized
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.errors import BadIndex
from gpuloader.sources.block import Rows


def locate(dataset: Sized, index: object) -> int | Rows:
    """Return which samples of a dataset an index stands for, counted from the front.

    Parameters
    ----------
    dataset : sized
        The dataset, for its length and its name in errors.
    index : object
        The index that the dataset was asked for: a whole number of any type, a slice, or a list, range,
        NumPy array, tensor or series of whole numbers or of one boolean per sample. Negative numbers count
        from the end.

    Returns
    -------
    int, slice or ndarray of int64
        An int for a single sample. For several samples, their positions: a slice if the index is one without
        a step, else an array of one dimension.

    Raises
    ------
    IndexError
        There is no such sample, or there is not one boolean per sample.
    TypeError
        The index is something else.

    Examples
    --------
    >>> locate("abcd", -1), locate("abcd", [2, -4]), locate("abcd", slice(1, None))
    (3, array([2, 0]), slice(1, 4, None))
    >>> locate("abcd", [True, False, False, True])
    array([0, 3])
    """
    if type(index) is int:
        return check_index(dataset, index)
    if isinstance(index, slice):
        start, stop, step = index.indices(len(dataset))
        return slice(start, max(start, stop)) if step == 1 else np.arange(start, stop, step)
    if not _stands_for_several(index):
        return check_index(dataset, index)
    try:
        found = np.asarray(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_indices(dataset, f"{type(index).__name__}, which is not an array: {error}") from None
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
    """Return `index` counted from the front.

    Raises
    ------
    IndexError
        There is no such sample.
    TypeError
        The index is not a whole number.

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
        raise IndexError(
            f"{_count(dataset, length)} has no sample {rows[outside[0]]}, "
            f"listed at position {outside[0]} of the indices"
        )
    return np.where(rows < 0, rows + length, rows).astype(np.int64, copy=False)


def as_rows(dataset: object, indices: Sequence[int] | NDArray[np.int64], length: int) -> Rows:
    """Return indices as rows from 0 to below `length`: as a slice if they are consecutive.

    >>> as_rows("abcd", [1, 2, 3], 4), as_rows("abcd", [-1, 0], 4)
    (slice(1, 4, None), array([3, 0]))
    """
    rows = check_rows(dataset, np.asarray(indices, np.int64), length)
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _stands_for_several(index: object) -> bool:
    if isinstance(index, list | range):
        return True
    dimensions = getattr(index, "ndim", None)
    return bool(dimensions) or (dimensions is None and hasattr(index, "__array__"))


def _no_indices(dataset: object, got: str) -> TypeError:
    return TypeError(
        f"{type(dataset).__name__} takes an index, a slice, or a list, array or tensor of indices or of "
        f"booleans, got {got}"
    )


def _count(dataset: Any, length: int | None = None) -> str:
    return f"{type(dataset).__name__} of {len(dataset) if length is None else length} samples"
