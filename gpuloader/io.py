"""The names of ``paddle.io``, so that a Paddle program runs after changing only its import line.

>>> from gpuloader.io import DataLoader, SequenceSampler
>>> [batch.tolist() for batch in DataLoader([1, 2, 3], places="cpu", batch_size=2)]
[[1, 2], [3]]
"""

from gpuloader.system.imports import import_on_demand

_homes, __getattr__ = import_on_demand(__name__, __file__)

__all__ = sorted(_homes)
