"""One GPU through CuPy; apart from the kernels, the only module of the package that imports CuPy.

`cuda_calls.py` has the calls, and says why they are made the way they are. This module makes the GPU the
thread's current device around them, turns CUDA's errors into the package's own, and takes care of forks.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from gpuloader.devices.base import DeviceCalls, HostMemory
from gpuloader.devices.codec import JpegCodec, open_codec
from gpuloader.devices.cuda_calls import CudaCalls, CudaMemory
from gpuloader.devices.cuda_failures import explain_absence, translate
from gpuloader.errors import PlaceError, describe_error, install_command
from gpuloader.staging.arena import Layout, PageLocker
from gpuloader.staging.ring import Lease
from gpuloader.system.finalizers import once
from gpuloader.system.platforms import after_fork
from gpuloader.transforms.program import Program

# Makes one GPU current for some calls, and touches no other GPU; does not import CuPy itself.


class Context:
    """The primary context of one GPU, which can be made current in any thread.

    From CUDA 12 on, `cudaSetDevice` creates the context of its device. So setting the previous device again,
    as CuPy's `Device` does, may cost some 500 MiB on a GPU that nobody asked for: the first GPU is the device
    of a fresh thread. This class makes the context current through the driver instead, and removes it again.
    Asking for the current device creates no context.

    Parameters
    ----------
    cupy : module
        CuPy.
    index : int
        The GPU's index.
    """

    __slots__ = ("_driver", "_handle", "_index", "_runtime")

    def __init__(self, cupy: Any, index: int) -> None:
        self._runtime = cupy.cuda.runtime
        self._driver = cupy.cuda.driver
        self._index = index
        self._handle = 0

    def enter(self) -> int:
        """Make the GPU, which is not current, the thread's current one; return the context before, or 0."""
        before: int = self._driver.ctxGetCurrent()
        self._driver.ctxSetCurrent(self._handle or self._find())
        return before

    def leave(self, before: int) -> None:
        """Make the context current that `enter` returned; 0 is none, and the thread's device is as before."""
        self._driver.ctxSetCurrent(before)

    def _find(self) -> int:
        """Return the primary context, which the runtime may create now.

        A thread of its own sets the device, because the device of the calling thread must stay, and ends.
        """
        failures: list[Exception] = []

        def find() -> None:
            try:
                self._runtime.setDevice(self._index)
                self._handle = self._driver.ctxGetCurrent()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=find, name=f"gpuloader: context of gpu:{self._index}")
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return self._handle


_import_error = ""
try:
    import cupy
except ImportError as error:
    cupy = None
    _import_error = str(error)

_REGISTER_PORTABLE = 1

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
    buses : tuple of str
        Each device's position on the PCI bus.
    """

    cupy: str | None = None
    runtime: int = 0
    driver: int = 0
    devices: tuple[tuple[str, int, str], ...] = ()
    failure: str = ""
    buses: tuple[str, ...] = ()


def describe_machine() -> CudaMachine:
    """Return what this machine has; anything missing or failing is reported, never raised."""
    if cupy is None:
        return CudaMachine(failure=_import_error)
    built = known = 0
    try:
        runtime = cupy.cuda.runtime
        built, known = runtime.runtimeGetVersion(), runtime.driverGetVersion()
        properties = [runtime.getDeviceProperties(index) for index in range(runtime.getDeviceCount())]
        buses = tuple(runtime.deviceGetPCIBusId(index) for index in range(len(properties)))
    except Exception as error:  # from CUDA, or because CuPy cannot find one of its libraries
        return CudaMachine(cupy.__version__, built, known, failure=describe_error(error))
    devices = tuple(
        (one["name"].decode(), int(one["totalGlobalMem"]), f"{one['major']}.{one['minor']}")
        for one in properties
    )
    return CudaMachine(cupy.__version__, built, known, devices, buses=buses)


def _refuse_fork(index: int) -> None:
    if _forked:
        raise PlaceError(f"gpu:{index} cannot be used in a forked process: CUDA does not survive a fork")


class _Here:
    """A block in which a GPU is the current device anyway; turns CUDA's errors into the package's own."""

    __slots__ = ("_calls",)

    def __init__(self, calls: CudaCalls) -> None:
        self._calls = calls

    def __enter__(self) -> CudaCalls:
        return self._calls

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            failure = translate(cupy, self._calls.index, error)
            if failure is not None:
                raise failure from error


class _Away(_Here):
    """A block in which a GPU is the current device instead of the thread's own."""

    __slots__ = ("_before", "_context", "_home")

    def __init__(self, calls: CudaCalls, context: Context, home: int) -> None:
        super().__init__(calls)
        self._context = context
        self._home = home
        self._before = 0

    def __enter__(self) -> CudaCalls:
        try:
            self._before = self._context.enter()
        except Exception as error:
            raise translate(cupy, self._calls.index, error) or error from error
        # A thread without a context captures nothing, and asking could create one.
        return self._calls.from_home(self._home if self._before else None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._context.leave(self._before)
        except Exception as second:
            if error is None:  # otherwise keep the first error: a failed device refuses every later call
                raise translate(cupy, self._calls.index, second) or second from second
        super().__exit__(kind, error, trace)


class CudaDevice:
    """One GPU.

    Parameters
    ----------
    index : int
        The GPU's index among the visible ones; `require_cuda` must have accepted it.
    """

    direct = False
    _is_ending = staticmethod(sys.is_finalizing)

    def __init__(self, index: int) -> None:
        self.name = f"gpu:{index}"
        self.locker: PageLocker | None = self
        self.index = index
        self._runtime = cupy.cuda.runtime
        self._context = Context(cupy, index)
        self._calls = CudaCalls(cupy, index, self._freeing)
        self._here = _Here(self._calls)
        self._discarded: deque[tuple[Callable[[int], None], int, object]] = deque()
        self._codec: JpegCodec | None = None

    def current(self) -> _Here:
        """Return a block in which this GPU is the thread's current device, and that yields its calls.

        It costs little if the GPU is current already. No other GPU is touched. CUDA's errors in the block
        become the package's own.
        """
        if _forked:
            _refuse_fork(self.index)
        try:
            home: int = self._runtime.getDevice()
        except Exception as error:
            raise translate(cupy, self.index, error) or error from error
        return self._here if home == self.index else _Away(self._calls, self._context, home)

    def again(self, calls: DeviceCalls) -> _Here:
        """Return a block later in the thread of the one that has yielded `calls`; nothing is asked again.

        CUDA takes copies and events whichever GPU is current. If this one was, the thread has a context, so
        they create none.
        """
        return self._here if calls is self._calls else self.current()

    def bus_id(self) -> str:
        """Return the GPU's position on the PCI bus."""
        position: str = self._runtime.deviceGetPCIBusId(self.index)
        return position

    def codec(self) -> JpegCodec:
        """Return nvImageCodec's decoder on this GPU, which is made at the first call.

        Raises
        ------
        MissingPackage
            nvImageCodec is not installed.
        LoaderError
            It cannot decode on this GPU, most likely because nvJPEG is missing.
        """
        if self._codec is None:
            with self.current():
                self._codec = open_codec(self.index, self._runtime)
        return self._codec

    def alloc(self, nbytes: int) -> CudaMemory:
        """Return new memory from `cudaMalloc`; raise `StagingMemoryError` if there is too little."""
        self._reclaim()
        with self.current() as calls:
            return calls.alloc(nbytes)

    def _freeing(self, address: int) -> Callable[[], object]:
        return self._discarding(self._runtime.free, address)

    def _discarding(
        self, call: Callable[[int], None], address: int, memory: object = None
    ) -> Callable[[], object]:
        """Return a function that gives up memory by a call that would end a capture.

        It does so now, or later if the thread captures a graph. Finalizers call it in any thread. `memory` is
        kept until then.
        """
        return partial(self._discard, once(partial(self._discarded.append, (call, address, memory))))

    def _discard(self, note: Callable[[], object]) -> None:
        if self._is_ending():
            return  # the driver frees everything with the process, and module globals may be gone
        note()
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

    def stream(self, *, urgent: bool = False) -> Any:
        """Return a new non-blocking stream, of high priority if it is `urgent`."""
        with self.current() as calls:
            return calls.stream(urgent=urgent)

    def event(self, *, timed: bool = False) -> Any:
        """Return an event for which host threads sleep instead of spinning; without timing it is cheaper."""
        with self.current() as calls:
            return calls.event(timed=timed)

    def copy_async(
        self, target: CudaMemory, source: HostMemory, nbytes: int, stream: Any, offset: int = 0
    ) -> None:
        """Issue one `cudaMemcpyAsync` of `nbytes`."""
        with self.current() as calls:
            calls.copy_async(target, source, nbytes, stream, offset)

    def copy_between(
        self, target: CudaMemory, source: CudaMemory, nbytes: int, stream: Any, to: int, at: int
    ) -> None:
        """Issue one `cudaMemcpyAsync` of `nbytes` within the GPU."""
        with self.current() as calls:
            calls.copy_between(target, source, nbytes, stream, to, at)

    def record(self, event: Any, stream: Any) -> None:
        """Record `event` on `stream`."""
        with self.current() as calls:
            calls.record(event, stream)

    def wait(self, stream: Any, event: Any) -> None:
        """Make `stream` wait for `event` on the device."""
        with self.current() as calls:
            calls.wait(stream, event)

    def captures(self, stream: Any) -> bool:
        """Return whether `stream` is being captured, so that work put on it would become part of a graph."""
        with self.current() as calls:
            return calls.captures(stream)

    def is_capturing(self, stream: Any = None) -> bool:
        """Return whether the thread captures, by CuPy or PyTorch, or `stream` is captured by anybody."""
        with self.current() as calls:
            return calls.is_capturing(stream)

    def is_page_locked(self, address: int, nbytes: int) -> bool:
        """Return whether host memory is page-locked, by whichever library."""
        with self.current() as calls:
            return calls.is_page_locked(address, nbytes)

    def query(self, event: Any) -> bool:
        """Return whether the work before `event` has run; raise `LoaderError` if the device has failed."""
        with self.current() as calls:
            return calls.query(event)

    def synchronize(self, event: Any) -> None:
        """Block the calling thread, with the GIL released, until the work before `event` has run."""
        with self.current() as calls:
            calls.synchronize(event)

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two timed events that have been reached, to half a microsecond."""
        with self.current() as calls:
            return calls.elapsed(start, end)

    def keep(self, stream: Any) -> Any:
        """Return a stream of CuPy or of another library in a form that any thread can record on."""
        return self._calls.keep(stream)

    def holds(self, memory: CudaMemory, array: Any) -> bool:
        """Return whether an array of CuPy, or a tensor of another library, lies in `memory`."""
        return self._calls.holds(memory, array)

    def consumer_stream(self) -> Any:
        """Return CuPy's current stream of the calling thread on this device."""
        return self._calls.consumer_stream()

    def views(self, memory: CudaMemory, layout: Layout, lease: Lease) -> list[Any]:
        """Return one CuPy array per field; each of their views keeps `lease` alive."""
        return self._calls.views(memory, layout, lease)

    def arrays(self, memory: CudaMemory, layout: Layout) -> list[Any]:
        """Return one CuPy array per field; they keep the memory alive."""
        return self._calls.arrays(memory, layout)

    def run(self, program: Program, memory: CudaMemory, stream: Any) -> None:
        """Launch a program's kernels on `stream`; they compute within `memory`."""
        with self.current() as calls:
            calls.run(program, memory, stream)

    def compile(self, program: Program, stop: Callable[[], bool]) -> None:
        """Compile and load a program's kernels, one by one until `stop` returns True."""
        with self.current() as calls:
            calls.compile(program, stop)

    def page_lock(self, address: int, nbytes: int) -> None:
        """Page-lock a host mapping for all devices; raise `OSError` if the driver refuses."""
        with self.current():
            try:
                self._runtime.hostRegister(address, nbytes, _REGISTER_PORTABLE)
            except self._runtime.CUDARuntimeError as error:
                raise OSError(f"cudaHostRegister: {error}") from error

    def page_unlocker(self, address: int, memory: object) -> Callable[[], object]:
        """Return a function that undoes `page_lock` once, later if the thread captures a graph.

        In a forked child it does nothing.
        """
        return self._discarding(self._runtime.hostUnregister, address, memory)
