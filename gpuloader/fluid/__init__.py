"""The names of ``paddle.fluid``: change only the import line to run the loading part of an old program.

Replace ``import paddle.fluid as fluid`` with ``from gpuloader import fluid``.

In: calls under the old names.
Out: the objects of `gpuloader` themselves, or thin wrappers with the old signatures.
Callers: old programs of users.
"""

from gpuloader.api.feeder import DataFeeder
from gpuloader.devices.places import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    cpu_places,
    cuda_pinned_places,
    cuda_places,
)
from gpuloader.fields.spec import Program, data, default_main_program, default_startup_program, program_guard
from gpuloader.fluid import core, data_feeder, dataset, dygraph, io, layers, lod_tensor, reader, unique_name
from gpuloader.fluid.core import is_compiled_with_cuda
from gpuloader.fluid.dataset import DatasetFactory, InMemoryDataset, QueueDataset
from gpuloader.fluid.lod_tensor import LoDTensor, create_lod_tensor

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "DataFeeder",
    "DatasetFactory",
    "InMemoryDataset",
    "LoDTensor",
    "Program",
    "QueueDataset",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "cuda_pinned_places",
    "cuda_places",
    "data",
    "data_feeder",
    "dataset",
    "default_main_program",
    "default_startup_program",
    "dygraph",
    "io",
    "is_compiled_with_cuda",
    "layers",
    "lod_tensor",
    "program_guard",
    "reader",
    "unique_name",
]
