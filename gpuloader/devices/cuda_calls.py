"""What the pipeline calls on one GPU, while that is the thread's current device; does not import CuPy itself.

Why it calls CUDA the way it does:

- Copy streams are non-blocking, so only events order them.
- Events carry no timing unless requested, which makes waiting for them cheapest.
- It calls `runtime.eventQuery` instead of `Event.done`, which takes a failed device for a busy one.
- Memory comes from `cudaMalloc`. CuPy's pool would give a freed block to the next copy while kernels may
  still read it; `cudaFree` waits for them. It would also end a capture, so it is postponed during one.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from gpuloader.devices.base import HostMemory
from gpuloader.devices.cuda_failures import CAPTURED, tell_capture
from gpuloader.errors import LoaderError, StagingMemoryError
from gpuloader.foreign import ForeignStream, TorchStreams, as_stream, find_address
from gpuloader.kernels.launching import find_kernel
from gpuloader.staging.arena import Layout
from gpuloader.staging.ring import Lease
from gpuloader.system.finalizers import Finalizer
from gpuloader.transforms.program import BoundProgram, Program, find_kernels

_HOST_TO_DEVICE, _WITHIN_DEVICE = 1, 3
_OUT_OF_MEMORY = 2
_HOST_MEMORY = 1
_EVENT_NOT_READY = 600
_NORMAL, _HIGH = 0, -1  # priorities of streams; these are PyTorch's, too
_MOST_BOUND = 8
_LEGACY, _PER_THREAD = 1, 2  # the handles of the default streams


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

    __slots__ = ("_finalizer", "address", "bound", "nbytes")

    def __init__(self, address: int, nbytes: int, free: Callable[[], object]) -> None:
        self._finalizer = Finalizer(free)
        self.nbytes = nbytes
        self.address = address
        self.bound: dict[int, BoundProgram] = {}


class _Region(NamedTuple):
    address: int
    nbytes: int


_NOWHERE = _Region(1 << 40, 1 << 60)  # as aligned as real memory


class CudaCalls:
    """The calls of one GPU; those of CUDA need it as the thread's current device, and raise CuPy's errors.

    Parameters
    ----------
    cupy : module
        CuPy.
    index : int
        The GPU's index.
    freeing : callable
        Returns a function that frees the memory at an address once. Finalizers call that function, in any
        thread, on any device.
    """

    direct = False

    def __init__(self, cupy: Any, index: int, freeing: Callable[[int], Callable[[], object]]) -> None:
        self.name = f"gpu:{index}"
        self.index = index
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._freeing = freeing
        self._home: int | None = index
        self._torch = TorchStreams()

    def from_home(self, index: int | None) -> CudaCalls:
        """Return the calls for a block entered from another GPU, the thread's own; None if it has none."""
        calls = copy.copy(self)
        calls._home = index
        return calls

    def alloc(self, nbytes: int) -> CudaMemory:
        """Return new memory from `cudaMalloc`; raise `StagingMemoryError` if there is too little."""
        try:
            address = self._runtime.malloc(max(nbytes, 1))
            return CudaMemory(address, nbytes, self._freeing(address))
        except self._runtime.CUDARuntimeError as error:
            if error.status != _OUT_OF_MEMORY:
                raise
            free, total = self._runtime.memGetInfo()
            raise StagingMemoryError(
                f"cannot allocate {nbytes:,} bytes on {self.name} ({error}); {free:,} of {total:,} bytes "
                "are free; lower the batch size, keep fewer batches, or free CuPy's pool with "
                "cupy.get_default_memory_pool().free_all_blocks()"
            ) from error

    def stream(self, *, urgent: bool = False) -> Any:
        """Return a new non-blocking stream, of high priority if it is `urgent`."""
        return self._cupy.cuda.Stream(non_blocking=True, priority=_HIGH if urgent else _NORMAL)

    def event(self, *, timed: bool = False) -> Any:
        """Return an event for which host threads sleep instead of spinning; without timing it is cheaper."""
        return self._cupy.cuda.Event(block=True, disable_timing=not timed)

    def copy_async(
        self, target: CudaMemory, source: HostMemory, nbytes: int, stream: Any, offset: int = 0
    ) -> None:
        """Issue one `cudaMemcpyAsync` of `nbytes`."""
        if nbytes:
            address = target.address + offset
            self._runtime.memcpyAsync(address, source.address, nbytes, _HOST_TO_DEVICE, stream.ptr)

    def copy_between(
        self, target: CudaMemory, source: CudaMemory, nbytes: int, stream: Any, to: int, at: int
    ) -> None:
        """Issue one `cudaMemcpyAsync` of `nbytes` within the GPU."""
        if nbytes:
            addresses = target.address + to, source.address + at
            self._runtime.memcpyAsync(*addresses, nbytes, _WITHIN_DEVICE, stream.ptr)

    def is_page_locked(self, address: int, nbytes: int) -> bool:
        """Return whether host memory is page-locked, by whichever library."""
        ask = self._runtime.pointerGetAttributes
        ends = (address, address + max(nbytes, 1) - 1)
        return all(ask(end).type == _HOST_MEMORY for end in ends)

    # In the following, a stream may have handle 0, which means the default stream of the current device.

    def record(self, event: Any, stream: Any) -> None:
        """Record `event` on `stream`."""
        self._runtime.eventRecord(event.ptr, stream.ptr)

    def wait(self, stream: Any, event: Any) -> None:
        """Make `stream` wait for `event` on the device."""
        self._runtime.streamWaitEvent(stream.ptr, event.ptr)

    def captures(self, stream: Any) -> bool:
        """Return whether `stream` is being captured, so that work put on it would become part of a graph."""
        try:
            return bool(self._runtime.streamIsCapturing(stream.ptr))
        except self._runtime.CUDARuntimeError as error:
            if error.status in CAPTURED:  # the default stream, and another stream's capture excludes it
                return True
            raise

    def is_capturing(self, stream: Any = None) -> bool:
        """Return whether the thread captures, by CuPy or PyTorch, or `stream` is captured by anybody."""
        own = self._cupy.cuda.get_current_stream(self.index)
        if self.captures(own):
            return True
        if stream is None:
            stream = own
        elif stream is not own and stream.ptr != own.ptr and self.captures(stream):
            return True
        handle = None if self._home is None else self._torch.current(self._home)
        if handle is None or handle == own.ptr or handle == stream.ptr:
            return False
        return self.captures(ForeignStream(handle))

    def query(self, event: Any) -> bool:
        """Return whether the work before `event` has run.

        Raises
        ------
        LoaderError
            The device reports an error.
        """
        status: int = self._runtime.eventQuery(event.ptr)
        if status in CAPTURED:
            raise tell_capture(self.name, f"CUDA error {status}")
        if status not in (0, _EVENT_NOT_READY):
            raise LoaderError(f"{self.name} failed with CUDA error {status} while waiting for a copy")
        return status == 0

    def synchronize(self, event: Any) -> None:
        """Block the calling thread, with the GIL released, until the work before `event` has run."""
        self._runtime.eventSynchronize(event.ptr)

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two timed events that have been reached, to half a microsecond."""
        milliseconds: float = self._runtime.eventElapsedTime(start.ptr, end.ptr)
        return milliseconds / 1000

    def keep(self, stream: Any) -> Any:
        """Return a stream of CuPy or of another library in a form that any thread can record on."""
        found = stream if hasattr(stream, "ptr") else as_stream(stream)
        return found if found.ptr != _PER_THREAD else _this_thread.stream

    def holds(self, memory: CudaMemory, array: Any) -> bool:
        """Return whether an array of CuPy, or a tensor of another library, lies in `memory`."""
        address = find_address(array)
        return address is not None and memory.address <= address < memory.address + max(memory.nbytes, 1)

    def consumer_stream(self) -> Any:
        """Return CuPy's current stream of the calling thread on this device."""
        return self._cupy.cuda.get_current_stream(self.index)

    def views(self, memory: CudaMemory, layout: Layout, lease: Lease) -> list[Any]:
        """Return one CuPy array per field; each of their views keeps `lease` alive."""
        return self._arrays(memory, layout, lease)

    def arrays(self, memory: CudaMemory, layout: Layout) -> list[Any]:
        """Return one CuPy array per field; they keep the memory alive."""
        return self._arrays(memory, layout, memory)

    def _arrays(self, memory: CudaMemory | _Region, layout: Layout, owner: object) -> list[Any]:
        cuda, ndarray = self._cupy.cuda, self._cupy.ndarray
        pointer = cuda.MemoryPointer
        unowned = cuda.UnownedMemory(memory.address, memory.nbytes, owner, self.index)
        return [ndarray(one.shape, one.dtype, pointer(unowned, one.offset)) for one in layout.fields]

    def run(self, program: Program, memory: CudaMemory, stream: Any) -> None:
        """Launch a program's kernels on `stream`; they compute within `memory`.

        What a program needs for that, apart from the stream, is made once per region of memory.
        """
        bound = memory.bound.get(id(program))
        if bound is None:
            if len(memory.bound) >= _MOST_BOUND:
                memory.bound.clear()  # for batches that keep changing size
            arrays = self._arrays(memory, program.room, None)  # they do not keep the memory that keeps them
            bound = memory.bound[id(program)] = BoundProgram(program, arrays)
        bound.launch(stream)

    def compile(self, program: Program, stop: Callable[[], bool]) -> None:
        """Compile and load a program's kernels, one by one until `stop` returns True.

        Which ones they are follows from shapes, dtypes and alignment, so it is found with arrays that lie
        nowhere. The last come first: a thread that launches the program meanwhile begins with the others.
        """
        arrays = self._arrays(_NOWHERE, program.room, None)
        for kernel in reversed(find_kernels(program, arrays)):
            if stop():
                return
            find_kernel(*kernel)
