"""Programs for ``paddle.fluid`` with only the import changed; `tests/paddle_suite` has the single cases."""

import random

import numpy as np
import pytest

import gpuloader
from gpuloader import LoaderError, fluid


def test_a_static_program_with_places():
    image = fluid.data(name="image", shape=[None, 784], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    place = fluid.CPUPlace()

    def reader():
        for n in range(10):
            yield np.full(784, n / 10), n

    loader = fluid.io.DataLoader.from_generator(feed_list=[image, label], capacity=16, iterable=True)
    loader.set_sample_list_generator(
        fluid.io.batch(fluid.io.shuffle(reader, buf_size=500), batch_size=4), places=fluid.cpu_places(1)
    )
    random.seed(0)
    labels = [row for data in loader() for row in data[0]["label"].ravel()]
    assert sorted(labels) == list(range(10))
    feeder = fluid.DataFeeder(feed_list=["image", label], place=place)
    assert feeder.feed([(np.zeros(784), 3)])["image"].shape == (1, 784)


def test_the_batch_dimension_is_appended_unless_told_otherwise():
    assert fluid.layers.data("a", [3]).shape == (None, 3)
    assert fluid.layers.data("b", [8, 3], append_batch_size=False, lod_level=1).shape == (8, 3)


def test_start_and_reset_over_the_other_kinds_of_reader():
    feeds = [fluid.layers.data("x", [2]), fluid.layers.data("y", [1], dtype="int64")]
    reader = fluid.io.PyReader(feeds, capacity=2, iterable=False, return_list=True)
    sources = [
        (reader.decorate_sample_list_generator, lambda: [[([n, n], n)] * 3 for n in range(4)]),
        (reader.decorate_batch_generator, lambda: [(np.ones((3, 2), "f4"), np.ones((3, 1), int))] * 4),
    ]
    for decorate, source in sources:
        decorate(source)
        reader.start()
        for _ in range(4):
            [[x, y]] = next(reader)
            assert (x.shape, y.shape) == ((3, 2), (3, 1))
        for _ in range(2):  # the epoch stays over until reset
            with pytest.raises(fluid.core.EOFException):
                reader.next()
        reader.reset()


def test_an_iterable_py_reader_has_no_start():
    reader = fluid.io.PyReader([fluid.layers.data("n", [1])], capacity=2)
    reader.decorate_batch_generator(lambda: [[np.zeros((1, 1))]], places=fluid.CPUPlace())
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
