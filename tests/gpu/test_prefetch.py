"""`prefetch` on hardware: values behind late kernels, page-locked tensors, streams, contexts and captures."""

import numpy as np
import pytest

import gpuloader
from gpuloader.devices.places import CUDAPlace, open_device
from gpuloader.kernels.spin import spin
from tests.gpu.streams import as_cupy
from tests.gpu.test_handover import SPIN, picture

COUNT = 30


def batches(torch=None, *, pinned=False):
    for number in range(COUNT):
        image, numbers = picture(number), np.arange(number % 5)
        if torch is not None:
            image, numbers = torch.from_numpy(image), torch.from_numpy(numbers)
        yield {"image": image.pin_memory() if pinned else image, "more": (numbers, f"{number}.jpg")}


class Passes:
    """An iterable of batches for any number of passes."""

    def __init__(self, *arguments, **options):
        self.arguments, self.options = arguments, options

    def __iter__(self):
        return batches(*self.arguments, **self.options)


def check(kept):
    for number, (image, numbers, name) in enumerate(kept):
        np.testing.assert_array_equal(image, picture(number))
        assert (numbers, name) == (list(range(number % 5)), f"{number}.jpg")
    assert len(kept) == COUNT


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_arrays_become_cupys(prefetch):
    import cupy

    loader = gpuloader.prefetch(Passes(), places="gpu:0", prefetch=prefetch)
    for _ in range(2):
        kept = []
        for batch in loader:
            assert type(batch["image"]) is cupy.ndarray
            kept.append((batch["image"].get(), batch["more"][0].get().tolist(), batch["more"][1]))
        check(kept)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("stream", ["default", "own"])
def test_tensors_behind_late_kernels(torch, pinned, stream):
    """Each batch is cloned behind a long kernel on PyTorch's current stream, and dropped at once."""
    own = torch.cuda.current_stream() if stream == "default" else torch.cuda.Stream()
    loader = gpuloader.prefetch(Passes(torch, pinned=pinned), places="cuda:0")
    for _ in range(2):
        kept = []
        with torch.cuda.stream(own):
            for batch in loader:
                assert batch["image"].is_cuda
                spin(SPIN, stream=as_cupy(own))
                kept.append((batch["image"].clone(), batch["more"][0].clone(), batch["more"][1]))
                del batch
        own.synchronize()
        check([(image.cpu().numpy(), numbers.tolist(), name) for image, numbers, name in kept])


def test_pinned_tensors_are_copied_from_where_they_lie(torch, monkeypatch):
    from gpuloader.devices.cuda_device import CudaCalls

    sources, original = [], CudaCalls.copy_async

    def copy(self, target, source, *rest):
        sources.append(source.address)
        original(self, target, source, *rest)

    monkeypatch.setattr(CudaCalls, "copy_async", copy)
    tensors = [torch.from_numpy(picture(number)).pin_memory() for number in range(4)]
    for number, tensor in enumerate(gpuloader.prefetch(tensors, places="cuda:0")):
        np.testing.assert_array_equal(tensor.cpu().numpy(), picture(number))
    assert sources[::2] == [tensor.data_ptr() for tensor in tensors]


def test_memory_that_is_page_locked(torch):
    device = open_device(CUDAPlace(0))
    pinned, pageable = torch.zeros(1 << 20).pin_memory(), torch.zeros(1 << 20)
    assert device.is_page_locked(pinned.data_ptr(), pinned.nbytes)
    assert not device.is_page_locked(pageable.data_ptr(), pageable.nbytes)


def test_pytorchs_loader_with_workers(torch):
    dataset = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4), torch.arange(16))
    for pinned in (False, True):
        inner = torch.utils.data.DataLoader(dataset, 4, num_workers=2, pin_memory=pinned)
        found = [labels.tolist() for _, labels in gpuloader.prefetch(inner, places="cuda:0")]
        assert found == [[*range(n, n + 4)] for n in (0, 4, 8, 12)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "complex64"])
def test_dtypes(torch, dtype):
    tensor = torch.arange(40).to(getattr(torch, dtype))
    [found] = gpuloader.prefetch([tensor], places="cuda:0")
    assert found.dtype == tensor.dtype
    assert found.cpu().view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def test_memory_format_stays(torch):
    tensor = torch.rand(8, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for one in (tensor, tensor.pin_memory()):
        [found] = gpuloader.prefetch([one], places="cuda:0")
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found.cpu(), tensor)


def test_jax(jax):
    arrays = [{"x": jax.numpy.asarray(picture(number), device=jax.devices("cpu")[0])} for number in range(6)]
    for number, batch in enumerate(gpuloader.prefetch(arrays, places="gpu:0")):
        assert batch["x"].devices() == {jax.devices("gpu")[0]}
        np.testing.assert_array_equal(np.asarray(batch["x"]), picture(number))
