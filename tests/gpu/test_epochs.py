"""Whole epochs on a GPU equal those on a CPU place, bit for bit."""

import numpy as np
import pytest

from gpuloader import CPUPlace, CUDAPinnedPlace, CUDAPlace, DataLoader
from gpuloader.demo.training import train
from gpuloader.sources import mnist
from tests.fakes import nothing_left_behind
from tests.loading import read_batches


def batches(sizes=(7, 7, 3, 40, 1, 7)):
    def read():
        draw = np.random.default_rng(0)
        for size in sizes:
            yield [
                draw.random((size, 3, 17), np.float32),
                draw.integers(0, 255, (size, 5), np.uint8),
                draw.integers(-9, 9, (size,)),
                draw.random((size, 2)).astype(np.float16),
            ]

    return read


def collect(place, **options):
    loader = DataLoader.from_generator(capacity=3, return_list=True, **options)
    steps = [list(step) for step in loader.set_batch_generator(batches(), places=place)]
    return [[array.get() if hasattr(array, "get") else array for array in step] for step in steps]


@pytest.mark.parametrize("double_buffer", [True, False])
def test_a_gpu_gives_what_a_cpu_gives(double_buffer):
    expected = collect(CPUPlace())
    got = collect(CUDAPlace(0), use_double_buffer=double_buffer)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        for array, wanted in zip(one, other, strict=True):
            assert array.dtype == wanted.dtype
            np.testing.assert_array_equal(array, wanted)


def test_a_pinned_place_gives_page_locked_arrays():
    import cupy

    loader = read_batches(batches(), CUDAPinnedPlace())
    for step in loader:
        for array in step:
            assert isinstance(array, np.ndarray)
            if array.size:
                assert cupy.cuda.pinned_memory.is_memory_pinned(array.ctypes.data)


def test_nothing_is_left_behind():
    collect(CUDAPlace(0))  # the first use creates the context, its threads and its descriptors
    with nothing_left_behind():
        for _ in range(20):
            loader = read_batches(batches(), "gpu:0")
            for _ in loader:
                break
            del loader


def test_device_memory_is_flat():
    import cupy

    loader = read_batches(
        lambda: ([np.zeros((64, 1024), np.float32)] for _ in range(50)), "gpu:0", capacity=4
    )

    def epoch():
        for _ in loader:
            pass
        cupy.cuda.Device(0).synchronize()
        return cupy.cuda.runtime.memGetInfo()[0]

    epoch()
    before = epoch()
    for _ in range(20):
        after = epoch()
    assert abs(before - after) <= 1 << 20


def test_the_main_job_learns_the_same_both_ways():
    digits = mnist.sample().train
    one, other = (train(digits, CUDAPlace(0), epochs=2, asynchronous=way) for way in (False, True))
    np.testing.assert_array_equal(one.losses, other.losses)
    assert one.losses[-20:].mean() < one.losses[:5].mean() / 2
    on_cpu = train(digits, CPUPlace(), epochs=2, asynchronous=True)
    np.testing.assert_allclose(one.losses, on_cpu.losses, rtol=1e-3)
