import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.fields.ragged import Ragged
from gpuloader.kernels.pad import pad
from tests.kernels.shim import Placed, place, read


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("width", [1, 3, 16])
def test_they_agree_at_any_offset(device, dtype, width):
    device.shape = None
    values = np.zeros((5, width), dtype)
    values.reshape(-1).view(np.uint8)[:] = np.arange(values.nbytes) % 251
    splits = np.array([0, 3, 3, 5])
    fill = values.reshape(-1)[-1]  # all its bytes differ
    expected = pad.on_host(values, splits, 4, fill)
    for start in range(0, 17, values.dtype.alignment):
        for out_start in range(0, 17, values.dtype.alignment):
            out = Placed(np.zeros_like(expected), out_start)
            pad(place(values, start), place(splits), 4, fill, out=out.array)
            assert read(out.array).tobytes() == expected.tobytes()
            out.check()


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=9), width=st.integers(1, 4))
def test_the_twin_is_what_ragged_batches_give(lengths, width):
    samples = [np.arange(length * width).reshape(length, width) + 7 for length in lengths]
    batch = Ragged.from_samples(samples, "int64", (width,))
    [splits] = batch.row_splits
    mask = np.zeros((len(lengths), max(lengths)), bool)
    padded = pad.on_host(batch.values, splits, max(lengths), -1, mask=mask)
    np.testing.assert_array_equal(padded, batch.to_padded(-1))
    np.testing.assert_array_equal(mask.sum(axis=1), lengths)


def test_rows_longer_than_the_result_are_cut():
    assert pad.on_host(np.arange(5), np.array([0, 4, 5]), 2).tolist() == [[0, 1], [4, 0]]
