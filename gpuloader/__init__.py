"""gpuloader: a data loader that keeps a GPU fed.

It writes each batch once, into a page-locked slot, and copies it to the device on a separate stream while the
previous batch is being computed on. CPU places use the same pipeline. Start with `DataLoader`, or with
`DataLoader.from_generator` for readers.
"""

from typing import TYPE_CHECKING

from gpuloader.system.lazy_imports import import_on_demand
from gpuloader.system.moved_modules import find_moved_modules

if TYPE_CHECKING:
    from gpuloader import dataset, fluid, reader
    from gpuloader import io as io
    from gpuloader.api.feeder import DataFeeder
    from gpuloader.api.from_ray import from_ray
    from gpuloader.api.loader import DataLoader
    from gpuloader.api.prefetch import prefetch
    from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, cpu_places, cuda_places
    from gpuloader.epoch.sending import record_stream
    from gpuloader.errors import (
        ComposeNotAligned,
        DataFileError,
        EOFException,
        FeedError,
        LoaderError,
        MissingPackage,
        PictureError,
        PlaceError,
        ReaderError,
        SampleError,
        SourceError,
        StagingMemoryError,
        WorkerError,
        WorkerTimeout,
    )
    from gpuloader.fields.ragged import Ragged
    from gpuloader.fields.spec import FeedSpec, data
    from gpuloader.order.randomness import sample_rng, sample_rngs
    from gpuloader.order.samplers import (
        BatchSampler,
        BucketSampler,
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
        MixDataset,
        Subset,
        TensorDataset,
        random_split,
    )
    from gpuloader.sources.files.parquet import ParquetDataset
    from gpuloader.sources.files.stored_arrays import HDF5Dataset, ZarrDataset
    from gpuloader.sources.files.tar import TarDataset
    from gpuloader.sources.images.folder import ImageFiles, ImageFolder, ImageSample
    from gpuloader.sources.images.image import Image, Picture
    from gpuloader.sources.images.showing import show
    from gpuloader.sources.packed import PackedList
    from gpuloader.sources.readers.decorators import batch
    from gpuloader.sources.tables.table import TableDataset
    from gpuloader.sources.tokens import TokenWindows
    from gpuloader.watch.stats import LoaderStats
    from gpuloader.watch.tracing import span, trace

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
    "Image",
    "ImageFiles",
    "ImageFolder",
    "ImageSample",
    "IterableDataset",
    "LoaderError",
    "LoaderStats",
    "MissingPackage",
    "MixDataset",
    "PackedList",
    "ParquetDataset",
    "Picture",
    "PictureError",
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
    "dataset",
    "fluid",
    "from_ray",
    "get_worker_info",
    "prefetch",
    "random_split",
    "record_stream",
    "reader",
    "sample_rng",
    "sample_rngs",
    "show",
    "span",
    "trace",
]

find_moved_modules()

# A program pays for what it uses, and so does each fork server, which needs no loader.
__getattr__ = import_on_demand(
    __name__,
    {
        "BatchSampler": "gpuloader.order.samplers",
        "BucketSampler": "gpuloader.order.samplers",
        "CPUPlace": "gpuloader.devices.places",
        "CUDAPinnedPlace": "gpuloader.devices.places",
        "CUDAPlace": "gpuloader.devices.places",
        "ChainDataset": "gpuloader.sources.dataset",
        "ComposeDataset": "gpuloader.sources.dataset",
        "ComposeNotAligned": "gpuloader.errors",
        "ConcatDataset": "gpuloader.sources.dataset",
        "DataFeeder": "gpuloader.api.feeder",
        "DataFileError": "gpuloader.errors",
        "DataLoader": "gpuloader.api.loader",
        "Dataset": "gpuloader.sources.dataset",
        "DistributedBatchSampler": "gpuloader.order.samplers",
        "EOFException": "gpuloader.errors",
        "FeedError": "gpuloader.errors",
        "FeedSpec": "gpuloader.fields.spec",
        "HDF5Dataset": "gpuloader.sources.files.stored_arrays",
        "Image": "gpuloader.sources.images.image",
        "ImageFiles": "gpuloader.sources.images.folder",
        "ImageFolder": "gpuloader.sources.images.folder",
        "ImageSample": "gpuloader.sources.images.folder",
        "IterableDataset": "gpuloader.sources.dataset",
        "LoaderError": "gpuloader.errors",
        "LoaderStats": "gpuloader.watch.stats",
        "MissingPackage": "gpuloader.errors",
        "MixDataset": "gpuloader.sources.dataset",
        "PackedList": "gpuloader.sources.packed",
        "ParquetDataset": "gpuloader.sources.files.parquet",
        "Picture": "gpuloader.sources.images.image",
        "PictureError": "gpuloader.errors",
        "PlaceError": "gpuloader.errors",
        "Ragged": "gpuloader.fields.ragged",
        "RandomSampler": "gpuloader.order.samplers",
        "ReaderError": "gpuloader.errors",
        "SampleError": "gpuloader.errors",
        "Sampler": "gpuloader.order.samplers",
        "SequenceSampler": "gpuloader.order.samplers",
        "SourceError": "gpuloader.errors",
        "StagingMemoryError": "gpuloader.errors",
        "Subset": "gpuloader.sources.dataset",
        "SubsetRandomSampler": "gpuloader.order.samplers",
        "TableDataset": "gpuloader.sources.tables.table",
        "TarDataset": "gpuloader.sources.files.tar",
        "TensorDataset": "gpuloader.sources.dataset",
        "TokenWindows": "gpuloader.sources.tokens",
        "WeightedRandomSampler": "gpuloader.order.samplers",
        "WorkerError": "gpuloader.errors",
        "WorkerTimeout": "gpuloader.errors",
        "ZarrDataset": "gpuloader.sources.files.stored_arrays",
        "batch": "gpuloader.sources.readers.decorators",
        "cpu_places": "gpuloader.devices.places",
        "cuda_places": "gpuloader.devices.places",
        "data": "gpuloader.fields.spec",
        "dataset": "gpuloader.dataset",
        "fluid": "gpuloader.fluid",
        "from_ray": "gpuloader.api.from_ray",
        "get_worker_info": "gpuloader.order.worker_info",
        "io": "gpuloader.io",  # not in __all__: a star import must not replace the standard library's
        "prefetch": "gpuloader.api.prefetch",
        "random_split": "gpuloader.sources.dataset",
        "record_stream": "gpuloader.epoch.sending",
        "reader": "gpuloader.reader",
        "sample_rng": "gpuloader.order.randomness",
        "sample_rngs": "gpuloader.order.randomness",
        "show": "gpuloader.sources.images.showing",
        "span": "gpuloader.watch.tracing",
        "torch": "gpuloader.torch",  # not in __all__: a star import must not replace PyTorch
        "trace": "gpuloader.watch.tracing",
    },
)


def __dir__() -> list[str]:
    return __all__
