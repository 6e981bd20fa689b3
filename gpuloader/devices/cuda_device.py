"""One GPU through CuPy: its context, the calls of a batch, and the device around them.

Everything done for a batch goes through `CudaCalls`, whose GPU must be the thread's current device.
`CudaDevice` provides such calls for a block of code, and makes each single call inside a block of its own::

    device.current()   the GPU is current anyway  ->  _Here   the calls, as they are
                       another GPU is current     ->  _Away   the GPU's context is pushed, and removed again

CUDA's errors become the package's own at the end of a block.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

from gpuloader.devices import cuda
from gpuloader.devices.base import DeviceCalls, HostMemory, tell_capture
from gpuloader.devices.codec import JpegCodec, open_codec
from gpuloader.errors import LoaderError, StagingMemoryError, install_command
from gpuloader.foreign import ForeignStream, TorchStreams, as_stream, describe_unused, find_address
from gpuloader.kernels import launching
from gpuloader.kernels.gather import fuse_gathers
from gpuloader.kernels.launching import KernelLaunch
from gpuloader.staging import Layout, PageLocker
from gpuloader.system.driver import Relaxed
from gpuloader.system.finalizers import Finalizer, once
from gpuloader.transforms.program import BatchProgram, KernelCall

# CUDA's numbers, which CuPy does not export.
_HOST_TO_DEVICE, _WITHIN_DEVICE = 1, 3
_HOST_MEMORY = 1
_REGISTER_PORTABLE = 1  # pinned for all GPUs, because places on several GPUs share one slot
_OUT_OF_MEMORY = 2
_INVALID_HANDLE = 400
_EVENT_NOT_READY = 600
_CAPTURED = range(900, 909)  # errors of calls that are not allowed while a stream is being captured
_LEGACY, _PER_THREAD = 1, 2  # the handles of the default streams
_NORMAL, _HIGH = 0, -1  # priorities of streams; these are PyTorch's, too
_MOST_BOUND = 8


class _ThreadsStream:
    """The per-thread default stream of one thread, in a form that any thread may refer to."""

    @property
    def ptr(self) -> int:
        """The handle that the calling thread can record events on."""
        # The handle means the stream of the thread that makes the call. Other threads use the legacy default
        # stream instead: it waits for all blocking streams, and per-thread default streams are blocking.
        return _PER_THREAD if _this_thread.stream is self else _LEGACY


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stream = _ThreadsStream()


_this_thread = _Thread()


# Returns a function that makes a call with an address or a handle once, as soon as that is possible.
Discarding = Callable[[Callable[[int], None], int], Callable[[], object]]


# A program bound to the memory of one device slot, so that later batches there only cost the launches.


class BoundProgram:
    """Launches a program over the same device arrays, those of its `whole`, batch after batch.

    The first time, every operation checks its arrays, chooses its grid and prepares its arguments. The
    package's own operations only launch kernels, so these launches are kept and repeated, with all gathers in
    one. A program with user operations runs in full each time.
    """

    def __init__(self, program: BatchProgram, arrays: list[Any]) -> None:
        self.program = program
        self._arrays = arrays
        self._launches: list[tuple[Any, ...]] = []  # the kernel, its grid, its block and its arguments

    def launch(self, stream: Any) -> None:
        """Launch the program on a stream of the device, which is the current one."""
        if not self._launches:
            if not all(isinstance(step.operation, KernelCall) for step in self.program.steps):
                self.program.run_on_device(self._arrays, stream)
                return
            # At every call, a CuPy kernel looks its function up by device, which takes longer than the
            # launch.
            self._launches = [
                (getattr(kernel := one.load(), "kernel", kernel), one.grid, one.block, one.arguments)
                for one in _find_launches(self.program, self._arrays, stream)
            ]
        for kernel, grid, block, arguments in self._launches:
            kernel(grid, block, arguments, stream=stream)


def find_kernels(program: BatchProgram, arrays: list[Any]) -> list[tuple[str, str]]:
    """Return the file and entry of the kernels that a program launches, except for the user's own operations.

    `arrays` have the shapes, dtypes and alignment of those in the program's `whole`; nothing is read or
    written.
    """
    launches = _find_launches(program, arrays)
    return list(dict.fromkeys((one.file, one.entry) for one in launches if isinstance(one.entry, str)))


def _find_launches(program: BatchProgram, arrays: list[Any], stream: Any = None) -> list[KernelLaunch]:
    found: list[KernelLaunch] = []
    for step in program.steps:
        if isinstance(step.operation, KernelCall):
            found += step.operation.kernel.launches(**step.operation.name(*step.take(arrays)), stream=stream)
    return fuse_gathers(found)


class CudaMemory:
    """Device memory; freed by `cudaFree`, which waits for the kernels that still use it."""

    __slots__ = ("_finalizer", "address", "bound", "nbytes")

    def __init__(self, address: int, nbytes: int, free: Callable[[], object]) -> None:
        self._finalizer = Finalizer(free)
        self.nbytes = nbytes
        self.address = address
        self.bound: dict[int, BoundProgram] = {}  # the programs that run over the memory, by their id


def _undestroyed(kind: type) -> type:
    """Return CuPy's type of streams or events without its destructor.

    That destructor calls CUDA wherever the last reference goes away. In a forked child or after a failure it
    prints a traceback, and during a user's capture it may end the capture.
    """
    return type(kind.__name__, (kind,), {"__del__": staticmethod(int)})  # a function in C that does nothing


_NOWHERE = SimpleNamespace(address=1 << 40, nbytes=1 << 60)  # as aligned as real memory


class CudaCalls:
    """The calls of one GPU, which must be the thread's current device; they raise CuPy's errors.

    `discarding` returns the functions that free memory and destroy streams and events. Finalizers call them
    in any thread, on any device.
    """

    direct = False
    compiles = True

    def __init__(self, cupy: Any, index: int, discarding: Discarding) -> None:
        self.name = f"gpu:{index}"
        self.index = index
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._discarding = discarding
        self._stream_type, self._event_type = map(_undestroyed, (cupy.cuda.Stream, cupy.cuda.Event))
        self._home: int | None = index  # the GPU that the thread itself uses; None if it uses none
        self._context = 0  # the handle of the primary context, once it is known
        self._torch = TorchStreams()

    def alloc(self, nbytes: int) -> CudaMemory:
        """Return new memory from `cudaMalloc`; raise `StagingMemoryError` if there is too little."""
        # Not from CuPy's pool: it hands a freed block to the next copy while kernels on other streams may
        # still read it. `cudaFree` waits for them. Both calls stall the device, so slots are kept and reused.
        try:
            with Relaxed():
                address = self._runtime.malloc(max(nbytes, 1))
            return CudaMemory(address, nbytes, self._discarding(self._runtime.free, address))
        except self._runtime.CUDARuntimeError as error:
            if error.status != _OUT_OF_MEMORY:
                raise
            free, total = self._runtime.memGetInfo()
            raise StagingMemoryError(
                f"cannot allocate {nbytes:,} bytes on {self.name} ({error}); {free:,} of {total:,} bytes "
                f"are free; lower the batch size, or keep fewer batches{describe_unused(self.index)}"
            ) from error

    def stream(self, *, urgent: bool = False) -> Any:
        """Return a new non-blocking stream, of high priority if it is `urgent`."""
        # Non-blocking, so that the legacy default stream, on which many programs compute, does not delay
        # copies. Priorities do nothing for copies. They matter for the kernels of transforms, which would
        # otherwise queue behind the blocks of the model's kernels.
        stream = self._stream_type(non_blocking=True, priority=_HIGH if urgent else _NORMAL)
        stream.finalizer = Finalizer(self._discarding(self._runtime.streamDestroy, stream.ptr))
        return stream

    def event(self, *, timed: bool = False) -> Any:
        """Return an event for which host threads sleep; one without timing is cheaper to wait for."""
        # Host threads that spin would take a core from the workers.
        event = self._event_type(block=True, disable_timing=not timed)
        event.finalizer = Finalizer(self._discarding(self._runtime.eventDestroy, event.ptr))
        return event

    # The runtime's functions are called directly. CuPy's methods on streams, events and memory first check
    # the capture state or the device. That costs as much as the call itself, and both are known here.

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
        """Return whether host memory is pinned, by whichever library."""
        # Memory is pinned in whole regions, so checking both ends is enough.
        ask = self._runtime.pointerGetAttributes
        return all(ask(end).type == _HOST_MEMORY for end in (address, address + max(nbytes, 1) - 1))

    # In the following, a stream may have handle 0: the default stream of the current device.

    def record(self, event: Any, stream: Any) -> None:
        """Record `event` on `stream`."""
        # Not `Stream.record()`: without an event, it creates a new one, with timing.
        self._runtime.eventRecord(event.ptr, stream.ptr)

    def wait(self, stream: Any, event: Any) -> None:
        """Make `stream` wait for `event` on the device."""
        # CUDA takes the mark that the event has now. Recording the event again does not move this wait.
        self._runtime.streamWaitEvent(stream.ptr, event.ptr)

    def captures(self, stream: Any) -> bool:
        """Return whether `stream` is being captured, so that work put on it would become part of a graph."""
        try:
            return bool(self._runtime.streamIsCapturing(stream.ptr))
        except RuntimeError as error:
            # A status: the default stream, which the capture of another stream excludes. None: CuPy says that
            # a call has invalidated the capture, which lasts until the user ends it.
            if getattr(error, "status", None) in (None, *_CAPTURED):
                return True
            raise

    def is_capturing(self, stream: Any = None) -> bool:
        """Return whether the thread captures, by CuPy or PyTorch, or anybody captures `stream`."""
        own = self._cupy.cuda.get_current_stream(self.index)
        if self.captures(own):
            return True
        if stream is None:
            stream = own
        elif stream is not own and stream.ptr != own.ptr and self.captures(stream):
            return True
        # PyTorch captures on a stream of its own, which CuPy does not know, whatever the output is. Usually
        # the capture is on the device that was current before the block. The handles are then the same, and
        # one question answers for all.
        handle = None if self._home is None else self._torch.current(self._home)
        if handle is None or handle == own.ptr or handle == stream.ptr:
            return False
        return self.captures(ForeignStream(handle))

    def query(self, event: Any) -> bool:
        """Return whether the work before `event` has run; raise `LoaderError` if the device has failed."""
        # CuPy's `Event.done` only compares the status with 0. It would take a failed device for a busy one,
        # and a loop that polls it would never end. 600 is "not ready"; all else is an error, which CuPy also
        # returns.
        with Relaxed():
            status: int = self._runtime.eventQuery(event.ptr)
        if status in _CAPTURED:
            raise tell_capture(self.name, f"CUDA error {status}")
        if status not in (0, _EVENT_NOT_READY):
            raise LoaderError(f"{self.name} failed with CUDA error {status} while waiting for a copy")
        return status == 0

    def synchronize(self, event: Any) -> None:
        """Block the calling thread, with the GIL released, until the work before `event` has run."""
        with Relaxed():
            self._runtime.eventSynchronize(event.ptr)

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two timed events that have been reached, to half a microsecond."""
        with Relaxed():
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

    def views(self, memory: CudaMemory | SimpleNamespace, layout: Layout, lease: object) -> list[Any]:
        """Return one CuPy array per field; each of their views keeps `lease` alive."""
        # The arrays' memory is "unowned": CuPy keeps `lease` for as long as any view, and frees nothing. A
        # finalizer on the first array would come too early, while slices of it are alive. With the index
        # given, CuPy does not ask the driver where the pointer lies.
        library, ndarray = self._cupy.cuda, self._cupy.ndarray
        pointer = library.MemoryPointer
        unowned = library.UnownedMemory(memory.address, memory.nbytes, lease, self.index)
        return [ndarray(one.shape, one.dtype, pointer(unowned, one.offset)) for one in layout.fields]

    def arrays(self, memory: CudaMemory, layout: Layout) -> list[Any]:
        """Return one CuPy array per field; they keep the memory alive."""
        return self.views(memory, layout, memory)

    def run(self, program: BatchProgram, memory: CudaMemory, stream: Any) -> None:
        """Launch a program's kernels on `stream`; they compute within `memory`."""
        # What a launch needs apart from the stream is prepared once per slot: a RawKernel called with arrays
        # costs about 5 µs, and with prepared arguments a tenth of that.
        if (bound := memory.bound.get(id(program))) is not None:
            bound.launch(stream)
            return
        if len(memory.bound) >= _MOST_BOUND:
            memory.bound.clear()  # in case batches keep changing size
        arrays = self.views(memory, program.whole, None)  # they do not keep the memory that keeps them
        bound = memory.bound[id(program)] = BoundProgram(program, arrays)
        with Relaxed():  # the first launch of a kernel loads it
            bound.launch(stream)

    def compile(self, program: BatchProgram, stop: Callable[[], bool]) -> None:
        """Compile and load a program's kernels, one by one until `stop` returns True."""
        # Shapes, dtypes and alignment determine the kernels, so arrays that lie nowhere are enough to find
        # them. The last ones come first: a thread that launches the program meanwhile begins at the front.
        for kernel in reversed(find_kernels(program, self.views(_NOWHERE, program.whole, None))):
            if stop():
                return
            with Relaxed():
                launching.load_kernel(*kernel)

    def note_context(self) -> None:
        """Remember the context of the calling thread, which is this GPU's."""
        if not self._context:
            self._context = self._cupy.cuda.driver.ctxGetCurrent()

    def find_context(self) -> int:
        """Return the GPU's primary context, which the runtime may create for this."""

        def find() -> None:
            with Relaxed():
                self._runtime.setDevice(self.index)
            self.note_context()

        if not self._context:
            from concurrent.futures import ThreadPoolExecutor  # here, because few programs need it

            # A separate thread sets the device and ends. The calling thread's device must not change, and
            # setting it back would create that device's context. The wait has no limit, like any CUDA call:
            # one that hangs would hang here, too.
            with ThreadPoolExecutor(1, f"gpuloader: context of {self.name}") as pool:
                pool.submit(find).result()
        return self._context


class _Here:
    """A block in which a GPU is already the current device; turns CUDA's errors into the package's own."""

    __slots__ = ("_calls",)

    def __init__(self, calls: CudaCalls) -> None:
        self._calls = calls

    def __enter__(self) -> CudaCalls:
        return self._calls

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and (failure := _translate(self._calls.index, error)) is not None:
            raise failure from error


class _Away(_Here):
    """A block in which a GPU is the current device instead of the thread's own, which is `home`."""

    # When its block ends, CuPy's `Device` sets the previous device again. From CUDA 12 on, `cudaSetDevice`
    # creates that device's context, and the device of a fresh thread is the first GPU. So each thread that
    # uses gpu:3 that way costs about 500 MiB on gpu:0. Pushing and popping the context through the driver
    # touches no other GPU.

    __slots__ = ("_before", "_home")

    def __init__(self, calls: CudaCalls, home: int) -> None:
        super().__init__(calls)
        self._home = home
        self._before = 0  # the thread's context; 0 means none

    def __enter__(self) -> CudaCalls:
        driver = cuda.cupy.cuda.driver
        with _Here(self._calls):
            self._before = driver.ctxGetCurrent()
            driver.ctxSetCurrent(self._calls.find_context())
        calls = copy.copy(self._calls)
        # A thread without a context captures nothing, and asking could create one.
        calls._home = self._home if self._before else None
        return calls

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            super().__exit__(kind, error, trace)  # while the GPU is current: the error may say what it holds
        finally:
            try:
                cuda.cupy.cuda.driver.ctxSetCurrent(self._before)
            except Exception as second:
                if error is None:  # otherwise keep the first error: a failed device refuses every later call
                    raise _translate(self._calls.index, second) or second from second


def _translate(index: int, error: BaseException) -> LoaderError | None:
    """Return an error of CUDA or CuPy as the package's own; return None for any other error."""
    library = cuda.cupy.cuda
    # Kernel launches raise the driver's error, all other calls the runtime's.
    if isinstance(error, library.runtime.CUDARuntimeError | library.driver.CUDADriverError):
        if error.status in _CAPTURED:
            return tell_capture(f"gpu:{index}", str(error))
        if error.status == _INVALID_HANDLE:
            return LoaderError(
                f"gpu:{index}: {error}; a stream belongs to another GPU, or is gone: pass one that was made "
                f"on gpu:{index}, and keep it as long as it is used"
            )
        # CUDA reports a failed kernel at some later call, so the call that raises is seldom the cause.
        return LoaderError(f"gpu:{index} failed: {error}; an earlier kernel or copy may be the cause")
    if isinstance(error, library.memory.OutOfMemoryError):
        return StagingMemoryError(
            f"CuPy's memory pool on gpu:{index} is too small for a kernel: {error}; lower the batch size"
            f"{describe_unused(index)}"
        )
    if isinstance(error, library.compiler.CompileException):
        return LoaderError(f"cannot compile a kernel for gpu:{index}: {error}")
    # CuPy loads the compiler at first use and raises a plain RuntimeError if there is none.
    if isinstance(error, RuntimeError) and not isinstance(error, LoaderError) and "libnvrtc" in str(error):
        return LoaderError(
            f"cannot compile a kernel for gpu:{index}: CUDA's compiler is missing: {error}; install it with "
            f"{install_command('cuda13')} (or [cuda12] for an older driver)"
        )
    return None


class CudaDevice(CudaCalls):
    """One GPU, which `require_cuda` must have accepted; its calls work whichever device is current."""

    _is_ending = staticmethod(sys.is_finalizing)

    def __init__(self, index: int) -> None:
        super().__init__(cuda.cupy, index, self._discard_late)
        self.locker: PageLocker | None = self
        self._calls = CudaCalls(cuda.cupy, index, self._discard_late)
        self._here = _Here(self._calls)
        self._discarded: deque[tuple[Callable[[int], None], int, object]] = deque()
        self._codec: JpegCodec | None = None

    def current(self) -> _Here:
        """Return a block in which this GPU is the thread's current device, and which yields its calls."""
        if cuda.forked:
            cuda.refuse_fork(self.index)
        # Asking for the device creates no context, and the answer is nearly always this GPU.
        try:
            home: int = self._runtime.getDevice()
        except Exception as error:
            raise _translate(self.index, error) or error from error
        return self._here if home == self.index else _Away(self._calls, home)

    def again(self, calls: DeviceCalls) -> _Here:
        """Return another block, later in the same thread, for `calls`; nothing is checked again."""
        # CUDA accepts copies and events whichever GPU is current. If this one was, the thread has a context,
        # so these calls create none.
        return self._here if calls is self._calls else self.current()

    def bus_id(self) -> str:
        """Return the GPU's position on the PCI bus."""
        return str(self._runtime.deviceGetPCIBusId(self.index))

    def codec(self) -> JpegCodec:
        """Return nvImageCodec's decoder on this GPU, created by the first call.

        Raises
        ------
        MissingPackage
            nvImageCodec is not installed.
        LoaderError
            It cannot decode on this GPU, most likely because nvJPEG is missing.
        """
        if self._codec is None:
            with self.current(), Relaxed():
                self._codec = open_codec(self.index, self._runtime)
        return self._codec

    def alloc(self, nbytes: int) -> CudaMemory:
        """Return new memory from `cudaMalloc`; raise `StagingMemoryError` if there is too little."""
        self._reclaim()
        with self.current() as calls:
            return calls.alloc(nbytes)

    def page_lock(self, address: int, nbytes: int) -> None:
        """Pin a host mapping for all devices; raise `OSError` if the driver refuses."""
        # Registers a mapping of the exact size: CuPy's pool of pinned memory rounds up to a power of two.
        with self.current():
            try:
                with Relaxed():
                    self._runtime.hostRegister(address, nbytes, _REGISTER_PORTABLE)
            except self._runtime.CUDARuntimeError as error:
                raise OSError(f"cudaHostRegister: {error}") from error

    def page_unlocker(self, address: int, memory: object) -> Callable[[], object]:
        """Return a function that undoes `page_lock` once, or later if the thread captures a graph.

        In a forked child it does nothing.
        """
        return self._discard_late(self._runtime.hostUnregister, address, memory)

    # `cudaFree` and `cudaHostUnregister` wait for the device, and finalizers call them in whatever thread
    # drops a batch. So these calls are recorded first, and made as soon as the thread captures nothing. The
    # same goes for streams and events.

    def _discard_late(
        self, call: Callable[[int], None], address: int, memory: object = None
    ) -> Callable[[], object]:
        """Return a function that gives something up by a call, now or later; `memory` is kept until then."""
        # A finalizer may run in a thread of another GPU. It must not start the thread that finds the context,
        # because its own thread may hold the locks for that. Here the GPU is current, or was until now.
        self._calls.note_context()
        return partial(self._discard, once(partial(self._discarded.append, (call, address, memory))))

    def _discard(self, note: Callable[[], object]) -> None:
        if self._is_ending():
            return  # the driver frees everything with the process, and module globals may be gone
        note()
        self._reclaim()

    def _reclaim(self) -> None:
        # At interpreter exit, or if the device has failed, CUDA refuses.
        with contextlib.suppress(RuntimeError, IndexError):  # another thread may take the last entry
            if not self._discarded or cuda.forked or self.is_capturing():
                return
            with self.current(), Relaxed():
                while True:
                    call, address, _ = self._discarded.popleft()
                    call(address)


def _entering(name: str) -> Callable[..., Any]:
    """Return a method that makes its device's GPU current and then calls the method of this name."""

    @wraps(getattr(CudaCalls, name))
    def call(device: CudaDevice, /, *arguments: Any, **options: Any) -> Any:
        with device.current() as calls:
            return getattr(calls, name)(*arguments, **options)

    return call


# All calls that CUDA makes on the current device; the others only read what CuPy or Python knows.
for _name in (
    *("stream", "event", "copy_async", "copy_between", "record", "wait", "captures", "is_capturing"),
    *("is_page_locked", "query", "synchronize", "elapsed", "run", "compile"),
):
    setattr(CudaDevice, _name, _entering(_name))
