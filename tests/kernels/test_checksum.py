import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader.kernels.checksum import _mix_length, checksum_on_host
from tests.kernels.shim import examples, place, read


@pytest.fixture(scope="module")
def kernel(device):
    def run(data, grid, block):
        total = np.array([_mix_length(data.nbytes)], np.uint64)
        at = place(total)
        device.load("checksum")((grid,), (block,), (place(data), np.uint64(data.nbytes), at))
        return read(at)

    return run


@given(
    data=arrays.arrays(np.uint8, st.integers(0, 300)),
    start=st.integers(0, 9),
    grid=st.integers(1, 5),
    block=st.integers(1, 70),
)
@examples(100)
def test_the_kernel_and_its_twin_agree_for_any_length_offset_and_grid(kernel, data, start, grid, block):
    part = data[start:]
    assert kernel(part, grid, block) == checksum_on_host(part)


@given(
    data=arrays.arrays(np.uint8, st.integers(1, 200)), place=st.integers(0, 199), change=st.integers(1, 255)
)
def test_a_changed_byte_changes_the_sum(data, place, change):
    other = data.copy()
    other[place % data.size] ^= change
    assert checksum_on_host(other) != checksum_on_host(data)


def test_swapped_words_and_trailing_zeros_count():
    assert checksum_on_host(np.arange(8)) != checksum_on_host(np.arange(8)[::-1])
    assert checksum_on_host(np.zeros(3, np.uint8)) != checksum_on_host(np.zeros(4, np.uint8))
    assert checksum_on_host(np.zeros(0)).shape == (1,)
