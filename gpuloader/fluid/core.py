"""What old programs take from ``fluid.core``."""

from gpuloader.base.errors import EOFException
from gpuloader.devices.places import CPUPlace, CUDAPinnedPlace, CUDAPlace

__all__ = ["CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "EOFException"]
