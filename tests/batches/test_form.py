"""Forms: inferred from the first sample, or declared by the user."""

import pickle

import numpy as np
import pytest

from gpuloader import Ragged, SampleError, data
from gpuloader.batches.schema import Collation, build_batch, check_fill, declared_schema, infer_schema
from gpuloader.batches.tree import Tree


def test_the_first_sample_settles_the_form():
    form = infer_schema([{"a": np.zeros((2, 3), ">f4"), "b": ("x", 1), "c": True}], Collation())
    assert [(feed.name, feed.shape, feed.dtype) for feed in form.feeds] == [
        ("a", (None, 2, 3), np.dtype("f4")),
        ("b.1", (None,), np.dtype("i8")),
        ("c", (None,), np.dtype("?")),
    ]
    assert (form.levels, form.declared) == ((0, 0, 0), False)
    assert pickle.loads(pickle.dumps(form)) == form


def test_fields_that_vary():
    sample = {"a": np.zeros((4, 3), "i2"), "b": [1, 2], "c": np.zeros(5)}
    form = infer_schema([sample], Collation(ragged=frozenset(["a"]), pads={"b": -1}))
    assert form.levels == (1, 0, 0)
    assert [(feed.shape, feed.lod_level) for feed in form.feeds] == [
        ((None, 3), 1),
        ((None,), 1),
        ((None, 5), 0),
    ]


@pytest.mark.parametrize(
    ("collation", "fixed", "keeps", "whole"),
    [
        (Collation(), True, False, False),
        (Collation(ragged=frozenset("a")), False, True, False),
        (Collation(pads={"a": 0}), False, True, False),
        (Collation((data("a", [None, 3]),)), True, False, False),
        (Collation((data("a", [None, None]),)), True, True, False),
        (Collation((data("a", [None, 3]), data("b", [None, 3], lod_level=1))), False, True, False),
        (Collation(function=list), False, True, True),
        (Collation(batched=False), False, True, True),
    ],
)
def test_a_batch_is_written_sample_by_sample_if_its_fields_have_one_size(collation, fixed, keeps, whole):
    assert (collation.fixed, collation.keeps, collation.whole) == (fixed, keeps, whole)


@pytest.mark.parametrize(
    ("sample", "collation", "field", "message"),
    [
        ({"a": 1}, Collation(ragged=frozenset("b")), None, r"ragged or pad names \['b'\]"),
        (
            {"a": "x"},
            Collation(ragged=frozenset("a")),
            None,
            r"ragged or pad names \['a'\], .* array fields are \[\]",
        ),
        (
            {"a": 1},
            Collation(ragged=frozenset("a")),
            "a",
            "expected an array of varying length, got a number",
        ),
        ({"a": []}, Collation(pads={"a": 0}), "a", "the lists of all samples of the batch are empty"),
        ({"a": [[1], [2, 3]]}, Collation(pads={"a": 0}), "a", "expected an array of numbers"),
        (
            {"a": np.zeros(2, int)},
            Collation(pads={"a": 0.5}),
            "a",
            "cannot pad rows of int64 with 0.5",
        ),
        ({"a": Ragged(1, ())}, Collation(), "a", "expected an array of numbers, got dtype object"),
    ],
)
def test_a_first_sample_that_settles_nothing(sample, collation, field, message):
    with pytest.raises(SampleError, match=message) as caught:
        infer_schema([sample], collation)
    assert caught.value.field == field


def test_an_empty_list_leaves_the_dtype_to_the_next_sample():
    samples = [{"a": []}, {"a": ()}, {"a": [[1, 2]]}, {"a": [[0.5, 1]]}]
    form = infer_schema(samples, Collation(ragged=frozenset("a")))
    assert [(feed.shape, feed.dtype) for feed in form.feeds] == [((None, 2), np.dtype("i8"))]
    with pytest.raises(SampleError, match="expected a dict with the keys") as caught:
        infer_schema([{"a": []}, {"b": [1]}], Collation(ragged=frozenset("a")))
    assert caught.value.index == 1
    with pytest.raises(SampleError, match="expected numbers, got text") as caught:
        infer_schema([{"a": []}, {"a": []}, {"a": "x"}], Collation(ragged=frozenset("a")))
    assert (caught.value.index, caught.value.field) == (2, "a")


@pytest.mark.parametrize(
    ("fill", "dtype", "fits"),
    [
        (0, "u1", True), (255, "u1", True), (256, "u1", False), (-1, "u1", False), (-1.0, "i8", True),
        (0.5, "i8", False), (np.nan, "i8", False), (np.inf, "i4", False), (np.nan, "f4", True),
        (np.inf, "f2", True), (1e300, "f4", False), (7e4, "f2", False), (0.1, "f4", True),
        (2**64 - 1, "u8", True),
        (True, "?", True), (2, "?", False), (1, "c8", True), (1j, "f4", False), (np.float32(2), "i2", True),
    ],
)  # fmt: skip
def test_what_short_rows_may_be_filled_up_with(fill, dtype, fits):
    if fits:
        check_fill(fill, np.dtype(dtype))
    else:
        with pytest.raises(SampleError, match="cannot pad rows of"):
            check_fill(fill, np.dtype(dtype))


def test_declared_forms():
    feeds = [data("x", [None, 3]), data("y", [None], "int64", 1), data("z", [None], "int64", 2)]
    form = declared_schema(feeds, {"y": 0})
    assert (form.levels, form.declared) == ((0, 0, 2), True)
    assert form.tree == Tree.flat(["x", "y", "z"])


def test_batches_are_built_of_arrays_and_objects():
    tree = Tree.of({"a": 1, "b": ("x", 2), "c": None})
    batch = build_batch(tree, [1, 0], ["values", "splits", "array"], [["x", "y"], [None, None]])
    assert (batch["a"].values, batch["a"].row_splits) == ("values", ("splits",))
    assert (batch["b"], batch["c"]) == ([["x", "y"], "array"], [None, None])
    assert build_batch(Tree.of("a"), [], [], [["b", "c"]]) == ["b", "c"]
