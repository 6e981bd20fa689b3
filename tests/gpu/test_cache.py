"""A dataset cached on the device yields the same batches as one that is read."""

import numpy as np
import pytest

from gpuloader import DataLoader, StagingMemoryError, Subset, TensorDataset
from gpuloader.kernels.spin import spin
from gpuloader.order.randomness import SORTED_AT_MOST
from gpuloader.transforms import OneHot, RandomCropFlip
from tests.gpu.datasets import Pictures, check_equal, collect

ROWS = 333


def arrays():
    draw = np.random.default_rng(0)
    return TensorDataset(
        draw.random((ROWS, 784), np.float32),
        draw.integers(0, 10, ROWS),
        draw.integers(0, 256, (ROWS, 5, 7), np.uint8),
        draw.random((ROWS, 3)).astype(np.float16),
    )


CASES = {
    "arrays": (arrays(), {"batch_size": 32}),
    "single rows": (arrays(), {"batch_size": 1}),
    "a subset": (Subset(arrays(), range(ROWS - 1, 0, -2)), {"batch_size": 16}),
    "samples": (Pictures(), {}),
    "transforms": (Pictures(), {"transforms": [RandomCropFlip("0", (12, 12)), OneHot("1", 10)]}),
}


@pytest.mark.parametrize("cache", ["host", "device"])
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_that_are_read(case, cache):
    dataset, options = CASES[case]
    check_equal(collect(dataset, cache=cache, **options), collect(dataset, **options))


def test_torch_gets_it_without_a_copy(torch, landed):
    """The kernel gathers the fields within the slot, after the indices of their rows."""
    loader = DataLoader(arrays(), places="gpu:0", batch_size=32, cache="device", output="torch")
    kept = []
    for batch in loader:
        assert [tensor.data_ptr() for tensor in batch] == landed[-1]
        kept.append(batch)
    whole = [torch.cat(fields).cpu().numpy() for fields in zip(*kept, strict=True)]
    for field, wanted in zip(whole, arrays().arrays, strict=True):
        np.testing.assert_array_equal(field, wanted)


@pytest.mark.parametrize("count", [1, 1000, SORTED_AT_MOST, SORTED_AT_MOST + 1, 3_000_000])
def test_the_devices_permutation_is_the_hosts(count):
    """Sorted up to 2**18 samples, computed beyond; over several epochs, and with two epochs at a time."""
    rows = TensorDataset(np.arange(count, dtype=np.int32))
    options = {"batch_size": max(count // 3, 1), "shuffle": True, "seed": 2**63 + 5}
    plain = DataLoader(rows, places="cpu", **options)
    loader = DataLoader(rows, places="gpu:0", cache="device", **options)
    for _ in range(2):
        for [found], [wanted] in zip(loader, plain, strict=True):
            np.testing.assert_array_equal(found.get(), wanted)
    wanted = [[numbers.copy() for [numbers] in plain] for _ in range(2)]
    for step, both in enumerate(zip(iter(loader), iter(loader), strict=True)):
        for epoch, [found] in enumerate(both):
            np.testing.assert_array_equal(found.get(), wanted[epoch][step])


def test_an_order_is_computed_behind_kernels_that_read_the_last_one():
    """Epochs follow one another without a wait while the consumer's stream is far behind."""
    import cupy

    rows = TensorDataset(np.arange(4096))
    options = {"batch_size": 512, "shuffle": True, "seed": 1}
    loader = DataLoader(rows, places="gpu:0", cache="device", **options)
    plain = DataLoader(rows, places="cpu", **options)
    list(loader), list(plain)
    stream = cupy.cuda.Stream(non_blocking=True)
    kept = []
    with stream:
        for _ in range(4):
            for [numbers] in loader:
                spin(1_000_000, stream=stream)
                kept.append(numbers + 0)
                del numbers
    stream.synchronize()
    wanted = [numbers.copy() for _ in range(4) for [numbers] in plain]
    for found, expected in zip(kept, wanted, strict=True):
        np.testing.assert_array_equal(found.get(), expected)


def test_more_than_the_device_holds_is_an_error_with_numbers():
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    row = np.zeros((1, 1 << 20), np.uint8)
    huge = TensorDataset(np.broadcast_to(row, (total // row.nbytes + 1, row.nbytes)))
    with pytest.raises(StagingMemoryError, match=r"cannot allocate .* bytes on gpu:0"):
        next(iter(DataLoader(huge, places="gpu:0", batch_size=4, cache="device")))
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - (64 << 20)
    assert collect(Pictures(), cache="device")  # the device still works
