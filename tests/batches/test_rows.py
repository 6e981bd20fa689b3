"""Rows: each sample is written into its own, and memory grows with the samples that arrive."""

import numpy as np
import pytest

from gpuloader import DataLoader, StagingMemoryError, data
from gpuloader.batches import rows as gradual
from gpuloader.batches.rows import write_gradually
from gpuloader.batches.schema import Collation, infer_schema
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


NBYTES = 8000
"""Bytes of a sample."""


def sample(number):
    return [np.full(NBYTES // 8, number)]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9])
def test_memory_doubles_whenever_it_is_full(count, size, monkeypatch):
    monkeypatch.setattr(gradual, "_FIRST_NBYTES", 2 * NBYTES)
    known, capacities = infer_schema([sample(0)], Collation()), []

    def rows(capacity):
        capacities.append(capacity)
        return known.rows(capacity)

    samples = map(sample, range(count))
    names = {1: []}
    [held], found = write_gradually(rows, samples, size, names)
    assert found == min(count, size)
    np.testing.assert_array_equal(held, np.arange(found)[:, None] * np.ones(NBYTES // 8, int))
    assert len(list(samples)) == count - found
    wanted = [capacity for capacity in (2, 4, 8, 16) if capacity < size and capacity <= 2 * max(count, 1)]
    if not wanted or (wanted[-1] <= count and size <= 2 * wanted[-1]):
        wanted.append(size)
    assert capacities[1:] == wanted  # the first asks for the layout
    assert names == {1: [None] * wanted[-1]}


def test_a_sample_larger_than_the_first_memory_is_written_too():
    known = infer_schema([[np.zeros(1 << 18)]], Collation())
    [held], count = write_gradually(known.rows, iter([[np.ones(1 << 18)]] * 3), 10)
    assert (count, held.shape, held.min()) == (3, (3, 1 << 18), 1)


def test_samples_without_bytes_are_counted():
    known = infer_schema([[np.zeros(0)]], Collation())
    [held], count = write_gradually(known.rows, iter([[np.zeros(0)]] * 3), 10)
    assert (count, held.shape) == (3, (3, 0))


def test_a_batch_beyond_all_memory_is_an_error_before_it_is_read():
    known = infer_schema([sample(0)], Collation())
    samples = iter([sample(0)])
    with pytest.raises(StagingMemoryError):
        write_gradually(known.rows, samples, 10**12)
    assert next(samples)
