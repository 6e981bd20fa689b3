"""Datasets that consist of arrays: their samples are rows, which can be gathered without any Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from gpuloader.order.computed import Indices


class Rows(Protocol):
    """The row of each sample, as an int64 array or as a rule that computes it."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, samples: Any, /) -> Indices:
        """Return the rows of a slice or an array of samples."""


class ArrayRows(NamedTuple):
    """The arrays that a dataset reads from.

    Attributes
    ----------
    arrays : tuple of ndarray
        One array per field, in native byte order.
    rows : Rows or None
        The row of each sample in the arrays; None if sample i is row i.
    names : tuple of str or None
        The keys of a sample that is a dict. None if a sample is a tuple.
    bare : bool
        Whether a sample is the row of the only array, not a tuple or a dict.
    """

    arrays: tuple[NDArray[Any], ...]
    rows: Rows | None = None
    names: tuple[str, ...] | None = None
    bare: bool = False


def array_source(dataset: object) -> ArrayRows | None:
    """Return the arrays that a dataset reads from, and the row of each sample.

    Returns
    -------
    ArrayRows or None
        What the dataset's method ``_array_rows`` returns, as that of a `TensorDataset` does, and that of a
        `Subset` of one. None for any other dataset, for a subclass whose own code must read the samples, and
        for arrays in a foreign byte order, which must be converted.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import Subset, TensorDataset
    >>> source = array_source(Subset(TensorDataset(np.array([5, 6, 7])), [-1, 0]))
    >>> source.arrays, source.rows
    ((array([5, 6, 7]),), array([2, 0]))
    """
    find: Callable[[], ArrayRows | None] | None = own_method(dataset, "_array_rows")
    source = None if find is None else find()
    if source is None or not all(array.dtype.isnative for array in source.arrays):
        return None
    return source


def own_method(dataset: object, name: str) -> Any:
    """Return a method that reads samples in another way than one by one, or None.

    There is none if a class derived from the one that defines it overrides how samples are read, because
    that code would then not run.

    >>> own_method([1, 2], "take_block") is None
    True
    """
    for kind in type(dataset).__mro__:
        if name in vars(kind):
            return getattr(dataset, name, None)
        if _reads(kind):
            return None
    return None


def reads_like(dataset: object, *bases: type) -> bool:
    """Return whether a dataset is one of these classes, or derived from one without another way of reading.

    >>> reads_like([1, 2], list), reads_like([1, 2], tuple)
    (True, False)
    """
    for kind in type(dataset).__mro__:
        if kind in bases:
            return True
        if _reads(kind):
            return False
    return False


def _reads(kind: type) -> bool:
    return any(name in vars(kind) for name in ("__getitem__", "__getitems__", "__len__"))
