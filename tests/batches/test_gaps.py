"""Gaps: samples are left out of a batch that several threads write in parts, and the others move up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import SampleError
from gpuloader.batches.left_out import Gaps, shorten
from gpuloader.staging.layout import arrange


@st.composite
def batches(draw):
    """Return the size of a batch, where its parts begin, in any order, and which samples are left out."""
    size = draw(st.integers(1, 12))
    starts = sorted({0, *draw(st.lists(st.integers(0, size - 1), max_size=3))})
    return size, draw(st.permutations(starts)), draw(st.sets(st.integers(0, size - 1)))


@given(batches(), st.data())
def test_what_is_left_keeps_its_order(batch, data):
    size, starts, bad = batch
    gaps, rows = Gaps(size), [None] * size
    for start in starts:
        stop = min((later for later in starts if later > start), default=size)
        left_out = gaps.begin(start, stop)
        left_out += sorted(bad & set(range(start, stop)), reverse=True)
        good = [position for position in range(start, stop) if position not in bad]
        rows[start : start + len(good)] = good
        for row, position in enumerate(good, start):
            with pytest.raises(SampleError) as caught, gaps.locate():
                raise SampleError("bad", index=row)
            assert caught.value.index == position
    left = [position for position in range(size) if position not in bad]
    assert (gaps.count, gaps.left) == (len(bad), len(left))
    assert gaps.keys(range(size)) == gaps.close_up(rows) == left
    array = np.array([-1 if row is None else row for row in rows])
    assert gaps.close_up(array) is array
    assert array[: len(left)].tolist() == left
    if not left:
        with pytest.raises(SampleError, match=f"none of the batch's {size} samples can be decoded"):
            gaps.check()
        return
    gaps.check()
    further = data.draw(st.sets(st.integers(0, len(left) - 1)))
    gaps.drop(further)
    assert gaps.keys(range(size)) == [position for row, position in enumerate(left) if row not in further]
    assert gaps.left == len(left) - len(further)


def test_an_error_that_names_its_sample_already_stays():
    gaps = Gaps(3)
    gaps.begin(0, 3).append(0)
    for named in ({}, {"index": 0, "dataset_index": 7}):
        error = SampleError("bad", **named)
        with pytest.raises(SampleError) as caught, gaps.locate():
            raise error
        assert (caught.value.index, caught.value.dataset_index) == (
            named.get("index"),
            named.get("dataset_index"),
        )


def test_a_shorter_batch_lies_where_the_longer_one_would():
    layout = arrange((((5, 100), np.dtype("f4")), ((5,), np.dtype("i8"))))
    short = shorten(layout, 2)
    assert [(field.offset, field.shape) for field in short.fields] == [
        (layout.fields[0].offset, (2, 100)),
        (layout.fields[1].offset, (2,)),
    ]
    assert short.nbytes == layout.fields[1].offset + 16
    assert shorten(arrange(()), 2).fields == ()
