"""The samplers of `gpuloader.torch`, derived from PyTorch's samplers of the same names.

So code that asks whether something is PyTorch's ``Sampler``, or whether a loader's sampler is PyTorch's
``RandomSampler``, gets the answer that it expects. Outside a loader, ``torch.manual_seed`` determines the
order of the random ones. Importing this module imports PyTorch. Where PyTorch is missing, the base classes
are this package's.
"""

from __future__ import annotations

from collections.abc import Sized
from types import SimpleNamespace

from gpuloader.order import batch_samplers as batch_sampler
from gpuloader.order import samplers as sampler
from gpuloader.order.randomness import GeneratorLike, draw_seed

try:
    import torch.utils.data as theirs
    from torch.utils.data import Sampler
except ImportError:
    Sampler = sampler.Sampler
    theirs = SimpleNamespace(
        SequentialSampler=Sampler,
        BatchSampler=Sampler,
        RandomSampler=Sampler,
        WeightedRandomSampler=Sampler,
        SubsetRandomSampler=Sampler,
    )


class SequentialSampler(sampler.SequenceSampler, theirs.SequentialSampler):  # type: ignore[misc]
    """A `gpuloader.SequenceSampler` under PyTorch's name; parameters and errors are the same.

    Examples
    --------
    >>> list(SequentialSampler("abc"))
    [0, 1, 2]
    """


class BatchSampler(batch_sampler.BatchSampler, theirs.BatchSampler):  # type: ignore[misc]
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

    Parameters and errors are those of `gpuloader.RandomSampler`. In a loader, the loader's seed determines
    the order.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> sorted(RandomSampler("abc"))
    [0, 1, 2]
    """


class WeightedRandomSampler(_SeededByTorch, sampler.WeightedRandomSampler, theirs.WeightedRandomSampler):  # type: ignore[misc]
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


class SubsetRandomSampler(_SeededByTorch, sampler.SubsetRandomSampler, theirs.SubsetRandomSampler):  # type: ignore[misc]
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


def make_sampler(dataset: Sized, shuffle: bool) -> sampler.Sampler[int]:
    """Return the sampler that a loader of `gpuloader.torch` makes, of PyTorch's class for it.

    Examples
    --------
    >>> list(make_sampler("abc", False))
    [0, 1, 2]
    """
    made: sampler.Sampler[int] = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return made
