"""Sequences of varying length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import Ragged, SampleError

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


def test_steps_may_have_a_shape_of_their_own():
    ragged = Ragged.from_samples([np.ones((2, 3)), np.zeros((1, 3))], "float32", (3,))
    assert ragged.values.shape == (3, 3)
    assert ragged.dtype == np.float32
    assert ragged.to_padded().shape == (2, 2, 3)


def test_a_step_that_does_not_fit_names_its_sample():
    with pytest.raises(SampleError, match=r"sample 1: expected shape \(-, 3\)") as caught:
        Ragged.from_samples([np.ones((2, 3)), np.ones((2, 4))], "float32", (3,))
    assert caught.value.index == 1


def test_level_two_wants_sequences_of_sequences():
    with pytest.raises(SampleError, match="sample 1: expected a sequence of sequences, got int"):
        Ragged.from_samples([[[1]], 2], "int64", lod_level=2)


def test_nothing_at_all():
    ragged = Ragged.from_samples([], "int64", (1,))
    assert (len(ragged), ragged.values.shape, ragged.to_padded().shape) == (0, (0, 1), (0, 0, 1))
