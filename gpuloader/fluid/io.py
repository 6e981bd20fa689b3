"""The names of ``paddle.fluid.io`` that old loading code uses."""

from gpuloader.system.imports import import_on_demand

_homes, __getattr__ = import_on_demand(__name__, __file__)

__all__ = sorted(_homes)
