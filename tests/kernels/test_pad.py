import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.fields.ragged import Ragged
from gpuloader.kernels.pad import pad


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=9), width=st.integers(1, 4))
def test_the_twin_is_what_ragged_batches_give(lengths, width):
    samples = [np.arange(length * width).reshape(length, width) + 7 for length in lengths]
    batch = Ragged.from_samples(samples, "int64", (width,))
    [splits] = batch.row_splits
    padded = pad.on_host(batch.values, splits, max(lengths), -1)
    np.testing.assert_array_equal(padded, batch.to_padded(-1))


def test_rows_longer_than_the_result_are_cut():
    assert pad.on_host(np.arange(5), np.array([0, 4, 5]), 2).tolist() == [[0, 1], [4, 0]]
