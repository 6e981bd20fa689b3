"""Both sides: pickling that copies neither the memory of arrays nor memory-mapped files."""

from __future__ import annotations

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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuloader.fields.tensors import can_stage, is_tensor, tensor_array, tensor_over
from gpuloader.sources.packed import PackedList

OUT_OF_BAND = 64 << 10
"""Arrays of at least this many bytes are stored outside the pickle."""

_PICKLING = ("__reduce__", "__reduce_ex__", "__setstate__")
_DEEPEST, _WIDEST = 6, 64  # how many levels, and parts per level, `blame` searches
_MAIN = ("__main__", "__mp_main__")  # the second is the first's name in a spawned process


class Sink(Protocol):
    """The file-like target of a pickle."""

    def write(self, data: Any) -> object:
        """Take the next bytes of the pickle, or raise `SinkFull` to stop the pickling."""


class SinkFull(Exception):
    """The pickle is larger than its sink accepts."""


def dump(value: object, sink: Sink) -> Contents:
    """Pickle an object with protocol 5 and return the arrays to store outside the pickle.

    It uses cloudpickle if that is installed, which pickles closures and whatever the main module defines by
    value; otherwise `pickle`. NumPy arrays of any strides, class and dtype are pickled without a copy, unless
    they hold objects or their class defines its own pickling. So are dense tensors of torch in host memory.

    >>> import io
    >>> contents = dump({"image": np.zeros((512, 512)).T, "name": "cat"}, io.BytesIO())
    >>> [memory.nbytes for memory in contents.memory], contents.needs_main
    ([2097152], False)
    """
    base = importlib.import_module("cloudpickle").Pickler if has_cloudpickle() else pickle.Pickler
    contents = Contents()
    pickler = _pickler_over(base)(sink, protocol=5, buffer_callback=contents.take)
    pickler.contents = contents
    pickler.dump(value)
    return contents


def has_cloudpickle() -> bool:
    """Return whether cloudpickle is installed, which pickles functions and classes by value."""
    try:
        importlib.import_module("cloudpickle")
    except ImportError:
        return False
    return True


def blame(value: object, error: Exception, make_sink: Callable[[], Sink]) -> tuple[str, object, Exception]:
    """Find the attribute or item that made `dump` fail; return its path, the part itself and its error.

    Parts whose pickle fills the sink are skipped, so the search stays cheap.

    >>> import io, threading
    >>> way, part, cause = blame([1, {"a": [], "lock": threading.Lock()}], TypeError(), io.BytesIO)
    >>> way, str(cause)
    ("[1]['lock']", "cannot pickle '_thread.lock' object")
    """
    way = ""
    for _ in range(_DEEPEST):
        for step, part in itertools.islice(_parts(value), _WIDEST):
            try:
                dump(part, make_sink())
            except SinkFull:
                continue
            except Exception as cause:
                way, value, error = way + step, part, cause
                break
        else:
            break
    return way, value, error


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts an object is pickled as, each with its path; none if its class defines its pickling."""
    if isinstance(value, dict):
        return ((f"[{key!r}]", part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return ((f"[{index}]", part) for index, part in enumerate(value))
    if not _has_methods_of(object, type(value), "__reduce__", "__reduce_ex__", "__getstate__"):
        return iter(())
    return ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _has_methods_of(base: type, kind: type, *names: str) -> bool:
    return all(getattr(kind, name) is getattr(base, name) for name in names)


_received = threading.local()


@contextmanager
def receiving(descriptors: Sequence[int]) -> Iterator[None]:
    """Unpickle in the block, where these are the descriptors of `Contents.lists`."""
    _received.lists = descriptors
    try:
        yield
    finally:
        del _received.lists


def _open_list(number: int, start: int, count: int) -> PackedList:
    return PackedList.open(_received.lists[number], start, count)


@functools.cache
def _pickler_over(base: type) -> Any:
    return type("Pickler", (_Reductions, base), {})


class _Reductions:
    contents: Contents

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _reduce_array(value, self.contents)
        if is_tensor(value) and _is_plain(value):
            self.contents.modules.add("torch")
            return tensor_over, (tensor_array(value),)
        if isinstance(value, PackedList) and value.descriptor >= 0:
            self.contents.lists.append(value)
            return _open_list, (len(self.contents.lists) - 1, *value.place)
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
            # cloudpickle would read the whole file and pickle its text.
            raise TypeError(f"cannot pickle an open file ({getattr(value, 'name', 'without a name')!r})")
        inherited: Callable[[Any], Any] | None = getattr(super(), "reducer_override", None)
        reduced = NotImplemented if inherited is None else inherited(value)
        # Classes and functions that were not reduced to values are pickled as a module and a name.
        module = _find_module(value)
        if module in _MAIN:
            self.contents.needs_main = self.contents.needs_main or reduced is NotImplemented
        elif module is not None:
            self.contents.modules.add(module)
        return reduced


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor consists of its numbers alone, so that it can be pickled as an array."""
    is_alone = not (tensor.requires_grad or tensor.__dict__) and can_stage(tensor)
    return is_alone and type(tensor) is sys.modules["torch"].Tensor and not tensor.is_shared()


def _find_module(value: object) -> str | None:
    """Return the module that defines a class or function, or the name of a module; None of anything else."""
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return value.__module__
    return value.__name__ if isinstance(value, ModuleType) else None


@dataclass(slots=True)
class Contents:
    """The result of pickling, apart from the pickle itself.

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
    _waiting: dict[int, NDArray[Any]] = field(default_factory=dict)
    _files: dict[int, _MappedFile | None] = field(default_factory=dict)

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the pickle (return False) or leave it in (True); the pickler's callback."""
        memory = self._waiting.pop(id(buffer), None)
        if memory is None:
            raw = buffer.raw()
            if raw.nbytes < OUT_OF_BAND:
                return True
            memory = np.frombuffer(raw, np.uint8)
        self.memory.append(memory)
        return False

    def stand_in(self, memory: NDArray[Any]) -> pickle.PickleBuffer:
        """Return an empty buffer to pickle in place of memory, which may be strided."""
        buffer = pickle.PickleBuffer(bytearray() if memory.flags.writeable else b"")
        self._waiting[id(buffer)] = memory
        return buffer

    def file_under(self, array: NDArray[Any]) -> _MappedFile | None:
        """Return the file an array is mapped from, the same for all its views; None if it is not mapped."""
        root: Any = array
        while isinstance(root, np.ndarray) and getattr(root, "_mmap", None) is None:
            root = root.base
        if not isinstance(root, np.memmap) or array.nbytes == 0:
            return None
        mapping: Any = root._mmap  # type: ignore[attr-defined]
        if id(mapping) not in self._files:
            self._files[id(mapping)] = _MappedFile.of(root, mapping)
        return self._files[id(mapping)]


def _reduce_array(array: NDArray[Any], contents: Contents) -> Any:
    kind = type(array)
    if (
        array.dtype.hasobject
        or kind in copyreg.dispatch_table
        or not _has_methods_of(np.ndarray, kind, *_PICKLING)
    ):
        return NotImplemented
    plain = array.view(np.ndarray)
    layout: tuple[Any, ...] = (array.shape, array.dtype, array.strides)
    file = contents.file_under(array)
    if file is not None:
        first = plain.__array_interface__["data"][0] - file.address
        return _view, (file, kind, first, *layout, array.flags.writeable)
    if array.nbytes < OUT_OF_BAND:
        return NotImplemented
    memory, first = _span(plain)
    if memory.nbytes > array.nbytes:
        # Between the elements the span holds other bytes, so store only the elements, contiguously.
        memory, first, layout = plain, 0, (array.shape, array.dtype, None)
    return _view, (contents.stand_in(memory), kind, first, *layout, array.flags.writeable)


def _span(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return an array's bytes from its lowest to its highest address, and the offset of its first element.

    In a transposed or reversed array they are in another order than its elements. If elements repeat, as in
    a broadcast array or overlapping windows, there are fewer bytes.
    """
    array = np.atleast_1d(array)
    ways = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    first = -sum(way for way in ways if way < 0)
    nbytes = first + sum(way for way in ways if way > 0) + array.itemsize
    lowest = array[tuple(slice(-1, None) if way < 0 else slice(1) for way in ways)]
    return as_strided(lowest.reshape(-1).view(np.uint8), (nbytes,), (1,)), first


def _view(
    memory: Any,
    kind: type[NDArray[Any]],
    first: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...] | None,
    writeable: bool,
) -> NDArray[Any]:
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
        return _map_file, (self.name, self.mode, self.offset, self.nbytes)


def _map_file(name: str, mode: Any, offset: int, nbytes: int) -> np.memmap[Any, np.dtype[np.uint8]]:
    return np.memmap(name, np.uint8, mode, offset, (nbytes,))
