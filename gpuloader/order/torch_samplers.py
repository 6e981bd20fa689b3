"""The random samplers of `gpuloader.torch`: ``torch.manual_seed`` determines their order outside a loader."""

from __future__ import annotations

from gpuloader.order import sampler
from gpuloader.order.generators import GeneratorLike, draw_seed


class _SeededByTorch:
    """What makes a sampler without a generator draw its seeds from PyTorch's global one."""

    generator: GeneratorLike = None

    def _new_seed(self) -> int:
        import torch

        return draw_seed(torch.default_generator if self.generator is None else self.generator)


class RandomSampler(_SeededByTorch, sampler.RandomSampler):
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


class WeightedRandomSampler(_SeededByTorch, sampler.WeightedRandomSampler):
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


class SubsetRandomSampler(_SeededByTorch, sampler.SubsetRandomSampler):
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
