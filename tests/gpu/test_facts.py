"""The package's assumptions about CUDA, CuPy and torch, tested on hardware; some tests print figures."""

import gc
import mmap
import os
import threading
import time
from collections import deque

import numpy as np
import pytest

from gpuloader import CUDAPlace
from gpuloader.devices.places import open_device
from gpuloader.kernels.spin import spin
from gpuloader.staging import Arena, Lease, arrange
from tests.gpu.processes import run_python

MIB = 1 << 20
NOT_READY = 600


@pytest.fixture
def device():
    return open_device(CUDAPlace(0))


def copy_to_device(device, arena):
    """Copy an arena to the device, wait for the copy, and return it as a CuPy array."""
    layout = arrange(((arena.bytes.shape, arena.bytes.dtype),))
    memory, stream, done = device.alloc(layout.nbytes), device.stream(), device.event()
    device.copy_async(memory, arena, layout.nbytes, stream)
    device.record(done, stream)
    device.synchronize(done)
    [array] = device.views(memory, layout, Lease(memory, deque()))
    return array


class TestPageLocking:
    def test_a_memory_file_can_be_page_locked(self, device, say):
        import cupy

        nbytes = 1024 * MIB
        arena = Arena(nbytes, shared=True)
        begun = time.perf_counter()
        device.page_lock(arena.address, nbytes)
        say(f"page-locking 1 GiB takes {time.perf_counter() - begun:.3f} s")
        assert cupy.cuda.pinned_memory.is_memory_pinned(arena.address)
        assert cupy.cuda.pinned_memory.is_memory_pinned(arena.address + nbytes - 1)
        with pytest.raises(OSError, match=r"(?i)already"):
            device.page_lock(arena.address, nbytes)
        device.page_unlocker(arena.address, arena)()
        assert not cupy.cuda.pinned_memory.is_memory_pinned(arena.address)

    def test_a_copy_from_it_leaves_the_host_free(self, device, say):
        """The call returns at once with page-locked memory; with pageable memory it would stage the bytes."""
        arena = Arena(256 * MIB, device.locker)
        memory, stream, done = device.alloc(arena.nbytes), device.stream(), device.event()
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            device.copy_async(memory, arena, arena.nbytes, stream)
            device.record(done, stream)
            returned = time.perf_counter() - begun
            running = not device.query(done)
            device.synchronize(done)
            times.append((returned, time.perf_counter() - begun, running))
        returned, finished, running = min(times)
        assert running
        assert returned < finished / 4
        say(f"256 MiB: the call takes {returned * 1e6:.0f} µs, the copy {finished * 1e3:.2f} ms")

    def test_what_another_process_writes_arrives(self, device):
        """All mappings of a memory file share the same pages, even when they are page-locked."""
        arena = Arena(4 * MIB, device.locker)
        with mmap.mmap(arena.descriptor, arena.nbytes) as mapping:
            if (child := os.fork()) == 0:
                mapping[: 4 * MIB] = bytes([7]) * (4 * MIB)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert (copy_to_device(device, arena).get() == 7).all()


class TestEvents:
    def test_what_query_says(self, device):
        import cupy

        stream, event = device.stream(), device.event()
        spin(50_000_000, stream=stream)
        device.record(event, stream)
        assert cupy.cuda.runtime.eventQuery(event.ptr) == NOT_READY
        assert not device.query(event)
        device.synchronize(event)
        assert device.query(event)

    def test_a_non_blocking_stream_does_not_wait_for_the_default_one(self, device):
        import cupy

        stream, event = device.stream(), device.event()
        spin(100_000_000)
        device.record(event, stream)
        time.sleep(0.02)
        assert device.query(event)
        cupy.cuda.runtime.deviceSynchronize()

    def test_waiting_for_one_releases_the_interpreters_lock(self, device):
        stream, event = device.stream(), device.event()
        spin(200_000_000, stream=stream)
        device.record(event, stream)
        ticks, stop = [], threading.Event()

        def tick():
            while not stop.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        begun = time.perf_counter()
        device.synchronize(event)
        ended = time.perf_counter()
        stop.set()
        thread.join()
        assert ended - begun > 0.1
        assert sum(begun < one < ended for one in ticks) > 20


def test_imports_leave_the_driver_alone():
    """Worker processes import the package, which must not touch a GPU before a place is opened."""
    assert run_python("""
        import sys
        import gpuloader, gpuloader.fetch.processes.worker, gpuloader.transforms
        print("libcuda.so" in open("/proc/self/maps").read(), "cupy" in sys.modules)
    """) == ["False False"]


def test_torch_keeps_a_lease_until_its_last_view(torch, device):
    freed, layout = deque(), arrange((((3, 4), np.dtype(np.float32)),))
    memory = device.alloc(layout.nbytes)
    [array] = device.views(memory, layout, Lease(memory, freed))
    array.set(np.arange(12, dtype=np.float32).reshape(3, 4))
    tensor = torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=-1))
    del array
    part = tensor[1:, ::2]
    del tensor
    gc.collect()
    assert not freed
    assert part.cpu().tolist() == [[4, 6], [8, 10]]
    del part
    gc.collect()
    assert len(freed) == 1
