"""Both sides: a dataset is pickled once, with its arrays in one sealed memory file that all workers map.

Nothing can change the file, and any number of workers unpack it at the same time without a copy. It has no
name, so a crash leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import io
import itertools
import mmap
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuloader.errors import StagingMemoryError
from gpuloader.foreign import can_stage, is_tensor, tensor_array, tensor_over
from gpuloader.sources.packed import PackedList
from gpuloader.staging import align
from gpuloader.system.finalizers import calling, closing_once
from gpuloader.system.platforms import check_memory, open_memory_file, reserve, seal

# Arrays of at least this many bytes are stored outside the pickle.
OUT_OF_BAND = 64 << 10

_PROBE = 1 << 20  # bytes of pickle after which a part is not searched further
_STEP = 16 << 20  # bytes of pickle between two checks of the available memory
_DEEPEST, _WIDEST = 6, 64  # the levels, and parts per level, that `blame` searches
_MAIN = ("__main__", "__mp_main__")  # the second is the first's name in a spawned process


class Unshippable(Exception):
    """The object cannot or should not be pickled for workers; the message says why."""


class Parcel:
    """A sealed memory file that holds a pickle and the memory of its arrays.

    Its memory is freed once the parcel is closed and the last array unpacked from it is gone.

    >>> parcel = pack({"images": np.zeros((1000, 784), np.float32)})
    >>> parcel.nbytes > 1000 * 784 * 4, parcel.needs_main
    (True, False)
    >>> parcel.close()
    """

    def __init__(self, descriptor: int, nbytes: int, contents: Contents) -> None:
        self.descriptor = descriptor  # -1 once the parcel is closed
        self.nbytes = nbytes
        self.needs_main = contents.needs_main
        self.modules = frozenset(contents.modules)
        self.lists = tuple(contents.lists)
        self._close = closing_once(descriptor)

    def close(self) -> None:
        """Close the descriptor; unpacked objects stay valid. May be called again."""
        self.descriptor = -1
        self._close()

    __del__ = calling("_close")


def pack(value: object) -> Parcel:
    """Pickle an object once into a memory file, for any number of workers.

    Arrays that share memory still share it afterwards. A memory-mapped file is not read; the worker maps it
    again. Changes to a mapping of mode ``'c'`` are lost, because they are in no file.

    Raises
    ------
    Unshippable
        The object cannot be pickled, or no memory file can be created.
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
    try:
        descriptor = open_memory_file("gpuloader-dataset")
    except OSError as error:
        raise Unshippable(f"cannot create a memory file that shares the dataset: {error}") from error
    try:
        pickled = _PickleFile(descriptor=descriptor)
        try:
            contents = dump(value, pickled)
        except MemoryError:
            raise
        except Exception as error:
            path, culprit, cause = blame(value, error)
            hint = ""
            if find_cloudpickle() is None and isinstance(culprit, FunctionType | type):
                hint = "; install cloudpickle to pickle functions and classes by value"
            problem = f"cannot be pickled ({type(cause).__name__}: {cause})"
            raise Unshippable(f"{type(value).__name__}{path} {problem}{hint}") from error
        nbytes = _write_beside(descriptor, pickled.nbytes, contents.memory)
        seal(descriptor, writable=False)
    except BaseException:
        closing_once(descriptor)()
        raise
    return Parcel(descriptor, nbytes, contents)


def unpack(descriptor: int, lists: Sequence[int] = ()) -> Any:
    """Return the object in a memory file that `pack` wrote, without copying its arrays.

    `lists` are the descriptors of the parcel's `lists`. All descriptors may be closed right afterwards.

    >>> parcel = pack({"label": 3, "image": np.ones((300, 300), np.float32)})
    >>> there = unpack(parcel.descriptor)
    >>> parcel.close()
    >>> there["image"][0, 0] = 5
    >>> there["label"], float(there["image"].sum())
    (3, 90004.0)
    """
    # Private: pages are shared with all other processes until this one writes to them, and its writes stay
    # its own. The mapping lives as long as any of the arrays.
    mapped = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    numbers = mapped.cast("q")  # the last numbers say where the buffers lie, and how many there are
    bounds = numbers[-1 - 2 * numbers[-1] : -1]
    buffers = [mapped[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True)]
    _received.lists = lists
    try:
        return pickle.loads(mapped, buffers=buffers)
    finally:
        del _received.lists


# Pickling without copying the memory of arrays or memory-mapped files.


class SinkFull(Exception):
    """The pickle is larger than its sink accepts."""


@dataclass(slots=True)
class Contents:
    """What a pickle refers to, apart from its own bytes.

    Attributes
    ----------
    memory : list of ndarray
        The buffers that unpickling needs, in this order; each holds an array's elements in C order.
    needs_main : bool
        Whether the pickle refers to something by its name in the main module.
    modules : set of str
        Other modules that unpickling, or calling what was unpickled, will import.
    lists : list of PackedList
        The lists whose memory files the other process must have open, in this order.
    """

    memory: list[NDArray[Any]] = field(default_factory=list)
    needs_main: bool = False
    modules: set[str] = field(default_factory=set)
    lists: list[PackedList] = field(default_factory=list)
    _standing_in: dict[int, NDArray[Any]] = field(default_factory=dict)
    _files: dict[int, _MappedFile | None] = field(default_factory=dict)

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the pickle (return False) or leave it in (True); the pickler's callback."""
        memory = self._standing_in.pop(id(buffer), None)
        if memory is None:
            raw = buffer.raw()
            if raw.nbytes < OUT_OF_BAND:
                return True
            memory = np.frombuffer(raw, np.uint8)
        self.memory.append(memory)
        return False

    def stand_in(self, memory: NDArray[Any]) -> pickle.PickleBuffer:
        """Return an empty buffer to pickle instead of memory that may be strided."""
        # pickle refuses a strided buffer out of band, so the memory waits here under the buffer's id.
        buffer = pickle.PickleBuffer(bytearray() if memory.flags.writeable else b"")
        self._standing_in[id(buffer)] = memory
        return buffer

    def file_under(self, array: NDArray[Any]) -> _MappedFile | None:
        """Return the file that an array is mapped from, the same for all its views; None if not mapped."""
        root: Any = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        mapping = root.base
        if not (isinstance(root, np.memmap) and isinstance(mapping, mmap.mmap)) or array.nbytes == 0:
            return None
        if id(mapping) not in self._files:
            self._files[id(mapping)] = _MappedFile.of(root, mapping)
        return self._files[id(mapping)]


def dump(value: object, sink: _PickleFile | io.BytesIO, contents: Contents | None = None) -> Contents:
    """Pickle an object with protocol 5 and return what to store outside the pickle, added to `contents`.

    It uses cloudpickle, if installed, which pickles closures and everything in the main module by value;
    otherwise `pickle`. NumPy arrays of any strides, class and dtype are pickled without a copy, unless they
    hold objects or their class defines its own pickling. The same goes for dense torch tensors in host
    memory.

    >>> import io
    >>> contents = dump({"image": np.zeros((512, 512)).T, "name": "cat"}, io.BytesIO())
    >>> [memory.nbytes for memory in contents.memory], contents.needs_main
    ([2097152], False)
    """
    contents = Contents() if contents is None else contents
    base = (find_cloudpickle() or pickle).Pickler
    pickler = _pickler_over(base)(sink, protocol=5, buffer_callback=contents.take)
    pickler.contents = contents
    pickler.dump(value)
    return contents


def names_module(value: object, module: str) -> bool:
    """Return whether an object's pickle, or the beginning of a long one, names a module or a part of it.

    >>> names_module([np.float32], "numpy"), names_module([1.5], "numpy")
    (True, False)
    """
    contents = Contents()
    with contextlib.suppress(Exception):
        dump(value, _PickleFile(_PROBE), contents)
    return any(name.partition(".")[0] == module for name in contents.modules)


def find_cloudpickle() -> Any:
    """Return the module cloudpickle, which pickles functions and classes by value; None if not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


@functools.cache
def _pickler_over(base: type) -> Any:
    return type("Pickler", (_Reductions, base), {})


class _Reductions:
    contents: Contents

    def reducer_override(self, value: Any) -> Any:
        contents = self.contents
        if isinstance(value, np.ndarray):
            return _reduce_array(value, contents)
        # A tensor that is nothing but its numbers is pickled as an array. torch itself would move its memory
        # into a file in /dev/shm, which somebody has to remove.
        if (
            is_tensor(value)
            and type(value) is sys.modules["torch"].Tensor
            and can_stage(value)
            and not (value.requires_grad or value.__dict__ or value.is_shared())
        ):
            contents.modules.add("torch")
            return tensor_over, (tensor_array(value),)
        if isinstance(value, PackedList) and value.descriptor >= 0:
            contents.lists.append(value)
            return _open_list, (len(contents.lists) - 1, *value.place)
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
            # cloudpickle would read the whole file and pickle its text.
            raise TypeError(f"cannot pickle an open file ({getattr(value, 'name', 'without a name')!r})")
        inherited: Callable[[Any], Any] | None = getattr(super(), "reducer_override", None)
        reduced = NotImplemented if inherited is None else inherited(value)
        # Classes and functions that were not reduced to values are pickled as a module and a name.
        module = None
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            module = value.__module__
        elif isinstance(value, ModuleType):
            module = value.__name__
        if module in _MAIN:
            contents.needs_main = contents.needs_main or reduced is NotImplemented
        elif module is not None:
            contents.modules.add(module)
        return reduced


_received = threading.local()  # the descriptors of the lists in the pickle that this thread unpacks


def _open_list(number: int, start: int, count: int) -> PackedList:
    return PackedList.open(_received.lists[number], start, count)


_pickling_of = attrgetter("__reduce__", "__reduce_ex__", "__setstate__")


def _reduce_array(array: NDArray[Any], contents: Contents) -> Any:
    kind = type(array)
    has_own = kind in copyreg.dispatch_table or _pickling_of(kind) != _pickling_of(np.ndarray)
    if has_own or array.dtype.hasobject:
        return NotImplemented
    plain = array.view(np.ndarray)
    layout: tuple[Any, ...] = (array.shape, array.dtype, array.strides)
    file = contents.file_under(array)
    if file is not None:
        first = plain.__array_interface__["data"][0] - file.address
        return _view, (file, kind, first, layout, array.flags.writeable)
    if array.nbytes < OUT_OF_BAND:
        return NotImplemented
    memory, first = _span(plain)
    if memory.nbytes > array.nbytes:
        # Between the elements, the span holds other bytes, so store only the elements, contiguously.
        memory, first, layout = plain, 0, (array.shape, array.dtype, None)
    return _view, (contents.stand_in(memory), kind, first, layout, array.flags.writeable)


def _span(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return an array's bytes from its lowest to its highest address, and the offset of its first element.

    In a transposed or reversed array, the bytes are in a different order from the elements. If elements
    repeat, as in a broadcast array or overlapping windows, there are fewer bytes.
    """
    array = np.atleast_1d(array)
    extents = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    first = -sum(extent for extent in extents if extent < 0)
    nbytes = first + sum(extent for extent in extents if extent > 0) + array.itemsize
    lowest = array[tuple(slice(-1, None) if extent < 0 else slice(1) for extent in extents)]
    return as_strided(lowest.reshape(-1).view(np.uint8), (nbytes,), (1,)), first


def _view(
    memory: Any, kind: type[NDArray[Any]], first: int, layout: tuple[Any, ...], writeable: bool
) -> NDArray[Any]:
    shape, dtype, strides = layout
    array: NDArray[Any] = np.ndarray(shape, dtype, memory, first, strides)
    if kind is not np.ndarray:
        array = array.view(kind)
    if isinstance(array, np.memmap):
        array.__array_finalize__(memory)  # sets its filename, mode and offset
    array.flags.writeable = writeable and array.flags.writeable
    return array


@dataclass(frozen=True, slots=True)
class _MappedFile:
    """A file mapped in this process; unpickling maps it in the other process, once for all views."""

    name: str
    mode: str
    offset: int
    nbytes: int
    address: int

    @classmethod
    def of(cls, mapped: Any, mapping: mmap.mmap) -> _MappedFile | None:
        """Return the file of a memory map; None if it has no name, or the file of that name is too short."""
        # `np.memmap` rounds the first array's `offset` down, in order to map whole pages.
        offset = int(mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY)
        try:
            name = os.fspath(mapped.filename)
            if Path(name).stat().st_size < offset + len(mapping):
                return None
        except (TypeError, OSError):
            return None
        mode = mapped.mode.replace("w+", "r+")  # "w+" would truncate the file again
        return cls(name, mode, offset, len(mapping), np.frombuffer(mapping, np.uint8).ctypes.data)

    def __reduce__(self) -> Any:
        return np.memmap, (self.name, np.uint8, self.mode, self.offset, (self.nbytes,))


# What could not be pickled: the error names the attribute or item, not only its type.


def blame(value: object, error: Exception) -> tuple[str, object, Exception]:
    """Find the attribute or item that made `dump` fail; return its path, the part itself and its error.

    >>> import threading
    >>> path, part, cause = blame([1, {"a": [], "lock": threading.Lock()}], TypeError())
    >>> path, str(cause)
    ("[1]['lock']", "cannot pickle '_thread.lock' object")
    """
    path = ""
    for _ in range(_DEEPEST):
        for step, part in itertools.islice(_parts(value), _WIDEST):
            try:
                dump(part, _PickleFile(_PROBE))
            except SinkFull:  # a large part is skipped, so that the search stays cheap
                continue
            except Exception as cause:
                path, value, error = path + step, part, cause
                break
        else:
            break
    return path, value, error


_state_of = attrgetter("__reduce__", "__reduce_ex__", "__getstate__")


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts an object is pickled as, each with its path; none if its class defines its pickling."""
    if isinstance(value, dict):
        return ((f"[{key!r}]", part) for key, part in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f".{name}", part) for name, part in zip(value._fields, value, strict=False))
    if isinstance(value, list | tuple):
        return ((f"[{index}]", part) for index, part in enumerate(value))
    if is_dataclass(value):
        return ((f".{one.name}", getattr(value, one.name, None)) for one in fields(value))
    if _state_of(type(value)) != _state_of(object):
        return iter(())
    return ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


# The memory file: the pickle, the buffers at aligned offsets, and where they lie.


class _PickleFile:
    """The target of a pickle: the beginning of a memory file, or nothing, which only counts; has a limit."""

    def __init__(self, limit: int | None = None, descriptor: int | None = None) -> None:
        self.limit = limit
        self.descriptor = descriptor
        self.nbytes = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        end = self.nbytes + view.nbytes
        if self.limit is not None and end > self.limit:
            raise SinkFull
        if self.descriptor is not None:
            # A pickle's final size is unknown, so memory is checked every few pieces: at its limit, a
            # container would kill the whole program without an error.
            if self.nbytes // _STEP != end // _STEP:
                check_memory(view.nbytes + _STEP, _shortage)
            try:
                while view:  # one call writes at most 2 GiB, and less if a signal interrupts it
                    view = view[os.write(self.descriptor, view) :]
            except OSError as error:
                raise StagingMemoryError(_shortage(view.nbytes, str(error))) from error
        self.nbytes = end


def _write_beside(descriptor: int, pickle_nbytes: int, memory: list[NDArray[Any]]) -> int:
    """Write the arrays behind the pickle, and last where each lies; return the size of the whole file."""
    end = pickle_nbytes
    placed: dict[Any, tuple[int, NDArray[Any]]] = {}
    bounds: list[int] = []
    for one in memory:
        # Memory that occurs twice, for example an array and its reshaped view, is written once and shared.
        same = (one.__array_interface__["data"][0], one.shape, one.strides, one.itemsize)
        if same not in placed:
            placed[same] = align(end), one
            end = align(end) + one.nbytes
        start, _ = placed[same]
        bounds += start, start + one.nbytes
    index = np.array([*bounds, len(memory)], np.int64)
    start = align(end)
    end = start + index.nbytes
    check_memory(end - pickle_nbytes, _shortage)
    try:
        reserve(descriptor, end)
        with mmap.mmap(descriptor, end) as mapping:
            for at, one in (*placed.values(), (start, index)):
                # As bytes: an array of records would leave out the padding between its fields.
                elements = one.view(np.dtype((np.void, one.itemsize)))
                np.ndarray(one.shape, elements.dtype, mapping, at)[...] = elements
    except OSError as error:
        raise StagingMemoryError(_shortage(end, str(error))) from error
    return end


def _shortage(nbytes: int, reason: str) -> str:
    return (
        f"cannot allocate {nbytes:,} bytes of memory to share the dataset with its workers: {reason}; keep "
        "large arrays in files and map them with np.memmap, pass start_method='fork', or raise the memory "
        "limit of this machine or container"
    )
