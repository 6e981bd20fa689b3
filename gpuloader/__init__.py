"""gpuloader: a data loader that keeps a GPU fed.

It writes each batch once, into a page-locked slot, and copies it to the device on a separate stream while the
previous batch is being computed on. CPU places use the same pipeline. Start with `DataLoader`, or with
`DataLoader.from_generator` for readers.
"""

from typing import TYPE_CHECKING

from gpuloader import fluid, io, reader
from gpuloader.base.errors import (
    ComposeNotAligned,
    DataFileError,
    EOFException,
    FeedError,
    LoaderError,
    MissingPackage,
    PlaceError,
    ReaderError,
    SampleError,
    SourceError,
    StagingMemoryError,
    WorkerError,
    WorkerTimeout,
)
from gpuloader.base.lazy import import_on_demand
from gpuloader.devices.opening import cuda_places
from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, cpu_places
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import FeedSpec, data
from gpuloader.loader.dataset_loader import DataLoader
from gpuloader.loader.feeder import DataFeeder
from gpuloader.loader.from_ray import from_ray
from gpuloader.order.batch_sampler import BatchSampler, DistributedBatchSampler
from gpuloader.order.bucket_sampler import BucketSampler
from gpuloader.order.randomness import sample_rng, sample_rngs
from gpuloader.order.sampler import (
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
    random_split,
)
from gpuloader.sources.mix import MixDataset
from gpuloader.sources.readers.decorators import batch
from gpuloader.sources.tables.table import TableDataset
from gpuloader.sources.tokens import TokenWindows
from gpuloader.watch.stats import LoaderStats
from gpuloader.watch.tracing import span, trace

if TYPE_CHECKING:
    from gpuloader.sources.files.arrays import HDF5Dataset, ZarrDataset
    from gpuloader.sources.files.parquet import ParquetDataset
    from gpuloader.sources.files.tar import TarDataset

__all__ = [
    "BatchSampler",
    "BucketSampler",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "ChainDataset",
    "ComposeDataset",
    "ComposeNotAligned",
    "ConcatDataset",
    "DataFeeder",
    "DataFileError",
    "DataLoader",
    "Dataset",
    "DistributedBatchSampler",
    "EOFException",
    "FeedError",
    "FeedSpec",
    "HDF5Dataset",
    "IterableDataset",
    "LoaderError",
    "LoaderStats",
    "MissingPackage",
    "MixDataset",
    "ParquetDataset",
    "PlaceError",
    "Ragged",
    "RandomSampler",
    "ReaderError",
    "SampleError",
    "Sampler",
    "SequenceSampler",
    "SourceError",
    "StagingMemoryError",
    "Subset",
    "SubsetRandomSampler",
    "TableDataset",
    "TarDataset",
    "TensorDataset",
    "TokenWindows",
    "WeightedRandomSampler",
    "WorkerError",
    "WorkerTimeout",
    "ZarrDataset",
    "batch",
    "cpu_places",
    "cuda_places",
    "data",
    "fluid",
    "from_ray",
    "get_worker_info",
    "io",
    "random_split",
    "reader",
    "sample_rng",
    "sample_rngs",
    "span",
    "trace",
]

__getattr__ = import_on_demand(
    __name__,
    {
        "HDF5Dataset": "gpuloader.sources.files.arrays",
        "ParquetDataset": "gpuloader.sources.files.parquet",
        "TarDataset": "gpuloader.sources.files.tar",
        "ZarrDataset": "gpuloader.sources.files.arrays",
    },
)  # not every program reads files
