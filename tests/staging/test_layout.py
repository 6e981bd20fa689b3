"""Layouts: no field overlaps another, whatever their shapes and dtypes."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader.staging.layout import ALIGNMENT, arrange

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
def test_views_at_the_offsets_do_not_share_a_byte(fields):
    layout = arrange(fields)
    region = np.zeros(max(layout.nbytes, 1), np.uint8)
    for placed in layout.fields:
        region[placed.offset : placed.offset + math.prod(placed.shape) * placed.dtype.itemsize] += 1
    assert region.max(initial=0) <= 1
