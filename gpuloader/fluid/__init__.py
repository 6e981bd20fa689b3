"""The old names: the loading part of a ``paddle.fluid`` program runs with its import line changed.

``import paddle.fluid as fluid`` becomes ``from gpuloader import fluid``.
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
