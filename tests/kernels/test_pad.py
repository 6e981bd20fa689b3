import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader.fields.ragged import Ragged
from gpuloader.kernels.pad import pad, pad_on_host
from tests.kernels.shim import Placed, check_result, examples, launch_shapes, offsets, place, read

DTYPES = ["bool", "uint8", "int16", "float16", "float32", "int64", "float64", "complex128"]


@st.composite
def problems(draw, splits=None):
    inner = draw(st.lists(st.integers(0, 5), max_size=2) | st.just([40]))
    lengths = draw(st.lists(st.integers(0, 9), max_size=9))
    row_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    values = np.zeros((row_splits[-1], *inner), dtype)
    values.reshape(-1).view(np.uint8)[:] = np.arange(values.nbytes) % (2 if dtype == "bool" else 251)
    if draw(st.booleans()):  # splits that do not belong to the values
        size = row_splits.size
        row_splits = draw(arrays.arrays(np.int64, size, elements=st.integers(-3, 30) | st.just(-(2**63))))
    return values, row_splits, draw(st.integers(0, 12))


@given(
    problem=problems(),
    fill=st.integers(0, 1) | st.integers(2, 100),
    offsets=offsets(3),
    shape=launch_shapes(2),
    masked=st.booleans(),
)
@examples(200)
def test_the_launcher_and_its_twin_agree(device, problem, fill, offsets, shape, masked):
    values, row_splits, longest = problem
    device.shape = shape
    mask = np.ones((row_splits.size - 1, longest), bool)
    mask_at = Placed(mask, offsets[2]) if masked else None
    expected = pad_on_host(values, row_splits, longest, fill, mask=mask)
    out = Placed(np.zeros_like(expected), offsets[1] * values.itemsize)
    result = pad(
        place(values, offsets[0] * values.itemsize),
        place(row_splits),
        longest,
        fill,
        mask=mask_at and mask_at.array,
        out=out.array,
    )
    check_result(result, expected, out, given_out=True)
    if mask_at:
        np.testing.assert_array_equal(read(mask_at.array), mask)
        mask_at.check()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("width", [1, 3, 16])
def test_they_agree_at_any_offset(device, dtype, width):
    device.shape = None
    values = np.zeros((5, width), dtype)
    values.reshape(-1).view(np.uint8)[:] = np.arange(values.nbytes) % 251
    splits = np.array([0, 3, 3, 5])
    fill = values.reshape(-1)[-1]  # all its bytes differ
    expected = pad_on_host(values, splits, 4, fill)
    for start in range(0, 17, values.dtype.alignment):
        for out_start in range(0, 17, values.dtype.alignment):
            out = Placed(np.zeros_like(expected), out_start)
            pad(place(values, start), place(splits), 4, fill, out=out.array)
            assert read(out.array).tobytes() == expected.tobytes()
            out.check()


def test_without_out_a_new_array_is_made(device):
    device.shape = None
    result = pad(place(np.arange(4, dtype=np.int32)), place(np.array([0, 3, 4])), 3, fill=-1)
    assert read(result).tolist() == [[0, 1, 2], [3, -1, -1]]


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=9), width=st.integers(1, 4))
def test_the_twin_is_what_ragged_batches_give(lengths, width):
    samples = [np.arange(length * width).reshape(length, width) + 7 for length in lengths]
    batch = Ragged.from_samples(samples, "int64", (width,))
    [splits] = batch.row_splits
    mask = np.zeros((len(lengths), max(lengths)), bool)
    padded = pad_on_host(batch.values, splits, max(lengths), -1, mask=mask)
    np.testing.assert_array_equal(padded, batch.to_padded(-1))
    np.testing.assert_array_equal(mask.sum(axis=1), lengths)


def test_rows_longer_than_the_result_are_cut():
    assert pad_on_host(np.arange(5), np.array([0, 4, 5]), 2).tolist() == [[0, 1], [4, 0]]


@pytest.mark.parametrize("fill", ["one", [1, 2], None, 2**70, 0.5])
def test_a_fill_that_is_no_number_of_the_dtype_is_an_error(fill):
    with pytest.raises(ValueError, match="fill must"):
        pad_on_host(np.arange(5), np.array([0, 4, 5]), 2, fill)
