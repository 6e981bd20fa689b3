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
)
from gpuloader.feeder import DataFeeder
from gpuloader.loader import DataLoader
from gpuloader.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, cpu_places
from gpuloader.ragged import Ragged
from gpuloader.sources import reader
from gpuloader.sources.reader import batch
from gpuloader.spec import FeedSpec, data
from gpuloader.stats import LoaderStats, trace

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "ComposeNotAligned",
    "DataFeeder",
    "DataLoader",
    "EOFException",
    "FeedError",
    "FeedSpec",
    "LoaderError",
    "LoaderStats",
    "PlaceError",
    "Ragged",
    "ReaderError",
    "SampleError",
    "StagingMemoryError",
    "WorkerError",
    "batch",
    "cpu_places",
    "cuda_places",
    "data",
    "fluid",
    "reader",
    "trace",
]
