"""gpuloader: the loader that keeps a GPU fed.

Host batches are written once, into page-locked slots, and copied to the device on a stream of their own
while the one before is computed on. A CPU place takes the same road. See `DataLoader.from_generator`.
"""

from gpuloader import fluid
from gpuloader.devices import cuda_places
from gpuloader.errors import (
    ComposeNotAligned,
    EOFException,
    FeedError,
    LoaderError,
    PlaceError,
    ReaderError,
    SampleError,
    StagingMemoryError,
    WorkerError,
    WorkerTimeout,
)
from gpuloader.feeder import DataFeeder
from gpuloader.loader import DataLoader
from gpuloader.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, cpu_places
from gpuloader.ragged import Ragged
from gpuloader.sources import reader
from gpuloader.sources.batch_sampler import BatchSampler, DistributedBatchSampler
from gpuloader.sources.dataset import (
    ChainDataset,
    ComposeDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from gpuloader.sources.randomness import sample_rng
from gpuloader.sources.reader import batch
from gpuloader.sources.sampler import (
    RandomSampler,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from gpuloader.sources.worker_info import get_worker_info
from gpuloader.spec import FeedSpec, data
from gpuloader.stats import LoaderStats
from gpuloader.tracing import trace

__all__ = [
    "BatchSampler",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "ChainDataset",
    "ComposeDataset",
    "ComposeNotAligned",
    "ConcatDataset",
    "DataFeeder",
    "DataLoader",
    "Dataset",
    "DistributedBatchSampler",
    "EOFException",
    "FeedError",
    "FeedSpec",
    "IterableDataset",
    "LoaderError",
    "LoaderStats",
    "PlaceError",
    "Ragged",
    "RandomSampler",
    "ReaderError",
    "SampleError",
    "Sampler",
    "SequenceSampler",
    "StagingMemoryError",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerError",
    "WorkerTimeout",
    "batch",
    "cpu_places",
    "cuda_places",
    "data",
    "fluid",
    "get_worker_info",
    "random_split",
    "reader",
    "sample_rng",
    "trace",
]
