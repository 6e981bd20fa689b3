"""Both sides: a dataset is pickled once, with its arrays in one sealed memory file that all workers map."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import LoaderError, StagingMemoryError
from gpuloader.fetch.processes.pickling import SinkFull, blame, dump, has_cloudpickle, receiving
from gpuloader.sources.packed import PackedList
from gpuloader.system.finalizers import calling, closing_once
from gpuloader.system.platforms import available_memory, open_memory_file, reserve, seal

IN_BAND_LIMIT = 32 << 20
"""The most bytes of pickle, arrays not counted, for which unpickling in every worker is cheap enough.

Each worker creates these objects anew. Up to this size, two workers at once have them after about the time
that a bare spawned interpreter takes to start (230 ms; with the fork server 7 ms, forked 4 ms): 27 MB of
floats in lists take 170 ms, 44 MB of (path, label) tuples 300 ms, 90 MB of floats 620 ms. Forked workers
have them after 11, 15 and 29 ms. Memory does not decide: once a forked worker has touched all objects, their
reference counts have made it copy 80 to 90 % as much. Measured by ``benchmarks/start_method.py``.
"""

_ALIGNMENT = 256  # bytes, as for the fields of a slot
_PIECE = 4 << 20  # bytes of a strided array that are made contiguous at a time
_LOOK = 1 << 20  # bytes of pickle after which `blame` skips a part
_STEP = 16 << 20  # bytes of pickle between two checks of the available memory
_HEADER = struct.Struct("<8sQQQ")  # magic, bytes of the pickle behind it, offset of the table, its length
_ENTRY = struct.Struct("<QQ")  # a buffer's offset and its bytes
_MAGIC = b"gpuload1"
_HINT = "; install cloudpickle to pickle functions and classes by value"


class Unshippable(Exception):
    """The object cannot or should not be pickled for workers; the message says why."""


class Parcel:
    """A sealed memory file that holds a pickle and the memory of its arrays.

    Nothing can change it, and any number of processes may `unpack` its descriptor at the same time. It has no
    name, so a crash leaves nothing behind. Its memory is freed when the parcel is closed and the last array
    unpacked from it is gone.

    Attributes
    ----------
    descriptor : int
        The memory file's descriptor, closed on exec; -1 once the parcel is closed.
    nbytes : int
        The size of the file.
    needs_main : bool
        Whether the pickle refers to the module ``__main__`` by name, so that workers must import it first.
    modules : frozenset of str
        The other modules that workers will import.
    lists : tuple of PackedList
        The lists whose memory files workers need as well, in this order.

    Examples
    --------
    >>> parcel = pack({"images": np.zeros((1000, 784), np.float32)})
    >>> parcel.nbytes > 1000 * 784 * 4, parcel.needs_main
    (True, False)
    >>> parcel.close()
    """

    def __init__(
        self,
        descriptor: int,
        nbytes: int,
        needs_main: bool,
        modules: frozenset[str] = frozenset(),
        lists: tuple[PackedList, ...] = (),
    ) -> None:
        self.descriptor = descriptor
        self.nbytes = nbytes
        self.needs_main = needs_main
        self.modules = modules
        self.lists = lists
        self._close = closing_once(descriptor)

    def close(self) -> None:
        """Close the descriptor; unpacked objects stay valid. May be called again."""
        self.descriptor = -1
        self._close()

    __del__ = calling("_close")


def pack(value: object, *, limit: int | None = IN_BAND_LIMIT) -> Parcel:
    """Pickle an object once into a memory file, for any number of workers.

    The memory of NumPy arrays, and of other objects that pickle their buffers, is written straight into the
    file. Arrays that share memory still share it afterwards. A memory-mapped file is not read; the worker
    maps it again. Changes to a mapping of mode ``'c'`` are lost, because they are in no file.

    Parameters
    ----------
    value : object
        The object, usually a dataset. Nothing may change it during the call.
    limit : int or None
        The most bytes of pickle, arrays not counted; None for no limit.

    Returns
    -------
    Parcel

    Raises
    ------
    Unshippable
        The object cannot be pickled, its pickle exceeds the limit, or no memory file can be created.
    StagingMemoryError
        There is not enough memory for the file.

    Examples
    --------
    >>> import threading
    >>> pack({"counters": [0, threading.Lock()]})
    Traceback (most recent call last):
        ...
    gpuloader.fetch.processes.shipping.Unshippable: dict['counters'][1] ...
    """
    descriptor = _memory_file()
    try:
        pickled = _PickleFile(limit, descriptor)
        try:
            contents = dump(value, pickled)
        except MemoryError:
            raise
        except Exception as error:
            raise Unshippable(_explain(value, error, limit)) from error
        nbytes = _write_beside(descriptor, pickled.nbytes, contents.memory)
        seal(descriptor, writable=False)
    except BaseException:
        os.close(descriptor)
        raise
    return Parcel(descriptor, nbytes, contents.needs_main, frozenset(contents.modules), tuple(contents.lists))


def unpack(descriptor: int, lists: Sequence[int] = ()) -> Any:
    """Return the object in a memory file that `pack` wrote, without copying its arrays.

    The arrays are views of a private mapping of the file. They share its pages with all other processes until
    this one writes to them; its writes stay private. The descriptor may be closed right afterwards; the
    mapping lives as long as any of the arrays.

    Parameters
    ----------
    descriptor : int
        The memory file's descriptor, usually received from another process.
    lists : sequence of int
        The descriptors of the parcel's `lists`.

    Raises
    ------
    LoaderError
        The descriptor does not hold a packed object.
    BaseException
        Unpickling the object raised.

    Examples
    --------
    >>> parcel = pack({"label": 3, "image": np.ones((300, 300), np.float32)})
    >>> there = unpack(parcel.descriptor)
    >>> parcel.close()
    >>> there["image"][0, 0] = 5
    >>> there["label"], float(there["image"].sum())
    (3, 90004.0)
    """
    nbytes = os.fstat(descriptor).st_size
    head = os.pread(descriptor, _HEADER.size, 0) if nbytes else b""
    if not head.startswith(_MAGIC):
        raise LoaderError(f"descriptor {descriptor} does not hold a packed object")
    mapped = memoryview(mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_COPY))
    _, pickle_nbytes, table, count = _HEADER.unpack(head)
    entries = _ENTRY.iter_unpack(mapped[table : table + count * _ENTRY.size])
    buffers = [mapped[start : start + size] for start, size in entries]
    with receiving(lists):
        return pickle.loads(mapped[_HEADER.size : _HEADER.size + pickle_nbytes], buffers=buffers)


class _PickleFile:
    """A `Sink` with a limit, which writes behind the header of a memory file, or only counts the bytes."""

    def __init__(self, limit: int | None, descriptor: int | None = None) -> None:
        self.limit = limit
        self.descriptor = descriptor
        self.nbytes = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        end = self.nbytes + view.nbytes
        if self.limit is not None and end > self.limit:
            raise SinkFull
        if self.descriptor is not None:
            if self.nbytes // _STEP != end // _STEP:
                _check_memory(view.nbytes + _STEP)
            _write(self.descriptor, view, _HEADER.size + self.nbytes)
        self.nbytes = end


def _memory_file() -> int:
    try:
        return open_memory_file("gpuloader-dataset")
    except OSError as error:
        raise Unshippable(f"cannot create a memory file that shares the dataset: {error}") from error


def _write_beside(descriptor: int, pickle_nbytes: int, memory: list[NDArray[Any]]) -> int:
    """Write the header, the table and the arrays around the pickle; return the size of the whole file."""
    table_start = _HEADER.size + pickle_nbytes
    end = table_start + len(memory) * _ENTRY.size
    placed: dict[Any, tuple[int, NDArray[Any]]] = {}
    table = bytearray()
    for one in memory:
        # Memory that occurs twice, as of an array and its reshaped view, is written once and shared.
        same = (one.__array_interface__["data"][0], one.shape, one.strides, one.itemsize)
        if same not in placed:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            placed[same] = start, one
            end = start + one.nbytes
        table += _ENTRY.pack(placed[same][0], one.nbytes)
    _check_memory(end - table_start)
    try:
        reserve(descriptor, end)
    except OSError as error:
        raise StagingMemoryError(_shortage(end, str(error))) from error
    _write(descriptor, _HEADER.pack(_MAGIC, pickle_nbytes, table_start, len(memory)), 0)
    _write(descriptor, table, table_start)
    for start, one in placed.values():
        for piece in _pieces(one):
            _write(descriptor, piece, start)
            start += piece.nbytes
    return end


def _pieces(array: NDArray[Any]) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order, copying at most one piece at a time."""
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
    elif array.nbytes <= _PIECE:
        yield from _pieces(np.ascontiguousarray(array))
    elif len(array) == 1:
        yield from _pieces(array[0])
    else:
        middle = len(array) // 2
        yield from _pieces(array[:middle])
        yield from _pieces(array[middle:])


def _write(descriptor: int, data: Any, start: int) -> None:
    view = memoryview(data)
    try:
        while view:
            written = os.pwrite(descriptor, view, start)
            view, start = view[written:], start + written
    except OSError as error:
        raise StagingMemoryError(_shortage(view.nbytes, str(error))) from error


def _check_memory(nbytes: int) -> None:
    available = available_memory()
    if available is not None and nbytes > available:
        raise StagingMemoryError(_shortage(nbytes, f"only {available:,} bytes are available"))


def _shortage(nbytes: int, reason: str) -> str:
    return (
        f"cannot allocate {nbytes:,} bytes of memory to share the dataset with its workers: {reason}; keep "
        "large arrays in files and map them with np.memmap, pass start_method='fork', or raise the memory "
        "limit of this machine or container"
    )


def _explain(value: object, error: Exception, limit: int | None) -> str:
    if isinstance(error, SinkFull):
        return (
            f"a {type(value).__name__} holds more than {limit or 0:,} bytes of pickled Python objects, not "
            "counting arrays, and every worker would have to unpickle them; store them in arrays"
        )
    way, culprit, cause = blame(value, error, lambda: _PickleFile(_LOOK))
    hint = "" if has_cloudpickle() or not isinstance(culprit, FunctionType | type) else _HINT
    return f"{type(value).__name__}{way} cannot be pickled ({type(cause).__name__}: {cause}){hint}"
