"""A data set that lies on the device gives the same batches as one that is read."""

import numpy as np
import pytest

from gpuloader import DataLoader, StagingMemoryError, Subset, TensorDataset
from gpuloader.transforms import Normalize, OneHot, RandomCropFlip
from tests.gpu.datasets import Pictures

ROWS = 333


def arrays():
    draw = np.random.default_rng(0)
    return TensorDataset(
        draw.random((ROWS, 784), np.float32),
        draw.integers(0, 10, ROWS),
        draw.integers(0, 256, (ROWS, 5, 7), np.uint8),
        draw.random((ROWS, 3)).astype(np.float16),
    )


def collect(dataset, cache, **options):
    loader = DataLoader(dataset, places="gpu:0", shuffle=True, seed=5, cache=cache, **options)
    return [[field.get() for field in batch] for _ in range(3) for batch in loader]


def check_equal(dataset, **options):
    expected = collect(dataset, None, **options)
    for cache in ("host", "device"):
        got = collect(dataset, cache, **options)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            for array, wanted in zip(one, other, strict=True):
                assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
                assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("batch_size", [1, 32, 100])
def test_arrays(batch_size):
    check_equal(arrays(), batch_size=batch_size)


def test_part_of_a_data_set():
    check_equal(Subset(arrays(), range(ROWS - 1, 0, -2)), batch_size=16)


def test_a_data_set_of_samples():
    check_equal(Pictures(), batch_size=7)


def test_with_transforms():
    steps = [RandomCropFlip("0", (12, 12)), Normalize("0", 0.5, 0.25, scale=1 / 255), OneHot("1", 10)]
    check_equal(Pictures(), batch_size=7, transforms=steps)


def test_torch_gets_it_without_a_copy(torch, landed):
    """The fields are gathered within the slot, behind the numbers of their rows."""
    loader = DataLoader(arrays(), places="gpu:0", batch_size=32, cache="device", output="torch")
    kept = []
    for batch in loader:
        assert [tensor.data_ptr() for tensor in batch] == landed[-1]
        kept.append(batch)
    whole = [torch.cat(fields).cpu().numpy() for fields in zip(*kept, strict=True)]
    for field, wanted in zip(whole, arrays().arrays, strict=True):
        np.testing.assert_array_equal(field, wanted)


def test_only_row_numbers_cross_the_bus():
    loader = DataLoader(arrays(), places="gpu:0", batch_size=32, cache="device")
    next(iter(loader))
    before = loader.stats()
    for _ in loader:
        pass
    after = loader.stats()
    assert (after.nbytes - before.nbytes) / (after.batches - before.batches) <= 32 * 8


def test_more_than_the_device_holds_is_an_error_with_numbers():
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    row = np.zeros((1, 1 << 20), np.uint8)
    huge = TensorDataset(np.broadcast_to(row, (total // row.nbytes + 1, row.nbytes)))
    with pytest.raises(StagingMemoryError, match=r"bytes on gpu:0 could not be had"):
        next(iter(DataLoader(huge, places="gpu:0", batch_size=4, cache="device")))
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - (64 << 20)
    check_equal(Pictures(), batch_size=7)  # the device goes on
