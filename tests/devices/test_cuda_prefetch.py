"""`prefetch` on the CUDA device, over the fake runtime: page-locked arrays, streams, captures, contexts."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import gpuloader
from gpuloader.devices import cuda
from gpuloader.devices.places import CUDAPlace, open_device
from tests.fakes_cuda import install_framework, read


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
    stream = cuda.cupy.cuda.Stream(non_blocking=True)
    monkeypatch.setattr(Tensor, "__module__", "torch")  # classes of others are lost with a warning
    module = install_framework(monkeypatch, "torch", Tensor, lambda index: stream.ptr)
    module.Tensor, module.strided, module.stream = Tensor, "strided", stream
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

    @pytest.mark.parametrize("locked", [0, 79_999])
    def test_others_and_those_that_are_page_locked_in_part_go_through_slots(self, runtime, locked):
        batches = [[big(n), np.arange(3)] for n in range(5)]
        runtime.pinned.update({array.ctypes.data: locked for array, _ in batches if locked})
        for number, [array, _] in enumerate(gpuloader.prefetch(batches, places="gpu:0")):
            runtime.finish()
            assert seen(array) == number
        assert runtime.calls["memcpyAsync"] == 5

    def test_the_slots_memory_is_page_locked(self, runtime):
        device = open_device(CUDAPlace(0))
        loader = gpuloader.prefetch([[big(1)]] * 3, places="gpu:0")
        list(loader)
        [(address, nbytes)] = runtime.registered.items()
        assert device.is_page_locked(address, nbytes)
        assert not device.is_page_locked(address, nbytes + 1)
        assert not device.is_page_locked(big(0).ctypes.data, 8)


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

    def test_an_output_that_is_asked_for(self, runtime, torch):
        [batch] = gpuloader.prefetch([[big(0)]], places="gpu:0")
        assert isinstance(batch[0], cuda.cupy.ndarray)
        [batch] = gpuloader.prefetch([[big(0)]], places="gpu:0", output="torch")
        assert type(batch[0]) is Tensor
        [batch] = gpuloader.prefetch([[Tensor(big(0))]], places="gpu:0", output="cupy")
        assert isinstance(batch[0], cuda.cupy.ndarray)


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
