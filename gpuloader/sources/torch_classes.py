"""The classes of `gpuloader.torch`: PyTorch's samplers, and datasets derived from PyTorch's of the same name.

So code that checks for a ``TensorDataset``, PyTorch's or this one, gets the answer that it expects, and
PyTorch's own loader reads these datasets. Importing this module imports PyTorch. If PyTorch is missing, the
samplers and the base classes are this package's.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Sequence
from typing import Any

from gpuloader.foreign import find_classes
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


class LikeTorchs(ABC):  # noqa: B024 - nothing is abstract: the base is for its hook
    """Makes `isinstance` accept objects of PyTorch's class of the same name, as libraries return them."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        # Not for a user's subclass, whatever its name: PyTorch's objects are not of it.
        is_ours = cls.__module__.startswith("gpuloader.")
        theirs = find_classes(cls.__name__, modules=["torch.utils.data"])
        # Not by `issubclass`: PyTorch's class would ask its subclasses, and so this one again.
        return (is_ours and not set(theirs).isdisjoint(kind.__mro__)) or NotImplemented


class _Summand(LikeTorchs):
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


class ChainDataset(LikeTorchs, dataset.ChainDataset[S], _Chain):  # type: ignore[misc]
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
