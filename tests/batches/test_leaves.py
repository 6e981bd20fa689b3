"""Leaves: arrays go into the slot, other objects are collected separately, row by row."""

import pytest

from gpuloader import SampleError
from gpuloader.batches.tree import Tree, all_leaves, array_leaves, object_columns


def test_objects_are_put_aside_from_a_row_on():
    tree = Tree.of({"a": 1, "b": ("x", 2), "c": None})
    objects = object_columns(tree, 4)
    assert objects == {1: [None] * 4, 3: [None] * 4}
    samples = [{"a": index, "b": (f"{index}", -index), "c": ...} for index in range(2)]
    assert list(array_leaves(tree, iter(samples), 1, objects)) == [[0, 0], [1, -1]]
    assert objects == {1: [None, "0", "1", None], 3: [None, ..., ..., None]}


def test_flat_samples_of_arrays_pass_untouched():
    samples = iter([(1, 2), (3,)])
    assert array_leaves(Tree.of((1, 2)), samples, 0, {}) is samples


def test_samples_of_one_value():
    assert list(array_leaves(Tree.of(1), iter([5, 6]), 0, {})) == [(5,), (6,)]
    objects = object_columns(Tree.of("a"), 2)
    assert list(array_leaves(Tree.of("a"), iter("bc"), 0, objects)) == [[], []]
    assert objects == {0: ["b", "c"]}


def test_a_sample_of_another_form_says_which():
    tree = Tree.of({"a": 1})
    samples = [{"a": 1}, {"b": 1}]
    for leaves, index in (
        (array_leaves(tree, iter(samples), 5, {}), 6),
        (all_leaves(tree, samples, 5), 6),
        (all_leaves(tree, samples), 1),
    ):
        assert list(next(leaves)) == [1]
        with pytest.raises(SampleError) as caught:
            next(leaves)
        assert caught.value.index == index
