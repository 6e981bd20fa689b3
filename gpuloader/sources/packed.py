"""Lists of many small Python objects, packed into one block of memory that all workers share."""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, BinaryIO, cast, overload

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import StagingMemoryError
from gpuloader.sources.array_rows import locate
from gpuloader.sources.block import number_rows
from gpuloader.system.finalizers import LivingValues, calling, closing_once
from gpuloader.system.platforms import open_memory_file, reserve, seal

_CHUNK = 1 << 16  # items to pickle at a time
_ALIGNMENT = 8
_dumps = partial(pickle.dumps, protocol=3)  # later protocols put 11 more bytes before each small item


class PackedList(Sequence[Any]):
    """A read-only list of Python objects in one sealed memory file, which workers map instead of copying.

    Each worker would copy a list of millions of strings or tuples: a forked worker copies the pages in which
    it counts references, and any other worker unpickles the items. A packed list unpickles an item when it is
    requested, in about 1 µs, and touches nothing else. A slice, or a list, array or tensor of indices or
    booleans, returns a list of items.

    Parameters
    ----------
    items : iterable
        Objects that can be pickled, such as file names or tuples of a file name and a label.

    Attributes
    ----------
    nbytes : int
        The size of the memory file.

    Raises
    ------
    StagingMemoryError
        There is not enough memory.

    Examples
    --------
    >>> paths = PackedList(f"images/{number}.jpg" for number in range(1000))
    >>> len(paths), paths[-1], paths[2:4]
    (1000, 'images/999.jpg', ['images/2.jpg', 'images/3.jpg'])
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._close = closing_once()  # for `__del__`, in case the file cannot be created
        try:
            self.descriptor = open_memory_file("gpuloader-list")
            self._close = closing_once(self.descriptor)
            with os.fdopen(self.descriptor, "wb", closefd=False) as file:
                ends = _write_items(file, items)
                start = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
                file.flush()
                reserve(self.descriptor, max(start + _ALIGNMENT * len(ends), 1))
                file.seek(start)
                file.write(ends)
            # No process can change the items while another uses them.
            seal(self.descriptor, writable=False)
            self._map(self.descriptor, start, len(ends))
        except OSError as error:
            raise StagingMemoryError(f"cannot pack the list into shared memory: {error}") from error

    def _map(self, descriptor: int, start: int, count: int) -> None:
        self.nbytes = os.fstat(descriptor).st_size
        mapping = mmap.mmap(descriptor, self.nbytes, access=mmap.ACCESS_READ)
        self._data = memoryview(mapping)
        self._ends: NDArray[np.int64] = np.frombuffer(mapping, np.int64, count, start)
        self._start = start

    @classmethod
    def open(cls, descriptor: int, start: int, count: int) -> PackedList:
        """Return the list in a memory file of another process; `place` says where the list lies in it."""
        made = cls.__new__(cls)
        made.descriptor = -1  # the caller closes it
        made._close = closing_once()
        made._map(descriptor, start, count)
        return made

    @property
    def place(self) -> tuple[int, int]:
        """Where the offsets of the items lie in the memory file, and the number of items."""
        return self._start, len(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[Any]) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int or not 0 <= index < len(self._ends):
            found = locate(self, index)
            if not isinstance(found, int):
                return [self[row] for row in number_rows(found).tolist()]
            index = found
        return pickle.loads(self._data[self._ends.item(index - 1) if index else 0 :])

    def __repr__(self) -> str:
        return f"PackedList of {len(self)} items, {self.nbytes:,} bytes"

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedList, (list(self),)

    __del__ = calling("_close")


_PROBE = 1000
_IMMUTABLE = frozenset({str, bytes, int, float, complex, bool, type(None)})
_packed: LivingValues[tuple[int, int], PackedList] = LivingValues()


def pack_list(dataset: object, nbytes: int) -> PackedList | None:
    """Return a packed list for a dataset that is a large list of immutable objects; None for any other.

    A list is large if its pickled items take `nbytes` or more, as estimated from the first items.

    >>> len(pack_list([("a.jpg", 3), ("b.jpg", 5)], nbytes=20))
    2
    >>> pack_list([["a.jpg", 3], ["b.jpg", 5]], nbytes=20) is None
    True
    """
    # A subclass may have its own `__getitem__`.
    if type(dataset) not in (list, tuple) or not dataset:
        return None
    items = cast("Sequence[Any]", dataset)
    probe = items[:_PROBE]
    if not _are_immutable(probe) or len(items) * sum(map(len, map(_dumps, probe))) < nbytes * len(probe):
        return None
    # A list is packed once, as long as it holds the same objects in the same order and the packed one is
    # alive. Mutable items stay in a list: somebody who changes one expects the next epoch to see the change.
    key = id(items), hash(tuple(map(id, items)))
    packed = _packed.get(key)
    if packed is None and _are_immutable(items):
        packed = PackedList(items)
        _packed.set(key, packed)
    return packed


def _are_immutable(items: Sequence[Any]) -> bool:
    kinds = set(map(type, items))
    if tuple in kinds:
        kinds.remove(tuple)
        kinds.update(*(map(type, item) for item in items if type(item) is tuple))
    return kinds <= _IMMUTABLE


def _write_items(file: BinaryIO, items: Iterable[Any]) -> array[int]:
    """Write pickled items to a file, one after the other, and return where each ends."""
    ends = array("q")
    left = iter(items)
    while chunk := list(itertools.islice(left, _CHUNK)):
        pickled = list(map(_dumps, chunk))
        lengths = itertools.accumulate(map(len, pickled), initial=file.tell())
        ends.extend(itertools.islice(lengths, 1, None))
        file.write(b"".join(pickled))
    return ends
