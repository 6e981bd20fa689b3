"""Schemas: a batch's first sample settles one, and only a batch that would settle an equal one shares it."""

import itertools
import pickle
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

from gpuloader import Padding, SampleError
from gpuloader.batches import schema as known
from gpuloader.batches.schema import Collation, SchemaCache, infer_schema
from gpuloader.fields.convert import check_fill
from gpuloader.sources.images.regions import NUMBERS, Encoded, Region


def test_a_schema_goes_to_workers_as_it_is():
    schema = infer_schema([{"a": np.zeros((2, 3), ">f4"), "b": ("x", 1)}], Collation())
    assert pickle.loads(pickle.dumps(schema)) == schema


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


def test_an_empty_list_leaves_the_dtype_to_the_next_sample():
    samples = [{"a": []}, {"a": ()}, {"a": [[1, 2]]}, {"a": [[0.5, 1]]}]
    schema = infer_schema(samples, Collation(ragged=frozenset("a")))
    assert [(feed.shape, feed.dtype) for feed in schema.feeds] == [((None, 2), np.dtype("i8"))]
    with pytest.raises(SampleError, match="expected a dict with the keys") as caught:
        infer_schema([{"a": []}, {"b": [1]}], Collation(ragged=frozenset("a")))
    assert caught.value.index == 1
    with pytest.raises(SampleError, match="expected numbers, got text") as caught:
        infer_schema([{"a": []}, {"a": []}, {"a": "x"}], Collation(ragged=frozenset("a")))
    assert (caught.value.index, caught.value.field) == (2, "a")


Pair = namedtuple("Pair", "x y")


def region(pixels, channels):
    shape = pixels, channels
    return Region(shape, np.zeros(NUMBERS, np.float32), np.zeros(shape, np.uint8))


SAMPLES = [
    1, 2**63 - 1, -(2**63), True, 1.5, 1j, np.float32(1), np.int64(1), np.zeros(()), np.zeros(3),
    np.zeros(3, "f4"), np.zeros((3, 1)), "text", b"bytes", None, (1, 2), (1, 2, 3), [1, 2], (1, "a"),
    ("a", 1), (1.5, 2), (np.zeros(3), 2), (np.zeros(4), 2), (np.zeros(3), "a"), Pair(1, 2), {"x": 1, "y": 2},
    {"y": 2, "x": 1}, {"x": 1, "z": 2}, {"x": 1}, {"x": 1, "y": (1, 2)}, {"x": 1, "y": [1, 2]},
    {"x": 1, "y": (1, 2, 3)}, {"x": 1, "y": {"z": 2}}, {"x": 1, "y": {"w": 2}},
    {"x": 1, "y": {"z": {"w": 2}}}, OrderedDict(x=1, y=2), {"x": region(4, 3)}, {"x": region(5, 3)},
    {"x": region(4, 1)},
    {"x": Encoded.of(region(4, 3))}, {"x": Encoded.of(region(5, 3))}, {"x": Encoded.of(region(4, 1))},
    {"x": np.zeros(4, np.uint8)}, {"x": np.zeros((4, 3), np.uint8)},
]  # fmt: skip
UNCLEAR = [2**63, defaultdict(int, x=1, y=2), {"x": 1, "y": defaultdict(int, z=2)}]
"""Samples whose schema is settled for every batch."""

VARYING = [
    {"x": [1, 2]}, {"x": (1, 2)}, {"x": [1]}, {"x": [1.5]}, {"x": [[1, 2]]}, {"x": [[1, 2, 3]]},
    {"x": np.zeros(3)}, {"x": np.zeros(0)}, {"x": np.zeros((2, 3))}, {"x": np.zeros((5, 3))},
    {"x": np.zeros(3, "f4")}, {"x": [1, 2], "y": 3}, {"x": [1, 2], "y": [3]}, {"x": [1, 2], "y": "a"},
]  # fmt: skip
FLAT = [
    (1, 2), [1, 2], (1.5, 2), (1, 2, 3), ([1, 2], 3), [(1, 2), 3], ([1, 2, 3], 3), ([1.5], 3), ([True], 3),
    (np.zeros(2, int), 3), (np.zeros((2, 1)), 3), (np.int64(1), np.int64(2)),
]  # fmt: skip
"""Samples of readers: tuples or lists with one array per field."""

CASES = [
    (SAMPLES, Collation()),
    (VARYING, Collation(ragged=frozenset(["x"]))),
    (VARYING, Collation(pads={"x": Padding(0)})),
    (FLAT, Collation(flat=True)),
]
NAMES = ["fixed", "ragged", "padded", "flat"]


@pytest.mark.parametrize(("samples", "collation"), CASES, ids=NAMES)
def test_the_schema_of_a_batch_does_not_depend_on_the_batches_before(samples, collation):
    for first, second in itertools.product([*samples, *UNCLEAR] if samples is SAMPLES else samples, repeat=2):
        schemas = SchemaCache(collation)
        for sample in (first, second, first):
            assert schemas.find([sample]) == infer_schema([sample], collation)


@pytest.mark.parametrize(("samples", "collation"), CASES, ids=NAMES)
def test_a_schema_is_settled_once(samples, collation, monkeypatch):
    settled = []
    monkeypatch.setattr(known, "infer_schema", lambda *given: settled.append(1) or infer_schema(*given))
    for sample in samples:
        schemas, count = SchemaCache(collation), len(settled)
        assert schemas.find([sample]) is schemas.find([sample])
        assert len(settled) == count + 1


def test_a_first_value_without_a_schema_is_an_error_after_any_batch():
    schemas = SchemaCache(Collation(ragged=frozenset(["x"])))
    schemas.find([{"x": [1]}])
    for bad in ({"x": [[1], [2, 3]]}, {"x": 1}, {"x": "text"}, {"y": [1]}, {"x": np.float64(1)}):
        with pytest.raises(SampleError):
            schemas.find([bad])


def test_eight_schemas_are_known_at_a_time():
    schemas = SchemaCache(Collation())
    found = [schemas.find([np.zeros(size)]) for size in range(10)]
    assert schemas.recent == tuple(found[:1:-1])
    assert schemas.find([np.zeros(2)]) is found[2]
    assert schemas.find([np.zeros(0)]) is not found[0]


def test_eight_sizes_of_batches_are_known_at_a_time():
    schema = infer_schema([np.zeros(3)], Collation())
    tables = [schema.rows(count) for count in range(1, 9)]
    assert [table.layout.fields[0].shape[0] for table in tables] == list(range(1, 9))
    assert [schema.rows(count) for count in range(1, 9)] == tables
    assert schema.rows(9).layout.nbytes == 9 * 24
    assert schema.rows(1) is not tables[0]


def test_a_batch_is_large_until_one_as_large_has_been_full():
    """Its bytes are those of its arrays, and those of the references to its Python objects."""
    schema = infer_schema([{"x": np.zeros(4), "name": "a", "y": 1.0, "other": None}], Collation())
    nbytes = 1024 * (32 + 8) + 1024 * 2 * 8
    assert schema.is_large(1024, nbytes - 1)
    assert not schema.is_large(1024, nbytes)
    schema.fullest = 1024
    assert not schema.is_large(1024, 0)
    assert schema.is_large(1025, 0)
