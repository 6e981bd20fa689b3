"""The names of ``paddle.fluid``: change only the import line to run the loading part of an old program.

Replace ``import paddle.fluid as fluid`` with ``from gpuloader import fluid``.

In: calls under the old names.
Out: the objects of `gpuloader` themselves, or thin wrappers with the old signatures.
Callers: old programs of users; no other room.
"""

from gpuloader.devices.opening import cuda_places
from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, cpu_places
from gpuloader.fields.spec import data
from gpuloader.fluid import core, io, layers
from gpuloader.loader.feeder import DataFeeder

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "DataFeeder",
    "core",
    "cpu_places",
    "cuda_places",
    "data",
    "io",
    "layers",
]
