"""MNIST as arrays, from gzip JSON, IDX files, or the sample in the package.

In: a path, or None for the sample.
Out: sets of digits, and readers of them.
Callers: users, `demo` and `cli`.
"""

from gpuloader.system.imports import import_on_demand, read_stub

_homes = read_stub(__file__)

__all__ = sorted(_homes)

__getattr__ = import_on_demand(__name__, _homes)
