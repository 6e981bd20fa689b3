"""Trees: a sample is flattened, a batch is built in the same tree, and objects are put aside."""

import collections
import dataclasses
import pickle
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import Ragged, SampleError
from gpuloader.batches.tree import Leaf, Tree, array_columns, array_leaves, is_array, object_columns
from tests.sample_sets import Pair

leaves = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
leaves |= st.text(max_size=3) | st.binary(max_size=3)
samples = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2) | st.integers(0, 3), inner, min_size=1, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)


@given(samples)
def test_what_is_taken_apart_is_put_together_again(sample):
    tree = Tree.of(sample)
    values = tree.flatten(sample)
    assert len(values) == len(tree.leaves)
    assert [leaf.is_array for leaf in tree.leaves] == [is_array(value) for value in values]
    assert_alike(tree.build(values), without_tuples(sample))
    assert_alike(Tree.of(sample, keeps_tuples=True).build(values), sample)


def without_tuples(sample):
    """Return a sample as torch's default_collate returns its tree."""
    if isinstance(sample, dict):
        return {key: without_tuples(entry) for key, entry in sample.items()}
    if isinstance(sample, Pair):
        return Pair(*map(without_tuples, sample))
    return list(map(without_tuples, sample)) if isinstance(sample, tuple | list) else sample


def assert_alike(built, wanted):
    assert (type(built), built) == (type(wanted), wanted)
    for one, other in zip(built.values(), wanted.values(), strict=True) if isinstance(built, dict) else ():
        assert_alike(one, other)
    for one, other in zip(built, wanted, strict=True) if isinstance(built, list | tuple) else ():
        assert_alike(one, other)


@given(samples)
def test_a_tree_is_a_value(sample):
    tree = Tree.of(sample)
    copy = pickle.loads(pickle.dumps(tree))
    assert (copy, hash(copy), copy.leaves) == (tree, hash(tree), tree.leaves)
    assert tree != Tree.of([sample, 1])
    assert tree != sample


def test_fields_are_named_by_their_way_from_the_top():
    tree = Tree.of({"a": [1, {"b": ("x", 2)}], 3: Pair(4, None)})
    assert [leaf.name for leaf in tree.leaves] == ["a.0", "a.1.b.0", "a.1.b.1", "3.0", "3.1"]
    assert tree.array_names == ["a.0", "a.1.b.1", "3.0"]
    assert not tree.is_flat
    assert Tree.of(7).leaves == (Leaf("0", True),)
    assert Tree.of((1, "a")).is_flat
    assert Tree.flat(["x", "y"]).build([1, 2]) == [1, 2]


def name_value(value):
    return repr(value).partition(" at 0x")[0]


@pytest.mark.parametrize(
    "value",
    [
        True, 1, 1.5, 1j, np.float16(1), np.bool_(True), np.uint64(1), np.zeros(2), np.zeros((), ">i4"),
        np.zeros(1, [("a", "i4")]), np.zeros(1, [("a", "i4")])[0], Ragged(np.zeros(0), (np.zeros(1),)),
        type("Own", (), {"__array__": lambda self: np.zeros(1)})(),
        type("Own", (), {"__array_interface__": {}})(),
    ],
    ids=name_value,
)  # fmt: skip
def test_arrays(value):
    assert is_array(value)


@pytest.mark.parametrize(
    "value",
    [
        "1", b"1", bytearray(b"1"), None, object(), {1}, np.array(["a"]), np.str_("a"), np.bytes_(b"a"),
        np.array([None]), np.datetime64(1, "s"), np.timedelta64(1, "s"), np.zeros(1, "M8[s]"),
        memoryview(b"a"),
        type("Series", (), {"dtype": np.dtype(object), "__array__": lambda self: np.array([None])})(),
        types.SimpleNamespace(dtype="float32"),
    ],
    ids=name_value,
)  # fmt: skip
def test_no_arrays(value):
    assert not is_array(value)


@pytest.mark.parametrize("sample", [(), [], {}, ((), {}), {"a": []}])
def test_a_sample_has_a_field_at_least_and_empty_parts_stay(sample):
    with pytest.raises(SampleError, match="expected a sample with at least one value"):
        Tree.of(sample)
    tree = Tree.of(sample, staged=is_array)
    assert tree.flatten(sample) == [] or tree.flatten(sample) == sample
    assert_alike(tree.build([]), without_tuples(sample))
    assert_alike(Tree.of([1, sample]).build([5]), [5, without_tuples(sample)])


def test_forms_that_will_do():
    """A list instead of a tuple, another mapping, or another order of keys is accepted."""
    tree = Tree.of({"a": 1, "b": (2, 3)})
    assert tree.flatten(collections.OrderedDict(b=[5, 6], a=4)) == [4, 5, 6]


class Record(Pair):
    """A named tuple with a constructor of its own."""

    def __new__(cls, text):
        return super().__new__(cls, *text.split())


def test_classes_are_made_again_where_they_can_be():
    built = Tree.of([Record("1 2"), types.MappingProxyType({"a": 1})]).build([3, 4, 5])
    assert built == [Pair(3, 4), {"a": 5}]
    assert type(built[0]) is Record
    assert type(built[1]) is types.MappingProxyType


class Tagged(dict):
    """A dict with an attribute."""

    def __init__(self, *entries, tag=None):
        super().__init__(*entries)
        self.tag = tag

    def clear(self):
        raise AssertionError("the sample's own method must not run")


class Items(list):
    pass


class Config(collections.UserDict):
    pass


class Locked(dict):
    def __copy__(self):
        raise TypeError("not to be copied")


def tag(value):
    value.tag = "x"
    return value


@pytest.mark.parametrize(
    "sample",
    [
        collections.defaultdict(list, a=1),
        collections.OrderedDict(a=1, b=2),
        collections.Counter(a=1),
        Tagged({"a": 1}, tag="x"),
        tag(Config(a=1)),
        tag(Items([1, 2])),
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_containers_stay_with_their_attributes(sample):
    """As torch's default_collate returns them: of the class and with the attributes of the first sample."""
    before = pickle.dumps(sample)
    tree = pickle.loads(pickle.dumps(Tree.of([sample])))
    assert tree == Tree.of([sample])
    built, again = (tree.build(range(5, 9))[0] for _ in range(2))
    assert type(built) is type(sample)
    assert list(built) == (list(sample) if not isinstance(sample, list) else [5, 6])
    assert built == again
    assert built is not again
    assert getattr(built, "tag", None) == getattr(sample, "tag", None)
    assert getattr(built, "default_factory", None) is getattr(sample, "default_factory", None)
    assert pickle.dumps(sample) == before


def test_attributes_are_part_of_a_tree():
    """Two batches whose containers have other attributes have other trees."""
    one, other = (Tree.of(Tagged({"a": 1}, tag=tag)) for tag in "xy")
    assert one != other
    assert one == Tree.of(Tagged({"a": 2}, tag="x"))
    arrays = [Tree.of(Tagged({"a": 1}, tag=np.arange(3))) for _ in range(2)]
    assert arrays[0] != arrays[1]  # their comparison has no single answer
    assert Tree.of(collections.defaultdict(list, a=1)) != Tree.of(collections.defaultdict(set, a=1))


def test_a_container_that_cannot_be_copied_becomes_what_it_can():
    built = Tree.of(Locked(a=1)).build([2])
    assert (type(built), built) == (Locked, {"a": 2})


@dataclasses.dataclass(frozen=True)
class Located:
    words: object
    place: object


def test_fields_of_a_dataclass_are_fields_of_a_batch_that_is_taken_apart():
    words = Ragged(np.arange(3), (np.array([0, 3]),))  # a dataclass too, but one value
    sample = {"a": Located(words, ("cat", 2))}
    opened = Tree.of(sample, opens=True)
    assert [(leaf.name, leaf.is_array) for leaf in opened.leaves] == [
        ("a.words", True),
        ("a.place.0", False),
        ("a.place.1", True),
    ]
    assert list(opened.flatten(sample)) == [words, "cat", 2]
    assert opened.build(["w", "x", "y"]) == {"a": Located("w", ["x", "y"])}
    assert [(leaf.name, leaf.is_array) for leaf in Tree.of(sample).leaves] == [("a", False)]


NESTED = {"row": (1, "a"), "of": {"x": 2, "y": "b"}}


@pytest.mark.parametrize("samples", [
    [1, 2], ["a", "b"], [(1, "a"), (2, "b")], [{"x": 1}, {"x": 2}], [{"x": "a"}, {"x": "b"}],
    [NESTED, {"of": {"y": "c", "x": 3}, "row": (4, "d")}], [Pair(1, "a"), Pair(2, "b")],
], ids=repr)  # fmt: skip
def test_columns_hold_what_the_leaves_of_each_sample_do(samples):
    tree = Tree.of(samples[0])
    by_field, by_sample = object_columns(tree, 2), object_columns(tree, 2)
    columns = array_columns(tree, samples, 0, by_field)
    leaves = [tuple(values) for values in array_leaves(tree, samples, 0, by_sample)]
    assert [*zip(*columns, strict=True)] == [values for values in leaves if values]
    assert by_field == by_sample


@pytest.mark.parametrize("other", [
    {"row": (1, "a")}, NESTED | {"z": 1}, {"row": (1, "a"), "off": NESTED["of"]}, NESTED | {"row": [1, "a"]},
    NESTED | {"row": (1, "a", 2)}, NESTED | {"of": {"x": 1, "z": "b"}}, (1, 2),
    collections.OrderedDict(NESTED),
], ids=repr)  # fmt: skip
def test_samples_of_which_one_differs_have_no_columns(other):
    tree = Tree.of(NESTED)
    assert array_columns(tree, [NESTED, other], 0, object_columns(tree, 2)) is None
