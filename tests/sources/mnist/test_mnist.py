import gzip
import json
from itertools import pairwise

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.sources import mnist
from gpuloader.sources.mnist.digits import DigitSet


def numbered(count):
    """Return digits whose first pixel encodes their position."""
    images = np.zeros((count, 784), np.float32)
    images[:, 0] = np.arange(count) / count
    return DigitSet(images, np.arange(count) % 10)


def order_of(read, count):
    return [round(float(pixel) * count) for images, _ in read() for pixel in images[:, 0]]


def test_the_sample_is_real_mnist():
    digits = mnist.sample()
    for part, count in ((digits.train, 4000), (digits.valid, 500), (digits.test, 500)):
        assert (part.images.shape, len(part)) == ((count, 784), count)
        assert (part.images.dtype, part.labels.dtype) == (np.float32, np.int64)
        assert set(part.labels.tolist()) == set(range(10))
        assert part.images.min() == 0
        assert 0.9 < part.images.max() < 1
    assert digits.train.labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_load_tells_the_sources_apart(tmp_path):
    assert len(mnist.load().train) == 4000
    path = tmp_path / "digits.json.gz"
    path.write_bytes(gzip.compress(json.dumps([[[[0.5] * 784], [7]]] * 3).encode()))
    assert mnist.load(str(path)).test.labels.tolist() == [7]
    with pytest.raises(FileNotFoundError, match="train-images"):
        mnist.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        mnist.load(tmp_path / "absent")


def test_an_epoch_visits_every_digit_once_and_keeps_the_short_batch():
    read = mnist.reader(numbered(250), seed=3)
    assert [len(images) for images, _ in read()] == [100, 100, 50]
    assert sorted(order_of(read, 250)) == list(range(250))
    assert order_of(mnist.reader(numbered(25), 10, shuffle=False), 25) == list(range(25))


def test_epochs_differ_and_a_run_is_repeatable():
    first, second = (mnist.reader(numbered(64), 10, seed=5) for _ in range(2))
    epochs = [order_of(first, 64) for _ in range(3)]
    assert all(left != right for left, right in pairwise(epochs))
    next(second())  # an epoch takes its order when it begins
    assert [order_of(second, 64) for _ in range(2)] == epochs[1:]
    assert order_of(mnist.reader(numbered(64), 10, seed=6), 64) != epochs[0]


@pytest.mark.parametrize(("flat", "shape"), [(False, (10, 1)), (True, (10,))])
def test_labels_have_the_shape_that_was_asked_for(flat, shape):
    digits = numbered(30)
    for images, labels in mnist.reader(digits, 10, seed=0, flat_labels=flat)():
        assert images.dtype == labels.dtype == np.float32
        assert labels.shape == shape
        expected = [round(float(pixel) * 30) % 10 for pixel in images[:, 0]]
        assert labels.ravel().tolist() == expected


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_batch_size_below_one_is_refused(size):
    with pytest.raises(ValueError, match="batch_size"):
        mnist.reader(numbered(4), size)


def test_a_batch_is_the_callers_own():
    digits = numbered(4)
    images, labels = next(mnist.reader(digits, 4, shuffle=False)())
    images[:], labels[:] = 9, 9
    assert digits.images.max() < 1
    assert next(mnist.reader(digits, 4, shuffle=False)())[1].ravel().tolist() == [0, 1, 2, 3]


def test_the_loader_takes_both_readers():
    digits = numbered(25)
    loader = DataLoader.from_generator(capacity=4, return_list=True)
    loader.set_batch_generator(mnist.reader(digits, 10, seed=0), places="cpu")
    steps = [(images.shape, labels.shape) for images, labels in loader]
    assert steps == [((10, 784), (10, 1)), ((10, 784), (10, 1)), ((5, 784), (5, 1))]
    loader = DataLoader.from_generator(capacity=4, return_list=True)
    loader.set_sample_generator(mnist.sample_reader(digits), 10, drop_last=False, places="cpu")
    assert [label for _, labels in loader for label in np.ravel(labels)] == digits.labels.tolist()
