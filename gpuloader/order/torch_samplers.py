"""The samplers of `gpuloader.torch`, derived from PyTorch's base class.

So code that asks whether something is PyTorch's ``Sampler`` gets the answer that it expects. Outside a
loader, ``torch.manual_seed`` determines the order of the random ones. Importing this module imports PyTorch.
Where PyTorch is missing, the base class is this package's.
"""

from __future__ import annotations

from typing import Any

from gpuloader.order import batch_sampler, sampler
from gpuloader.order.generators import GeneratorLike, draw_seed

try:
    from torch.utils.data import Sampler
except ImportError:
    Sampler = sampler.Sampler


class SequentialSampler(sampler.SequenceSampler, Sampler[Any]):  # type: ignore[misc]
    """A `gpuloader.SequenceSampler` under PyTorch's name; parameters and errors are the same.

    Examples
    --------
    >>> list(SequentialSampler("abc"))
    [0, 1, 2]
    """


class BatchSampler(batch_sampler.BatchSampler, Sampler[Any]):  # type: ignore[misc]
    """A `gpuloader.BatchSampler` that is also PyTorch's ``Sampler``; parameters and errors are the same.

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


class RandomSampler(_SeededByTorch, sampler.RandomSampler, Sampler[Any]):  # type: ignore[misc]
    """A `gpuloader.RandomSampler` whose order outside a loader follows from ``torch.manual_seed``.

    Parameters and errors are those of `gpuloader.RandomSampler`. In a loader, the loader's seed determines
    the order.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> sorted(RandomSampler("abc"))
    [0, 1, 2]
    """


class WeightedRandomSampler(_SeededByTorch, sampler.WeightedRandomSampler, Sampler[Any]):  # type: ignore[misc]
    """A `gpuloader.WeightedRandomSampler` whose order outside a loader follows from ``torch.manual_seed``.

    Parameters and errors are those of `gpuloader.WeightedRandomSampler`. In a loader, the loader's seed
    determines the order.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> list(WeightedRandomSampler([0, 1, 0], num_samples=3))
    [1, 1, 1]
    """


class SubsetRandomSampler(_SeededByTorch, sampler.SubsetRandomSampler, Sampler[Any]):  # type: ignore[misc]
    """A `gpuloader.SubsetRandomSampler` whose order outside a loader follows from ``torch.manual_seed``.

    Parameters and errors are those of `gpuloader.SubsetRandomSampler`. In a loader, the loader's seed
    determines the order.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> sorted(SubsetRandomSampler([7, 3, 5]))
    [3, 5, 7]
    """
