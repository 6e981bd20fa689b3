"""The classes of `gpuloader.torch`: PyTorch's samplers, and datasets derived from PyTorch's of the same name.

So code that checks for PyTorch's ``TensorDataset`` gets the answer that it expects, and PyTorch's own loader
reads these datasets. Importing this module imports PyTorch. If PyTorch is missing, the samplers and the base
classes are this package's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpuloader.order import samplers
from gpuloader.sources import dataset
from gpuloader.sources.array_rows import check_index
from gpuloader.sources.dataset import MapStyle, S

try:
    from torch.utils.data import BatchSampler as BatchSampler
    from torch.utils.data import ChainDataset as _Chain
    from torch.utils.data import ConcatDataset as _Joined
    from torch.utils.data import Dataset, IterableDataset
    from torch.utils.data import RandomSampler as RandomSampler
    from torch.utils.data import Sampler as Sampler
    from torch.utils.data import SequentialSampler as SequentialSampler
    from torch.utils.data import Subset as _Part
    from torch.utils.data import SubsetRandomSampler as SubsetRandomSampler
    from torch.utils.data import TensorDataset as _Tensors
    from torch.utils.data import WeightedRandomSampler as WeightedRandomSampler
except ImportError:
    Dataset, IterableDataset = dataset.Dataset, dataset.IterableDataset
    BatchSampler, RandomSampler, Sampler = samplers.BatchSampler, samplers.RandomSampler, samplers.Sampler
    SequentialSampler, SubsetRandomSampler = samplers.SequenceSampler, samplers.SubsetRandomSampler
    WeightedRandomSampler = samplers.WeightedRandomSampler
    _Tensors = _Joined = _Part = Dataset
    _Chain = IterableDataset


class _Summand:
    """Makes ``a + b`` one of the datasets below as well."""

    def __add__(self, other: MapStyle[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])  # type: ignore[list-item]  # map-style by its other base class


class TensorDataset(_Summand, dataset.TensorDataset, _Tensors):  # type: ignore[misc]
    """A `gpuloader.TensorDataset` that is also PyTorch's; parameters and errors are the same.

    Examples
    --------
    >>> import numpy as np
    >>> TensorDataset(np.array([5, 6, 7]))[-1]
    (np.int64(7),)
    """

    _follows_torch = True


class ConcatDataset(_Summand, dataset.ConcatDataset[S], _Joined):  # type: ignore[misc]
    """A `gpuloader.ConcatDataset` that is also PyTorch's; parameters and errors are the same.

    Examples
    --------
    >>> ConcatDataset(["ab", "cde"])[2]
    'c'
    """

    def _read(self, indices: Sequence[int]) -> list[Any]:
        # In PyTorch's order. Asked for by dataset, samples would draw other random numbers than there.
        return [self._read_one(check_index(self, index)) for index in indices]


class Subset(_Summand, dataset.Subset[S], _Part):  # type: ignore[misc]
    """A `gpuloader.Subset` that is also PyTorch's.

    Parameters are the same. As in PyTorch, the dataset need not have a length, and a nonexistent index raises
    `IndexError` when it is read.

    Examples
    --------
    >>> list(Subset("abcde", [4, 0]))
    ['e', 'a']
    """

    _follows_torch = True


class ChainDataset(dataset.ChainDataset[S], _Chain):  # type: ignore[misc]
    """A `gpuloader.ChainDataset` that is also PyTorch's.

    Parameters are the same. As in PyTorch, there may be no datasets, and a dataset that is not iterable
    raises `TypeError`, which is also an `AssertionError`, when it is read.

    Examples
    --------
    >>> class Letters(IterableDataset):
    ...     def __iter__(self):
    ...         return iter("ab")
    >>> list(ChainDataset([Letters(), Letters()]))
    ['a', 'b', 'a', 'b']
    """

    _checks = False

    def __add__(self, other: Iterable[Any]) -> ChainDataset[Any]:  # type: ignore[override]  # as in PyTorch
        return ChainDataset([self, other])
