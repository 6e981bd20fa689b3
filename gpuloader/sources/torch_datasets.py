"""The datasets of `gpuloader.torch`: PyTorch's base classes, and this package's datasets derived from them.

So code that asks whether something is PyTorch's ``Dataset`` or ``IterableDataset`` gets the answer that it
expects, and PyTorch's own loader reads them. Importing this module imports PyTorch. Where PyTorch is missing,
the base classes are this package's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuloader.sources import dataset
from gpuloader.sources.dataset import MapStyle, S

try:
    from torch.utils.data import Dataset, IterableDataset
except ImportError:
    Dataset, IterableDataset = dataset.Dataset, dataset.IterableDataset


class _Summand:
    """What makes ``a + b`` one of the datasets below, too."""

    def __add__(self, other: MapStyle[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])  # type: ignore[list-item]  # map-style by its other base class


class TensorDataset(_Summand, dataset.TensorDataset, Dataset[Any]):  # type: ignore[misc]
    """A `gpuloader.TensorDataset` that is also PyTorch's ``Dataset``; parameters and errors are the same.

    Examples
    --------
    >>> import numpy as np
    >>> TensorDataset(np.array([5, 6, 7]))[-1]
    (np.int64(7),)
    """


class ConcatDataset(_Summand, dataset.ConcatDataset[S], Dataset[Any]):  # type: ignore[misc]
    """A `gpuloader.ConcatDataset` that is also PyTorch's ``Dataset``; parameters and errors are the same.

    Examples
    --------
    >>> ConcatDataset(["ab", "cde"])[2]
    'c'
    """


class Subset(_Summand, dataset.Subset[S], Dataset[Any]):  # type: ignore[misc]
    """A `gpuloader.Subset` that is also PyTorch's ``Dataset``; parameters and errors are the same.

    Examples
    --------
    >>> list(Subset("abcde", [4, 0]))
    ['e', 'a']
    """


class ChainDataset(dataset.ChainDataset[S], IterableDataset[Any]):  # type: ignore[misc]
    """A `gpuloader.ChainDataset` that is also PyTorch's ``IterableDataset``.

    Parameters and errors are the same.

    Examples
    --------
    >>> class Letters(IterableDataset):
    ...     def __iter__(self):
    ...         return iter("ab")
    >>> list(ChainDataset([Letters(), Letters()]))
    ['a', 'b', 'a', 'b']
    """

    def __add__(self, other: Iterable[Any]) -> ChainDataset[Any]:  # type: ignore[override]  # as in PyTorch
        return ChainDataset([self, other])
