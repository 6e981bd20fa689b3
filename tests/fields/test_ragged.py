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


@given(samples=rows, fill=st.integers(-1, 1))
def test_padding_fills_short_rows(samples, fill):
    padded = Ragged.from_samples(samples, "int64").to_padded(fill)
    longest = max(map(len, samples), default=0)
    assert padded.shape == (len(samples), longest)
    assert padded.tolist() == [row + [fill] * (longest - len(row)) for row in samples]


@given(samples=st.lists(rows, max_size=4), fill=st.integers(-1, 1))
def test_level_two_pads_both_ways(samples, fill):
    ragged = Ragged.from_samples(samples, "int64", lod_level=2)
    assert ragged.recursive_sequence_lengths() == [
        [len(sample) for sample in samples],
        [len(row) for sample in samples for row in sample],
    ]
    padded = ragged.to_padded(fill)
    most = max(map(len, samples), default=0)
    longest = max((len(row) for sample in samples for row in sample), default=0)
    assert padded.shape == (len(samples), most, longest)
    expected = np.full(padded.shape, fill)
    for n, sample in enumerate(samples):
        for m, row in enumerate(sample):
            expected[n, m, : len(row)] = row
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


def test_rows_may_be_empty_anywhere():
    ragged = Ragged.from_samples([[], [1], [], [], [2, 3], []], "int64")
    assert ragged.row_splits[0].tolist() == [0, 0, 1, 1, 1, 3, 3]
    assert ragged.to_padded(-1).tolist() == [[-1, -1], [1, -1], [-1, -1], [-1, -1], [2, 3], [-1, -1]]
    assert Ragged.from_samples([[], []], "float32", (3,)).to_padded().shape == (2, 0, 3)
    nothing = Ragged.from_samples([], "int64", (1,))
    assert (len(nothing), nothing.values.shape, nothing.to_padded().shape) == (0, (0, 1), (0, 0, 1))


def test_level_two_with_nothing_in_it():
    ragged = Ragged.from_samples([[], [[]], []], "int64", (1,), lod_level=2)
    assert ragged.recursive_sequence_lengths() == [[0, 1, 0], [0]]
    assert ragged.values.shape == (0, 1)
    assert ragged.to_padded().shape == (3, 1, 0, 1)
    assert Ragged.from_samples([], "int64", (1,), lod_level=2).to_padded().shape == (0, 0, 0, 1)


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


@given(samples=rows, width=st.integers(1, 3))
def test_steps_of_a_shape_pad_like_plain_python(samples, width):
    stepped = [[[step * 10 + n for n in range(width)] for step in row] for row in samples]
    padded = Ragged.from_samples(stepped, "int64", (width,)).to_padded(7)
    longest = max(map(len, samples), default=0)
    assert padded.shape == (len(samples), longest, width)
    assert padded.tolist() == [row + [[7] * width] * (longest - len(row)) for row in stepped]


def test_fields_are_gathered_from_flat_arrays():
    splits = [np.array([0, 1]), np.array([0, 2])]
    dense, ragged, last = gather_fields([0, 2, 0], ["dense", "values", *splits, "last"])
    assert (dense, last) == ("dense", "last")
    assert ragged.values == "values"
    assert [one.tolist() for one in ragged.row_splits] == [[0, 1], [0, 2]]
