"""A stand-in for the CUDA runtime, under the real CuPy arrays: `cuda.py` runs on it where no GPU is.

Device memory is host memory. Streams are queues that run only when an event is queried or waited for, so
what the device does not order does not happen in time. As in CUDA, the current device is the thread's, the
handle 0 means the default stream of that device, a failed device refuses everything, and so does any device
in a forked child. Pointers, memory, arrays and their lifetimes are CuPy's own, which need no driver as long
as the device is named.
"""

import ctypes
import itertools
import os
import threading
from collections import Counter, deque
from time import perf_counter
from types import SimpleNamespace

import numpy as np

from gpuloader.kernels import gather, shuffle
from gpuloader.transforms import operations

INVALID_HANDLE = 400
NOT_READY = 600
NOT_INITIALIZED = 3
OUT_OF_MEMORY = 2


class CudaError(RuntimeError):
    """In the place of CUDARuntimeError."""

    def __init__(self, status, text="cudaError"):
        super().__init__(f"{text}: status {status}")
        self.status = status


class DriverError(RuntimeError):
    """In the place of CUDADriverError, which launches raise."""

    def __init__(self, status, text="CUDA_ERROR"):
        super().__init__(f"{text}: status {status}")
        self.status = status


class Mark:
    def __init__(self):
        self.reached = False
        self.time = 0.0

    def reach(self):
        self.reached, self.time = True, perf_counter()


class Thread(threading.local):
    """What CUDA and CuPy keep for each thread."""

    def __init__(self):
        self.device = 0
        self.streams = {}


class FakeRuntime:
    """Counts its calls, and fails where a test tells it to.

    Attributes
    ----------
    failed : int
        If not 0, the status that every call gives, as after a kernel that wrote where it must not.
    memory_left : int
        Largest allocation that succeeds.
    capturing : set of int
        Streams that are captured into a graph: work put on them joins it and does not run.
    registered : dict
        Address to size of page-locked memory.
    """

    CUDARuntimeError = CudaError

    def __init__(self, devices=1, driver=13000, built=13020):
        self.calls = Counter()
        self.devices, self.driver, self.built = devices, driver, built
        self.registered = {}
        self.refuse_registering = False
        self.failed = 0
        self.memory_left = 1 << 40
        self.capturing = set()
        self.thread = Thread()
        self.process = os.getpid()
        self.numbers = itertools.count(1)
        self.work = {}
        self.marks = {}
        self.device_of = {}  # of streams and events
        self.timed = set()

    def check(self, name):
        self.calls[name] += 1
        if os.getpid() != self.process:
            raise CudaError(NOT_INITIALIZED, "cudaErrorInitializationError")
        if self.failed:
            raise CudaError(self.failed)

    def driverGetVersion(self):
        return self.driver

    def runtimeGetVersion(self):
        return self.built

    def getDeviceCount(self):
        return self.devices

    def getDevice(self):
        self.check("getDevice")
        return self.thread.device

    def setDevice(self, device):
        self.check("setDevice")
        assert 0 <= device < self.devices
        self.thread.device = device

    def memGetInfo(self):
        self.check("memGetInfo")
        return self.memory_left, 1 << 40

    def streamIsCapturing(self, stream):
        self.check("streamIsCapturing")
        return stream in self.capturing

    def queue(self, stream):
        """Return a stream's work; the default stream's is its own on every device."""
        assert stream not in self.capturing, "work of the loader's has become part of a graph"
        return self.work.setdefault(stream or -1 - self.thread.device, deque())

    def device_of_stream(self, stream):
        return self.device_of[stream] if stream else self.thread.device

    def memcpyAsync(self, target, source, nbytes, kind, stream):
        assert kind == 1
        self.check("memcpyAsync")
        self.queue(stream).append((None, lambda: ctypes.memmove(target, source, nbytes)))

    def eventRecord(self, event, stream):
        self.check("eventRecord")
        if self.device_of[event] != self.device_of_stream(stream):
            raise CudaError(INVALID_HANDLE, "cudaErrorInvalidResourceHandle")
        mark = self.marks[event] = Mark()
        self.queue(stream).append((None, mark.reach))

    def streamWaitEvent(self, stream, event):
        self.check("streamWaitEvent")
        self.queue(stream).append((self.marks.get(event), lambda: None))

    def eventQuery(self, event):
        try:
            self.check("eventQuery")
        except CudaError as error:
            return error.status  # CuPy hands the status on and raises nothing
        self.step()
        return 0 if self.is_reached(event) else NOT_READY

    def eventSynchronize(self, event):
        self.check("eventSynchronize")
        while not self.is_reached(event):
            assert self.step(), "the host waits for an event that nothing will reach"

    def eventElapsedTime(self, start, end):
        self.check("eventElapsedTime")
        if not {start, end} <= self.timed:
            raise CudaError(INVALID_HANDLE, "cudaErrorInvalidResourceHandle")
        if not (self.is_reached(start) and self.is_reached(end)):
            raise CudaError(NOT_READY, "cudaErrorNotReady")
        return (self.marks[end].time - self.marks[start].time) * 1000

    def hostRegister(self, address, nbytes, flags):
        self.check("hostRegister")
        if self.refuse_registering:
            raise CudaError(OUT_OF_MEMORY, "cudaErrorMemoryAllocation")
        assert flags == 1
        assert address not in self.registered
        self.registered[address] = nbytes

    def hostUnregister(self, address):
        self.check("hostUnregister")
        ctypes.string_at(address, 1)  # still mapped
        del self.registered[address]

    def is_reached(self, event):
        mark = self.marks.get(event)
        return mark is None or mark.reached

    def step(self):
        """Run the newest stream that can go on, so that copies come before kernels that forgot to wait."""
        for number in sorted(self.work, reverse=True):
            work = self.work[number]
            if work and (work[0][0] is None or work[0][0].reached):
                work.popleft()[1]()
                return True
        return False

    def finish(self):
        while self.step():
            pass
        assert not any(self.work.values())

    def launch(self, kernel, stream=0):
        """Put a kernel on a stream: a function without arguments."""
        self.queue(stream).append((None, kernel))

    def launch_read(self, array, stream=0):
        """Put a kernel on a stream that reads an array; return a list that it puts the values into."""
        assert array.flags.c_contiguous
        address, nbytes, dtype, shape = array.data.ptr, array.nbytes, array.dtype, array.shape
        seen = []
        self.queue(stream).append(
            (
                None,
                lambda: seen.append(np.frombuffer(ctypes.string_at(address, nbytes), dtype).reshape(shape)),
            )
        )
        return seen


class FakeMemory:
    def __init__(self, runtime, nbytes):
        runtime.check("malloc")
        if nbytes > runtime.memory_left:
            raise CudaError(OUT_OF_MEMORY, "cudaErrorMemoryAllocation")
        self.bytes = np.full(nbytes, 0xAB, np.uint8)
        self.ptr = self.bytes.ctypes.data


def make_cupy(real, runtime):
    """Return what `cuda.py` knows as cupy: the real arrays over the fake runtime."""

    class Device:
        def __init__(self, index):
            self.id = index
            self.stack = []  # the object's own, as in CuPy: not to be shared by threads

        def __enter__(self):
            self.stack.append(runtime.getDevice())
            if self.stack[-1] != self.id:
                runtime.setDevice(self.id)
            return self

        def __exit__(self, *error):
            runtime.setDevice(self.stack.pop())

    class Stream:
        def __init__(self, non_blocking=False):
            assert non_blocking
            runtime.check("streamCreate")
            self.ptr = next(runtime.numbers)
            runtime.device_of[self.ptr] = runtime.thread.device

        def __enter__(self):
            runtime.thread.streams[runtime.thread.device] = self
            return self

        def __exit__(self, *error):
            del runtime.thread.streams[runtime.thread.device]

    class Event:
        def __init__(self, block=False, disable_timing=False):
            assert block
            runtime.check("eventCreate")
            self.ptr = next(runtime.numbers)
            if not disable_timing:
                runtime.timed.add(self.ptr)
            runtime.device_of[self.ptr] = runtime.thread.device

    default = SimpleNamespace(ptr=0)

    def get_current_stream():
        return runtime.thread.streams.get(runtime.getDevice(), default)

    return SimpleNamespace(
        __version__=real.__version__,
        ndarray=real.ndarray,
        cuda=SimpleNamespace(
            Device=Device,
            Stream=Stream,
            Event=Event,
            Memory=lambda nbytes: FakeMemory(runtime, nbytes),
            UnownedMemory=real.cuda.UnownedMemory,
            MemoryPointer=real.cuda.MemoryPointer,
            memory=real.cuda.memory,
            compiler=real.cuda.compiler,
            driver=SimpleNamespace(CUDADriverError=DriverError),
            runtime=runtime,
            is_available=lambda: runtime.devices > 0 and runtime.driver > 0,
            get_current_stream=get_current_stream,
        ),
    )


def read(array):
    """Return a device array's bytes as NumPy; the work before it must have been finished."""
    assert array.flags.c_contiguous
    data = ctypes.string_at(array.data.ptr, array.nbytes)
    return np.frombuffer(data, array.dtype).reshape(array.shape)


def as_host(array):
    """Return a device array as the NumPy array it is here, to compute with once a kernel's turn has come."""
    assert array.flags.c_contiguous
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.data.ptr)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def run_twins(monkeypatch, runtime):
    """Put twins in the place of kernels: on the same streams, over the same memory."""

    def call(operation, inputs, outputs, stream):
        runtime.check("launch")
        runtime.launch(lambda: operation.twin(*map(as_host, inputs), out=as_host(outputs[0])), stream.ptr)

    def later(twin):
        """Return what puts a twin on a stream; arguments that are arrays lie on the device."""

        def call(*arguments, stream, **named):
            runtime.check("launch")
            held = [as_host(one) if hasattr(one, "data") else one for one in arguments]
            named = {name: as_host(one) for name, one in named.items()}
            runtime.launch(lambda: twin(*held, **named), stream.ptr)

        return call

    monkeypatch.setattr(operations.KernelCall, "on_device", call)
    monkeypatch.setattr(gather, "gather", later(gather.gather_on_host))
    monkeypatch.setattr(shuffle, "shuffle", later(shuffle.shuffle_on_host))
