"""The CUDA device over a fake runtime; tests/gpu tests the behavior of CuPy itself on hardware."""

import gc
import inspect
import re
import sys
import threading
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import (
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
from gpuloader.devices.places import default_place, open_device
from gpuloader.epoch import epoch as pipeline_epoch
from gpuloader.errors import StagingMemoryError
from gpuloader.transforms import Cast
from tests.devices.conformance import LAYOUT
from tests.devices.cuda_loaders import batches, fake_torch, load
from tests.fakes import loader_threads, run_threads
from tests.fakes_cuda import CudaError, DriverError, read
from tests.gpu.streams import Named
from tests.loading import read_batches
from tests.processes import run_in_fork

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
CompileException, OutOfMemoryError = cupy.cuda.compiler.CompileException, cupy.cuda.memory.OutOfMemoryError


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


@pytest.mark.parametrize("status", [700, 3])
def test_a_failed_device_is_an_error_and_not_a_hang(runtime, status):
    """Closing the epoch then fails as well, and must not replace our error by CuPy's."""
    epoch = iter(load(10))
    next(epoch)
    runtime.failed = status
    with pytest.raises(LoaderError, match=rf"gpu:0 failed.* {status}"):
        list(epoch)
    assert list(epoch) == []
    runtime.replace_device()


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
    runtime.replace_device()


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
                run_threads(lambda: next(epoch), 1)

        loader = DataLoader.from_generator(capacity=3, stream=Named(2), use_double_buffer=False)
        epoch = iter(loader.set_batch_generator(batches(100), places="gpu:0"))
        values = self.follow(runtime, epoch, 2, lambda batch: None, drop=drop)
        assert values == list(range(0, 40 * (1 + in_a_thread), 1 + in_a_thread))

    def test_a_per_thread_default_stream_in_its_own_thread_holds_up_no_other_one(self, runtime, monkeypatch):
        streams, record = [], runtime.eventRecord
        monkeypatch.setattr(runtime, "eventRecord", lambda *given: (streams.append(given[1]), record(*given)))
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
        inside, left = threading.Barrier(2, timeout=60), threading.Event()
        after = {}
        original = runtime.memGetInfo

        def meet():
            inside.wait()
            if runtime.thread.came_from == 1:
                left.wait(60)  # leaves last, and would return to the other thread's device
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
    def test_nor_by_kernels(self, runtime, cache):
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
        run_threads(held.clear, 1)
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
def test_the_copy_stream_has_a_high_priority_where_kernels_run_on_it(runtime, options, priority):
    loader = DataLoader(TensorDataset(np.arange(10)), places="gpu:0", batch_size=2, **options)
    for batch in loader:
        del batch
    [buffers] = loader._epochs._idle
    assert buffers.lanes[0]._copy_stream.priority == priority


class TestKernelsFail:
    """Launches raise errors of the driver, the compiler or the library loader, not of the runtime."""

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (DriverError(719, "CUDA_ERROR_LAUNCH_FAILED"), r"gpu:0 failed: CUDA_ERROR_LAUNCH_FAILED.*719"),
            (CompileException("no such type", "", "gather", ()), "cannot compile a kernel for gpu:0"),
            (RuntimeError('Failure finding "libnvrtc.so.13"'), r"compiler is missing: .*\[cuda13\]"),
            (OutOfMemoryError(512, 1024), "CuPy's memory pool on gpu:0 is too small for a kernel"),
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


def test_the_feeder_sends_to_a_device_that_is_not_the_current_one(runtime):
    """The default stream has handle 0 on every device, so copies and marks must set the device."""
    runtime.devices = 2
    feeder = DataFeeder([data("x", [None, 2]), data("words", [None, 1], "int64", lod_level=1)], CUDAPlace(1))
    batch = feeder.feed([([1, 2], [5, 6]), ([3, 4], [7])])
    assert batch["x"].device.id == 1
    assert read(batch["x"]).tolist() == [[1, 2], [3, 4]]  # no runtime.finish(): feed waits for the copy
    assert read(batch["words"].values).tolist() == [[5], [6], [7]]
    assert read(batch["words"].row_splits[0]).tolist() == [0, 2, 3]


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
