"""Layouts: no field overlaps another, whatever their shapes and dtypes."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader.staging.arena import ALIGNMENT, align, arrange

fields = st.lists(
    st.tuples(
        st.lists(st.integers(0, 40), max_size=4).map(tuple),
        st.one_of(arrays.floating_dtypes(endianness="="), arrays.integer_dtypes(endianness="=")),
    ),
    max_size=6,
).map(tuple)


@given(fields=fields)
def test_fields_follow_one_another_aligned_and_end_where_the_layout_says(fields):
    layout = arrange(fields)
    end = 0
    for placed, (shape, dtype) in zip(layout.fields, fields, strict=True):
        assert (placed.shape, placed.dtype) == (shape, dtype)
        assert placed.offset % ALIGNMENT == 0
        assert 0 <= placed.offset - end < ALIGNMENT
        end = placed.offset + math.prod(shape) * dtype.itemsize
    assert layout.nbytes == end


@given(fields=fields)
def test_whatever_is_written_through_one_view_stays_when_the_others_are_written(fields):
    layout = arrange(fields)
    region = np.zeros(layout.nbytes, np.uint8)
    views = [np.ndarray(one.shape, one.dtype, region, one.offset) for one in layout.fields if one.shape]
    for number, view in enumerate(views):
        view[...] = number + 1
    assert all((view == number + 1).all() for number, view in enumerate(views))


def test_a_layout_is_a_value():
    fields = (((2, 3), np.dtype("float32")), ((2,), np.dtype("int64")))
    assert arrange(fields) == arrange(fields)
    assert len({arrange(fields), arrange(fields), arrange(fields[:1])}) == 2


def test_no_fields_take_no_bytes():
    assert (arrange(()).fields, arrange(()).nbytes) == ((), 0)


def test_a_field_without_elements_moves_nothing_and_holds_its_place():
    layout = arrange((((3,), np.dtype("u1")), ((0, 9), np.dtype("f8")), ((1,), np.dtype("u1"))))
    assert [one.offset for one in layout.fields] == [0, 256, 256]
    assert layout.nbytes == 257


@given(nbytes=st.integers(0, 1 << 40))
def test_aligning_rounds_up_to_the_next_multiple_and_no_further(nbytes):
    assert align(nbytes) % ALIGNMENT == 0
    assert 0 <= align(nbytes) - nbytes < ALIGNMENT
    assert align(align(nbytes)) == align(nbytes)
