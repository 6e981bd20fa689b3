"""Graphs over the fake CUDA runtime: batches at fixed addresses, and streams that are being captured."""

import contextlib
import ctypes
import gc
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpuloader import (
    CUDAPinnedPlace,
    CUDAPlace,
    DataFeeder,
    DataLoader,
    LoaderError,
    TensorDataset,
    data,
    record_stream,
)
from gpuloader.devices import cuda, cuda_device
from gpuloader.devices.places import open_device
from gpuloader.epoch import epoch as pipeline_epoch
from gpuloader.errors import Misuse
from gpuloader.kernels import launching
from gpuloader.transforms import Cast
from tests.devices.cuda_loaders import REFUSED, fake_torch, load, numbers_of, ragged
from tests.fakes import loader_threads, run_threads, wait_until
from tests.fakes_cuda import CudaError, read
from tests.loading import read_batches


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

    def test_an_epoch_does_not_begin(self, runtime, capture):
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
                    go.wait(60)
                yield [np.full((1 + 10 * number, 100), number, np.float32)]

        epoch = iter(read_batches(read_rows, "gpu:0", capacity=3))
        numbers = numbers_of(runtime, [next(epoch)])
        assert waiting.wait(60)
        locked = runtime.calls["hostRegister"]
        with capture():
            go.set()
            wait_until(lambda: runtime.calls["hostRegister"] > locked)
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
