"""The batch sampler of a loader of `gpuloader.torch`. Importing this module imports PyTorch."""

from gpuloader.api import attributes as upcoming
from gpuloader.sources.torch_classes import BatchSampler


class UpcomingBatches(upcoming.UpcomingBatches, BatchSampler):
    """An `upcoming.UpcomingBatches` that is also PyTorch's ``BatchSampler``; parameters are the same.

    Examples
    --------
    >>> import pytest
    >>> _ = pytest.importorskip("torch")
    >>> from gpuloader.torch import DataLoader
    >>> loader = DataLoader(range(3), 2, output="numpy")
    >>> type(loader.batch_sampler).__mro__[2].__name__, list(loader.batch_sampler)
    ('BatchSampler', [[0, 1], [2]])
    """

    _plain = BatchSampler
