"""Gaps: samples are left out of a batch, and the others move up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import SampleError
from gpuloader.batches.staged import Gaps, LeftOut
from gpuloader.staging import arrange


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_what_is_left_keeps_its_order(good, data):
    samples = [number if is_good else LeftOut("bad") for number, is_good in enumerate(good)]
    left = [number for number, is_good in enumerate(good) if is_good]
    if not left:
        with pytest.raises(SampleError, match=f"none of the batch's {len(good)} samples can be read"):
            Gaps(samples)
        return
    gaps = Gaps(samples)
    assert (gaps.take(samples), gaps.reasons) == (left, ["bad"] * good.count(False))
    for row, position in enumerate(left):
        error = SampleError("bad", index=row)
        gaps.locate(error)
        assert error.index == position
    further = data.draw(st.sets(st.integers(0, len(left) - 1), max_size=len(left) - 1))
    gaps.drop(dict.fromkeys(further, "bad"))
    assert gaps.take(samples) == [number for row, number in enumerate(left) if row not in further]
    with pytest.raises(SampleError, match="leaves nothing"):
        gaps.drop(dict.fromkeys(range(len(left)), "bad"))


def test_an_error_that_names_its_sample_already_stays():
    gaps = Gaps([LeftOut("bad"), 1, 2])
    for named in ({}, {"index": 0, "dataset_index": 7}):
        error = SampleError("bad", **named)
        gaps.locate(error)
        assert (error.index, error.dataset_index) == (named.get("index"), named.get("dataset_index"))


def test_a_shorter_batch_lies_where_the_longer_one_would():
    layout = arrange((((5, 100), np.dtype("f4")), ((5,), np.dtype("i8"))))
    short = layout.shorten(2)
    assert [(field.offset, field.shape) for field in short.fields] == [
        (layout.fields[0].offset, (2, 100)),
        (layout.fields[1].offset, (2,)),
    ]
    assert short.nbytes == layout.fields[1].offset + 16
    assert arrange(()).shorten(2).fields == ()
