"""Programs for ``paddle.fluid`` with only the import changed; `tests/paddle_suite` has the single cases."""

import numpy as np
import pytest

import gpuloader
from gpuloader import LoaderError, fluid


def test_the_batch_dimension_is_appended_unless_told_otherwise():
    assert fluid.layers.data("a", [3]).shape == (None, 3)
    assert fluid.layers.data("b", [8, 3], append_batch_size=False, lod_level=1).shape == (8, 3)


def test_an_iterable_py_reader_has_no_start():
    reader = fluid.io.PyReader([fluid.layers.data("n", [1])], capacity=2)
    reader.decorate_batch_generator(lambda: [[np.zeros((1, 1))]], places=fluid.CPUPlace())
    assert [step[0]["n"].tolist() for step in reader] == [[[0]]]
    for misuse in (reader.start, reader.reset):
        with pytest.raises(LoaderError, match="iterable"):
            misuse()


@pytest.mark.parametrize("capacity", [None, 0, -1, 1.5])
def test_a_py_reader_wants_a_capacity(capacity):
    with pytest.raises(ValueError, match="capacity"):
        fluid.io.PyReader(capacity=capacity)


def test_the_old_names_are_the_new_things():
    assert fluid.core.EOFException is gpuloader.EOFException
    assert fluid.io.DataLoader is gpuloader.DataLoader
    assert fluid.DataFeeder is gpuloader.DataFeeder
    assert fluid.data is gpuloader.data
    assert fluid.io.shuffle is gpuloader.reader.shuffle
    assert fluid.core.CPUPlace is fluid.CPUPlace is gpuloader.CPUPlace
