"""The names of ``paddle.io``, so that a Paddle program runs after changing only its import line.

>>> from gpuloader.io import DataLoader, SequenceSampler
>>> [batch.tolist() for batch in DataLoader([1, 2, 3], places="cpu", batch_size=2)]
[[1, 2], [3]]
"""

from gpuloader.api.loader import DataLoader
from gpuloader.order.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    RandomSampler,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from gpuloader.order.worker_info import get_worker_info
from gpuloader.sources.dataset import (
    ChainDataset,
    ComposeDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from gpuloader.sources.splitting import random_split

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ComposeDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedBatchSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequenceSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "get_worker_info",
    "random_split",
]
