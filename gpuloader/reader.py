"""Reader decorators, which turn readers into new readers, as in Paddle's ``paddle.reader``.

>>> from gpuloader.reader import firstn, shuffle
>>> sorted(shuffle(firstn(lambda: range(100), 3), buf_size=3)())
[0, 1, 2]
"""

from gpuloader.errors import ComposeNotAligned
from gpuloader.sources.readers.decorators import batch, cache, chain, compose, firstn, map_readers, shuffle
from gpuloader.sources.readers.reader_processes import multiprocess_reader
from gpuloader.sources.readers.reader_threads import buffered, xmap_readers

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]
