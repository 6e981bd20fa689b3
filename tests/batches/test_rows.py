"""Rows: values of any dtype are written, each into its own."""

import numpy as np
import pytest

from gpuloader import DataLoader, data
from gpuloader.testing import simulated_places

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")


def check(batches, expected):
    arrays = [np.asarray(array) for array in batches]
    assert {array.dtype for array in arrays} == {expected.dtype}
    np.testing.assert_array_equal(np.concatenate(arrays).astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
@pytest.mark.parametrize("shape", [(), (4,), (2, 2), (0,)])
@pytest.mark.parametrize("simulated", [False, True])
def test_numbers_and_rows_of_a_dtype_that_no_buffer_has_are_staged(dtype, shape, simulated):
    """Memoryviews support only NumPy's own dtypes; those of ml_dtypes are written like larger arrays."""
    rows = np.arange(7).reshape(7, *[1] * len(shape)) * np.ones(shape, int)
    expected = rows.astype(dtype)
    places = simulated_places(1, seed=1) if simulated else "cpu"
    loader = DataLoader([(row, 0) for row in expected], places=places, batch_size=3)
    check([values for values, _ in loader], expected)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_declared_fields_of_such_a_dtype_convert_what_they_are_given(shape):
    dtype = np.dtype(ml_dtypes.bfloat16)
    rows = np.arange(6).reshape(6, *[1] * len(shape)) * np.ones(shape)
    loader = DataLoader.from_generator([data("x", [None, *shape], dtype)], capacity=2)
    samples = [(row.tolist() if index % 2 else row,) for index, row in enumerate(rows)]
    loader.set_sample_generator(lambda: iter(samples), batch_size=4, places="cpu", drop_last=False)
    check([step[0]["x"] for step in loader], rows.astype(dtype))
