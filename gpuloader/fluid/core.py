"""What old programs take from ``fluid.core``."""

from gpuloader.errors import EOFException
from gpuloader.places import CPUPlace, CUDAPinnedPlace, CUDAPlace

__all__ = ["CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "EOFException"]
