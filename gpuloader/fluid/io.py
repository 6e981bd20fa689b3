"""The names of ``paddle.fluid.io`` that old loading code uses."""

from gpuloader import reader
from gpuloader.fluid.reader import DataLoader, PyReader
from gpuloader.reader import *  # noqa: F403

__all__ = [*reader.__all__, "DataLoader", "PyReader"]
