"""gpuloader: a data loader that keeps a GPU fed.

It writes each batch once, into a pinned slot, and copies it to the device on a separate stream while the
previous batch is being computed on. CPU places use the same pipeline. Start with `DataLoader`, or with
`DataLoader.from_generator` for readers.
"""

from gpuloader.system.imports import find_moved_modules, import_on_demand

# A program pays for what it uses, and so does each fork server, which needs no loader.
_homes, __getattr__ = import_on_demand(__name__, __file__)

# Star imports get neither `io` nor `torch`, which would replace the standard library's and PyTorch.
__all__ = sorted(_homes.keys() - {"io", "torch"})

find_moved_modules()


def __dir__() -> list[str]:
    return __all__
