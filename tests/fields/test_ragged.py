"""Ragged batches: sequences of varying length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import Ragged, SampleError
from gpuloader.fields.ragged import gather_fields

rows = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=5)


@given(samples=rows)
def test_level_one_keeps_every_row_and_its_length(samples):
    ragged = Ragged.from_samples(samples, "int64", (1,))
    assert ragged.values.shape == (sum(map(len, samples)), 1)
    assert ragged.recursive_sequence_lengths() == [[len(row) for row in samples]]
    [splits] = ragged.row_splits
    again = [ragged.values[splits[n] : splits[n + 1], 0].tolist() for n in range(len(ragged))]
    assert again == samples


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
    matrix = np.arange(6).reshape(2, 3)
    assert Ragged.from_samples([matrix, [[9]]], "int64", lod_level=2).recursive_sequence_lengths() == [
        [2, 1],
        [3, 3, 1],
    ]


def test_what_is_joined_does_not_change_with_the_readers_buffer():
    buffer = np.arange(4)
    ragged = Ragged.from_samples([buffer], "int64")
    buffer[:] = 0
    assert ragged.values.tolist() == [0, 1, 2, 3]


@given(samples=rows, width=st.none() | st.integers(1, 3), fill=st.integers(-1, 1))
def test_short_rows_are_padded_like_plain_python(samples, width, fill):
    shape = () if width is None else (width,)
    stepped = [[np.full(shape, step * 10).tolist() for step in row] for row in samples]
    padded = Ragged.from_samples(stepped, "int64", shape).to_padded(fill)
    longest = max(map(len, samples), default=0)
    assert padded.shape == (len(samples), longest, *shape)
    filler = np.full(shape, fill).tolist()
    assert padded.tolist() == [row + [filler] * (longest - len(row)) for row in stepped]


def test_fields_are_gathered_from_flat_arrays():
    splits = [np.array([0, 1]), np.array([0, 2])]
    dense, ragged, last = gather_fields([0, 2, 0], ["dense", "values", *splits, "last"])
    assert (dense, last) == ("dense", "last")
    assert ragged.values == "values"
    assert [one.tolist() for one in ragged.row_splits] == [[0, 1], [0, 2]]
