"""Batches as tensors of a framework: no copy, and correct values however late kernels run."""

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpuloader import DataLoader, TensorDataset, record_stream
from gpuloader.devices.cuda_device import CudaCalls
from gpuloader.kernels.spin import spin
from tests.fakes import run_threads
from tests.gpu.streams import Named, as_cupy

SHAPE = (64, 1024)
SPIN = 2_000_000  # nanoseconds, the time of a hundred copies
COUNT = 40


def picture(number):
    """Return a batch that differs from every other one in all its parts."""
    return np.random.default_rng(number).random(SHAPE, np.float32)


def read(count):
    return lambda: ([picture(number)] for number in range(count))


def load(count=COUNT, *, output, **options):
    """Return a loader with two fields: pictures, and numbers that follow them in the slot."""
    stacked = np.stack([picture(number) for number in range(count)])
    dataset = TensorDataset(stacked, np.arange(count))
    return DataLoader(dataset, places="gpu:0", batch_size=1, output=output, **options)


def to_numpy(tensor):
    for method in ("cpu", "get"):
        if hasattr(tensor, method):
            return np.asarray(getattr(tensor, method)())
    return np.asarray(tensor)


def check(kept, numbers=None):
    numbers = range(len(kept)) if numbers is None else numbers
    for tensor, number in zip(kept, numbers, strict=True):
        np.testing.assert_array_equal(to_numpy(tensor).reshape(SHAPE), picture(number))


def copy_behind_kernels(stream, *, named=None, **options):
    """Copy each batch behind a long kernel on a CuPy stream, drop it at once, and return the copies.

    The stream is current for the whole loop, unless the loader gets it by name as `named`.
    """
    kept = []
    with contextlib.nullcontext() if named else stream:
        for images, _ in load(output="cupy", stream=named, **options):
            with stream:
                spin(SPIN, stream=stream)
                kept.append(images.copy())
            del images, _
    stream.synchronize()
    return kept


def check_behind_kernels(torch, stream, loader):
    """Clone each batch behind a long kernel on a torch stream, drop it at once, and check the clones."""
    kept = []
    for images, _ in loader:
        with torch.cuda.stream(stream):
            spin(SPIN, stream=as_cupy(stream))
            kept.append(images.clone())
        del images, _
    stream.synchronize()
    check(kept)


class TestWithoutACopy:
    def test_cupy(self, landed):
        import cupy

        for images, labels in load(output="cupy"):
            assert type(images) is cupy.ndarray
            assert [images.data.ptr, labels.data.ptr] == landed[-1]

    def test_torch(self, torch, landed):
        for images, labels in load(output="torch"):
            assert type(images) is torch.Tensor
            assert images.is_cuda
            assert images.device.index == 0
            assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
            assert [images.data_ptr(), labels.data_ptr()] == landed[-1]
        assert len({addresses[0] for addresses in landed}) <= 5  # the slots go round

    def test_jax_has_copies(self, jax, landed):
        for images, _ in load(output="jax"):
            assert isinstance(images, jax.Array)
            assert images.devices() == {jax.devices("gpu")[0]}
            assert images.unsafe_buffer_pointer() != landed[-1][0]


class TestUnderLoad:
    """Each consumer queues a long kernel on its stream, uses the batch behind it, and drops it at once."""

    @pytest.mark.parametrize("ahead", [True, False])
    @pytest.mark.parametrize("own", [True, False])
    def test_cupy(self, own, ahead):
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True) if own else cupy.cuda.Stream.null
        check(copy_behind_kernels(stream, use_buffer_reader=ahead))

    def test_cupy_on_a_stream_of_torch(self, torch):
        check(copy_behind_kernels(as_cupy(torch.cuda.Stream())))

    @pytest.mark.parametrize("prefetch", [1, 3])
    def test_torch_on_its_default_stream(self, torch, prefetch):
        stream = torch.cuda.current_stream()
        check_behind_kernels(torch, stream, load(output="torch", prefetch=prefetch))

    def test_torch_on_a_stream_of_its_own(self, torch):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            check_behind_kernels(torch, stream, load(output="torch"))

    @pytest.mark.parametrize("form", ["named", "function", "torch's own"])
    def test_torch_on_a_stream_that_is_named(self, torch, form):
        """It need not be the current stream when the consumer requests the batch."""
        stream = torch.cuda.Stream()
        named = Named(stream.cuda_stream)
        given = {"named": named, "function": lambda: named, "torch's own": stream}[form]
        check_behind_kernels(torch, stream, load(output="torch", stream=given))

    def clone_on_a_side_stream(self, torch, note):
        """Clone each batch on a stream that is far behind the one it is delivered to; `note` tells of it."""
        side, kept = torch.cuda.Stream(), []
        for images, labels in load(output="torch"):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                spin(SPIN, stream=as_cupy(side))
                kept.append(images.clone())
            note(images, side)
            del images, labels
        side.synchronize()
        return kept

    def test_torch_on_a_further_stream(self, torch):
        check(self.clone_on_a_side_stream(torch, record_stream))

    def test_torchs_own_record_stream_does_nothing(self, torch):
        """If this fails, PyTorch has learnt it, and the guide can say so."""
        kept = self.clone_on_a_side_stream(torch, torch.Tensor.record_stream)
        with pytest.raises(AssertionError):
            check(kept)

    def test_per_thread_default_streams(self):
        """Two threads take turns with the batches of one epoch, each on its own default stream."""
        import cupy

        epoch, turn, kept = iter(load(output="cupy", stream=Named(2))), threading.Barrier(2), {}

        def consume(first):
            stream = cupy.cuda.Stream.ptds
            for number in range(0, COUNT, 2):
                for now in (0, 1):
                    turn.wait()
                    if now == first:
                        images, _ = next(epoch)
                        spin(SPIN * (1 - first), stream=stream)
                        with stream:
                            kept[number + first] = images.copy()
                        del images, _
            stream.synchronize()

        numbers = iter((0, 1))
        run_threads(lambda: consume(next(numbers)), 2)
        check([kept[number] for number in range(COUNT)])

    def test_a_cupy_consumer_on_a_named_stream(self):
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        check(copy_behind_kernels(stream, named=Named(stream.ptr)))

    def test_jax(self, jax):
        """JAX's stream is busy too, and narrows the 64-bit labels behind that work."""
        size = 2048
        work = jax.jit(lambda one: jax.lax.fori_loop(0, 20, lambda _, two: (one @ two) / size, one))
        matrix = jax.numpy.ones((size, size), jax.numpy.float32)
        work(matrix).block_until_ready()
        kept, numbers = [], []
        for images, labels in load(output="jax"):
            work(matrix)
            spin(SPIN // 4)
            kept.append(images + 1)
            numbers.append(labels + 1)
            del images, labels
        for one, number in zip(kept, range(COUNT), strict=True):
            np.testing.assert_array_equal(np.asarray(one).reshape(SHAPE), picture(number) + np.float32(1))
        assert [int(one[0]) for one in numbers] == list(range(1, COUNT + 1))

    def test_without_waits_it_goes_wrong(self, monkeypatch):
        """The tests above can fail: a loader without waits corrupts the batches that they read."""
        import cupy

        monkeypatch.setattr(CudaCalls, "wait", lambda self, stream, event: None)
        with pytest.raises(AssertionError):
            check(copy_behind_kernels(cupy.cuda.Stream(non_blocking=True)))


class TestKept:
    @pytest.mark.parametrize("output", ["cupy", "torch", "jax"])
    def test_tensors_outlive_the_loader(self, output, request):
        if output != "cupy":
            request.getfixturevalue(output)
        loader = load(output=output)
        kept = [images for images, _ in loader]
        del loader
        gc.collect()
        for _ in load(output=output):  # overwrites all free memory
            pass
        check(kept)

    def test_views_of_tensors_keep_their_batch(self, torch):
        kept = [images[0, 5:7, ::3].T for images, _ in load(output="torch")]
        gc.collect()
        for number, part in enumerate(kept):
            np.testing.assert_array_equal(part.cpu().numpy(), picture(number)[5:7, ::3].T)

    def test_cupy_views_of_tensors_keep_them(self, torch):
        """From torch back to CuPy: the batch lives as long as the last tensor or array."""
        import cupy

        kept = [cupy.from_dlpack(images) for images, _ in load(output="torch")]
        gc.collect()
        check(kept)


class TestOtherThreads:
    def test_autograd_drops_what_it_saved(self, torch):
        """The backward pass frees its inputs in its own thread while the next batches arrive."""
        weights = torch.ones(SHAPE, device="cuda", requires_grad=True)
        grown = np.zeros(SHAPE, np.float64)
        for number, (images, _) in enumerate(load(output="torch")):
            loss = (weights * images[0]).sum()
            spin(SPIN // 4, stream=as_cupy(torch.cuda.current_stream()))
            del images, _
            loss.backward()
            del loss
            grown += picture(number)
        torch.cuda.synchronize()
        np.testing.assert_allclose(weights.grad.cpu().numpy(), grown, rtol=1e-5)

    def test_threads_drop_batches_while_the_loop_goes_on(self):
        import queue

        batches, wrong = queue.SimpleQueue(), []

        def drop():
            while (pair := batches.get()) is not None:
                images, number = pair
                if not (images.get().reshape(SHAPE) == picture(number)).all():
                    wrong.append(number)
                del pair, images

        with ThreadPoolExecutor(4) as pool:
            dropping = [pool.submit(drop) for _ in range(4)]
            for number, (images, _) in enumerate(load(output="cupy")):
                batches.put((images, number))
                del images, _
            for _ in dropping:
                batches.put(None)
        assert wrong == []


@pytest.mark.parametrize("output", ["cupy", "torch"])
def test_readers_too(output, request):
    if output == "torch":
        request.getfixturevalue("torch")
    loader = DataLoader.from_generator(capacity=3, return_list=True, output=output)
    check([images for (images,) in loader.set_batch_generator(read(COUNT), places="gpu:0")])
