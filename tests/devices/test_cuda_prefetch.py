"""`prefetch` on the CUDA device, over the fake runtime: page-locked arrays, streams, captures, contexts."""

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gpuloader
from gpuloader import LoaderError
from gpuloader.devices import cuda
from gpuloader.devices.places import CUDAPlace, open_device
from gpuloader.transforms import Cast, Normalize, OneHot
from tests.fakes import nothing_left_behind
from tests.fakes_cuda import FakeRuntime, make_cupy, read, run_twins, use_cupy

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def runtime(monkeypatch):
    class Array(cupy.ndarray):
        """Exports itself, because CuPy's own capsule needs a driver."""

        def __dlpack__(self, *, stream=None):
            assert stream == -1
            return self

    fake = FakeRuntime()
    run_twins(monkeypatch, fake)
    module = make_cupy(cupy, fake)
    module.ndarray = Array
    with use_cupy(monkeypatch, module):
        yield fake


class Tensor:
    """Stands for PyTorch's tensor: in host memory, or over an array of a device."""

    is_nested = is_quantized = requires_grad = False
    layout = "strided"

    def __init__(self, array):
        self.array = array
        self.device = SimpleNamespace(type="cpu" if isinstance(array, np.ndarray) else "cuda")

    def numpy(self):
        if self.device.type != "cpu":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return self.array


@pytest.fixture
def torch(monkeypatch, runtime):
    module, dlpack = ModuleType("torch"), ModuleType("torch.utils.dlpack")
    module.Tensor, module.strided = Tensor, "strided"
    module.stream = cuda.cupy.cuda.Stream(non_blocking=True)
    module.cuda = SimpleNamespace(
        current_stream=lambda index: SimpleNamespace(cuda_stream=module.stream.ptr),
        is_initialized=lambda: False,
    )
    module._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: module.stream.ptr)
    dlpack.from_dlpack = Tensor
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.utils", ModuleType("torch.utils"))
    monkeypatch.setitem(sys.modules, "torch.utils.dlpack", dlpack)
    return module


def pin(runtime, array):
    """Make an array page-locked by another library, until it dies."""
    runtime.pinned[array.ctypes.data] = array.nbytes
    weakref.finalize(array, runtime.pinned.pop, array.ctypes.data)
    return array


def big(number):
    return np.full((100, 100), number, np.int64)


def seen(array):
    return int(read(array).ravel()[0])


class TestPageLocked:
    def test_one_copy_more_from_where_it_lies(self, runtime):
        batches = [{"x": pin(runtime, big(n)), "n": np.full(3, n), "meta": n} for n in range(10)]
        addresses = {one["x"].ctypes.data for one in batches}
        sources = []
        copy = runtime.memcpyAsync
        runtime.memcpyAsync = lambda to, source, *rest: (sources.append(source), copy(to, source, *rest))
        for number, batch in enumerate(gpuloader.prefetch(batches, places="gpu:0")):
            runtime.finish()
            assert (seen(batch["x"]), seen(batch["n"]), batch["meta"]) == (number, number, number)
            assert batch["n"].data.ptr % 256 == batch["x"].data.ptr % 256
        assert len(sources) == 20
        assert set(sources[::2]) == addresses
        assert runtime.calls["malloc"] <= 5

    def test_they_are_held_until_the_copy_has_run(self, runtime):
        gone = []

        def batches():
            for number in range(6):
                array = pin(runtime, big(number))
                weakref.finalize(array, gone.append, number)
                yield [array]
                del array

        found = []
        epoch = iter(gpuloader.prefetch(batches(), places="gpu:0", prefetch=0))
        for number, [array] in enumerate(epoch):
            gc.collect()
            assert number not in gone
            found.append(runtime.launch_read(array))
            del array
        del epoch
        runtime.finish()
        assert [int(values[0][0, 0]) for values in found] == list(range(6))
        gc.collect()
        assert sorted(gone) == list(range(6))

    def test_others_go_through_slots(self, runtime):
        batches = [[big(n), np.arange(3)] for n in range(5)]
        for number, [array, _] in enumerate(gpuloader.prefetch(batches, places="gpu:0")):
            runtime.finish()
            assert seen(array) == number
        assert runtime.calls["memcpyAsync"] == 5

    def test_an_array_that_is_page_locked_in_part_goes_through_a_slot(self, runtime):
        array = big(3)
        runtime.pinned[array.ctypes.data] = array.nbytes - 1
        [[found]] = gpuloader.prefetch([[array]], places="gpu:0")
        runtime.finish()
        assert seen(found) == 3
        assert runtime.calls["memcpyAsync"] == 1

    def test_the_slots_memory_is_page_locked(self, runtime):
        device = open_device(CUDAPlace(0))
        loader = gpuloader.prefetch([[big(1)]] * 3, places="gpu:0")
        list(loader)
        [(address, nbytes)] = runtime.registered.items()
        assert device.is_page_locked(address, nbytes)
        assert not device.is_page_locked(address, nbytes + 1)
        assert not device.is_page_locked(big(0).ctypes.data, 8)

    def test_with_transforms(self, runtime):
        pictures = [pin(runtime, np.full((4, 60, 60, 3), n, np.uint8)) for n in range(4)]
        batches = [{"y": np.arange(4) % 3, "x": one} for one in pictures]
        steps = [Normalize("x", scale=1 / 4), OneHot("y", 3)]
        wanted = list(gpuloader.prefetch(batches, places="cpu", transforms=steps))
        loader = gpuloader.prefetch(batches, places="gpu:0", transforms=steps)
        for batch, other in zip(loader, wanted, strict=True):
            runtime.finish()
            for name in ("x", "y"):
                np.testing.assert_array_equal(read(batch[name]), other[name])


class TestTensors:
    def test_tensors_of_torch_stay_tensors_of_torch(self, runtime, torch):
        """They are used on PyTorch's stream, from the first batch on."""
        batches = [{"x": Tensor(big(n)), "n": n} for n in range(12)]
        found = []
        for batch in gpuloader.prefetch(batches, places="gpu:0"):
            assert type(batch["x"]) is Tensor
            assert batch["x"].device.type == "cuda"
            found.append(runtime.launch_read(batch["x"].array, torch.stream.ptr))
            del batch
        runtime.finish()
        assert [int(values[0][0, 0]) for values in found] == list(range(12))

    def test_tensors_that_are_on_a_gpu_are_handed_through(self, runtime, torch):
        [array] = gpuloader.prefetch([np.arange(3)], places="gpu:0", output="cupy")
        tensor = Tensor(array)
        [batch] = gpuloader.prefetch([{"x": tensor, "y": Tensor(big(0))}], places="gpu:0")
        assert batch["x"] is tensor
        assert batch["y"].array.device.id == 0

    def test_arrays_become_cupys(self, runtime, torch):
        [batch] = gpuloader.prefetch([[big(0)]], places="gpu:0")
        assert isinstance(batch[0], cupy.ndarray)

    def test_an_output_that_is_asked_for(self, runtime, torch):
        [batch] = gpuloader.prefetch([[big(0)]], places="gpu:0", output="torch")
        assert type(batch[0]) is Tensor
        [batch] = gpuloader.prefetch([[Tensor(big(0))]], places="gpu:0", output="cupy")
        assert isinstance(batch[0], cupy.ndarray)


class TestGpus:
    def test_no_other_gpu_gets_a_context(self, runtime):
        runtime.devices = 4
        batches = [[pin(runtime, big(n)), np.arange(3)] for n in range(6)]
        for [found, _] in gpuloader.prefetch(batches, places="gpu:3"):
            assert found.device.id == 3
        assert runtime.contexts == {3}

    def test_the_gpu_of_this_process(self, runtime, torch, monkeypatch):
        runtime.devices = 4
        monkeypatch.setenv("LOCAL_RANK", "2")
        [found] = gpuloader.prefetch([big(0)])
        assert found.device.id == 2
        torch.cuda.is_initialized = lambda: True
        torch.cuda.is_current_stream_capturing = lambda: False
        torch.cuda.current_device = lambda: 1
        [found] = gpuloader.prefetch([big(0)])
        assert found.device.id == 1

    def test_several(self, runtime):
        runtime.devices = 2
        batches = [{"x": pin(runtime, big(n))} for n in range(5)]
        for number, step in enumerate(gpuloader.prefetch(batches, places=["gpu:0", "gpu:1"])):
            runtime.finish()
            assert [one["x"].device.id for one in step] == [0, 1][: len(step)]
            assert [seen(one["x"]) for one in step] == [2 * number, 2 * number + 1][: len(step)]

    def test_a_capture_is_refused_and_survives(self, runtime):
        epoch = iter(gpuloader.prefetch([[big(n)] for n in range(6)], places="gpu:0"))
        next(epoch)
        stream = cuda.cupy.cuda.Stream(non_blocking=True)
        with stream:
            runtime.begin_capture(stream.ptr)
            with pytest.raises(LoaderError, match="captured"):
                next(epoch)
            runtime.end_capture(stream.ptr)
        assert len(list(epoch)) == 5

    @pytest.mark.parametrize("status", [700, 3])
    def test_a_failed_device_is_an_error_and_not_a_hang(self, runtime, status):
        epoch = iter(gpuloader.prefetch([[big(n)] for n in range(9)], places="gpu:0"))
        next(epoch)
        runtime.failed = status
        with pytest.raises(LoaderError, match=rf"gpu:0 failed.* {status}"):
            list(epoch)
        runtime.failed = 0

    def test_nothing_is_left_behind(self, runtime):
        batches = [{"x": pin(runtime, big(n)), "n": np.arange(4)} for n in range(6)]
        list(gpuloader.prefetch(batches, places="gpu:0"))
        with nothing_left_behind():
            for _ in gpuloader.prefetch(batches, places="gpu:0"):
                break
            list(gpuloader.prefetch(batches, places="gpu:0"))
            runtime.finish()


@pytest.mark.parametrize(("transforms", "priority"), [([], 0), ([Cast("0", "float32")], -1)])
def test_kernels_of_transforms_go_ahead_of_the_models(runtime, transforms, priority):
    loader = gpuloader.prefetch([[np.arange(4)]] * 3, places="gpu:0", transforms=transforms)
    for batch in loader:
        del batch
    [buffers] = loader._epochs._idle
    assert buffers.lanes[0]._copy_stream.priority == priority
