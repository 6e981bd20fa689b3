"""Whole values of any tree: the result of a `collate_fn`, or an unbatched sample."""

import numpy as np
import pytest

from gpuloader import Ragged, SampleError, data
from gpuloader.batches.kept import stage_whole
from gpuloader.batches.schema import Collation
from tests.loading import make_slot
from tests.sample_sets import Pair, assert_same

BY_USER = Collation(function=list)
UNBATCHED = Collation(batched=False)
FEEDS = (data("x", [None, 4]), data("y", [None, 1], "int64"))


def build(value, collation):
    staged, _ = stage_whole(value, collation, 3, make_slot)
    assert staged.number == 3
    return staged.tree.build_batch(staged.levels, staged.slot.views(staged.layout), staged.objects)


def test_arrays_are_staged_and_numbers_stay():
    """A count returned along with a batch is a number, not an array; so is a number in a single sample."""
    value = {
        "x": np.arange(3, dtype=">i2"),
        "n": 3,
        "f": 0.5,
        "b": True,
        "s": np.float32(2),
        "z": np.array(7),
    }
    assert_same(build(value, BY_USER), {**value, "x": np.arange(3, dtype="i2")})
    wanted = {**value, "x": np.arange(3, dtype="i2"), "s": np.array(2, "f4")}
    assert_same(build(value, UNBATCHED), wanted)


def test_tuples_of_a_collate_fn_stay_and_those_of_a_sample_become_lists():
    """As torch does it, whose default_convert returns lists."""
    value = (np.arange(2), {"a": (np.zeros(1), "x")}, Pair(1, (np.ones(1),)))
    assert_same(build(value, BY_USER), value)
    wanted = [np.arange(2), {"a": [np.zeros(1), "x"]}, Pair(1, [np.ones(1)])]
    assert_same(build(value, UNBATCHED), wanted)


@pytest.mark.parametrize("collation", [BY_USER, UNBATCHED], ids=["collate_fn", "unbatched"])
def test_each_value_keeps_its_own_form_whatever_came_before(collation):
    """Values that differ only in what a comparison might overlook."""
    values = [
        {"a": np.arange(3), "b": np.zeros(2)},
        {"b": np.zeros(2), "a": np.arange(3)},
        {"a": np.arange(4), "b": np.zeros(2)},
        {"a": np.arange(3, dtype="i4"), "b": np.zeros(2)},
        {"a": np.arange(3, dtype=">i8"), "b": np.zeros(2)},
        {"a": np.array(["x"]), "b": np.zeros(2)},
        {1: np.zeros(2)},
        {True: np.zeros(2)},
        [np.arange(3), np.zeros(2)],
    ]
    for value in values * 2:
        entries = value.values() if isinstance(value, dict) else value
        swapped = [array.astype(array.dtype.newbyteorder("=")) for array in entries]
        wanted = dict(zip(value, swapped, strict=True)) if isinstance(value, dict) else swapped
        built = build(value, collation)
        assert_same(built, wanted)
        assert type(built) is type(value)
        assert list(map(type, built)) == list(map(type, wanted))


@pytest.mark.parametrize("value", [None, "a", b"a", [], {}, (), [[], {}], object(), {"a": None}])
def test_a_value_without_arrays(value):
    assert_same(build(value, BY_USER), value)
    assert_same(build(value, UNBATCHED), list(value) if type(value) is tuple else value)


def test_ragged_values():
    ragged = Ragged.from_samples([[1, 2], [3]], "int64")
    deeper = Ragged.from_samples([[[1.0], []], [[2.0, 3.0]]], "float32", lod_level=2)
    built = build([ragged, "x", deeper, np.zeros(2)], BY_USER)
    assert_same(built[0].values, np.array([1, 2, 3]))
    assert built[0].recursive_sequence_lengths() == [[2, 1]]
    assert built[2].recursive_sequence_lengths() == [[2, 1], [1, 0, 2]]
    assert_same([built[1], built[3]], ["x", np.zeros(2)])


def test_feeds_convert_a_sample_and_not_a_users_batch():
    sample = ([[1, 2], [3, 4]], 5.0)
    assert_same(
        build(sample, Collation(feeds=FEEDS, batched=False)), [np.array([1, 2, 3, 4], "f4"), np.array([5])]
    )
    batch = (np.zeros((2, 4)), [[1], [2]])
    assert_same(build(batch, Collation(feeds=FEEDS, function=list)), [np.zeros((2, 4)), np.array([[1], [2]])])


@pytest.mark.parametrize(
    ("value", "collation", "field", "message"),
    [
        ((np.zeros(4),), Collation(feeds=FEEDS, batched=False), None, "expected a tuple of 2"),
        ({"x": 1, "y": 2}, Collation(feeds=FEEDS, function=list), None, "expected a tuple of 2"),
        ((np.zeros(5), 1), Collation(feeds=FEEDS, batched=False), "x", r"expected shape \(4,\), got \(5,\)"),
        ((np.zeros(4), "a"), Collation(feeds=FEEDS, batched=False), "y", "expected numbers, got text"),
        ((np.zeros(4), None), Collation(feeds=FEEDS, function=list), "y", "expected numbers, got None"),
        (
            (np.zeros(4), [[1], [2, 3]]),
            Collation(feeds=FEEDS, function=list),
            "y",
            "expected an array of numbers",
        ),
    ],
)
def test_what_does_not_fit_its_feed(value, collation, field, message):
    with pytest.raises(SampleError, match=message) as caught:
        build(value, collation)
    assert caught.value.field == field
