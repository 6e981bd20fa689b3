"""Gaps: samples are left out of a batch, and the others move up."""

import numpy as np

from gpuloader import SampleError
from gpuloader.batches.staged import Gaps, LeftOut
from gpuloader.staging import arrange


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
