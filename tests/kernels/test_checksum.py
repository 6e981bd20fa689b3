import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader.kernels.checksum import _mix_length, checksum_on_host

LAUNCHER = """
extern "C" void run(unsigned grid, unsigned block, const unsigned char* bytes, unsigned long long length,
                    unsigned long long* total) {
    launch(checksum, grid, block, bytes, length, total);
}
"""


@pytest.fixture(scope="module")
def kernel(build):
    library = build("checksum", LAUNCHER)

    def run(data, grid, block):
        total = np.array([_mix_length(data.nbytes)], np.uint64)
        library.run(
            grid,
            block,
            data.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_ulonglong(data.nbytes),
            total.ctypes.data_as(ctypes.c_void_p),
        )
        return total

    return run


@given(
    data=arrays.arrays(np.uint8, st.integers(0, 300)),
    start=st.integers(0, 9),
    grid=st.integers(1, 5),
    block=st.integers(1, 70),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
