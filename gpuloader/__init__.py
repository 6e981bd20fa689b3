"""gpuloader: a data loader that keeps a GPU fed.

It writes each batch once, into a pinned slot, and copies it to the device on a separate stream while the
previous batch is being computed on. CPU places use the same pipeline. Start with `DataLoader`, or with
`DataLoader.from_generator` for readers.
"""

from typing import TYPE_CHECKING

from gpuloader.system.lazy_imports import import_on_demand
from gpuloader.system.moved_modules import find_moved_modules

if TYPE_CHECKING:  # the same names once more, where type checkers and editors find them
    from gpuloader import dataset as dataset
    from gpuloader import fluid as fluid
    from gpuloader import io as io
    from gpuloader import reader as reader
    from gpuloader.api.feeder import DataFeeder as DataFeeder
    from gpuloader.api.from_ray import from_ray as from_ray
    from gpuloader.api.prefetch import prefetch as prefetch
    from gpuloader.api.write_shards import write_shards as write_shards
    from gpuloader.devices.places import CPUPlace as CPUPlace
    from gpuloader.devices.places import CUDAPinnedPlace as CUDAPinnedPlace
    from gpuloader.devices.places import CUDAPlace as CUDAPlace
    from gpuloader.devices.places import cpu_places as cpu_places
    from gpuloader.devices.places import cuda_places as cuda_places
    from gpuloader.epoch.sending import record_stream as record_stream
    from gpuloader.errors import ComposeNotAligned as ComposeNotAligned
    from gpuloader.errors import DataFileError as DataFileError
    from gpuloader.errors import EOFException as EOFException
    from gpuloader.errors import FeedError as FeedError
    from gpuloader.errors import LoaderError as LoaderError
    from gpuloader.errors import MissingPackage as MissingPackage
    from gpuloader.errors import PictureError as PictureError
    from gpuloader.errors import PlaceError as PlaceError
    from gpuloader.errors import ReaderError as ReaderError
    from gpuloader.errors import SampleError as SampleError
    from gpuloader.errors import SourceError as SourceError
    from gpuloader.errors import StagingMemoryError as StagingMemoryError
    from gpuloader.errors import WorkerError as WorkerError
    from gpuloader.errors import WorkerTimeout as WorkerTimeout
    from gpuloader.fields.padding import Padding as Padding
    from gpuloader.fields.ragged import Ragged as Ragged
    from gpuloader.fields.spec import FeedSpec as FeedSpec
    from gpuloader.fields.spec import data as data
    from gpuloader.io import *  # noqa: F403 - every name that Paddle's has
    from gpuloader.order.randomness import sample_rng as sample_rng
    from gpuloader.order.randomness import sample_rngs as sample_rngs
    from gpuloader.order.samplers import BucketSampler as BucketSampler
    from gpuloader.sources.files.arrow_files import ArrowDataset as ArrowDataset
    from gpuloader.sources.files.parquet import ParquetDataset as ParquetDataset
    from gpuloader.sources.files.stored_arrays import HDF5Dataset as HDF5Dataset
    from gpuloader.sources.files.stored_arrays import ZarrDataset as ZarrDataset
    from gpuloader.sources.files.tar import TarDataset as TarDataset
    from gpuloader.sources.files.text import CSVDataset as CSVDataset
    from gpuloader.sources.files.text import JSONLDataset as JSONLDataset
    from gpuloader.sources.images.folder import ImageFiles as ImageFiles
    from gpuloader.sources.images.folder import ImageFolder as ImageFolder
    from gpuloader.sources.images.folder import ImageSample as ImageSample
    from gpuloader.sources.images.image import Image as Image
    from gpuloader.sources.images.image import Picture as Picture
    from gpuloader.sources.images.showing import show as show
    from gpuloader.sources.mixing import MixDataset as MixDataset
    from gpuloader.sources.packed import PackedList as PackedList
    from gpuloader.sources.packed_sequences import PackedSequences as PackedSequences
    from gpuloader.sources.readers.decorators import batch as batch
    from gpuloader.sources.tables.table import TableDataset as TableDataset
    from gpuloader.sources.tokens import TokenWindows as TokenWindows
    from gpuloader.watch.stats import LoaderStats as LoaderStats
    from gpuloader.watch.tracing import span as span
    from gpuloader.watch.tracing import trace as trace

_HOMES = {
    "gpuloader": "dataset fluid io reader torch",
    "gpuloader.api.feeder": "DataFeeder",
    "gpuloader.api.from_ray": "from_ray",
    "gpuloader.api.loader": "DataLoader",
    "gpuloader.api.prefetch": "prefetch",
    "gpuloader.api.write_shards": "write_shards",
    "gpuloader.devices.places": "CPUPlace CUDAPinnedPlace CUDAPlace cpu_places cuda_places",
    "gpuloader.epoch.sending": "record_stream",
    "gpuloader.errors": (
        "ComposeNotAligned DataFileError EOFException FeedError LoaderError MissingPackage "
        "PictureError PlaceError ReaderError SampleError SourceError StagingMemoryError WorkerError "
        "WorkerTimeout"
    ),
    "gpuloader.fields.padding": "Padding",
    "gpuloader.fields.ragged": "Ragged",
    "gpuloader.fields.spec": "FeedSpec data",
    "gpuloader.order.randomness": "sample_rng sample_rngs",
    "gpuloader.order.samplers": (
        "BatchSampler BucketSampler DistributedBatchSampler RandomSampler Sampler SequenceSampler "
        "SubsetRandomSampler WeightedRandomSampler"
    ),
    "gpuloader.order.worker_info": "get_worker_info",
    "gpuloader.sources.dataset": (
        "ChainDataset ComposeDataset ConcatDataset Dataset IterableDataset Subset TensorDataset"
    ),
    "gpuloader.sources.files.arrow_files": "ArrowDataset",
    "gpuloader.sources.files.parquet": "ParquetDataset",
    "gpuloader.sources.files.stored_arrays": "HDF5Dataset ZarrDataset",
    "gpuloader.sources.files.tar": "TarDataset",
    "gpuloader.sources.files.text": "CSVDataset JSONLDataset",
    "gpuloader.sources.images.folder": "ImageFiles ImageFolder ImageSample",
    "gpuloader.sources.images.image": "Image Picture",
    "gpuloader.sources.images.showing": "show",
    "gpuloader.sources.mixing": "MixDataset",
    "gpuloader.sources.packed": "PackedList",
    "gpuloader.sources.packed_sequences": "PackedSequences",
    "gpuloader.sources.readers.decorators": "batch",
    "gpuloader.sources.splitting": "random_split",
    "gpuloader.sources.tables.table": "TableDataset",
    "gpuloader.sources.tokens": "TokenWindows",
    "gpuloader.watch.stats": "LoaderStats",
    "gpuloader.watch.tracing": "span trace",
}

# Star imports get neither `io` nor `torch`, which would replace the standard library's and PyTorch.
__all__ = sorted({name for names in _HOMES.values() for name in names.split()} - {"io", "torch"})

find_moved_modules()

# A program pays for what it uses, and so does each fork server, which needs no loader.
__getattr__ = import_on_demand(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
