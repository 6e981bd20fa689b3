"""Columns: fields whose samples have all been fetched, written once into their slot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import SampleError, data
from gpuloader.batches.columns import Column, lay_out, split_columns
from gpuloader.batches.rows import SampleRows
from gpuloader.fields.image_regions import NUMBERS, Encoded, Region, read_codes


def columns_of(samples, feeds, pads=None, strict=False):
    return [column.array() for column in split_columns(samples, SampleRows(feeds, strict=strict), pads)]


lengths = st.lists(st.integers(0, 6), min_size=1, max_size=8)


@given(lengths, st.sampled_from([(), (2,), (1, 3)]), st.integers(-5, 5))
def test_padded_and_ragged_hold_the_same(sizes, step, fill):
    samples = [(np.arange(size * int(np.prod(step))).reshape(size, *step),) for size in sizes]
    feeds = [data("x", [None, *step], "int64", lod_level=1)]
    values, splits = columns_of(samples, feeds, strict=True)
    assert splits.tolist() == [0, *np.cumsum(sizes)]
    assert values.shape == (sum(sizes), *step)
    [padded] = columns_of(samples, feeds, {"x": fill}, strict=True)
    assert padded.shape == (len(sizes), max(sizes), *step)
    for row, (sample,) in enumerate(samples):
        np.testing.assert_array_equal(values[splits[row] : splits[row + 1]], sample)
        np.testing.assert_array_equal(padded[row, : len(sample)], sample)
        assert (padded[row, len(sample) :] == fill).all()


def test_every_element_is_written():
    """Slots are reused, so no earlier contents may remain."""
    feeds = [data("x", [None, 2], "int64", 1), data("y", [None], "float32"), data("z", [None], "int64", 2)]
    samples = [([[1, 2]], 1, [[1], []]), ([], 2, []), ([[3, 4], [5, 6]], 3, [[7, 8]])]
    for pads in (None, {"x": -1}):
        columns = split_columns(samples, SampleRows(feeds), pads)
        layout = lay_out(columns)
        assert [field.shape for field in layout.fields] == [column.shape for column in columns]
        written = []
        for filling in (0, 1):
            memory = np.full(layout.nbytes, filling * 255, np.uint8)
            for column, field in zip(columns, layout.fields, strict=True):
                target = np.ndarray(field.shape, field.dtype, memory, field.offset)
                column.write(target)
                written.append(target.tolist())
        assert written[: len(columns)] == written[len(columns) :]


def test_no_samples_are_empty_columns():
    feeds = [data("x", [None, 3], "int64", 1), data("y", [None, 2])]
    values, splits, dense = columns_of([], feeds)
    assert (values.shape, splits.tolist(), dense.shape) == ((0, 3), [0], (0, 2))
    assert columns_of([], feeds[:1], {"x": 0})[0].shape == (0, 0, 3)
    Column((0,), np.dtype("i8"), [], joined=True).write(np.empty(0, "i8"))


def test_steps_that_differ_name_their_sample():
    for level, samples in [
        (1, [np.zeros((1, 2)), np.zeros((2, 3))]),
        (2, [[np.zeros((1, 2))] * 2, [np.zeros((1, 3))]]),
    ]:
        feeds = [data("x", [None, None], "float32", level)]
        with pytest.raises(SampleError, match=r"expected steps of shape \(2,\) as .*, got \(3,\)$") as caught:
            columns_of([(sample,) for sample in samples], feeds)
        assert (caught.value.index, caught.value.field) == (1, "x")


def test_a_dense_field_beside_ragged_ones_has_one_shape():
    feeds = [data("x", [None], "int64", 1), data("y", [None, None])]
    with pytest.raises(
        SampleError, match=r"expected shape \(2,\) as in the batch's first sample, got \(3,\)"
    ) as caught:
        columns_of([([1], np.zeros(2)), ([], np.zeros(3))], feeds)
    assert (caught.value.index, caught.value.field) == (1, "y")


@pytest.mark.parametrize("sizes", [[4], [4, 6, 1]])
@pytest.mark.parametrize("channels", [1, 3])
def test_regions_of_pictures_lie_one_behind_the_other(sizes, channels):
    regions = [
        Region((size, channels), np.float32([size, 1, *range(11)]), np.full((size, channels), size, np.uint8))
        for size in sizes
    ]
    feeds = [data("x", [None, channels], "uint8", 2)]
    pixels, splits, geometry = columns_of([(region,) for region in regions], feeds, strict=True)
    assert splits.tolist() == [0, *np.cumsum(sizes)]
    np.testing.assert_array_equal(pixels, np.concatenate([region.pixels for region in regions]))
    np.testing.assert_array_equal(geometry, np.stack([region.geometry for region in regions]))
    encoded = columns_of([(Encoded.of(region, "file", 7),) for region in regions], feeds, strict=True)
    codes, code_splits, code_geometry, room = encoded
    assert [code.data.tolist() for code in read_codes(codes)] == [
        region.pixels.ravel().tolist() for region in regions
    ]
    assert (code_splits.tolist(), room.shape) == (splits.tolist(), (sum(sizes), channels, 0))
    np.testing.assert_array_equal(code_geometry, geometry)


def test_regions_with_other_channels_name_their_sample():
    feeds = [data("x", [None, 3], "uint8", 2)]
    regions = [
        Region((2, channels), np.zeros(NUMBERS, np.float32), np.zeros((2, channels), np.uint8))
        for channels in (3, 1)
    ]
    for samples in (regions, [Encoded.of(region) for region in regions]):
        with pytest.raises(SampleError, match=r"expected steps of shape \(3,\) as .*, got \(1,\)") as caught:
            columns_of([(sample,) for sample in samples], feeds, strict=True)
        assert (caught.value.index, caught.value.field) == (1, "x")


def test_strictness():
    """Values of declared fields are converted; those of inferred fields must be like the first sample."""
    feeds = [data("x", [None], "int64", 1)]
    assert columns_of([([1.5],)], feeds)[0].tolist() == [1]
    for value in ([1.5], [[1]], 1, "1"):
        with pytest.raises(SampleError) as caught:
            columns_of([([1],), (value,)], feeds, strict=True)
        assert (caught.value.index, caught.value.field) == (1, "x")
    assert columns_of([([1],), ((),), (np.array([True, False]),)], feeds, strict=True)[0].tolist() == [
        1,
        1,
        0,
    ]
