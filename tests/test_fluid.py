"""The loading part of old programs, with nothing but their import line changed."""

import random

import numpy as np

from gpuloader import fluid
from gpuloader.fluid.io import DataLoader


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


def test_a_py_reader_that_starts_and_resets():
    image = fluid.layers.data("picture", [2, 2])
    reader = fluid.io.PyReader(feed_list=[image], capacity=4, iterable=False)
    reader.decorate_sample_generator(lambda: (([n] * 4,) for n in range(6)), batch_size=2)
    for _ in range(2):
        reader.start()
        count = 0
        try:
            while True:
                [batch] = reader.next()
                assert batch["picture"].shape == (2, 2, 2)
                count += 1
        except fluid.core.EOFException:
            reader.reset()
        assert count == 3


def test_the_other_setters_of_a_py_reader():
    reader = fluid.io.PyReader(capacity=2, return_list=True)
    reader.decorate_batch_generator(lambda: [[np.zeros((2, 3))]], places=fluid.CPUPlace())
    assert [array.shape for (array,) in reader] == [(2, 3)]
    reader.decorate_sample_list_generator(lambda: [[(1,), (2,)]], places=fluid.CPUPlace())
    assert [array.tolist() for (array,) in reader()] == [[1, 2]]


def test_a_dygraph_program():
    loader = DataLoader.from_generator(capacity=10, return_list=True)
    loader.set_batch_generator(lambda: [(np.zeros((5, 784), "float32"), np.ones((5, 1)))], fluid.CPUPlace())
    for images, labels in loader():
        assert (images.shape, labels.shape) == ((5, 784), (5, 1))


def test_the_batch_dimension_is_appended_unless_told_otherwise():
    assert fluid.layers.data("a", [3]).shape == (None, 3)
    assert fluid.layers.data("b", [8, 3], append_batch_size=False, lod_level=1).shape == (8, 3)
