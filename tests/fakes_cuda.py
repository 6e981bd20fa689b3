"""A fake CUDA runtime under real CuPy arrays: `devices/cuda.py` runs on it without a GPU.

Device memory is host memory. Streams are queues that run only when an event is queried or waited for, so work
that is not ordered does not run in time. As in CUDA, each thread has a current device, the handle 0 means the
default stream of that device, a failed device refuses every call, and so does any device in a forked child.
A copy from memory that is not page-locked waits for its stream, and a stream or an event that is destroyed
cannot be used any more.
Pointers, memory, arrays and their lifetimes are CuPy's own, which need no driver as long as the device is
given explicitly.
"""

import contextlib
import ctypes
import gc
import itertools
import os
import sys
import threading
from collections import Counter, deque
from dataclasses import dataclass
from time import perf_counter
from types import ModuleType, SimpleNamespace

import numpy as np

from gpuloader.devices import cuda, places
from gpuloader.system import driver
from gpuloader.system.driver import RELAXED
from gpuloader.transforms.program import KernelCall

INVALID_HANDLE = 400
NOT_READY = 600
NOT_INITIALIZED = 3
OUT_OF_MEMORY = 2
CAPTURE_UNSUPPORTED = 900
CAPTURE_IMPLICIT = 906  # the legacy stream waits for a stream that is being captured
PER_THREAD = 2  # the handle of the calling thread's default stream
CONTEXT = 1000  # the handle of the first device's primary context


UNSAFE = {
    *("malloc", "free", "hostRegister", "hostUnregister", "setDevice", "loadModule"),
    *("eventQuery", "eventSynchronize", "eventElapsedTime", "eventDestroy", "streamDestroy"),
}
"""The calls that are refused while a stream is captured in a mode other than 'relaxed'."""


@dataclass
class Capture:
    """A capture of a stream: its mode, the thread that began it, and whether a call has invalidated it."""

    mode: str
    thread: int
    broken: bool = False


class CudaError(RuntimeError):
    """Stands in for CUDARuntimeError."""

    def __init__(self, status, text="cudaError"):
        RuntimeError.__init__(self, f"{text}: status {status}")
        self.status = status


class DriverError(RuntimeError):
    """Stands in for CUDADriverError, which kernel launches raise."""

    __init__ = CudaError.__init__


class Mark:
    reached, time = False, 0.0

    def reach(self):
        self.reached, self.time = True, perf_counter()


class Thread(threading.local):
    """CUDA's and CuPy's state for each thread: its device, its current context, and a stream per device."""

    device = context = 0
    capture_mode = 0  # in which the thread meets captures: 0 is 'global', 2 'relaxed'

    def __init__(self):
        self.streams, self.default_streams = {}, {}


class FakeRuntime:
    """Counts its calls, and fails when a test says so: with status `failed`, or beyond `memory_left` bytes.

    `memory` has what is allocated, by address. `captures` has the streams that are being captured: work put
    on them would become part of a graph. `contexts` has the devices whose primary context exists, each of
    which takes some 500 MiB. `registered` maps the address of memory that the loader has page-locked to its
    size, and `pinned` that of memory that another library has page-locked.
    """

    CUDARuntimeError = CudaError

    def __init__(self, devices=1, driver=13000, built=13020):
        self.calls, self.thread, self.process = Counter(), Thread(), os.getpid()
        self.devices, self.driver, self.built = devices, driver, built
        self.refuse_registering, self.failed, self.memory_left = False, 0, 1 << 40
        self.contexts, self.timed = set(), set()
        self.registered, self.pinned, self.captures, self.memory, self.freed = {}, {}, {}, {}, []
        self.numbers = itertools.count(PER_THREAD + 1)
        self.of_threads = {}  # the per-thread default streams of each device
        self.work, self.marks = {}, {}
        self.device_of = {}  # maps streams and events to their device
        self.blocking = set()  # streams that the legacy default stream waits for
        self.destroyed = set()  # streams and events

    def check(self, name):
        self.calls[name] += 1
        if os.getpid() != self.process:
            raise CudaError(NOT_INITIALIZED, "cudaErrorInitializationError")
        if self.failed:
            raise CudaError(self.failed)
        if name in UNSAFE and self.refuse_capture():
            raise CudaError(CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported")
        if name not in {"getDevice", "setDevice", "ctxGetCurrent", "ctxSetCurrent"}:
            self.enter(self.current)

    def replace_device(self):
        """End the failure; what lay on the streams never runs, because its memory may be gone."""
        for work in self.work.values():
            work.clear()
        self.failed = 0

    def enter(self, device):
        """Make a device's context current; as in CUDA, nearly every call does that for the current device."""
        self.contexts.add(device)
        self.thread.context = CONTEXT + device

    def driverGetVersion(self):
        return self.driver

    def runtimeGetVersion(self):
        return self.built

    def getDeviceCount(self):
        return self.devices

    def deviceGetPCIBusId(self, device):
        return f"0000:{device + 16:02X}:00.0"

    def getDevice(self):
        self.check("getDevice")
        return self.current

    def setDevice(self, device):
        self.check("setDevice")
        assert 0 <= device < self.devices
        self.thread.device = device
        self.enter(device)  # from CUDA 12 on

    def ctxGetCurrent(self):
        self.check("ctxGetCurrent")
        return self.thread.context

    def ctxSetCurrent(self, context):
        self.check("ctxSetCurrent")
        assert not context or context - CONTEXT in self.contexts
        self.thread.context = context

    def memGetInfo(self):
        self.check("memGetInfo")
        return self.memory_left, 1 << 40

    def malloc(self, nbytes):
        self.check("malloc")
        if nbytes > self.memory_left:
            raise CudaError(OUT_OF_MEMORY, "cudaErrorMemoryAllocation")
        memory = np.full(nbytes, 0xAB, np.uint8)
        self.memory[memory.ctypes.data] = memory
        return memory.ctypes.data

    def free(self, address):
        self.check("free")
        memory = self.memory.pop(address)
        self.freed.append(memory)  # not given back, so that late work on it is seen and does no harm
        while self.step():  # as in CUDA, this waits for the whole device
            pass
        memory[:] = 0xCD

    def streamIsCapturing(self, stream):
        self.check("streamIsCapturing")
        if self.find_implicit_captures(stream):  # the question leaves the capture alone
            raise CudaError(CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit")
        if stream in self.captures and self.captures[stream].broken:  # CuPy's own error, without a status
            raise RuntimeError("the stream was capturing, but an error has invalidated the capture sequence")
        return stream in self.captures

    def exchange_capture_mode(self, mode):
        """Exchange the calling thread's mode with `mode`; in mode 'relaxed', no call is refused to it."""
        self.thread.capture_mode, mode.value = mode.value, self.thread.capture_mode

    def begin_capture(self, stream, mode="global"):
        """Begin to capture a stream in the calling thread; PyTorch's mode is 'global', CuPy's 'relaxed'."""
        self.captures[stream] = Capture(mode, threading.get_ident())

    def end_capture(self, stream):
        """End a capture; fail if a call has invalidated it."""
        assert not self.captures.pop(stream).broken, "a call has invalidated the capture"

    def refuse_capture(self):
        """Return the status of a call that is not allowed while a stream is captured, and end the capture.

        Allocating, freeing and asking for events is refused to all threads by a capture in mode 'global', to
        the capturing thread by one in mode 'thread_local', and to nobody in mode 'relaxed'.
        """
        status = 0
        for capture in self.captures.values() if self.thread.capture_mode != RELAXED else ():
            here = capture.thread == threading.get_ident()
            if capture.mode == "global" or (capture.mode == "thread_local" and here):
                capture.broken, status = True, CAPTURE_UNSUPPORTED
        return status

    def find_implicit_captures(self, stream):
        """Return the captures that work on a legacy default stream would have to wait for."""
        if stream not in (0, 1):
            return []
        return [
            capture
            for number, capture in self.captures.items()
            if number in self.blocking and self.device_of[number] == self.current
        ]

    def queue(self, stream):
        """Return a stream's pending work, to which the caller adds.

        Every device has its own legacy default stream, 0 or 1, and in each thread a per-thread default
        stream, 2. They wait for one another; of other streams, only the blocking ones that are captured do.
        """
        assert stream not in self.captures, "the loader's work has become part of a graph"
        if stream in self.destroyed:
            raise CudaError(INVALID_HANDLE, "cudaErrorInvalidResourceHandle")
        if implicit := self.find_implicit_captures(stream):
            for capture in implicit:
                capture.broken = True
            raise CudaError(CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit")
        if stream > PER_THREAD:
            return self.work.setdefault(stream, deque())
        legacy, of_threads = -1 - self.current, self.of_threads.setdefault(self.current, [])
        if stream == PER_THREAD:
            number = self.thread.default_streams.setdefault(self.current, -next(self.numbers) - 100)
            if number not in of_threads:
                of_threads.append(number)
            self.join(number, [legacy])
            return self.work[number]
        self.join(legacy, of_threads)
        return self.work[legacy]

    def join(self, number, others):
        """Make a stream wait for what is on others now."""
        for other in others:
            if self.work.setdefault(other, deque()):
                mark = Mark()
                self.work[other].append((None, mark.reach))
                self.work.setdefault(number, deque()).append((mark, lambda: None))
        self.work.setdefault(number, deque())

    def device_of_stream(self, stream):
        return self.device_of[stream] if stream > PER_THREAD else self.current

    @property
    def current(self):
        """The current device of the calling thread."""
        return self.thread.context - CONTEXT if self.thread.context else self.thread.device

    def memcpyAsync(self, target, source, nbytes, kind, stream):
        assert kind in (1, 3)
        self.check("memcpyAsync" if kind == 1 else "memcpyWithin")
        if kind == 1 and not self.is_page_locked(source):
            self.wait_for_stream(stream)
            staged = ctypes.string_at(source, nbytes)  # in the driver's own memory
            self.queue(stream).append((None, lambda: ctypes.memmove(target, staged, nbytes)))
            return
        self.queue(stream).append((None, lambda: ctypes.memmove(target, source, nbytes)))

    def wait_for_stream(self, stream):
        """Run until all that is on a stream now has run."""
        mark = Mark()
        self.queue(stream).append((None, mark.reach))
        while not mark.reached:
            assert self.step(), "the host waits for a stream that will never get there"

    def memcpy2DAsync(self, target, target_pitch, source, source_pitch, width, height, kind, stream):
        assert kind == 4  # wherever the pointers point
        self.check("memcpy2DAsync")

        def copy():
            for row in range(height):
                ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)

        self.queue(stream).append((None, copy))

    def eventRecord(self, event, stream):
        self.check("eventRecord")
        if event in self.destroyed or self.device_of[event] != self.device_of_stream(stream):
            raise CudaError(INVALID_HANDLE, "cudaErrorInvalidResourceHandle")
        mark = self.marks[event] = Mark()
        self.queue(stream).append((None, mark.reach))

    def streamWaitEvent(self, stream, event):
        self.check("streamWaitEvent")
        if event in self.destroyed:
            raise CudaError(INVALID_HANDLE, "cudaErrorInvalidResourceHandle")
        self.queue(stream).append((self.marks.get(event), lambda: None))

    def eventQuery(self, event):
        try:
            self.check("eventQuery")
        except CudaError as error:
            return error.status  # CuPy returns the status and raises nothing
        self.step()
        return 0 if self.is_reached(event) else NOT_READY

    def eventSynchronize(self, event):
        self.check("eventSynchronize")
        while not self.is_reached(event):
            assert self.step(), "the host waits for an event that will never be reached"

    def eventDestroy(self, event):
        self.destroy("eventDestroy", event)

    def streamDestroy(self, stream):
        self.destroy("streamDestroy", stream)  # at once, and what is on it still runs

    def destroy(self, name, handle):
        self.check(name)
        assert handle not in self.destroyed
        self.destroyed.add(handle)

    def eventElapsedTime(self, start, end):
        self.check("eventElapsedTime")
        if not {start, end} <= self.timed:
            raise CudaError(INVALID_HANDLE, "cudaErrorInvalidResourceHandle")
        if not (self.is_reached(start) and self.is_reached(end)):
            raise CudaError(NOT_READY, "cudaErrorNotReady")
        return (self.marks[end].time - self.marks[start].time) * 1000

    def pointerGetAttributes(self, address):
        self.check("pointerGetAttributes")
        return SimpleNamespace(type=int(self.is_page_locked(address)))

    def is_page_locked(self, address):
        spans = {**self.registered, **self.pinned}
        return any(start <= address < start + nbytes for start, nbytes in spans.items())

    def hostRegister(self, address, nbytes, flags):
        self.check("hostRegister")
        if self.refuse_registering:
            raise CudaError(OUT_OF_MEMORY, "cudaErrorMemoryAllocation")
        assert flags == 1
        assert address not in self.registered
        self.registered[address] = nbytes

    def hostUnregister(self, address):
        self.check("hostUnregister")
        ctypes.string_at(address, 1)  # crashes unless the memory is still mapped
        del self.registered[address]

    def is_reached(self, event):
        mark = self.marks.get(event)
        return mark is None or mark.reached

    def step(self):
        """Run one step of the newest stream that can proceed; return False if none can.

        The newest first, so that kernels that forgot to wait run at the wrong time.
        """
        for number in sorted(self.work, reverse=True):
            work = self.work[number]
            if work and (work[0][0] is None or work[0][0].reached):
                work.popleft()[1]()
                return True
        return False

    def run_stream(self, number):
        """Run one stream until it is empty or waits for another one."""
        work = self.work.get(number, ())
        while work and (work[0][0] is None or work[0][0].reached):
            work.popleft()[1]()

    def block_stream(self, stream):
        """Launch a kernel that runs until the mark that is returned is reached."""
        mark = Mark()
        self.queue(stream).append((mark, lambda: None))
        return mark

    def finish(self):
        while self.step():
            pass
        assert not any(self.work.values())

    def launch(self, kernel, stream=0):
        """Launch a kernel, a function without arguments, on a stream."""
        self.queue(stream).append((None, kernel))

    def launch_read(self, array, stream=0):
        """Launch a kernel that reads an array; it appends the values it saw to the returned list."""
        assert array.flags.c_contiguous
        address, nbytes, dtype, shape = array.data.ptr, array.nbytes, array.dtype, array.shape
        look = lambda: np.frombuffer(ctypes.string_at(address, nbytes), dtype).reshape(shape)  # noqa: E731
        seen = []  # not the array: a kernel does not keep it
        self.queue(stream).append((None, lambda: seen.append(look())))
        return seen


def make_cupy(real, runtime):
    """Return a module to replace cupy in `devices/cuda.py`: real arrays over the fake runtime."""

    stacks = threading.local()

    class Device:
        """As in CuPy 14, where each thread has a stack, and leaving always sets the device again."""

        def __init__(self, index):
            self.id = index

        def __enter__(self):
            stacks.before = [*getattr(stacks, "before", []), runtime.getDevice()]
            if stacks.before[-1] != self.id:
                runtime.setDevice(self.id)
            return self

        def __exit__(self, *error):
            runtime.setDevice(stacks.before.pop())

    class Stream:
        ptr = 0

        def __init__(self, non_blocking=False, priority=0):
            runtime.check("streamCreate")
            self.priority = priority
            self.ptr = next(runtime.numbers)
            runtime.device_of[self.ptr] = runtime.current
            if not non_blocking:
                runtime.blocking.add(self.ptr)

        def __del__(self):
            if self.ptr:
                runtime.streamDestroy(self.ptr)

        def __enter__(self):
            runtime.thread.streams[runtime.current] = self
            return self

        def __exit__(self, *error):
            del runtime.thread.streams[runtime.current]

    class Event:
        ptr = 0

        def __del__(self):
            if self.ptr:
                runtime.eventDestroy(self.ptr)

        def __init__(self, block=False, disable_timing=False):
            assert block
            runtime.check("eventCreate")
            self.ptr = next(runtime.numbers)
            if not disable_timing:
                runtime.timed.add(self.ptr)
            runtime.device_of[self.ptr] = runtime.current

    default = SimpleNamespace(ptr=0)

    def get_current_stream(device_id=-1):
        return runtime.thread.streams.get(runtime.getDevice() if device_id < 0 else device_id, default)

    contexts = {"ctxGetCurrent": runtime.ctxGetCurrent, "ctxSetCurrent": runtime.ctxSetCurrent}
    same = {
        name: getattr(real.cuda, name) for name in ("UnownedMemory", "MemoryPointer", "memory", "compiler")
    }
    library = SimpleNamespace(Device=Device, Stream=Stream, Event=Event, runtime=runtime, **same)
    library.driver = SimpleNamespace(CUDADriverError=DriverError, **contexts)
    library.is_available = lambda: runtime.devices > 0 and runtime.driver > 0
    library.get_current_stream = get_current_stream
    return SimpleNamespace(__version__=real.__version__, ndarray=real.ndarray, cuda=library)


@contextlib.contextmanager
def use_cupy(monkeypatch, module):
    """Run the CUDA device over a module from `make_cupy`; at the end, no memory may be page-locked."""
    monkeypatch.setattr(cuda, "cupy", module)
    monkeypatch.setattr(driver, "exchange_capture_mode", module.cuda.runtime.exchange_capture_mode)
    places._opened.clear()
    yield
    gc.collect()
    places._opened.clear()
    assert not module.cuda.runtime.registered  # every page-locked arena was unlocked before it was freed


def read(array):
    """Return a copy of a device array as a NumPy array; the work that fills it must have run."""
    return as_host(array).copy()


def as_host(array):
    """Return a NumPy array over a device array's memory, for a twin that runs in a kernel's place."""
    assert array.flags.c_contiguous
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.data.ptr)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def run_twins(monkeypatch, runtime):
    """Replace kernels by their twins, on the same streams and over the same memory."""
    import cupy

    from gpuloader.devices import cuda_device

    def call(operation, inputs, outputs, stream):
        runtime.check("launch")
        named = operation.name(inputs, outputs)
        held = {name: as_host(one) if isinstance(one, cupy.ndarray) else one for name, one in named.items()}
        runtime.launch(lambda: operation.kernel.on_host(**held), stream.ptr)

    # Twins are not launched by kernels, so nothing is compiled ahead, and no launch is repeated.
    monkeypatch.setattr(cuda_device, "find_kernels", lambda program, arrays: [])
    monkeypatch.setattr(
        cuda_device.BoundProgram,
        "launch",
        lambda self, stream: self.program.run_on_device(self._arrays, stream),
    )
    monkeypatch.setattr(KernelCall, "on_device", call)


def install_framework(monkeypatch, name, tensor, current):
    """Put a module in PyTorch's or Paddle's place, with the names that the loader uses, and return it.

    `tensor` makes a tensor of an array; `current` returns the handle of a device's current stream.
    """
    module, dlpack = ModuleType(name), ModuleType(f"{name}.utils.dlpack")

    def find(index):
        return SimpleNamespace(cuda_stream=current(index))

    if name == "torch":
        module.cuda = SimpleNamespace(current_stream=find, is_initialized=lambda: False)
        module._C = SimpleNamespace(_cuda_getCurrentRawStream=current)
    else:
        module.is_compiled_with_cuda = lambda: True
        # The public function is deprecated, warns at every call, and ends in this one.
        module.base = SimpleNamespace(core=SimpleNamespace(_get_current_stream=find))
    dlpack.from_dlpack = tensor
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, f"{name}.utils", ModuleType(f"{name}.utils"))
    monkeypatch.setitem(sys.modules, f"{name}.utils.dlpack", dlpack)
    return module
