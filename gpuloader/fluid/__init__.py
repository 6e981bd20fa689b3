"""The names of ``paddle.fluid``: change only the import line to run the loading part of an old program.

Replace ``import paddle.fluid as fluid`` with ``from gpuloader import fluid``.

In: calls under the old names.
Out: the objects of `gpuloader` themselves, or thin wrappers with the old signatures.
Callers: old programs of users.
"""

from gpuloader.system.imports import import_on_demand

_homes, __getattr__ = import_on_demand(__name__, __file__)

__all__ = sorted(_homes)
