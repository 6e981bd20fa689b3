"""Building blocks of orders: checked fields, and entries computed from their positions."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.base.errors import BadValue
from gpuloader.fields.tensors import is_tensor, tensor_array

Indices = NDArray[np.int64]

_CHUNK = 4096
"""Entries computed at once; at about this size, the overhead of NumPy's calls equals their work."""


def as_plain(values: Any, dtype: DTypeLike) -> NDArray[Any]:
    """Return values as an array, without a copy where possible; a tensor in `dtype` if NumPy lacks its own.

    >>> as_plain([1, 2], np.float64)
    array([1, 2])
    """
    return tensor_array(values.detach(), np.dtype(dtype)) if is_tensor(values) else np.asarray(values)


def as_indices(name: str, indices: ArrayLike) -> Indices:
    """Return `indices` as an int64 array, without a copy if it already is one.

    Raises
    ------
    TypeError
        `indices` is not a one-dimensional list of integers.

    Examples
    --------
    >>> as_indices("indices", range(3))
    array([0, 1, 2])
    """
    expected = f"{name} must be a list of integers"
    try:
        array = np.asarray(indices)
    except ValueError as error:
        raise TypeError(f"{expected}: {error}") from None
    if array.ndim != 1:
        raise TypeError(f"{expected}, got {type(indices).__name__} of shape {array.shape}")
    if array.dtype == np.bool_:
        raise TypeError(f"{expected}, got a boolean mask; pass numpy.flatnonzero(mask)")
    if array.size and (array.dtype.kind not in "iu" or array.max() > np.iinfo(np.int64).max):
        raise TypeError(f"{expected} that fit into int64, got {type(indices).__name__} of {array.dtype}")
    return array.astype(np.int64, copy=False)


def check_whole(name: str, value: object, limit: int) -> int:
    """Return `value` as an int, or raise `ValueError` unless it is an integer from 0 to below `limit`.

    >>> check_whole("rank", 1, limit=2)
    1
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < limit:
        raise BadValue(f"{name} must be an integer from 0 to {limit - 1}, got {value!r}")
    return int(value)


def check_fields(order: object, **limits: int) -> None:
    """Replace the named fields of a frozen order by Python integers, checked to be below their limits."""
    for name, limit in limits.items():
        object.__setattr__(order, name, check_whole(name, getattr(order, name), limit))


class Computed:
    """Base class of orders whose entries are computed from their positions.

    An order keeps the chunk it computed last, and a table if it needs one. Any thread may slice it: both
    are replaced atomically, and at worst two threads compute the same chunk twice.
    """

    _chunk: tuple[int, Indices] = (-1, np.empty(0, np.int64))
    _kept: NDArray[Any] | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> Indices:
        """Return the indices from position `start` to before `stop`."""
        check_slice(self, start, stop)
        if start == stop:
            return np.empty(0, np.int64)
        first, last = start // _CHUNK, (stop - 1) // _CHUNK
        if last - first > 1:
            return self.at(np.arange(start, stop))
        pieces = [
            self._compute(number)[max(start - number * _CHUNK, 0) : stop - number * _CHUNK]
            for number in range(first, last + 1)
        ]
        return pieces[0] if first == last else np.concatenate(pieces)

    def _compute(self, number: int) -> Indices:
        kept, chunk = self._chunk
        if kept != number:
            chunk = self.at(np.arange(number * _CHUNK, min((number + 1) * _CHUNK, len(self))))
            chunk.flags.writeable = False
            object.__setattr__(self, "_chunk", (number, chunk))
        return chunk

    def _table(self) -> NDArray[Any]:
        if (table := self._kept) is None:
            table = self._build_table()
            table.flags.writeable = False
            object.__setattr__(self, "_kept", table)
        return table

    def _build_table(self) -> NDArray[Any]:
        raise NotImplementedError


def check_slice(order: Sized, start: int, stop: int) -> None:
    """Raise `IndexError` unless ``0 <= start <= stop <= len(order)``."""
    if not 0 <= start <= stop <= len(order):
        raise IndexError(f"an order of {len(order)} indices has no slice {start}:{stop}")
