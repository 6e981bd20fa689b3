"""Worker processes write into page-locked slots, and never touch CUDA."""

import numpy as np
import pytest

from gpuloader import DataLoader
from tests.gpu.datasets import Numbers

BATCHES, SIZE = 200, 8


def load(**options):
    return DataLoader(Numbers(BATCHES * SIZE), places="gpu:0", batch_size=SIZE, num_workers=4, **options)


def expected(number):
    """Return the expected rows of a batch."""
    first = np.arange(number * SIZE, (number + 1) * SIZE, dtype=np.float32)
    return np.repeat(first[:, None], 1024, 1)


def check(batches):
    count = 0
    for number, (rows, of_cuda) in enumerate(batches):
        np.testing.assert_array_equal(rows.get(), expected(number))
        assert not of_cuda.get().any(), "a worker has loaded the driver or CuPy"
        count += 1
    assert count == BATCHES


@pytest.mark.parametrize("persistent", [False, True])
def test_two_hundred_batches(persistent):
    loader = load(persistent_workers=persistent)
    for _ in range(2):
        check(loader)
    loader.close()


def test_the_slots_that_workers_map_are_page_locked():
    import cupy

    loader = load()
    check(loader)
    [buffers] = loader._epochs._idle
    slots = list(buffers.ring._free)
    assert len(slots) == buffers.ring.count
    for slot in slots:
        assert slot.memory.page_locked
        assert slot.memory.descriptor is not None
        assert cupy.cuda.pinned_memory.is_memory_pinned(slot.address)


def test_forked_workers_know_of_the_driver_and_leave_it_alone():
    """A forked worker inherits the parent's mapping of the driver, but still fetches correct samples."""
    seen = [rows.get()[:, 0].tolist() for rows, _ in load(start_method="fork")]
    assert [number for batch in seen for number in batch] == list(range(BATCHES * SIZE))


def test_the_parents_device_works_after_forks():
    """Children exit with the parent's arenas and streams in their memory, and must not free them."""
    import cupy

    for _ in range(3):
        for _ in load(start_method="fork"):
            break
    assert int(cupy.arange(10).sum()) == 45
