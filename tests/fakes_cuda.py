"""A stand-in for the CUDA runtime, under the real CuPy arrays: `cuda.py` runs on it where no GPU is.

Device memory is host memory. Streams are queues that run only when an event is queried or waited for, so
what the device does not order does not happen in time. Pointers, memory, arrays and their lifetimes are
CuPy's own, which need no driver as long as the device is named.
"""

import ctypes
import itertools
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np

NOT_READY = 600


class CudaError(Exception):
    """In the place of CUDARuntimeError."""

    def __init__(self, status, text):
        super().__init__(f"{text}: status {status}")
        self.status = status


class Mark:
    def __init__(self):
        self.reached = False


class FakeRuntime:
    """Counts its calls, and fails where a test tells it to."""

    CUDARuntimeError = CudaError

    def __init__(self, devices=1, driver=13000):
        self.calls = Counter()
        self.devices, self.driver = devices, driver
        self.registered = {}
        self.refuse_registering = False
        self.event_status = 0
        self.memory_left = 1 << 40
        self.work = {0: deque()}
        self.marks = {}
        self.numbers = itertools.count(1)

    def driverGetVersion(self):
        return self.driver

    def getDeviceCount(self):
        return self.devices

    def memGetInfo(self):
        return self.memory_left, 1 << 40

    def memcpyAsync(self, target, source, nbytes, kind, stream):
        assert kind == 1
        self.calls["memcpyAsync"] += 1
        self.work[stream].append((None, lambda: ctypes.memmove(target, source, nbytes)))

    def eventRecord(self, event, stream):
        mark = self.marks[event] = Mark()
        self.work[stream].append((None, lambda: setattr(mark, "reached", True)))

    def streamWaitEvent(self, stream, event):
        self.work[stream].append((self.marks.get(event), lambda: None))

    def eventQuery(self, event):
        self.step()
        if self.event_status:
            return self.event_status
        return 0 if self.is_reached(event) else NOT_READY

    def eventSynchronize(self, event):
        while not self.is_reached(event):
            assert self.step(), "the host waits for an event that nothing will reach"

    def hostRegister(self, address, nbytes, flags):
        self.calls["hostRegister"] += 1
        if self.refuse_registering:
            raise CudaError(2, "cudaErrorMemoryAllocation")
        assert flags == 1
        assert address not in self.registered
        self.registered[address] = nbytes

    def hostUnregister(self, address):
        self.calls["hostUnregister"] += 1
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


class FakeMemory:
    def __init__(self, runtime, nbytes):
        if nbytes > runtime.memory_left:
            raise CudaError(2, "cudaErrorMemoryAllocation")
        self.bytes = np.full(nbytes, 0xAB, np.uint8)
        self.ptr = self.bytes.ctypes.data
        runtime.calls["malloc"] += 1


def make_cupy(real, runtime):
    """Return what `cuda.py` knows as cupy: the real arrays over the fake runtime."""

    class Device:
        def __init__(self, index):
            self.id = index

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    class Stream:
        def __init__(self, non_blocking=False):
            assert non_blocking
            self.ptr = next(runtime.numbers)
            runtime.work[self.ptr] = deque()

    class Event:
        def __init__(self, block=False, disable_timing=False):
            assert block
            assert disable_timing
            self.ptr = next(runtime.numbers)

    default = SimpleNamespace(ptr=0)
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
            runtime=runtime,
            is_available=lambda: runtime.devices > 0 and runtime.driver > 0,
            get_current_stream=lambda: default,
        ),
    )


def read(array):
    """Return a device array's bytes as NumPy; the work before it must have been finished."""
    assert array.flags.c_contiguous
    data = ctypes.string_at(array.data.ptr, array.nbytes)
    return np.frombuffer(data, array.dtype).reshape(array.shape)
