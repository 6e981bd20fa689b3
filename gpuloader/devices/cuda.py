"""One GPU through CuPy; apart from the kernels, the only module of the package that imports CuPy.

Why it calls CUDA the way it does:

- Copy streams are non-blocking, so only events order them.
- Events carry no timing unless requested, which makes waiting for them cheapest.
- It calls `runtime.eventQuery` instead of `Event.done`, which takes a failed device for a busy one.
- Memory comes from `cudaMalloc`. CuPy's pool would give a freed block to the next copy while kernels may
  still read it; `cudaFree` waits for them. It would also end a capture, so it is postponed during one.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from gpuloader.base.errors import LoaderError, PlaceError, StagingMemoryError, describe_error
from gpuloader.base.installing import install_command
from gpuloader.base.platforms import after_fork
from gpuloader.devices.base import HostMemory
from gpuloader.devices.cuda_context import Context
from gpuloader.devices.cuda_failures import CAPTURED, explain_absence, tell_capture, translate
from gpuloader.devices.foreign_arrays import as_stream, find_address
from gpuloader.devices.foreign_places import is_torch_capturing
from gpuloader.staging.arena import PageLocker
from gpuloader.staging.layout import Layout
from gpuloader.staging.lease import Lease
from gpuloader.transforms.bound import BoundProgram
from gpuloader.transforms.program import Program

_import_error = ""
try:
    import cupy
except ImportError as error:
    cupy = None
    _import_error = str(error)

_HOST_TO_DEVICE = 1
_REGISTER_PORTABLE = 1
_OUT_OF_MEMORY = 2
_EVENT_NOT_READY = 600
_MOST_BOUND = 8
_LEGACY, _PER_THREAD = 1, 2  # the handles of the default streams

_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


after_fork(_note_fork)


def require_cuda(index: int) -> int:
    """Return the number of visible GPUs, after checking that the GPU with this index can be used.

    Raises
    ------
    PlaceError
        CuPy, the driver or the device is missing; the message says which one and what to do.
    """
    if cupy is None:
        raise PlaceError(
            f"gpu:{index} needs CuPy, which is not importable ({_import_error}); install it with "
            f"{install_command('cuda13')} (or [cuda12] for an older driver), or use CPUPlace()"
        )
    _refuse_fork(index)
    if not cupy.cuda.is_available():
        raise PlaceError(f"gpu:{index} is not available: {explain_absence(cupy)}, or use CPUPlace()")
    count: int = cupy.cuda.runtime.getDeviceCount()
    if index >= count:
        visible = ", ".join(f"gpu:{number}" for number in range(count))
        raise PlaceError(f"gpu:{index} is not available: this process sees {count} ({visible})")
    return count


def current_index() -> int:
    """Return the index of the calling thread's current device; this creates no context."""
    index: int = cupy.cuda.runtime.getDevice()
    return index


@dataclass(frozen=True, slots=True)
class CudaMachine:
    """CuPy, CUDA and the GPUs of this machine.

    Attributes
    ----------
    cupy : str or None
        CuPy's version; None if it cannot be imported.
    runtime, driver : int
        The CUDA version that CuPy was built for and the newest that the driver supports, as 1000 major + 10
        minor; 0 if there is none.
    devices : tuple of (str, int, str)
        Name, bytes of memory and compute capability of each device.
    failure : str
        Why no devices were found; empty if there are some.
    """

    cupy: str | None = None
    runtime: int = 0
    driver: int = 0
    devices: tuple[tuple[str, int, str], ...] = ()
    failure: str = ""


def describe_machine() -> CudaMachine:
    """Return what this machine has; anything missing or failing is reported, never raised."""
    if cupy is None:
        return CudaMachine(failure=_import_error)
    built = known = 0
    try:
        runtime = cupy.cuda.runtime
        built, known = runtime.runtimeGetVersion(), runtime.driverGetVersion()
        properties = [runtime.getDeviceProperties(index) for index in range(runtime.getDeviceCount())]
    except Exception as error:  # from CUDA, or because CuPy cannot find one of its libraries
        return CudaMachine(cupy.__version__, built, known, failure=describe_error(error))
    devices = tuple(
        (one["name"].decode(), int(one["totalGlobalMem"]), f"{one['major']}.{one['minor']}")
        for one in properties
    )
    return CudaMachine(cupy.__version__, built, known, devices)


def _refuse_fork(index: int) -> None:
    if _forked:
        raise PlaceError(f"gpu:{index} cannot be used in a forked process: CUDA does not survive a fork")


class _Current:
    """A block in which a GPU is the thread's current device; turns CUDA's errors into the package's own."""

    __slots__ = ("_before", "_context", "_index")

    def __init__(self, index: int, context: Context) -> None:
        self._index = index
        self._context = context
        self._before: int | None = None

    def __enter__(self) -> None:
        _refuse_fork(self._index)
        try:
            self._before = self._context.enter()
        except Exception as error:
            raise translate(cupy, self._index, error) or error from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._context.leave(self._before)
        except Exception as second:
            if error is None:  # otherwise keep the first error: a failed device refuses every later call
                raise translate(cupy, self._index, second) or second from second
        failure = None if error is None else translate(cupy, self._index, error)
        if failure is not None:
            raise failure from error


class _ThreadsStream:
    """The per-thread default stream of one thread, to which any thread may refer.

    Its handle means the stream of the thread that makes the call. In other threads the legacy default stream
    stands for it: it waits for all blocking streams, and per-thread default streams are blocking.
    """

    @property
    def ptr(self) -> int:
        """The handle that the calling thread can record events on."""
        return _PER_THREAD if _this_thread.stream is self else _LEGACY


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stream = _ThreadsStream()


_this_thread = _Thread()


class CudaMemory:
    """Device memory; freed by `cudaFree`, which waits for the kernels that still use it.

    Attributes
    ----------
    nbytes : int
        The size in bytes.
    address : int
        The device pointer.
    bound : dict
        The programs that run over the memory, by their id.
    """

    __slots__ = ("_free", "address", "bound", "nbytes")

    def __init__(self, address: int, nbytes: int, free: Callable[[int], None]) -> None:
        self._free = free
        self.nbytes = nbytes
        self.address = address
        self.bound: dict[int, BoundProgram] = {}

    def __del__(self) -> None:
        self._free(self.address)


class CudaDevice:
    """One GPU.

    Parameters
    ----------
    index : int
        The GPU's index among the visible ones; `require_cuda` must have accepted it.
    """

    direct = False

    def __init__(self, index: int) -> None:
        self.name = f"gpu:{index}"
        self.locker: PageLocker | None = self
        self.index = index
        self._index = index
        self._runtime = cupy.cuda.runtime
        self._context = Context(cupy, index)
        self._discarded: deque[tuple[Callable[[int], None], int, object]] = deque()

    def current(self) -> _Current:
        """Return a block in which this GPU is the thread's current device; it costs little if it already is.

        No other GPU is touched; CUDA's errors in the block become the package's own.
        """
        return _Current(self._index, self._context)

    def alloc(self, nbytes: int) -> CudaMemory:
        """Return new memory from `cudaMalloc`; raise `StagingMemoryError` if there is too little."""
        self._reclaim()
        with self.current():
            try:
                return CudaMemory(self._runtime.malloc(max(nbytes, 1)), nbytes, self._free)
            except self._runtime.CUDARuntimeError as error:
                if error.status != _OUT_OF_MEMORY:
                    raise
                free, total = self._runtime.memGetInfo()
                raise StagingMemoryError(
                    f"cannot allocate {nbytes:,} bytes on {self.name} ({error}); {free:,} of {total:,} bytes "
                    "are free; lower the batch size, keep fewer batches, or free CuPy's pool with "
                    "cupy.get_default_memory_pool().free_all_blocks()"
                ) from error

    def _free(self, address: int) -> None:
        self._discard(self._runtime.free, address)

    def _discard(self, call: Callable[[int], None], address: int, memory: object = None) -> None:
        """Give up memory by a call that would end a capture: now, or later if the thread captures a graph.

        Finalizers call this in any thread. `memory` is kept until then.
        """
        self._discarded.append((call, address, memory))
        self._reclaim()

    def _reclaim(self) -> None:
        # At interpreter exit, or if the device has failed, CUDA refuses.
        with contextlib.suppress(RuntimeError, IndexError):  # another thread may take the last entry
            if not self._discarded or _forked or self.is_capturing():
                return
            with self.current():
                while True:
                    call, address, _ = self._discarded.popleft()
                    call(address)

    def stream(self) -> Any:
        """Return a new non-blocking stream."""
        with self.current():
            return cupy.cuda.Stream(non_blocking=True)

    def event(self, *, timed: bool = False) -> Any:
        """Return an event for which host threads sleep instead of spinning; without timing it is cheaper."""
        with self.current():
            return cupy.cuda.Event(block=True, disable_timing=not timed)

    def copy_async(
        self, target: CudaMemory, source: HostMemory, nbytes: int, stream: Any, offset: int = 0
    ) -> None:
        """Issue one `cudaMemcpyAsync` of `nbytes`."""
        if nbytes:
            with self.current():  # as in `record`: the stream may be the default stream
                address = target.address + offset
                self._runtime.memcpyAsync(address, source.address, nbytes, _HOST_TO_DEVICE, stream.ptr)

    def record(self, event: Any, stream: Any) -> None:
        """Record `event` on `stream`; do nothing in a forked child, which only releases what it inherited."""
        if _forked:
            return
        with self.current():  # handle 0 means the default stream of the current device
            self._runtime.eventRecord(event.ptr, stream.ptr)

    def wait(self, stream: Any, event: Any) -> None:
        """Make `stream` wait for `event` on the device."""
        with self.current():
            self._runtime.streamWaitEvent(stream.ptr, event.ptr)

    def captures(self, stream: Any) -> bool:
        """Return whether `stream` is being captured, so that work put on it would become part of a graph."""
        if _forked:
            return False
        with self.current():  # handle 0 means the default stream of the current device
            try:
                return bool(self._runtime.streamIsCapturing(stream.ptr))
            except self._runtime.CUDARuntimeError as error:
                if error.status in CAPTURED:  # the default stream, and another stream's capture excludes it
                    return True
                raise

    def is_capturing(self) -> bool:
        """Return whether the calling thread captures a graph on its current stream of CuPy or PyTorch."""
        return self.captures(self.consumer_stream()) or is_torch_capturing()

    def query(self, event: Any) -> bool:
        """Return whether the work before `event` has run.

        Raises
        ------
        LoaderError
            The device reports an error.
        """
        with self.current():
            status: int = self._runtime.eventQuery(event.ptr)
        if status in CAPTURED:
            raise tell_capture(self.name, f"CUDA error {status}")
        if status not in (0, _EVENT_NOT_READY):
            raise LoaderError(f"{self.name} failed with CUDA error {status} while waiting for a copy")
        return status == 0

    def synchronize(self, event: Any) -> None:
        """Block the calling thread, with the GIL released, until the work before `event` has run.

        In a forked child, return at once: the work it inherited runs in its parent.
        """
        if not _forked:
            with self.current():
                self._runtime.eventSynchronize(event.ptr)

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two timed events that have been reached, to half a microsecond."""
        with self.current():
            milliseconds: float = self._runtime.eventElapsedTime(start.ptr, end.ptr)
        return milliseconds / 1000

    def keep(self, stream: Any) -> Any:
        """Return a stream of CuPy or of another library in a form that any thread can record on."""
        found = stream if hasattr(stream, "ptr") else as_stream(stream)
        return _this_thread.stream if found.ptr == _PER_THREAD else found

    def holds(self, memory: CudaMemory, array: Any) -> bool:
        """Return whether an array of CuPy, or a tensor of another library, lies in `memory`."""
        address = find_address(array)
        return address is not None and memory.address <= address < memory.address + max(memory.nbytes, 1)

    def consumer_stream(self) -> Any:
        """Return CuPy's current stream of the calling thread on this device."""
        return cupy.cuda.get_current_stream(self._index)

    def views(self, memory: CudaMemory, layout: Layout, lease: Lease) -> list[Any]:
        """Return one CuPy array per field; each of their views keeps `lease` alive."""
        return self._arrays(memory, layout, lease)

    def arrays(self, memory: CudaMemory, layout: Layout) -> list[Any]:
        """Return one CuPy array per field; they keep the memory alive."""
        return self._arrays(memory, layout, memory)

    def _arrays(self, memory: CudaMemory, layout: Layout, owner: object) -> list[Any]:
        unowned = cupy.cuda.UnownedMemory(memory.address, memory.nbytes, owner, self._index)
        start = cupy.cuda.MemoryPointer(unowned, 0)
        return [cupy.ndarray(one.shape, one.dtype, start + one.offset) for one in layout.fields]

    def run(self, program: Program, memory: CudaMemory, stream: Any) -> None:
        """Launch a program's kernels on `stream`; they compute within `memory`.

        What a program needs for that, apart from the stream, is made once per region of memory.
        """
        bound = memory.bound.get(id(program))
        if bound is None:
            if len(memory.bound) >= _MOST_BOUND:
                memory.bound.clear()  # for batches that keep changing size
            # The arrays do not keep the memory, because that keeps them.
            bound = memory.bound[id(program)] = BoundProgram(
                program, self._arrays(memory, program.room, None)
            )
        with self.current():
            bound.launch(stream)

    def page_lock(self, address: int, nbytes: int) -> None:
        """Page-lock a host mapping for all devices; raise `OSError` if the driver refuses."""
        with self.current():
            try:
                self._runtime.hostRegister(address, nbytes, _REGISTER_PORTABLE)
            except self._runtime.CUDARuntimeError as error:
                raise OSError(f"cudaHostRegister: {error}") from error

    def page_unlock(self, address: int, memory: object) -> None:
        """Undo `page_lock`, or do it later if the thread captures a graph; do nothing in a forked child."""
        self._discard(self._runtime.hostUnregister, address, memory)
