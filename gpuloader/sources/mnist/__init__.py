"""MNIST as arrays, from gzip JSON, IDX files, or the sample in the package.

In: a path, or None for the sample.
Out: sets of digits, and readers of them.
Callers: users, `demo` and `cli`.
"""

from gpuloader.system.imports import import_on_demand

_homes, __getattr__ = import_on_demand(__name__, __file__)

__all__ = sorted(_homes)
