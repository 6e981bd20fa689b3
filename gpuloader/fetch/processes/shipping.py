"""Shipping a dataset to workers: pickled once, its arrays in one sealed memory file that all of them map."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import struct
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.errors import LoaderError, StagingMemoryError
from gpuloader.base.platforms import available_memory, open_memory_file, reserve, seal
from gpuloader.fetch.processes.pickling import SinkFull, blame, dump, has_cloudpickle

IN_BAND_LIMIT = 32 << 20
"""Bytes of pickle beyond the out-of-band arrays above which an object is huge Python objects.

Each worker makes these objects again. Up to here two workers at once have them after about what a bare
spawned interpreter takes (230 ms; by the fork server 7 ms, forked 4 ms): 27 MB of floats in lists after
170 ms, 44 MB of (path, label) tuples after 300 ms, 90 MB of floats after 620 ms; forked ones have them after
11, 15 and 29 ms. Memory does not decide: once all was touched, reference counts have copied 80 to 90 % as
much into a forked worker. Measured by ``benchmarks/start_method.py``.
"""

_ALIGNMENT = 256  # as of the fields in a slot
_PIECE = 4 << 20  # bytes of a strided array that are made contiguous at a time
_LOOK = 1 << 20  # bytes of pickle after which a part is not to blame
_STEP = 16 << 20  # bytes of pickle between two looks at the memory there is
_HEADER = struct.Struct("<8sQQQ")  # magic, bytes of pickle (right behind it), where the table is, its length
_ENTRY = struct.Struct("<QQ")  # a buffer: where it is, its bytes
_MAGIC = b"gpuload1"
_HINT = "; with cloudpickle installed, functions and classes go by value"


class Unshippable(Exception):
    """The object cannot go to a worker that is not forked, or should not; the message says why."""


class Parcel:
    """One sealed memory file: a pickle, and the memory of the arrays that left it.

    Any number of processes may `unpack` its descriptor, at the same time too; nothing changes it any more.
    It is nameless, so a crash leaves nothing behind, and its memory goes when the parcel is closed and the
    last array that was unpacked from it is gone.

    Attributes
    ----------
    descriptor : int
        The memory file; -1 once closed. Closed by itself in a program that is executed.
    nbytes : int
        Size of the file.
    needs_main : bool
        The pickle refers to the module ``__main__`` by name, so a worker must import the main module first.

    Examples
    --------
    >>> parcel = pack({"images": np.zeros((1000, 784), np.float32)})
    >>> parcel.nbytes > 1000 * 784 * 4, parcel.needs_main
    (True, False)
    >>> parcel.close()
    """

    def __init__(self, descriptor: int, nbytes: int, needs_main: bool) -> None:
        self.descriptor = descriptor
        self.nbytes = nbytes
        self.needs_main = needs_main

    def close(self) -> None:
        """Give the descriptor back; what was unpacked from it stays. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()


def pack(value: object, *, limit: int | None = IN_BAND_LIMIT) -> Parcel:
    """Pickle an object once into a memory file, for any number of workers.

    The memory of NumPy arrays, and of whatever else pickles by buffers, is written to the file from where it
    lies; arrays over the same memory still share it. A memory-mapped file is not read: the worker maps it
    again (so what was changed in a mapping of mode ``'c'``, which is in no file, stays behind).

    Parameters
    ----------
    value : object
        Usually a dataset. Nothing may change it meanwhile.
    limit : int or None
        Bytes of pickle beyond the memory of arrays at which to give up; None to never do.

    Returns
    -------
    Parcel

    Raises
    ------
    Unshippable
        The object cannot be pickled, is too much of Python objects, or no memory file can be made.
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
    return Parcel(descriptor, nbytes, contents.needs_main)


def unpack(descriptor: int) -> Any:
    """Return the object in a memory file that `pack` wrote, with its arrays in place.

    The arrays are views of a private mapping of the file: they share its pages with all other processes
    until this one writes to them, and what it writes stays its own. The descriptor may be closed right
    afterwards; the mapping lives as long as any of the arrays.

    Parameters
    ----------
    descriptor : int
        Of the memory file, as it came from another process.

    Raises
    ------
    LoaderError
        The descriptor is of something else.
    BaseException
        What the object raised while it was made again.

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
    return pickle.loads(mapped[_HEADER.size : _HEADER.size + pickle_nbytes], buffers=buffers)


class _PickleFile:
    """Where a pickle goes: behind the header of a memory file, or nowhere; either way not past a limit."""

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
        raise Unshippable(f"the memory file to share a dataset by could not be made: {error}") from error


def _write_beside(descriptor: int, pickle_nbytes: int, memory: list[NDArray[Any]]) -> int:
    """Write the header, the table and the memory around a pickle; return the size of the whole file."""
    table_start = _HEADER.size + pickle_nbytes
    end = table_start + len(memory) * _ENTRY.size
    placed: dict[Any, tuple[int, NDArray[Any]]] = {}
    table = bytearray()
    for one in memory:
        # The same memory twice, say of an array and its reshaped view, is written once and shared.
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
    """Give the bytes of an array in the order of its indices, with no copy of more than a piece of them."""
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
        f"{nbytes:,} bytes of memory to share the dataset with its workers could not be had: {reason}; "
        "keep large arrays in files and map them (np.memmap), start the workers by forking, or raise the "
        "memory limit of this machine or container"
    )


def _explain(value: object, error: Exception, limit: int | None) -> str:
    if isinstance(error, SinkFull):
        return (
            f"a {type(value).__name__} holds more than {limit or 0:,} bytes of pickled Python objects beside "
            "the memory of its arrays, and every worker would have to make them again; keep them in arrays"
        )
    way, culprit, cause = blame(value, error, lambda: _PickleFile(_LOOK))
    hint = "" if has_cloudpickle() or not isinstance(culprit, FunctionType | type) else _HINT
    return f"{type(value).__name__}{way} cannot be pickled ({type(cause).__name__}: {cause}){hint}"
