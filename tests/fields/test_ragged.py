"""Ragged batches: sequences of varying length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import Ragged, SampleError

rows = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=5)


@given(samples=st.lists(rows, max_size=4), fill=st.integers(-1, 1), step=st.sampled_from([(), (1,)]))
def test_level_two_pads_both_ways(samples, fill, step):
    ragged = Ragged.from_samples(samples, "int64", step, lod_level=2)
    assert ragged.values.shape == (sum(len(row) for sample in samples for row in sample), *step)
    assert ragged.recursive_sequence_lengths() == [
        [len(sample) for sample in samples],
        [len(row) for sample in samples for row in sample],
    ]
    padded = ragged.to_padded(fill)
    most = max(map(len, samples), default=0)
    longest = max((len(row) for sample in samples for row in sample), default=0)
    expected = np.full((len(samples), most, longest, *step), fill)
    for n, sample in enumerate(samples):
        for m, row in enumerate(sample):
            expected[n, m, : len(row)] = np.reshape(row, (len(row), *step))
    np.testing.assert_array_equal(padded, expected)


@pytest.mark.parametrize(
    ("samples", "step", "level", "index", "message"),
    [
        ([[1], None], (), 1, 1, "sample 1: .*got None"),
        ([[1], [2], ["x"]], (), 1, 2, "got text"),
        ([[1], [[1], [2, 3]]], (), 1, 1, "expected an array of numbers"),
        ([[1], [1, 2**70]], (), 1, 1, "dtype"),
        ([[1], [float("nan")]], (), 1, 1, "whole numbers"),
        ([[[1]], [[2], [None]]], (), 2, 1, "dtype object"),
        ([[[1]], 2], (), 2, 1, "expected a sequence of sequences, got int"),
        ([[], [[1]], None], (), 2, 2, "sequence of sequences, got NoneType"),
        ([[[1, 2], []], [], [[1], ["x"]]], (), 2, 2, "got text"),
        ([np.ones((2, 3)), np.ones((2, 4))], (3,), 1, 1, r"sample 1: expected shape \(-, 3\)"),
    ],
)
def test_an_error_names_the_sample_whatever_its_level(samples, step, level, index, message):
    with pytest.raises(SampleError, match=message) as caught:
        Ragged.from_samples(samples, "int64", step, level)
    assert caught.value.index == index


def test_splits_are_int64_and_values_the_dtype_asked_for():
    ragged = Ragged.from_samples([[1.9, 2], ["3"]], "int16")
    assert ragged.values.tolist() == [1, 2, 3]
    assert ragged.dtype == np.int16
    assert [splits.dtype for splits in ragged.row_splits] == [np.int64]


def test_arrays_of_rows_are_samples_too():
    rows = [np.arange(3), np.arange(0), [7]]
    assert Ragged.from_samples(rows, "int64").to_padded().tolist() == [[0, 1, 2], [0, 0, 0], [7, 0, 0]]
    nested = Ragged.from_samples([np.arange(6).reshape(2, 3), [[9]]], "int64", lod_level=2)
    assert nested.recursive_sequence_lengths() == [[2, 1], [3, 3, 1]]


def test_what_is_joined_does_not_change_with_the_readers_buffer():
    buffer = np.arange(4)
    ragged = Ragged.from_samples([buffer], "int64")
    buffer[:] = 0
    assert ragged.values.tolist() == [0, 1, 2, 3]


@given(
    samples=rows,
    width=st.none() | st.integers(1, 3),
    fill=st.integers(-1, 1),
    left=st.booleans(),
    multiple=st.integers(1, 4),
)
def test_rows_are_padded_on_either_side_to_a_multiple(samples, width, fill, left, multiple):
    shape = () if width is None else (width,)
    stepped = [[np.full(shape, step * 10).tolist() for step in row] for row in samples]
    ragged = Ragged.from_samples(stepped, "int64", shape)
    padded = ragged.to_padded(fill, side="left" if left else "right", multiple=multiple)
    longest = -(-max(map(len, samples), default=0) // multiple) * multiple
    assert padded.shape == (len(samples), longest, *shape)
    fillers = [[np.full(shape, fill).tolist()] * (longest - len(row)) for row in samples]
    expected = [more + row if left else row + more for row, more in zip(stepped, fillers, strict=True)]
    assert padded.tolist() == expected


def rows_of(ragged):
    """Return a `Ragged` as nested lists."""
    return [rows_of(row) if isinstance(row, Ragged) else row.tolist() for row in ragged]


INDICES = st.one_of(
    st.slices(5),
    st.lists(st.integers(0, 4), max_size=6),
    st.lists(st.booleans(), min_size=5, max_size=5).map(np.array),
)


@given(samples=st.lists(rows, min_size=5, max_size=5), index=INDICES, level=st.sampled_from([1, 2]))
def test_it_is_selected_from_like_a_list(samples, index, level):
    if level == 1:
        samples = [[step for row in sample for step in row] for sample in samples]
    ragged = Ragged.from_samples(samples, "int64", lod_level=level)
    numbers = np.arange(5)[index].tolist()
    chosen = ragged[index]
    assert rows_of(ragged) == samples
    assert rows_of(chosen) == [samples[number] for number in numbers]
    assert isinstance(chosen, Ragged)
    assert len(chosen) == len(numbers)
    assert all(splits[0] == 0 and splits.dtype == np.int64 for splits in chosen.row_splits)
    assert len(chosen.values) == chosen.row_splits[-1][-1]
    one = ragged[-2]
    assert (rows_of(one) if level == 2 else one.tolist()) == samples[-2]
    assert ragged.lengths.tolist() == [len(sample) for sample in samples]
    assert ragged.cu_seqlens.tolist() == ragged.row_splits[-1].tolist()
    assert ragged.cu_seqlens.dtype == np.int32


def test_rows_and_slices_are_views():
    ragged = Ragged.from_samples([[1, 2], [3], [4, 5]], "int64")
    ragged[1][:] = 7
    ragged[1:].values[-1] = 8
    assert ragged.values.tolist() == [1, 2, 7, 4, 8]
    for outside in (3, -4):
        with pytest.raises(IndexError):
            ragged[outside]


def test_padding_that_makes_no_sense():
    ragged = Ragged.from_samples([[1]], "int64")
    with pytest.raises(ValueError, match="side must be one of 'right', 'left', got 'top'"):
        ragged.to_padded(side="top")
    with pytest.raises(ValueError, match="multiple must be"):
        ragged.to_padded(multiple=0)
    with pytest.raises(TypeError, match="got an array of numpy with 1; pass output='torch'"):
        ragged.to_nested()
