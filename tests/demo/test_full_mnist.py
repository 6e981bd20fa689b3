"""What needs all 70,000 digits, if GPULOADER_MNIST names their file: reading it takes long."""

import os
from pathlib import Path

import numpy as np
import pytest

from gpuloader.demo.training import are_equal
from gpuloader.sources import mnist
from gpuloader.sources.mnist.digits import read_json
from tests.demo.test_linear import train
from tests.demo.test_training import both_ways

pytestmark = pytest.mark.timeout(600)  # for a machine that is busy


@pytest.fixture(scope="module")
def full_mnist():
    if "GPULOADER_MNIST" not in os.environ:
        pytest.skip("GPULOADER_MNIST names no mnist.json.gz")
    return read_json(Path(os.environ["GPULOADER_MNIST"]))


def test_the_sample_is_the_beginning_of_the_full_sets(full_mnist):
    digits = mnist.sample()
    for name, count in (("train", 50_000), ("valid", 10_000), ("test", 10_000)):
        few, all_of_them = getattr(digits, name), getattr(full_mnist, name)
        assert (all_of_them.images.shape, all_of_them.labels.shape) == ((count, 784), (count,))
        np.testing.assert_array_equal(few.images, all_of_them.images[: len(few)])
        np.testing.assert_array_equal(few.labels, all_of_them.labels[: len(few)])
    levels = full_mnist.test.images * 256
    np.testing.assert_array_equal(levels, levels.astype(np.uint8))


def test_a_column_of_labels_learns_and_flat_labels_stay_above_their_variance(full_mnist):
    for flat, least, most in ((False, 3, 6), (True, max(7, full_mnist.train.labels.var()), 10)):
        losses = train(full_mnist.train, flat_labels=flat)
        assert 20 < losses[0] < 30
        assert least < np.mean(losses[-100:]) < most


def test_three_epochs_of_the_full_file_are_equal_bit_for_bit(full_mnist):
    one, other = both_ways(full_mnist.train, epochs=3)
    assert len(one.losses) == 1500
    assert are_equal(one, other)
    assert 20 < one.losses[0] < 30
    assert 3 < one.losses[400:500].mean() < 6
