"""Training: equal losses whether data is read synchronously or asynchronously."""

from types import SimpleNamespace

import numpy as np

from gpuloader import CPUPlace
from gpuloader.demo import training
from gpuloader.demo.training import train
from gpuloader.sources import mnist
from gpuloader.testing import simulated_places


def assert_equal(one, other):
    np.testing.assert_array_equal(one.losses, other.losses)
    np.testing.assert_array_equal(one.model.weight, other.model.weight)
    np.testing.assert_array_equal(one.model.bias, other.model.bias)


def test_three_epochs_of_the_full_file_are_equal_bit_for_bit(full_mnist):
    one, other = (train(full_mnist.train, CPUPlace(), epochs=3, asynchronous=way) for way in (False, True))
    assert len(one.losses) == 1500
    assert_equal(one, other)
    assert 20 < one.losses[0] < 30
    assert 3 < one.losses[400:500].mean() < 6


def test_three_epochs_of_the_sample_are_equal_bit_for_bit():
    digits = mnist.sample().train
    assert_equal(*(train(digits, CPUPlace(), epochs=3, asynchronous=way) for way in (False, True)))


def test_waiting_changes_nothing():
    digits = mnist.sample().valid
    plain = train(digits, CPUPlace(), epochs=1, asynchronous=True)
    slowed = train(digits, CPUPlace(), epochs=1, asynchronous=True, read_wait=0.001, compute_wait=0.001)
    assert_equal(plain, slowed)
    assert slowed.compute >= 5 * 0.001
    assert slowed.stats.fetch >= 5 * 0.001


def test_after_each_step_its_number_and_loss_are_told():
    told = []
    run = train(
        mnist.sample().valid,
        CPUPlace(),
        epochs=2,
        asynchronous=True,
        after_step=lambda steps, loss: told.append((steps, float(loss))),
    )
    assert told == list(enumerate(run.losses.tolist(), start=1))


def test_what_is_told_after_a_step_takes_no_time_of_the_run(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def tell(steps, loss):
        clock[0] += 10.0

    run = train(mnist.sample().valid, CPUPlace(), epochs=1, asynchronous=False, after_step=tell)
    assert clock[0] == 50.0
    assert run.seconds == 0.0


def test_the_simulated_device_reads_the_same_digits():
    from gpuloader import DataLoader

    reader = mnist.reader(mnist.sample().valid, seed=3)
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    [place] = simulated_places(1)
    seen = [np.asarray(labels) for _, labels in loader.set_batch_generator(reader, places=place)]
    again = [labels for _, labels in mnist.reader(mnist.sample().valid, seed=3)()]
    np.testing.assert_array_equal(np.concatenate(seen), np.concatenate(again))
