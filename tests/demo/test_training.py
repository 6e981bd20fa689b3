"""Training: equal losses whether data is read synchronously or asynchronously."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from gpuloader import CPUPlace
from gpuloader.demo.training import Comparison, LinearModel, are_equal, train, train_in_turn
from gpuloader.sources import mnist


def both_ways(digits, epochs):
    runs = (train(digits, CPUPlace(), asynchronous=way) for way in (False, True))
    return [next(islice(run, epochs - 1, None)) for run in runs]


def test_waiting_changes_nothing():
    digits = mnist.sample().valid
    plain = next(train(digits, CPUPlace(), asynchronous=True))
    slowed = next(train(digits, CPUPlace(), asynchronous=True, wait=0.001))
    assert are_equal(plain, slowed)
    assert slowed.compute >= 5 * 0.001
    assert slowed.stats.fetch >= 5 * 0.001


@pytest.mark.parametrize(
    ("way", "wait", "runs"),
    [
        (None, 0.001, ["as it is, synchronous", "as it is, asynchronous", "with waits, synchronous",
                       "with waits, asynchronous"]),
        (None, 0.0, ["as it is, synchronous", "as it is, asynchronous"]),
        ("synchronous", 0.0, ["as it is, synchronous"]),
        ("asynchronous", 0.001, ["with waits, asynchronous"]),
    ],
)  # fmt: skip
def test_both_ways_are_two_pairs_of_runs_and_one_way_is_one_run(way, wait, runs):
    told = []
    digits = mnist.sample().valid
    made, comparisons = train_in_turn(digits, CPUPlace(), way=way, epochs=2, wait=wait, tell=told.append)
    turns = 2 if way else 10  # whole trainings of two epochs, until there are nine to compare
    assert told == ["warming up", *(f"{title}, turn {turn + 1}" for title in made for turn in range(turns))]
    assert [one.turns for one in comparisons.values()] == ([] if way else [10] * len(made))
    assert [f"{title}, {one}" for title, pair in made.items() for one in pair] == runs
    assert {len(run.losses) for pair in made.values() for run in pair.values()} == {10}


def test_runs_with_waits_are_no_longer_than_they_must_be(monkeypatch):
    monkeypatch.setattr("gpuloader.demo.training.SLOWED_DIGITS", 500)
    made, comparisons = train_in_turn(
        mnist.sample().valid, CPUPlace(), way=None, epochs=2, wait=0.0001, tell=print
    )
    assert [one.turns for one in comparisons.values()] == [10, 3]
    assert [len(run.losses) for pair in made.values() for run in pair.values()] == [10, 10, 5, 5]


def test_runs_are_equal_to_the_last_bit_or_not_at_all():
    one, other = both_ways(mnist.sample().valid, epochs=1)
    assert are_equal(one, other)
    losses = other.losses.copy()
    losses[-1] = np.nextafter(losses[-1], np.float32(99))
    assert not are_equal(one, replace(other, losses=losses))
    assert not are_equal(one, replace(other, losses=losses[:-1]))
    model = LinearModel()
    model.weight, model.bias = other.model.weight, np.nextafter(other.model.bias, np.float32(99))
    assert not are_equal(one, replace(other, model=model))


def test_a_spread_that_covers_one_is_no_difference():
    assert str(Comparison.of([0.8, 0.9, 1.1])) == "no difference (0.90, from 0.80 to 1.10 in 3 turns)"
    assert str(Comparison.of([0.4, 0.5, 0.6])) == "0.50 of the time (0.40 to 0.60 in 3 turns)"
    # One disturbed turn among many decides nothing.
    assert str(Comparison.of([0.4, 0.5, 0.5, 0.6, 3.0])) == "0.50 of the time (0.50 to 0.60 in 5 turns)"
