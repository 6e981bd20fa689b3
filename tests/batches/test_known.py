"""Known forms: a batch that looks like a recent one has that one's form, and no other batch has."""

import itertools
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

from gpuloader import SampleError
from gpuloader.batches import schema as known
from gpuloader.batches.schema import CachedSchema, Collation, SchemaCache, infer_schema
from gpuloader.fields.image_regions import NUMBERS, Encoded, Region

Pair = namedtuple("Pair", "x y")


def region(pixels, channels):
    shape = pixels, channels
    return Region(shape, np.zeros(NUMBERS, np.float32), np.zeros(shape, np.uint8))


SAMPLES = [
    1,
    2**63 - 1,
    -(2**63),
    True,
    1.5,
    1j,
    np.float32(1),
    np.int64(1),
    np.zeros(()),
    np.zeros(3),
    np.zeros(3, "f4"),
    np.zeros((3, 1)),
    "text",
    b"bytes",
    None,
    (1, 2),
    (1, 2, 3),
    [1, 2],
    (1, "a"),
    ("a", 1),
    (1.5, 2),
    (np.zeros(3), 2),
    (np.zeros(4), 2),
    (np.zeros(3), "a"),
    Pair(1, 2),
    {"x": 1, "y": 2},
    {"y": 2, "x": 1},
    {"x": 1, "z": 2},
    {"x": 1},
    {"x": 1, "y": (1, 2)},
    {"x": 1, "y": [1, 2]},
    {"x": 1, "y": (1, 2, 3)},
    {"x": 1, "y": {"z": 2}},
    {"x": 1, "y": {"w": 2}},
    {"x": 1, "y": {"z": {"w": 2}}},
    OrderedDict(x=1, y=2),
    {"x": region(4, 3)},
    {"x": region(5, 3)},
    {"x": region(4, 1)},
    {"x": Encoded.of(region(4, 3))},
    {"x": Encoded.of(region(5, 3))},
    {"x": Encoded.of(region(4, 1))},
    {"x": np.zeros(4, np.uint8)},
    {"x": np.zeros((4, 3), np.uint8)},
]
UNCLEAR = [2**63, defaultdict(int, x=1, y=2), {"x": 1, "y": defaultdict(int, z=2)}]
"""Samples whose form is settled for every batch."""

VARYING = [
    {"x": [1, 2]},
    {"x": (1, 2)},
    {"x": [1]},
    {"x": [1.5]},
    {"x": [[1, 2]]},
    {"x": [[1, 2, 3]]},
    {"x": np.zeros(3)},
    {"x": np.zeros(0)},
    {"x": np.zeros((2, 3))},
    {"x": np.zeros((5, 3))},
    {"x": np.zeros(3, "f4")},
    {"x": [1, 2], "y": 3},
    {"x": [1, 2], "y": [3]},
    {"x": [1, 2], "y": "a"},
]

CASES = [
    (SAMPLES, Collation()),
    (VARYING, Collation(ragged=frozenset(["x"]))),
    (VARYING, Collation(pads={"x": 0})),
]


@pytest.mark.parametrize(("samples", "collation"), CASES, ids=["fixed", "ragged", "padded"])
def test_the_form_of_a_batch_does_not_depend_on_the_batches_before(samples, collation):
    for first, second in itertools.product([*samples, *UNCLEAR] if samples is SAMPLES else samples, repeat=2):
        forms = SchemaCache(collation)
        for sample in (first, second, first):
            assert forms.find([sample]).schema == infer_schema([sample], collation)


@pytest.mark.parametrize(("samples", "collation"), CASES, ids=["fixed", "ragged", "padded"])
def test_a_form_is_settled_once(samples, collation, monkeypatch):
    settled = []
    monkeypatch.setattr(known, "infer_schema", lambda *given: settled.append(1) or infer_schema(*given))
    for sample in samples:
        forms, count = SchemaCache(collation), len(settled)
        assert forms.find([sample]) is forms.find([sample])
        assert len(settled) == count + 1


def test_a_first_value_without_a_form_is_an_error_after_any_batch():
    forms = SchemaCache(Collation(ragged=frozenset(["x"])))
    forms.find([{"x": [1]}])
    for bad in ({"x": [[1], [2, 3]]}, {"x": 1}, {"x": "text"}, {"y": [1]}, {"x": np.float64(1)}):
        with pytest.raises(SampleError):
            forms.find([bad])


def test_eight_forms_are_known_at_a_time():
    forms = SchemaCache(Collation())
    found = [forms.find([np.zeros(size)]) for size in range(10)]
    assert forms.recent == tuple(found[:1:-1])
    assert forms.find([np.zeros(2)]) is found[2]
    assert forms.find([np.zeros(0)]) is not found[0]


def test_eight_sizes_of_batches_are_known_at_a_time():
    form = CachedSchema(infer_schema([np.zeros(3)], Collation()))
    tables = [form.rows(count) for count in range(1, 9)]
    assert [table.count for table in tables] == list(range(1, 9))
    assert [form.rows(count) for count in range(1, 9)] == tables
    assert form.rows(9).layout.nbytes == 9 * 24
    assert form.rows(1) is not tables[0]


def test_a_batch_is_large_until_one_as_large_has_been_full():
    """Its bytes are those of its arrays, and those of the references to its Python objects."""
    form = CachedSchema(infer_schema([{"x": np.zeros(4), "name": "a", "y": 1.0, "other": None}], Collation()))
    nbytes = 1024 * (32 + 8) + 1024 * 2 * 8
    assert form.is_large(1024, nbytes - 1)
    assert not form.is_large(1024, nbytes)
    form.fullest = 1024
    assert not form.is_large(1024, 0)
    assert form.is_large(1025, 0)
