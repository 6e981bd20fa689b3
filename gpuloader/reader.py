"""Reader decorators, which turn readers into new readers, as in Paddle's ``paddle.reader``.

>>> from gpuloader.reader import firstn, shuffle
>>> sorted(shuffle(firstn(lambda: range(100), 3), buf_size=3)())
[0, 1, 2]
"""

from gpuloader.system.imports import import_on_demand

_homes, __getattr__ = import_on_demand(__name__, __file__)

__all__ = sorted(_homes)
