"""The CUDA device over a fake runtime; tests/gpu tests the behavior of CuPy itself on hardware."""

import contextlib
import ctypes
import gc
import inspect
import itertools
import random
import re
import sys
import threading
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import (
    CUDAPinnedPlace,
    CUDAPlace,
    DataFeeder,
    DataLoader,
    LoaderError,
    PlaceError,
    TensorDataset,
    data,
    record_stream,
)
from gpuloader.devices import cuda, cuda_device
from gpuloader.devices.places import cuda_places, default_place, open_device
from gpuloader.epoch import epoch as pipeline_epoch
from gpuloader.errors import Misuse, StagingMemoryError
from gpuloader.kernels import launching
from gpuloader.transforms import Cast
from tests.devices.conformance import LAYOUT
from tests.fakes import loader_threads, run_threads, wait_until
from tests.fakes_cuda import CudaError, DriverError, read, run_twins
from tests.gpu.streams import Named
from tests.loading import read_batches
from tests.processes import run_in_fork

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(params=["global", "thread_local", "relaxed"])
def capture(request, runtime):
    """Return a context in which a new stream is current and is captured; the capture must survive it."""

    @contextlib.contextmanager
    def begin(stream=None, *, current=True):
        stream = stream or cuda.cupy.cuda.Stream(non_blocking=True)
        with stream if current else contextlib.nullcontext():
            runtime.begin_capture(stream.ptr, request.param)
            try:
                yield stream
            finally:
                runtime.end_capture(stream.ptr)

    return begin


def batches(count):
    return lambda: ([np.full((3, 5), n, np.float32), np.full((3, 1), n)] for n in range(count))


def fake_torch(current):
    """Return PyTorch, with a function that returns the handle of its current stream on a device."""
    cuda = SimpleNamespace(is_initialized=lambda: True)
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_getCurrentRawStream=current))


def load(count, places="gpu:0", **options):
    return read_batches(batches(count), places, capacity=3, **options)


def numbers_of(runtime, batches):
    """Return the numbers of batches, each of which is read once its copy has run, and dropped."""
    numbers = []
    for images, *_ in batches:
        runtime.finish()
        numbers.append(int(read(images)[0, 0]))
        del images, _
    return numbers


@pytest.mark.parametrize("double_buffer", [True, False])
def test_an_epoch_gives_cupy_arrays_with_the_right_bytes(runtime, double_buffer):
    seen = []
    for number, (images, labels) in enumerate(load(20, use_double_buffer=double_buffer)):
        assert type(images) is cuda.cupy.ndarray
        assert (images.shape, images.dtype) == ((3, 5), "float32")
        assert (labels.shape, labels.dtype) == ((3, 1), "int64")
        assert labels.data.ptr - images.data.ptr == 256  # one slot, as on the host
        runtime.finish()
        seen.append((read(images)[0, 0], read(labels)[0, 0]))
        assert seen[-1] == (number, number)
    assert len(seen) == 20
    assert runtime.calls["memcpyAsync"] == 20  # one per batch, however many fields it has
    assert runtime.calls["malloc"] <= 4  # the slots are reused


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


@pytest.mark.parametrize("status", [700, 3])
def test_a_failed_device_is_an_error_and_not_a_hang(runtime, status):
    """Closing the epoch then fails as well, and must not replace our error by CuPy's."""
    epoch = iter(load(10))
    next(epoch)
    runtime.failed = status
    with pytest.raises(LoaderError, match=rf"gpu:0 failed.* {status}"):
        list(epoch)
    assert list(epoch) == []
    runtime.failed = 0


def test_after_a_failed_kernel_the_program_ends_in_silence_and_closes_every_loader(runtime):
    """Loops that nobody has ended, of which a traceback may hold the iterator."""
    runtime.devices = 2
    epochs = [iter(load(10, place)) for place in ("gpu:0", "cpu", "gpu:1", "cpu")]
    for epoch in epochs:
        next(epoch)
    runtime.failed = 700
    pipeline_epoch._close_running()
    assert not any(epoch.is_running for epoch in epochs)
    assert not loader_threads()
    runtime.failed = 0


@pytest.mark.parametrize("method", ["alloc", "stream", "event"])
def test_every_failure_has_the_packages_type(runtime, method):
    device = open_device(CUDAPlace(0))
    runtime.failed = 700
    with pytest.raises(LoaderError, match=r"gpu:0 failed: .* 700") as caught:
        getattr(device, method)(*[64] * (method == "alloc"))
    assert not isinstance(caught.value, StagingMemoryError)  # memory is not the cause
    assert isinstance(caught.value.__cause__, CudaError)
    runtime.failed = 0


@pytest.mark.parametrize("waits", [True, False])
def test_a_batch_dropped_at_once_is_read_before_it_is_overwritten(runtime, monkeypatch, waits):
    """Kernels run as late as possible; each sees its own batch, although nothing refers to the batch.

    The fake runtime detects missing waits: without them, kernels read too early.
    """
    if not waits:
        monkeypatch.setattr(cuda_device.CudaCalls, "wait", lambda self, stream, event: None)
    stream = cuda.cupy.cuda.Stream(non_blocking=True)
    with stream:
        seen = []
        for images, _ in load(40):
            seen.append(runtime.launch_read(images, stream.ptr))
            del images, _
    runtime.finish()
    assert ([float(values[0, 0]) for [values] in seen] == list(range(40))) is waits


class TestSeveralStreams:
    def follow(self, runtime, epoch, stream, note, *, drop=lambda epoch: None):
        """Read 40 batches on a stream that is two batches behind while all others are not; return the values.

        Each batch is dropped at once; `note` is called with it before, and `drop` afterwards.
        """
        seen, busy = [], []
        for _ in range(40):
            batch = next(epoch)
            busy.append(runtime.block_stream(stream))
            if len(busy) > 2:
                busy.pop(0).reach()
                runtime.run_stream(stream)
            note(batch)
            seen.append(runtime.launch_read(batch[0], stream))
            del batch
            drop(epoch)
            for number in sorted(runtime.work):
                if runtime.work[number] is not runtime.queue(stream):
                    runtime.run_stream(number)
        for mark in busy:
            mark.reach()
        list(epoch)
        runtime.finish()
        return [float(rows[0, 0]) for [rows] in seen]

    @pytest.mark.parametrize("in_a_thread", [True, False])
    def test_a_per_thread_default_stream_is_that_of_the_thread_the_batch_was_delivered_to(
        self, runtime, in_a_thread
    ):
        """Another thread asks for the next batch, so it takes the memory back; its own stream is idle."""

        def drop(epoch):
            if in_a_thread:
                thread = threading.Thread(target=lambda: next(epoch))
                thread.start()
                thread.join()

        loader = DataLoader.from_generator(capacity=3, stream=Named(2), use_double_buffer=False)
        epoch = iter(loader.set_batch_generator(batches(100), places="gpu:0"))
        values = self.follow(runtime, epoch, 2, lambda batch: None, drop=drop)
        assert values == list(range(0, 40 * (1 + in_a_thread), 1 + in_a_thread))

    def test_a_per_thread_default_stream_in_its_own_thread_holds_up_no_other_one(self, runtime, monkeypatch):
        streams, record = [], runtime.eventRecord
        monkeypatch.setattr(
            runtime, "eventRecord", lambda event, stream: (streams.append(stream), record(event, stream))
        )
        loader = DataLoader.from_generator(capacity=3, return_list=True, stream=Named(2))
        for _ in loader.set_batch_generator(batches(10), places="gpu:0"):
            pass
        assert streams.count(2) >= 8
        assert not {0, 1} & set(streams)

    @pytest.mark.parametrize("told", [True, False])
    @pytest.mark.parametrize("part", ["array", "batch", "slice"])
    def test_a_batch_on_a_side_stream(self, runtime, told, part):
        """The test can fail: without `record_stream` the side stream reads what was copied later."""
        side = cuda.cupy.cuda.Stream(non_blocking=True)
        device = open_device(CUDAPlace(0))

        def note(batch):
            ready = device.event()
            device.record(ready, device.consumer_stream())
            device.wait(side, ready)
            if told:
                what = {"array": batch[1], "batch": {"all": batch, "name": "b"}, "slice": batch[0][1:]}[part]
                for stream in (side, Named(side.ptr), SimpleNamespace(cuda_stream=side.ptr)):
                    record_stream(what, stream)

        values = self.follow(runtime, iter(load(100, use_double_buffer=False)), side.ptr, note)
        assert (values == list(range(40))) == told

    def test_a_stream_of_another_gpu_is_refused_at_once(self, runtime):
        runtime.devices = 2
        with cuda.cupy.cuda.Device(1):
            other = cuda.cupy.cuda.Stream(non_blocking=True)
        epoch = iter(load(10))
        batch = next(epoch)
        with pytest.raises(LoaderError, match=r"gpu:0: .* 400; a stream belongs to another GPU, or is gone"):
            record_stream(batch, other)
        del batch
        assert len(list(epoch)) == 9

    def test_streams_are_forgotten_with_their_batch(self, runtime):
        side = cuda.cupy.cuda.Stream(non_blocking=True)
        loader = load(30)
        for number, batch in enumerate(loader):
            if number < 5:
                record_stream(batch, side)
                record_stream(batch, side)
            del batch
            runtime.finish()
        [lane] = loader._epochs._idle[0].lanes
        assert all(slot.streams == [] for slot in lane._slots.free)
        # Of copies, releases, both streams, and timing.
        assert runtime.calls["eventRecord"] <= 30 + 30 + 2 * 5 + 10

    def test_what_is_not_a_batch(self, runtime):
        side = cuda.cupy.cuda.Stream(non_blocking=True)
        kept = list(load(2))
        batch = kept[0]
        record_stream([np.zeros(3), 5, "text", None, {}], side)  # nothing that a GPU reads
        [other] = cuda_device.CudaDevice(0).arrays(open_device(CUDAPlace(0)).alloc(LAYOUT.nbytes), LAYOUT)[:1]
        with pytest.raises(ValueError, match=r"an array of cupy with shape \(3, 5\) does not lie in the"):
            record_stream([batch, other], side)
        with pytest.raises(ValueError, match=r"with shape \(1, 5\) does not lie"):
            record_stream(other[:1], side)
        record_stream(other[:0], side)  # an empty array lies nowhere
        with pytest.raises(TypeError, match="int is not a CUDA stream"):
            record_stream(batch, 7)


class TestSeveralDevices:
    @pytest.fixture(autouse=True)
    def two_devices(self, runtime):
        runtime.devices = 2

    def test_each_step_has_a_batch_on_each(self, runtime):
        assert default_place() == CUDAPlace(0)
        assert cuda_places() == [CUDAPlace(0), CUDAPlace(1)]
        loader = read_batches(batches(8), cuda_places())
        numbers = []
        for step in loader:
            assert [images.device.id for images, _ in step] == [0, 1]
            runtime.finish()
            numbers += [int(read(images)[0, 0]) for images, _ in step]
        assert numbers == list(range(8))
        assert runtime.calls["hostRegister"] == 1

    def test_the_current_device_of_the_caller_stays(self, runtime):
        device = open_device(CUDAPlace(1))
        for current in (0, 1):
            runtime.setDevice(current)
            stream, event = device.stream(), device.event()
            device.record(event, stream)
            device.wait(device.consumer_stream(), event)
            device.synchronize(event)
            device.alloc(64)
            assert runtime.getDevice() == current
        runtime.setDevice(0)

    def test_threads_do_not_get_each_others_device(self, runtime, monkeypatch):
        """Two threads with different current devices use the same device object at once."""
        device = open_device(CUDAPlace(0))
        inside, left = threading.Barrier(2, timeout=10), threading.Event()
        after = {}
        original = runtime.memGetInfo

        def meet():
            inside.wait()
            if runtime.thread.came_from == 1:
                left.wait(10)  # leaves last, and would return to the other thread's device
            return original()

        def visit(current):
            runtime.setDevice(current)
            runtime.thread.came_from = current
            with device.current():
                assert runtime.getDevice() == 0
                runtime.memGetInfo()
            after[current] = runtime.getDevice()
            left.set()

        monkeypatch.setattr(runtime, "memGetInfo", meet)
        numbers = iter((0, 1))
        run_threads(lambda: visit(next(numbers)), 2)
        assert after == {0: 0, 1: 1}


class TestContexts:
    """A context takes some 500 MiB of its GPU, so none may come to exist on a GPU that nobody asked for."""

    @pytest.fixture(autouse=True)
    def four_devices(self, runtime, monkeypatch):
        """PyTorch's streams on the first device, that of a fresh thread, may create its context."""
        runtime.devices = 4
        monkeypatch.setitem(sys.modules, "torch", fake_torch(lambda index: runtime.enter(index) or 0))

    def in_a_fresh_thread(self, work):
        """Run `work` in a new thread, whose current device is the first one; return that device after it."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: (work(), cuda.cupy.cuda.runtime.getDevice())[1]).result()

    @pytest.mark.parametrize("places", ["gpu:3", ["gpu:3", "gpu:1"], None])
    def test_only_the_places_have_one(self, runtime, places):
        places = places or default_place(local_rank=3)

        def work():
            loader = read_batches(batches(20), places)
            for _ in range(2):
                for _ in loader:
                    runtime.finish()
            del loader
            gc.collect()

        assert self.in_a_fresh_thread(work) == 0  # the thread's device is as before
        assert runtime.contexts == ({1, 3} if isinstance(places, list) else {3})

    @pytest.mark.parametrize("cache", [None, "device"])
    def test_nor_by_kernels(self, runtime, monkeypatch, cache):
        run_twins(monkeypatch, runtime)
        rows = TensorDataset(np.arange(60, dtype=np.uint8).reshape(20, 3), np.arange(20))
        options = {"batch_size": 4, "shuffle": True, "transforms": [Cast("0", "int16")], "cache": cache}
        assert self.in_a_fresh_thread(lambda: list(DataLoader(rows, places="gpu:2", **options))) == 0
        assert runtime.contexts == {2}

    def test_nor_by_what_another_thread_drops(self, runtime):
        loader = load(30, places="gpu:3")
        kept = [[next(iter(loader))]]
        assert self.in_a_fresh_thread(kept.clear) == 0
        held = [iter(loader)]
        del loader
        assert self.in_a_fresh_thread(lambda: next(held[0])) == 0
        assert self.in_a_fresh_thread(held.clear) == 0
        assert runtime.contexts == {3}

    def test_what_a_thread_of_another_device_drops_starts_no_thread(self, runtime, monkeypatch):
        """A finalizer may run while its thread holds the locks that a new thread needs."""
        runtime.setDevice(3)
        device = open_device(CUDAPlace(3))
        held = [device.alloc(64), device.stream()]
        monkeypatch.setattr(futures, "ThreadPoolExecutor", lambda *_: pytest.fail("a thread was started"))
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert (runtime.calls["free"], runtime.calls["streamDestroy"]) == (1, 1)
        assert runtime.contexts == {3}

    def test_nor_by_an_event_that_is_asked(self, runtime):
        device = open_device(CUDAPlace(3))
        event = device.event()
        assert self.in_a_fresh_thread(lambda: (device.query(event), device.synchronize(event))) == 0
        assert runtime.contexts == {3}

    def test_page_locked_host_memory_needs_one_on_the_current_device(self, runtime):
        def work():
            runtime.setDevice(2)  # as a program does for its rank
            list(load(5, places="gpu_pinned"))

        assert self.in_a_fresh_thread(work) == 2
        assert runtime.contexts == {2}

    def test_a_context_of_another_device_stays_the_current_one(self, runtime):
        runtime.setDevice(1)
        list(load(5, places="gpu:3"))
        assert runtime.getDevice() == 1
        assert runtime.contexts == {1, 3}

    def test_that_cannot_be_created(self, runtime):
        device = open_device(CUDAPlace(3))
        runtime.failed = 2
        with pytest.raises(LoaderError, match=r"gpu:3 failed: .* 2"):
            device.stream()
        runtime.failed = 0
        assert device.stream().ptr
        assert runtime.contexts == {3}


def test_a_forked_child_ends_what_it_inherited_without_a_call_and_has_no_cuda(runtime):
    epoch = iter(load(30))
    kept = next(epoch)

    def work():
        before = runtime.calls.total()
        kept.clear()
        epoch.close()
        assert runtime.calls.total() == before
        with pytest.raises(PlaceError, match="gpu:0 cannot be used in a forked"):
            list(load(3))

    run_in_fork(work)
    assert len(list(epoch)) == 29  # the parent's epoch continues


@pytest.mark.parametrize(
    ("options", "priority"),
    [({}, 0), ({"transforms": [Cast("0", "float32")]}, -1), ({"cache": "device"}, -1)],
    ids=str,
)
def test_the_copy_stream_has_a_high_priority_where_kernels_run_on_it(runtime, monkeypatch, options, priority):
    run_twins(monkeypatch, runtime)
    loader = DataLoader(TensorDataset(np.arange(10)), places="gpu:0", batch_size=2, **options)
    for batch in loader:
        del batch
    [buffers] = loader._epochs._idle
    assert buffers.lanes[0]._copy_stream.priority == priority


class Graph:
    """A graph that reads an array: it knows an address only, and sees what is there when it runs."""

    def __init__(self, runtime, array):
        self.runtime, self.seen = runtime, []
        self.address, self.nbytes = array.data.ptr, array.nbytes

    def replay(self, stream):
        """Launch it on a stream."""
        look = lambda: np.frombuffer(ctypes.string_at(self.address, self.nbytes), "float32")[0]  # noqa: E731
        self.runtime.launch(lambda: self.seen.append(look()), stream)


class TestFixedAddresses:
    """A graph captured over the first batch is replayed over all others, on streams that run late."""

    @pytest.mark.parametrize("double_buffer", [True, False])
    def test_a_graph_sees_every_batch(self, runtime, double_buffer):
        loader = load(20, static=True, use_double_buffer=double_buffer)
        stream, graph = cuda.cupy.cuda.Stream(non_blocking=True), None
        with stream:
            for _ in range(2):
                for images, labels in loader:
                    graph = graph or Graph(runtime, images)
                    assert images.data.ptr == graph.address
                    graph.replay(stream.ptr)
                    del images, labels
        runtime.finish()
        assert graph.seen == [*range(20)] * 2

    def test_a_graph_on_a_side_stream_is_waited_for_if_it_is_recorded(self, runtime):
        side, graph = cuda.cupy.cuda.Stream(non_blocking=True), None
        device = open_device(CUDAPlace(0))
        for images, labels in load(20, static=True):
            graph = graph or Graph(runtime, images)
            ready = device.event()
            device.record(ready, device.consumer_stream())
            device.wait(side, ready)
            graph.replay(side.ptr)
            record_stream(labels, side)
        runtime.finish()
        assert graph.seen == list(range(20))

    def test_costs_one_copy_within_the_device_and_no_allocation_later(self, runtime):
        loader = load(20, static=True)
        for _ in loader:
            pass
        before = {**runtime.calls}
        for _ in loader:
            pass
        grown = {name: count - before.get(name, 0) for name, count in runtime.calls.items()}
        found = [grown.get(call, 0) for call in ("memcpyAsync", "memcpyWithin", "malloc", "free")]
        assert found == [20, 20, 0, 0]
        images, _ = next(iter(loader))
        runtime.finish()
        del loader, _
        gc.collect()
        assert read(images)[0, 0] == 0  # the memory lives as long as a batch

    def test_a_stream_of_the_last_batch_that_is_captured_is_left_alone(self, runtime, capture):
        """Waiting for its use would put an event into the graph."""
        side = cuda.cupy.cuda.Stream(non_blocking=True)
        epoch = iter(load(10, static=True))
        record_stream(next(epoch), side)
        with capture(side, current=False), pytest.raises(LoaderError, match=REFUSED):
            next(epoch)
        assert sum(1 for _ in epoch) == 9


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
        chip = SimpleNamespace(
            local_hardware_id=1, memory_stats=lambda: {"pool_bytes": 9_000, "bytes_in_use": 5_000}
        )
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


def ragged(sizes):
    """Return a reader of batches with these numbers of rows."""
    return lambda: ([np.full((size, 100), n, np.float32)] for n, size in enumerate(sizes))


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
        runtime.failed = 0
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


class TestKernelsFail:
    """Launches raise errors of the driver, the compiler or the library loader, not of the runtime."""

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (DriverError(719, "CUDA_ERROR_LAUNCH_FAILED"), r"gpu:0 failed: CUDA_ERROR_LAUNCH_FAILED.*719"),
            (
                cupy.cuda.compiler.CompileException("no such type", "", "gather", ()),
                "cannot compile a kernel for gpu:0",
            ),
            (RuntimeError('Failure finding "libnvrtc.so.13"'), r"compiler is missing: .*\[cuda13\]"),
            (
                cupy.cuda.memory.OutOfMemoryError(512, 1024),
                "CuPy's memory pool on gpu:0 is too small for a kernel",
            ),
        ],
        ids=["driver", "source", "compiler", "memory"],
    )
    def test_with_the_packages_type(self, runtime, error, message):
        with pytest.raises(LoaderError, match=message) as caught:
            self.run(error)
        assert caught.value.__cause__ is error
        assert isinstance(caught.value, StagingMemoryError) == isinstance(error, MemoryError)

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("no kernel of mine"),
            # A RuntimeError too, whose message may quote the library that is missing.
            LoaderError("cannot compile a kernel: libnvrtc.so.13 is missing"),
        ],
        ids=["of others", "of the package"],
    )
    def test_errors_that_say_enough_stay_as_they_are(self, runtime, error):
        with pytest.raises(RuntimeError) as caught:
            self.run(error)
        assert caught.value is error

    def run(self, error):
        class Failing:
            whole, steps = LAYOUT, ()

            def run_on_device(self, arrays, stream):
                raise error

        device = open_device(CUDAPlace(0))
        device.run(Failing(), device.alloc(LAYOUT.nbytes), device.stream())


class TestOneStep:
    def test_looks_at_the_device_once_and_asks_nothing_twice(self, runtime):
        """Copies and events take any current device, so the reader may have changed it."""
        loader = load(60)
        for _ in range(2):
            runtime.calls.clear()
            for batch in loader:
                del batch
                runtime.finish()
        calls = runtime.calls
        assert calls["getDevice"] <= 60 + 12  # and at the epoch's begin and end
        assert calls.total() <= 7.5 * 60
        assert calls["streamIsCapturing"] <= 60 + 4
        assert calls["streamWaitEvent"] <= 2 * 60
        assert calls["eventQuery"] <= 60
        assert not calls["ctxGetCurrent"] + calls["setDevice"] + calls["malloc"]

    @pytest.mark.parametrize("home", [0, 1])
    def test_a_reader_may_change_the_current_device(self, runtime, home):
        runtime.devices = 3

        def reading():
            for number, batch in enumerate(batches(40)()):
                runtime.setDevice(home if number % 3 else 2)
                yield batch

        runtime.setDevice(home)
        loader = read_batches(reading, "gpu:0")
        seen = []
        for images, _ in loader:
            runtime.setDevice(0)  # on whose default stream the batch is used
            seen.append(runtime.launch_read(images))
            runtime.setDevice(home)
        runtime.finish()
        assert [values[0, 0] for (values,) in seen] == list(range(40))


REFUSED = "gpu:0: its stream is being captured; a loader cannot deliver a batch during a graph capture"


class TestAStreamBeingCaptured:
    """Our events and waits would become part of the user's graph, so asking for a batch is an error."""

    def test_a_batch_is_refused_and_nothing_else_happens(self, runtime, capture):
        """Neither the capture nor the epoch ends."""
        epoch = iter(load(10))
        numbers = numbers_of(runtime, [next(epoch)])
        with capture():
            before = {**runtime.calls}
            for _ in range(3):
                with pytest.raises(LoaderError, match=REFUSED):
                    next(epoch)
            asked = {name for name, count in runtime.calls.items() if count > before.get(name, 0)}
            assert asked <= {"getDevice", "ctxGetCurrent", "streamIsCapturing"}
        assert numbers + numbers_of(runtime, epoch) == list(range(10))

    def test_an_epoch_does_not_begin(self, runtime, capture, monkeypatch):
        run_twins(monkeypatch, runtime)
        for loader in (load(10), DataLoader(TensorDataset(np.arange(10)), places="gpu:0", cache="device")):
            epoch = iter(loader)
            with capture(), pytest.raises(LoaderError, match=REFUSED):
                next(epoch)
            assert len(list(epoch)) == 10

    def test_a_loop_that_fails_inside_closes_its_epoch_later(self, runtime, capture):
        """Leaving the loop would wait for copies; the next epoch does, and takes the slots back."""
        loader = load(10)
        stream = cuda.cupy.cuda.Stream(non_blocking=True)
        with stream:
            epoch = iter(loader)
            next(epoch)
        with capture(stream):
            with pytest.raises(LoaderError, match=REFUSED):
                for _ in epoch:
                    pass
            epoch.close()
            assert not loader_threads()
            assert list(loader._epochs._idle) == []
            list(load(3, places="cpu"))  # must not take what is left of the epoch, either
        assert numbers_of(runtime, loader) == list(range(10))
        [buffers] = loader._epochs._idle
        assert buffers.ring.free == buffers.ring.count

    def test_what_closes_late_does_so_at_the_latest_with_the_program(self, runtime, capture):
        loader = load(10)
        epoch = iter(loader)
        next(epoch)
        with capture():
            epoch.close()
        assert list(loader._epochs._idle) == []
        pipeline_epoch._close_running()
        [buffers] = loader._epochs._idle
        assert buffers.ring.free == buffers.ring.count

    @pytest.mark.parametrize("whose", ["torch", "named"])
    def test_that_is_not_the_current_one_counts(self, runtime, capture, monkeypatch, whose):
        """The loader's arrays are on the default stream; the capture is PyTorch's, or of a named stream."""
        stream = cuda.cupy.cuda.Stream(non_blocking=True)
        stream.__cuda_stream__ = lambda: (0, stream.ptr)
        epoch = iter(load(10, stream=stream if whose == "named" else None))
        next(epoch)
        with monkeypatch.context() as patch, capture(stream, current=False):
            if whose == "torch":
                patch.setitem(sys.modules, "torch", fake_torch(lambda _: stream.ptr))
            with pytest.raises(LoaderError, match=REFUSED):
                next(epoch)
        assert len(list(epoch)) == 9

    @pytest.mark.parametrize("seed", range(8))
    def test_no_call_of_another_thread_ends_it(self, runtime, capture, monkeypatch, seed):
        """A thread of ours, or one of the user's that loops over a loader, drops batches or ends one."""
        run_twins(monkeypatch, runtime)
        compiled = [("one", "two")] * 2
        monkeypatch.setattr(cuda_device, "find_kernels", lambda program, arrays: compiled)
        monkeypatch.setattr(launching, "load_kernel", lambda *name: runtime.check("loadModule"))
        runtime.devices = 2
        sizes = random.Random(seed).choices(range(1, 40), k=30)
        halves = Cast("0", "float16")
        loaders = [
            read_batches(ragged(sizes), "gpu:0", capacity=3),
            load(20, "gpu:1", static=bool(seed % 2)),
            DataLoader(TensorDataset(np.arange(40)), places="gpu:0", cache="device", batch_size=4),
            DataLoader(TensorDataset(np.ones((40, 3))), places="gpu:1", batch_size=4, transforms=[halves]),
        ]
        begun = [iter(loader) for loader in loaders]
        kept = [next(epoch) for epoch in begun]
        acts = {
            "next": lambda draw: next(draw.choice(begun), None),
            "begin": lambda draw: begun.append(iter(draw.choice(loaders))),
            "all": lambda draw: list(load(5, "gpu:1")),
            "close": lambda draw: draw.choice(begun).close(),
            "drop": lambda draw: kept and kept.pop(),
            "forget": lambda draw: loaders[1:] and loaders.pop(),
            "warm up": lambda draw: load(3).warm_up(),
            "pin": lambda draw: list(load(2, CUDAPinnedPlace())),
        }

        def run():
            draw = random.Random(seed)
            for act in draw.choices(list(acts), k=40):
                with contextlib.suppress(Misuse):  # two loops over one memory
                    acts[act](draw)
            gc.collect()

        with capture():
            run_threads(run, 1)
        runtime.finish()
        assert runtime.thread.capture_mode == 0
        for epoch in begun:
            epoch.close()
        for held in (begun, kept, loaders):
            held.clear()
        gc.collect()
        wait_until(lambda: not loader_threads())  # one may hold the memory that it reads into

    def test_reading_on_with_larger_batches_does_not_end_it(self, runtime, capture):
        """The thread that reads ahead page-locks the slots that it grows."""
        waiting, go = threading.Event(), threading.Event()

        def read_rows():
            for number in range(8):
                if number == 2:
                    waiting.set()
                    go.wait(20)
                yield [np.full((1 + 10 * number, 100), number, np.float32)]

        epoch = iter(read_batches(read_rows, "gpu:0", capacity=3))
        numbers = numbers_of(runtime, [next(epoch)])
        assert waiting.wait(20)
        locked = runtime.calls["hostRegister"]
        with capture():
            go.set()
            wait_until(lambda: runtime.calls["hostRegister"] > locked, 20)
        assert numbers + numbers_of(runtime, epoch) == list(range(8))

    def test_that_a_call_has_ended_is_refused_like_one_that_goes_on(self, runtime):
        stream = cuda.cupy.cuda.Stream(non_blocking=True)
        epoch = iter(load(10))
        with stream:
            next(epoch)
            runtime.begin_capture(stream.ptr)
            with pytest.raises(CudaError):
                runtime.malloc(1)  # a call of the user's
            for _ in range(2):
                with pytest.raises(LoaderError, match=REFUSED):
                    next(epoch)
            del runtime.captures[stream.ptr]
            assert len(list(epoch)) == 9

    def test_the_feeder_is_refused(self, runtime, capture):
        feeder = DataFeeder([data("x", [None, 2])], "gpu:0")
        with capture(), pytest.raises(LoaderError, match=REFUSED):
            feeder.feed([([1, 2],)])
        assert read(feeder.feed([([1, 2],)])["x"]).tolist() == [[1, 2]]

    def test_is_left_alone_by_what_is_held_and_dropped(self, runtime, capture):
        """Batches may be used and dropped during a capture: nothing is called until the next is requested."""
        stream = cuda.cupy.cuda.Stream(non_blocking=True)
        with stream:
            epoch = iter(load(10))
            batch = next(epoch)
        runtime.finish()
        with capture(stream):
            before = runtime.calls.total()
            assert read(batch[0])[0, 0] == 0
            del batch
            gc.collect()
            assert runtime.calls.total() == before
        with stream:
            assert len(list(epoch)) == 9

    def test_by_another_thread_is_not_put_anything_on(self, runtime):
        """A batch was delivered to a stream that another thread captures when its slot comes back."""
        stream = cuda.cupy.cuda.Stream(non_blocking=True)
        epoch = iter(load(10))
        with stream:
            batch = next(epoch)
        runtime.begin_capture(stream.ptr, "relaxed")
        del batch
        gc.collect()
        for _ in range(3):
            next(epoch)
        [lane] = epoch._epoch.buffers.lanes
        assert [slot.streams for slot in lane._slots.freed].count([stream]) == 1
        runtime.end_capture(stream.ptr)
        assert len(list(epoch)) == 6
        assert [stream] not in [slot.streams for slot in lane._slots.freed]

    @pytest.mark.parametrize("mode", ["global", "relaxed"])
    def test_that_the_default_stream_would_wait_for_is_left_alone(self, runtime, mode):
        """Another thread captures a blocking stream, which work on the default stream would invalidate."""
        epoch = iter(load(10))
        numbers = numbers_of(runtime, [next(epoch)])
        with ThreadPoolExecutor(1) as other:
            stream = other.submit(lambda: cuda.cupy.cuda.Stream()).result()
            other.submit(runtime.begin_capture, stream.ptr, mode).result()
            for _ in range(3):
                with pytest.raises(LoaderError, match=REFUSED):
                    next(epoch)
            runtime.end_capture(stream.ptr)
        assert numbers + numbers_of(runtime, epoch) == list(range(10))

    @pytest.mark.parametrize("call", ["record", "query"])
    def test_whatever_says_so(self, runtime, call):
        device = open_device(CUDAPlace(0))
        event, stream = device.event(), device.stream()
        runtime.failed = 900
        with pytest.raises(LoaderError, match="900; a loader cannot deliver a batch during a graph capture"):
            getattr(device, call)(*(event, stream)[: 1 + (call == "record")])
        runtime.failed = 0


def test_the_feeder_sends_to_a_device_that_is_not_the_current_one(runtime):
    """The default stream has handle 0 on every device, so copies and marks must set the device."""
    runtime.devices = 2
    feeder = DataFeeder([data("x", [None, 2]), data("words", [None, 1], "int64", lod_level=1)], CUDAPlace(1))
    batch = feeder.feed([([1, 2], [5, 6]), ([3, 4], [7])])
    assert batch["x"].device.id == 1
    assert read(batch["x"]).tolist() == [[1, 2], [3, 4]]  # no runtime.finish(): feed waits for the copy
    assert read(batch["words"].values).tolist() == [[5], [6], [7]]
    assert read(batch["words"].row_splits[0]).tolist() == [0, 2, 3]


def test_a_pinned_place_gives_page_locked_numpy_arrays(runtime):
    loader = read_batches(batches(4), CUDAPinnedPlace())
    for number, (images, _) in enumerate(loader):
        assert type(images) is np.ndarray
        assert images[0, 0] == number
        [(start, nbytes)] = runtime.registered.items()
        assert start <= images.ctypes.data < start + nbytes
    del loader, images, _
    assert runtime.calls["memcpyAsync"] == 0


def test_a_gpu_and_a_cpu_share_a_reader(runtime):
    loader = read_batches(batches(8), ["gpu:0", "cpu"])
    numbers = []
    for (first, _), (second, _) in loader:
        runtime.finish()
        numbers += [int(read(first)[0, 0]), int(second[0, 0])]
    assert numbers == list(range(8))


def test_every_name_the_device_uses_is_in_the_real_cupy():
    """The fake must not hide a misspelled name."""
    source = inspect.getsource(cuda) + inspect.getsource(cuda_device)
    used = set(re.findall(r"(?:self\._runtime|cupy\.cuda\.runtime)\.(\w+)", source))
    assert {"memcpyAsync", "eventRecord", "hostRegister"} <= used
    assert [name for name in used if not hasattr(cupy.cuda.runtime, name)] == []
    used = set(re.findall(r"driver\.(\w+)\(", source))
    assert used == {"ctxGetCurrent", "ctxSetCurrent"}
    assert [name for name in used if not hasattr(cupy.cuda.driver, name)] == []
    used = set(re.findall(r"(?:cupy\.cuda|library)\.(\w+)", source))
    assert {"runtime", "driver", "memory", "compiler"} <= used
    assert {"Stream", "Event", "UnownedMemory"} <= used
    assert [name for name in used if not hasattr(cupy.cuda, name)] == []


def test_the_real_cupy_takes_what_the_device_gives():
    """Compares parameters with the signatures in CuPy's docstrings; compiled functions have no others."""
    takes = {
        cupy.cuda.runtime.memcpyAsync: "dst, src, size, kind, stream",
        cupy.cuda.runtime.eventRecord: "event, stream",
        cupy.cuda.runtime.streamWaitEvent: "stream, event, flags",
        cupy.cuda.runtime.eventQuery: "event",
        cupy.cuda.runtime.eventSynchronize: "event",
        cupy.cuda.runtime.hostRegister: "ptr, size, flags",
        cupy.cuda.runtime.hostUnregister: "ptr",
        cupy.cuda.runtime.memGetInfo: "",
        cupy.cuda.runtime.streamIsCapturing: "stream",
        cupy.cuda.runtime.getDevice: "",
        cupy.cuda.runtime.setDevice: "device",
        cupy.cuda.driver.ctxGetCurrent: "",
        cupy.cuda.driver.ctxSetCurrent: "ctx",
        cupy.cuda.runtime.runtimeGetVersion: "",
        cupy.cuda.runtime.malloc: "size",
        cupy.cuda.runtime.free: "ptr",
        cupy.cuda.UnownedMemory: "ptr, size, owner, device_id",
        cupy.cuda.MemoryPointer: "mem, offset",
        cupy.cuda.get_current_stream: "device_id",
    }
    for function, wanted in takes.items():
        given = re.search(r"\((.*?)\)", function.__doc__)[1]
        names = [part.split("=")[0].split()[-1] for part in given.split(",") if part]
        assert ", ".join(names) == wanted, function
    assert {"block", "disable_timing"} <= set(inspect.signature(cupy.cuda.Event).parameters)
    assert "non_blocking" in inspect.signature(cupy.cuda.Stream).parameters
    assert cupy.cuda.Stream.null.ptr == 0
    with pytest.raises(TypeError):
        cupy.cuda.runtime.hostUnregister()  # the fake has the signatures asserted above


@pytest.mark.skipif(cupy.cuda.is_available(), reason="a GPU is here")
def test_cupys_own_error_has_a_status():
    """Without a driver every call fails, so the real error can be inspected."""
    assert issubclass(CudaError, RuntimeError)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as caught:
        cupy.cuda.Memory(64)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.status, int)
