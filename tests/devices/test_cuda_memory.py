"""Memory, streams and events of the CUDA device: page-locked, allocated, reused and freed."""

import gc
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import CUDAPinnedPlace, CUDAPlace, LoaderError
from gpuloader.devices import cuda_device
from gpuloader.devices.places import open_device
from gpuloader.errors import StagingMemoryError
from tests.devices.cuda_loaders import batches, load, numbers_of, ragged
from tests.fakes_cuda import CudaError, read
from tests.loading import read_batches
from tests.processes import run_in_fork


def test_memory_that_outlives_the_modules_is_left_to_the_driver(runtime, monkeypatch):
    """At the interpreter's end, module globals are None when the last batch is freed."""
    memory = cuda_device.CudaDevice(0).alloc(64)
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with monkeypatch.context() as ending:
        ending.setattr(cuda_device.CudaDevice, "_is_ending", staticmethod(lambda: True))
        ending.setattr(cuda_device, "contextlib", None)
        del memory
    assert not ignored
    assert runtime.calls["malloc"] == 1
    assert runtime.calls["free"] == 0


def test_page_locking_is_exact_and_happens_once(runtime):
    loader = load(10)
    for _ in range(3):
        for _ in loader:
            pass
    assert runtime.calls["hostRegister"] == 1
    [nbytes] = runtime.registered.values()
    [buffers] = loader._epochs._idle
    assert nbytes == buffers.ring.count * 512
    assert runtime.calls["hostUnregister"] == 0


def test_refused_page_locking_is_one_warning_and_goes_on(runtime):
    """However many slots grow."""
    runtime.refuse_registering = True
    loader = read_batches(ragged(range(1, 60, 2)), "gpu:0", capacity=3)
    with pytest.warns(RuntimeWarning, match="could not be pinned") as warned:
        assert len(list(loader)) == 30
    assert runtime.calls["hostRegister"] > 3
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("static", "call"),
    [
        *((False, call) for call in ("memcpyAsync", "streamWaitEvent")),
        *((True, call) for call in ("malloc", "memcpyWithin", "eventRecord", "streamWaitEvent")),
    ],
)
def test_a_call_that_fails_costs_no_slot(runtime, monkeypatch, call, static):
    """Whichever call of an epoch fails, the next epoch reuses the same buffers."""
    loader = load(12, static=static)
    check, fails = runtime.check, 0
    if not static:
        list(loader)
    for nth in range(6 if static else 14):
        calls = itertools.count()

        def failing(name, calls=calls, nth=nth):
            if name == call and next(calls) == nth:
                raise CudaError(2, "cudaErrorMemoryAllocation")
            check(name)

        with monkeypatch.context() as patch:
            patch.setattr(runtime, "check", failing)
            try:
                numbers_of(runtime, loader)
            except LoaderError:
                fails += 1
        assert numbers_of(runtime, loader) == list(range(12))
        [buffers] = loader._epochs._idle
        assert buffers.ring.free == buffers.ring.count
    assert fails >= (1 if static else 12)
    assert static or runtime.calls["hostRegister"] == 1


class TestMemoryRunsOut:
    def test_in_the_middle_of_an_epoch(self, runtime):
        """A user keeps too many batches: an error; kept batches stay intact, and later epochs work."""
        loader, device = load(30), open_device(CUDAPlace(0))
        epoch = iter(loader)
        kept = [next(epoch) for _ in range(6)]
        runtime.memory_left = 100
        message = r"cannot allocate .* on gpu:0 .* 100 of 1,099,511,627,776 .* keep fewer batches"
        with pytest.raises(StagingMemoryError, match=message):
            kept.extend(epoch)
        assert list(epoch) == []
        [buffers] = loader._epochs._idle
        assert buffers.ring.free == buffers.ring.count
        assert device is open_device(CUDAPlace(0))
        runtime.finish()
        assert [float(read(images)[0, 0]) for images, _ in kept] == list(range(len(kept)))
        runtime.memory_left = 1 << 40
        kept.clear()
        assert numbers_of(runtime, loader) == list(range(30))

    def test_what_frameworks_hold_is_named(self, runtime, monkeypatch):
        """Of each that is imported and uses a GPU, how much it keeps for later, and what gives it back."""
        pool = SimpleNamespace(free_bytes=lambda: 1_000)
        counts = {"memory_reserved": lambda index: 5_000 + index, "memory_allocated": lambda index: 3_000}
        held = {"pool_bytes": 9_000, "bytes_in_use": 5_000}
        chip = SimpleNamespace(local_hardware_id=1, memory_stats=lambda: held)
        torch_cuda = SimpleNamespace(is_initialized=lambda: True, **counts)
        bridge = SimpleNamespace(backends_are_initialized=lambda: True)
        for name, module in {
            "cupy": SimpleNamespace(get_default_memory_pool=lambda: pool),
            "torch": SimpleNamespace(cuda=torch_cuda),
            "paddle": SimpleNamespace(device=SimpleNamespace(cuda=SimpleNamespace(**counts))),
            "jax": SimpleNamespace(local_devices=lambda: [chip]),
            "jax._src.xla_bridge": bridge,
        }.items():
            monkeypatch.setitem(sys.modules, name, module)
        runtime.devices, runtime.memory_left = 2, 100
        with pytest.raises(StagingMemoryError) as caught:
            open_device(CUDAPlace(1)).alloc(512)
        message = str(caught.value)
        for words in (
            "cupy keeps 1,000 bytes that it does not use: cupy.get_default_memory_pool().free_all_blocks()",
            "torch keeps 2,001 bytes that it does not use: torch.cuda.empty_cache()",
            "paddle keeps 2,001 bytes that it does not use: paddle.device.cuda.empty_cache()",
            "jax keeps 4,000 bytes that it does not use: start the program with XLA_PYTHON",
        ):
            assert words in message
        # Asking must not make a framework begin to use the GPU, nor replace the error.
        torch_cuda.is_initialized = bridge.backends_are_initialized = lambda: False
        pool.free_bytes = None
        counts["memory_reserved"] = lambda index: 3_000
        sys.modules["paddle"].device.cuda = SimpleNamespace(**counts)
        with pytest.raises(StagingMemoryError, match=r"or keep fewer batches$"):
            open_device(CUDAPlace(1)).alloc(512)


class TestDeviceMemory:
    """`cudaMalloc` and `cudaFree` wait for the whole device, so a loop does not call them again and again."""

    def test_is_allocated_once_for_a_user_who_holds_batches(self, runtime):
        """As with gradient accumulation: eight batches are held, then all are dropped."""
        loader, held = load(48), []
        for epoch in range(3):
            for number, batch in enumerate(loader):
                held.append(batch)
                del batch
                if len(held) == 8:
                    held.clear()
                if not epoch and number == 8:
                    runtime.calls.clear()
        assert (runtime.calls["malloc"], runtime.calls["free"]) == (0, 0)

    def test_is_not_freed_while_batches_grow(self, runtime):
        sizes = [1, 2, 3, 5, 8, 13, 21, 34, 55, 34, 21, 13, 8, 5, 3, 2, 1, 60, 61, 62, 63, 64]
        loader = read_batches(ragged(sizes), "gpu:0")
        for epoch in range(4):
            seen = []
            for [batch] in loader:
                assert runtime.calls["free"] == 0
                seen.append(runtime.launch_read(batch))
            del batch
            runtime.finish()
            assert [(len(rows), rows[0, 0]) for [rows] in seen] == [(size, n) for n, size in enumerate(sizes)]
            if epoch:
                assert runtime.calls["malloc"] == 0
            runtime.calls.clear()
        gc.collect()
        [buffers] = loader._epochs._idle
        [lane] = buffers.lanes
        assert len(runtime.memory) == len(lane._slots.free) + len(lane._slots.freed) <= 4

    def test_that_was_outgrown_is_given_up_if_the_device_is_full(self, runtime, monkeypatch):
        limit, malloc = 100_000, runtime.malloc

        def malloc_within_limit(nbytes):
            if sum(map(len, runtime.memory.values())) + nbytes > limit:
                raise CudaError(2, "cudaErrorMemoryAllocation")
            return malloc(nbytes)

        monkeypatch.setattr(runtime, "malloc", malloc_within_limit)
        sizes = [10] * 4 + [20] * 4 + [30] * 4 + [40] * 4
        loader = read_batches(ragged(sizes), "gpu:0")
        assert numbers_of(runtime, loader) == list(range(16))
        assert runtime.calls["free"]

    def test_of_a_dropped_loader_is_freed_with_the_last_batch(self, runtime):
        loader = load(5)
        kept = list(loader)
        del loader
        gc.collect()
        assert len(runtime.memory) == 5  # those of the batches
        kept.clear()
        gc.collect()
        assert not runtime.memory

    def test_is_freed_after_a_capture(self, runtime, capture):
        """Whatever a finalizer gives up during a capture: batches of a dropped loader, and loaders."""
        loaders, kept = [load(5), load(5)], []
        for loader in loaders:
            kept += list(loader)
        runtime.finish()
        del loaders[0], loader
        gc.collect()
        with capture():
            kept.clear()
            loaders.clear()
            gc.collect()
            assert len(runtime.memory) >= 10
            assert len(runtime.registered) == 1
        list(load(1))
        gc.collect()
        assert not runtime.memory
        assert not runtime.registered


def test_copies_that_block_wait_for_the_users_kernels(runtime):
    """As copies do from memory whose page-locking was refused, into slots whose batches are still read."""
    runtime.refuse_registering = True

    def look():
        return [runtime.launch_read(images) for images, _ in load(10)]

    with pytest.warns(RuntimeWarning, match="could not be pinned"):
        seen = look()
    runtime.finish()
    assert [values[0, 0] for (values,) in seen] == list(range(10))


class TestStreamsAndEvents:
    """Those of a dropped loader are destroyed; CuPy's own destructors do that at once, come what may."""

    @staticmethod
    def begin(runtime):
        """Return what a program holds of a loader that it has used, and how many streams and events exist."""
        loader = load(5)
        epoch = iter(loader)
        return [loader, epoch, next(epoch)], len(runtime.device_of)

    def test_are_destroyed_once(self, runtime):
        held, count = self.begin(runtime)
        assert count > 4
        runtime.finish()
        held.clear()
        gc.collect()
        assert runtime.destroyed == set(runtime.device_of)

    @pytest.mark.parametrize("status", [700, 3])
    def test_in_silence_after_the_device_has_failed(self, runtime, status):
        held, _ = self.begin(runtime)
        runtime.failed = status
        held.clear()
        gc.collect()  # pytest makes an error of what a destructor raises
        runtime.replace_device()
        runtime.registered.clear()  # the driver has given it up with the context

    def test_in_silence_and_without_a_call_in_a_forked_child(self, runtime):
        held, _ = self.begin(runtime)

        def work():
            printed, before = [], runtime.calls.total()
            sys.unraisablehook = printed.append
            held.clear()
            gc.collect()
            assert [one.exc_value for one in printed] == []
            assert runtime.calls.total() == before

        run_in_fork(work)

    def test_after_a_capture(self, runtime, capture):
        held, _ = self.begin(runtime)
        list(held[1])  # an epoch that goes on would be closed after the capture
        runtime.finish()
        with capture() as stream:
            held.clear()
            gc.collect()
        list(load(1))
        gc.collect()
        assert runtime.destroyed == set(runtime.device_of) - {stream.ptr}


def test_a_pinned_place_gives_page_locked_numpy_arrays(runtime):
    loader = read_batches(batches(4), CUDAPinnedPlace())
    for number, (images, _) in enumerate(loader):
        assert type(images) is np.ndarray
        assert images[0, 0] == number
        [(start, nbytes)] = runtime.registered.items()
        assert start <= images.ctypes.data < start + nbytes
    del loader, images, _
    assert runtime.calls["memcpyAsync"] == 0
