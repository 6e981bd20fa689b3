"""The package's assumptions about CUDA, CuPy, torch and JAX, tested on hardware; some tests print figures."""

import ctypes
import gc
import mmap
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque

import numpy as np
import pytest

from gpuloader import CUDAPlace
from gpuloader.devices.places import open_device
from gpuloader.kernels.spin import spin
from gpuloader.staging.arena import Arena, arrange
from gpuloader.staging.ring import Lease

MIB = 1 << 20
NOT_READY = 600
ALREADY_REGISTERED = 712


@pytest.fixture
def device():
    return open_device(CUDAPlace(0))


def run(code):
    """Run code in a separate process and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def lease_on_device(device, values):
    """Return a CuPy array with a lease, and the deque that receives the memory when the lease ends."""
    freed = deque()
    layout = arrange(((values.shape, values.dtype),))
    memory = device.alloc(layout.nbytes)
    [array] = device.views(memory, layout, Lease(memory, freed))
    array.set(values)
    return array, freed


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
        begun = time.perf_counter()
        arena = Arena(nbytes, shared=True)
        made = time.perf_counter() - begun
        begun = time.perf_counter()
        device.page_lock(arena.address, nbytes)
        locked = time.perf_counter() - begun
        assert cupy.cuda.pinned_memory.is_memory_pinned(arena.address)
        assert cupy.cuda.pinned_memory.is_memory_pinned(arena.address + nbytes - 1)
        with pytest.raises(OSError, match=r"(?i)already"):
            device.page_lock(arena.address, nbytes)
        begun = time.perf_counter()
        device.page_unlocker(arena.address, arena)()
        unlocked = time.perf_counter() - begun
        assert not cupy.cuda.pinned_memory.is_memory_pinned(arena.address)
        say(f"1 GiB: {made:.2f} s to make, {locked:.3f} s to page-lock, {unlocked:.3f} s to unlock")

    def test_an_arena_page_locks_itself_and_copies_arrive(self, device):
        arena = Arena(64 * MIB, device.locker)
        assert arena.page_locked
        arena.bytes[:] = np.random.default_rng(0).integers(0, 256, arena.nbytes, np.uint8)
        np.testing.assert_array_equal(copy_to_device(device, arena).get(), arena.bytes)

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
    def test_one_that_was_never_recorded_is_complete(self, device):
        event = device.event()
        assert device.query(event)
        device.wait(device.stream(), event)
        device.synchronize(event)

    def test_what_query_says(self, device):
        import cupy

        stream, event = device.stream(), device.event()
        spin(50_000_000, stream=stream)
        device.record(event, stream)
        assert cupy.cuda.runtime.eventQuery(event.ptr) == NOT_READY
        assert not device.query(event)
        device.synchronize(event)
        assert device.query(event)

    def test_a_wait_takes_the_recording_of_its_time(self, device):
        first, second, event, passed = device.stream(), device.stream(), device.event(), device.event()
        device.record(event, first)
        device.wait(second, event)
        spin(100_000_000, stream=first)
        device.record(event, first)  # recorded again: the earlier wait refers to the first recording
        device.record(passed, second)
        time.sleep(0.02)
        assert device.query(passed)
        assert not device.query(event)
        device.synchronize(event)

    def test_a_non_blocking_stream_does_not_wait_for_the_default_one(self, device):
        import cupy

        stream, event = device.stream(), device.event()
        spin(100_000_000)
        device.record(event, stream)
        time.sleep(0.02)
        assert device.query(event)
        cupy.cuda.runtime.deviceSynchronize()


class TestTheInterpretersLock:
    def test_waiting_releases_it(self, device):
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

    def test_how_long_the_first_use_of_a_device_stops_all_threads(self, say):
        printed = run("""
            import threading, time
            import cupy
            ticks, stop = [], threading.Event()

            def tick():
                while not stop.is_set():
                    ticks.append(time.perf_counter())
                    time.sleep(0.0005)

            thread = threading.Thread(target=tick, daemon=True)
            thread.start()
            time.sleep(0.05)
            begun = time.perf_counter()
            cupy.cuda.Device(0).use()
            cupy.cuda.runtime.free(0)
            ended = time.perf_counter()
            time.sleep(0.05)
            stop.set()
            thread.join()
            gap = max(other - one for one, other in zip(ticks, ticks[1:]))
            print(f"first use took {(ended - begun) * 1e3:.0f} ms, no thread ran for {gap * 1e3:.0f} ms")
        """)
        say(printed)


class TestWhatIsLoaded:
    def test_imports_leave_the_driver_alone(self, say):
        """Worker processes import the package, which must not touch a GPU before a place is opened."""
        printed = run("""
            import sys

            def driver():
                return "libcuda.so" in open("/proc/self/maps").read()

            import gpuloader, gpuloader.fetch.processes.worker, gpuloader.transforms
            print(int(driver()), int("cupy" in sys.modules))
            import cupy
            print(int(driver()))
            cupy.cuda.is_available()
            print(int(driver()))
        """)
        assert printed.splitlines()[0] == "0 0"
        before, after = printed.splitlines()[1:]
        say(f"the driver is loaded after import cupy: {before}, after is_available: {after}")


class TestCosts:
    def test_of_calls(self, device, say):
        """Print the host time of each call that a batch needs, in microseconds."""
        import cupy

        arena = Arena(MIB, device.locker)
        memory, stream, event = device.alloc(MIB), device.stream(), device.event()
        layout = arrange((((256,), np.dtype(np.float32)), ((32,), np.dtype(np.int64))))
        calls = {
            "copy_async": lambda: device.copy_async(memory, arena, 4096, stream),
            "record": lambda: device.record(event, stream),
            "wait": lambda: device.wait(stream, event),
            "query": lambda: device.query(event),
            "consumer_stream": device.consumer_stream,
            "views": lambda: device.views(memory, layout, Lease(memory, deque())),
            "launch": lambda: spin(0, stream=stream),
            "bare memcpyAsync": lambda: cupy.cuda.runtime.memcpyAsync(
                memory.address, arena.address, 4096, 1, stream.ptr
            ),
        }
        figures = []
        for name, call in calls.items():
            for _ in range(50):
                call()
            stream.synchronize()
            begun = time.perf_counter()
            for _ in range(200):
                call()
            figures.append(f"{name} {(time.perf_counter() - begun) / 200 * 1e6:.1f}")
            stream.synchronize()
        say(", ".join(figures))


class TestFinalizers:
    def test_they_run_in_any_thread_and_only_append(self, device):
        arrays = [lease_on_device(device, np.full(64, n, np.float32)) for n in range(64)]
        freed = [one for _, one in arrays]
        boxes = [deque(array for array, _ in arrays[part::4]) for part in range(4)]
        arrays.clear()

        def drop(box):
            while box:
                view = box.popleft()[3:]
                assert view.get().size == 61
                del view

        threads = [threading.Thread(target=drop, args=(box,)) for box in boxes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert [len(one) for one in freed] == [1] * 64

    def test_torch_keeps_a_lease_until_its_last_view(self, torch, device):
        array, freed = lease_on_device(device, np.arange(12, dtype=np.float32).reshape(3, 4))
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

    def test_torch_keeps_a_lease_by_the_array_interface(self, torch, device, say):
        array, freed = lease_on_device(device, np.arange(4, dtype=np.float32))
        tensor = torch.as_tensor(array, device="cuda")
        del array
        gc.collect()
        say(f"__cuda_array_interface__: torch keeps the owner: {not freed}")
        assert tensor.device.type == "cuda"

    def test_jax_keeps_a_lease_while_the_array_lives(self, jax, device, say):
        """Print whether JAX keeps it while its kernels are queued; this is uncertain, so JAX gets copies."""
        size = 4096
        values = np.random.default_rng(0).random((size, size), np.float32)
        array, freed = lease_on_device(device, values)
        work = jax.jit(lambda one: jax.lax.fori_loop(0, 300, lambda _, two: (one @ two) / size, one))
        warm = jax.device_put(values, jax.devices("gpu")[0])
        work(warm).block_until_ready()
        begun = time.perf_counter()
        work(warm).block_until_ready()
        takes = time.perf_counter() - begun
        borrowed = jax.dlpack.from_dlpack(array)
        assert borrowed.unsafe_buffer_pointer() == array.data.ptr
        del array
        gc.collect()
        assert not freed
        begun = time.perf_counter()
        result = work(borrowed)
        del borrowed
        gc.collect()
        early, asked = bool(freed), time.perf_counter() - begun
        result.block_until_ready()
        say(
            f"JAX {'released' if early else 'did not release'} the memory before its kernels ended "
            f"(checked after {asked * 1e3:.0f} ms, they take {takes * 1e3:.0f} ms)"
        )


class TestTheContext:
    def test_an_event_can_record_all_of_it(self, device, say):
        """The unused `cuCtxRecordEvent` could make the loader wait for JAX's own streams."""
        import cupy

        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            pytest.skip(f"cannot open the driver's library by name: {error}")
        if not hasattr(driver, "cuCtxRecordEvent"):
            pytest.skip("this driver has no cuCtxRecordEvent")
        cupy.cuda.runtime.deviceSynchronize()
        context, event = cupy.cuda.driver.ctxGetCurrent(), device.event()
        assert context
        spin(100_000_000, stream=device.stream())
        status = driver.cuCtxRecordEvent(ctypes.c_void_p(context), ctypes.c_void_p(event.ptr))
        waits = None if status else not device.query(event)
        cupy.cuda.runtime.deviceSynchronize()
        say(f"status {status}, the event waits for another stream's kernel: {waits}")


class TestTooMuch:
    def test_memory_that_is_not_there_is_an_error_and_no_more(self, device):
        from gpuloader import StagingMemoryError

        with pytest.raises(StagingMemoryError, match="are free"):
            device.alloc(1 << 42)
        array, _ = lease_on_device(device, np.arange(5))
        assert array.get().tolist() == [0, 1, 2, 3, 4]
