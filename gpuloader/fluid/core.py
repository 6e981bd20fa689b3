"""The names of ``paddle.fluid.core`` that old loading code uses."""

from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace
from gpuloader.errors import EOFException, PlaceError
from gpuloader.fluid.lod_tensor import LoDTensor

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "LoDTensor",
    "get_cuda_device_count",
    "is_compiled_with_cuda",
]


def is_compiled_with_cuda() -> bool:
    """Return whether batches can go to a GPU: CuPy, a driver and a GPU are there.

    >>> place = CUDAPlace(0) if is_compiled_with_cuda() else CPUPlace()
    """
    return get_cuda_device_count() > 0


def get_cuda_device_count() -> int:
    """Return the number of GPUs that batches can go to; 0 without CuPy or a driver.

    >>> get_cuda_device_count() >= 0
    True
    """
    from gpuloader.devices.cuda import require_cuda

    try:
        return require_cuda(0)
    except PlaceError:
        return 0
