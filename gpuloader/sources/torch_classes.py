"""The datasets and samplers of `gpuloader.torch`: PyTorch's classes, and this package's derived from them.

So code that asks whether something is PyTorch's ``Dataset`` or ``Sampler``, or whether a loader's sampler is
PyTorch's ``RandomSampler``, gets the answer that it expects, and PyTorch's own loader reads the datasets.
Outside a loader, ``torch.manual_seed`` determines the order of the random samplers. Importing this module
imports PyTorch. Where PyTorch is missing, the base classes are this package's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from types import SimpleNamespace
from typing import Any

from gpuloader.order import samplers as sampler
from gpuloader.order.randomness import GeneratorLike, draw_seed
from gpuloader.sources import dataset
from gpuloader.sources.dataset import MapStyle, S

try:
    import torch.utils.data as theirs
    from torch.utils.data import Dataset, IterableDataset, Sampler
except ImportError:
    Dataset, IterableDataset, Sampler = dataset.Dataset, dataset.IterableDataset, sampler.Sampler
    theirs = SimpleNamespace(
        SequentialSampler=Sampler,
        BatchSampler=Sampler,
        RandomSampler=Sampler,
        WeightedRandomSampler=Sampler,
        SubsetRandomSampler=Sampler,
    )


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


class SequentialSampler(sampler.SequenceSampler, theirs.SequentialSampler):  # type: ignore[misc]
    """A `gpuloader.SequenceSampler` under PyTorch's name; parameters and errors are the same.

    Examples
    --------
    >>> list(SequentialSampler("abc"))
    [0, 1, 2]
    """


class BatchSampler(sampler.BatchSampler, theirs.BatchSampler):  # type: ignore[misc]
    """A `gpuloader.BatchSampler` that is also PyTorch's; parameters and errors are the same.

    Examples
    --------
    >>> list(BatchSampler(SequentialSampler("abc"), 2, False))
    [[0, 1], [2]]
    """


class _SeededByTorch:
    """What makes a sampler without a generator draw its seeds from PyTorch's global one."""

    generator: GeneratorLike = None

    def _new_seed(self) -> int:
        import torch

        return draw_seed(torch.default_generator if self.generator is None else self.generator)


class RandomSampler(_SeededByTorch, sampler.RandomSampler, theirs.RandomSampler):  # type: ignore[misc]
    """A `gpuloader.RandomSampler` whose order outside a loader follows from ``torch.manual_seed``.

    Parameters and errors are the same. In a loader, the loader's seed determines the order.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> sorted(RandomSampler("abc"))
    [0, 1, 2]
    """


class WeightedRandomSampler(_SeededByTorch, sampler.WeightedRandomSampler, theirs.WeightedRandomSampler):  # type: ignore[misc]
    """A `gpuloader.WeightedRandomSampler` whose order outside a loader follows from ``torch.manual_seed``.

    Parameters and errors are the same. In a loader, the loader's seed determines the order.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> list(WeightedRandomSampler([0, 1, 0], num_samples=3))
    [1, 1, 1]
    """


class SubsetRandomSampler(_SeededByTorch, sampler.SubsetRandomSampler, theirs.SubsetRandomSampler):  # type: ignore[misc]
    """A `gpuloader.SubsetRandomSampler` whose order outside a loader follows from ``torch.manual_seed``.

    Parameters and errors are the same. In a loader, the loader's seed determines the order.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> sorted(SubsetRandomSampler([7, 3, 5]))
    [3, 5, 7]
    """


def make_sampler(dataset: Sized, shuffle: bool) -> sampler.Sampler[int]:
    """Return the sampler that a loader of `gpuloader.torch` makes, of PyTorch's class for it."""
    made: sampler.Sampler[int] = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return made
