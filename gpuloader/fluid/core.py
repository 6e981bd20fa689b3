"""The names of ``paddle.fluid.core`` that old loading code uses."""

from gpuloader.base.errors import EOFException
from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace

__all__ = ["CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "EOFException"]
