"""Batches of a dataset's loader: every form of sample, and the same result with any workers."""

import collections
import gc
import itertools
import weakref

import numpy as np
import pytest

from gpuloader import (
    ConcatDataset,
    DataLoader,
    LoaderError,
    Ragged,
    SampleError,
    Subset,
    TensorDataset,
    cpu_places,
    data,
)
from tests.fakes import nothing_left_behind
from tests.loading import load
from tests.sample_sets import (
    PROCESSES,
    WORKERS,
    Counting,
    Made,
    MadeAtOnce,
    Pair,
    assert_same,
    name_workers,
    stack,
    values,
)

by_workers = pytest.mark.parametrize("workers", WORKERS, ids=name_workers)


class Picture:
    """An array of another library, which NumPy converts through ``__array__``."""

    def __init__(self, index):
        self.index = index

    def __array__(self, dtype=None, copy=None):
        return np.full((2, 3), self.index, dtype or np.int16)


class Thing:
    """An object that is not an array."""

    def __init__(self, index):
        self.index = index

    def __eq__(self, other):
        return isinstance(other, Thing) and self.index == other.index

    __hash__ = None


DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]

FORMS = {
    **{f"array {code}": lambda index, code=code: np.full((2, 2), index, code) for code in DTYPES},
    **{f"flat {code}": lambda index, code=code: np.arange(3).astype(code) + np.dtype(code).type(index)
       for code in DTYPES},
    **{f"scalar {code}": lambda index, code=code: np.dtype(code).type(index % 2) for code in DTYPES},
    "int": lambda index: index,
    "float": lambda index: index / 2,
    "bool": lambda index: index % 2 == 0,
    "complex": lambda index: index + 1j,
    "0-d array": lambda index: np.array(index, np.int16),
    "one of one": lambda index: np.array([index]),
    "uint64 beyond int64": lambda index: np.uint64(2**64 - 1 - index),
    "structured": lambda index: np.array([(index, index / 2)] * 2, [("a", "i4"), ("b", "f8")]),
    "tuple": lambda index: (np.full(2, index), index),
    "tuple of one": lambda index: (index,),
    "list": lambda index: [np.full(2, index), index],
    "dict": lambda index: {"image": np.full((2, 2), index), "label": index},
    "nested": lambda index: {"a": (index, [np.full(2, index), {"c": (index,)}]), "b": [index / 2]},
    "tuples in tuples": lambda index: ((index, (index / 2,)), [index]),
    "namedtuple": lambda index: Pair(index, np.full(2, index)),
    "namedtuple inside": lambda index: {"pair": Pair(index, (index, "x"))},
    "ordered dict": lambda index: collections.OrderedDict(b=index, a=index),
    "numbers as keys": lambda index: {0: index, (1, 2): index},
    "text": lambda index: f"sample {index}",
    "bytes": lambda index: bytes(index),
    "none": lambda index: None,
    "object": Thing,
    "text beside arrays": lambda index: (np.full(3, index), f"{index}", index),
    "objects beside arrays": lambda index: {"x": np.full(3, index), "y": [Thing(index), None], "z": index},
    "empty dict inside": lambda index: {"x": index, "y": {}, "z": ()},
    "an array of text": lambda index: (index, np.array(["a", "b"])),
    "a date": lambda index: (index, np.datetime64("2024-01-01") + np.timedelta64(index, "D")),
    "other library": lambda index: (Picture(index), index),
    "no rows": lambda index: np.zeros((0, 3), np.float32),
    "no elements": lambda index: (np.zeros((2, 0)), np.zeros(0, np.int8)),
    "big-endian": lambda index: (np.full((2, 2), index, ">f4"), np.full(3, index, ">i8"), np.array(1, ">u2")),
    "transposed": lambda index: np.arange(6.0).reshape(2, 3).T + index,
    "every other": lambda index: (np.arange(12)[::2] + index, np.arange(12).reshape(3, 4)[::-1, ::2]),
    "fortran": lambda index: np.asfortranarray(np.full((3, 2), index)),
    "read-only": lambda index: np.frombuffer(bytes([index] * 6), np.uint8),
    "broadcast": lambda index: np.broadcast_to(np.float32(index), (4, 4)),
}  # fmt: skip


PARTS = [0, 1, 2], [3, 4, 5], [6]


def test_every_form_of_sample_from_processes():
    """All forms at once, in two epochs; only the workers differ."""
    dataset = Made(lambda index: {form: make(index) for form, make in FORMS.items()})
    loader = load(dataset, batch_size=3, persistent_workers=True, **PROCESSES)
    with nothing_left_behind():
        for _ in range(2):
            assert_same(list(loader), [stack([dataset[index] for index in part]) for part in PARTS])
        loader.close()
        loader._epochs._idle.clear()


def test_containers_keep_their_class_if_it_can_be_made_again():
    class Odd(tuple):
        def __new__(cls, *values):
            if len(values) != 2:
                raise RuntimeError("two, please")
            return super().__new__(cls, values)

    class Fixed(dict):
        def __init__(self):
            super().__init__(a=3)

        def update(self, entries):
            raise RuntimeError("fixed")

    for kind in (dict, collections.OrderedDict, collections.UserDict, collections.Counter):
        [batch] = load([kind({"a": 1}), kind({"a": 2})], batch_size=2)
        assert type(batch) is kind
        assert batch["a"].tolist() == [1, 2]
    [batch] = load([(Odd(1, 2), Fixed())])
    assert_same(batch, [[np.array([1]), np.array([2])], {"a": np.array([3])}])
    [batch] = load([1], collate_fn=lambda samples: (Odd(1, np.zeros(1)), Fixed()))
    assert_same(batch, ((1, np.zeros(1)), {"a": 3}))


def test_without_batches_samples_are_converted_to_feeds():
    feeds = [
        data("image", [None, 1, 4]),
        data("words", [None, 1], "int64", lod_level=1),
        data("lines", [None], "int64", lod_level=2),
    ]
    samples = [([[1, 2], [3, 4]], [5, 6, 7], [[1], [2, 3]]), (np.zeros(4), [], [])]
    first, second = DataLoader(samples, feeds, "cpu", batch_size=None)
    assert_same(first[:2], [np.array([[1, 2, 3, 4]], "f4"), np.array([[5], [6], [7]])])
    assert first[2].recursive_sequence_lengths() == [[1, 2]]
    assert second[1].shape == (0, 1)
    assert len(second[2]) == 0


def lengthen(samples):
    return Ragged.from_samples([[number] * number for number in samples], "int64")


COLLATIONS = {
    "array": lambda samples: np.array(samples),
    "tuple": lambda samples: (np.array(samples), len(samples)),
    "dict": lambda samples: {"x": np.array(samples), "note": "n"},
    "varying shape": lambda samples: np.zeros((sum(samples), len(samples))),
    "varying dtype": lambda samples: np.array(samples, "fi"[samples[0] % 2]),
    "varying form": lambda samples: [np.zeros(2)] * samples[0],
    "text": lambda samples: "text",
    "none": lambda samples: None,
    "number": len,
    "object": lambda samples: Thing(len(samples)),
    "the list": lambda samples: samples,
    "nested": lambda samples: {"a": [(np.array(samples), "q"), {1: Pair(1.5, np.float32(2))}]},
    "empty list": lambda samples: [],
    "empty dict": lambda samples: {},
}


ODD_VALUES = [
    {"a": np.arange(3), "b": np.zeros(2)}, {"b": np.zeros(2), "a": np.arange(3)}, {"a": np.arange(4), "b": 2},
    {"a": np.arange(3, dtype="i4"), "b": np.zeros(2)}, {"a": np.arange(3, dtype=">i8"), "b": np.zeros(2)},
    {"a": np.array(["x"]), "b": np.zeros(2)}, {1: np.zeros(2)}, {True: np.zeros(2)},
    [np.arange(3), np.zeros(2)], (np.arange(3), {"a": (np.zeros(1), "x")}, Pair(1, (np.ones(1),))),
    [[], {}], {"a": None}, b"a",
]  # fmt: skip
"""Values that differ only in what a comparison might overlook, or have no arrays."""


def settled(value, keeps_tuples):
    """Return a value as it is delivered: in native byte order, and tuples of a sample as lists."""
    if isinstance(value, dict):
        return {key: settled(one, keeps_tuples) for key, one in value.items()}
    if isinstance(value, Pair):
        return Pair(*(settled(one, keeps_tuples) for one in value))
    if isinstance(value, list | tuple):
        return (type(value) if keeps_tuples else list)(settled(one, keeps_tuples) for one in value)
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("collate", [lambda samples: samples[0], None], ids=["collate_fn", "unbatched"])
def test_each_value_keeps_its_own_form_whatever_came_before(collate):
    options = {"batch_size": 1, "collate_fn": collate} if collate else {"batch_size": None}
    for value, found in zip(ODD_VALUES * 2, load(ODD_VALUES * 2, **options), strict=True):
        assert_same(found, settled(value, keeps_tuples=collate is not None))
        if isinstance(value, dict):
            assert list(map(type, found)) == list(map(type, value))


FEEDS = [data("x", [None, 4]), data("y", [None, 1], "int64")]
UNBATCHED, BY_USER = {"batch_size": None}, {"collate_fn": lambda samples: samples[0]}


@pytest.mark.parametrize(
    ("options", "sample", "field", "message"),
    [
        (UNBATCHED, (np.zeros(4),), None, "expected a tuple of 2"),
        (UNBATCHED, (np.zeros(5), 1), "x", r"expected shape \(4,\), got \(5,\)"),
        (UNBATCHED, (np.zeros(4), "a"), "y", "expected numbers, got text"),
        (BY_USER, {"x": 1, "y": 2}, None, "expected a tuple of 2"),
        (BY_USER, (np.zeros(4), None), "y", "expected numbers, got None"),
        (BY_USER, (np.zeros(4), [[1], [2, 3]]), "y", "expected an array of numbers"),
    ],
)
def test_a_whole_value_that_does_not_fit_its_feed_is_named(options, sample, field, message):
    with pytest.raises(SampleError, match=message) as caught:
        list(DataLoader([sample], FEEDS, "cpu", **options))
    assert caught.value.field == field
    [batch] = DataLoader([(np.zeros((2, 4)), [[1], [2]])], FEEDS, "cpu", **BY_USER)
    assert_same(batch, [np.zeros((2, 4)), np.array([[1], [2]])])  # a batch of the user's own keeps its dtypes


IN_PROCESSES = [(case, PROCESSES) for case in ("nested", "varying form", "object")]


@pytest.mark.parametrize(
    ("case", "workers"), [*itertools.product(COLLATIONS, WORKERS), *IN_PROCESSES], ids=str
)
def test_a_collate_fn_may_return_anything(case, workers):
    collate = COLLATIONS[case]
    loader = load(Made(lambda index: index), batch_size=3, collate_fn=collate, **workers)
    assert_same(list(loader), [collate(part) for part in ([0, 1, 2], [3, 4, 5], [6])])
    if case == "dict":
        [batch] = load([1, 2, 0], batch_size=3, collate_fn=lambda samples: {"words": lengthen(samples)})
        assert batch["words"].values.tolist() == [1, 2, 2]
        assert batch["words"].recursive_sequence_lengths() == [[1, 2, 0]]


def test_indices_of_any_kind():
    dataset = {"cat": 1, "dog": 2, ("a", 3): 3}
    assert values(load(dataset, batch_sampler=[["dog", ("a", 3)], ["cat"]])) == [[2, 3], [1]]
    assert values(load(dataset, sampler=["dog", "cat"], batch_size=2)) == [[2, 1]]
    for indices in (np.array([3, 1]), (3, 1), range(3, 0, -2), iter([3, 1]), [np.int32(3), 1]):
        assert values(load(list(range(5)), batch_sampler=[indices])) == [[3, 1]]
    seen = set()
    for options in ({}, {"shuffle": True}, {"batch_sampler": [np.array([1, 2])]}):
        list(load(Made(lambda index: seen.add(type(index)) or 0), **options))
    assert seen == {int}  # Python's own


@by_workers
class TestWithAnyWorkers:
    def test_every_form_of_sample(self, workers):
        for make in FORMS.values():
            batches = list(load(Made(make), batch_size=3, **workers))
            assert_same(batches, [stack([make(index) for index in part]) for part in PARTS])

    @pytest.mark.parametrize(("drop_last", "sizes"), [(False, [3, 3, 1]), (True, [3, 3])])
    def test_the_last_short_batch(self, workers, drop_last, sizes):
        for dataset in (Made(lambda index: (index, "x")), TensorDataset(np.arange(7)), Counting(7)):
            if isinstance(dataset, Counting) and workers["num_workers"] > 1:
                continue  # every worker ends with its own short batch
            loader = load(dataset, batch_size=3, drop_last=drop_last, **workers)
            found = [batch if isinstance(batch, np.ndarray) else batch[0] for batch in loader]
            assert [len(batch) for batch in found] == sizes
            if not isinstance(dataset, Counting):
                assert len(loader) == len(sizes)

    def test_without_batches_samples_come_one_by_one(self, workers):
        def make(index, code, number):
            return [np.full(index, index), f"{index}", index, number, {"x": np.zeros((index, 2), code)}]

        samples = [tuple(make(index, ">i2", np.float32(index))) for index in range(4)]
        loader = load(samples, batch_size=None, **workers)
        assert_same(list(loader), [make(index, "i2", np.array(index, "f4")) for index in range(4)])
        assert len(loader) == 4
        assert loader.batch_size is None
        assert_same(list(load(iter([1, 0.5]), batch_size=None)), [1, 0.5])

    def test_a_data_set_that_reads_whole_batches(self, workers):
        dataset = MadeAtOnce(lambda index: (np.full(2, index), f"{index}"))
        batches = list(load(dataset, batch_size=3, **workers))
        wanted = [stack([dataset.make(index) for index in part]) for part in ([0, 1, 2], [3, 4, 5], [6])]
        assert_same(batches, wanted)
        assert dataset.calls >= 3
        both = ConcatDataset([dataset, Made(lambda index: (np.full(2, -index), "-"), 2)])
        batches = list(load(Subset(both, [8, 0, 7]), batch_size=2, **workers))
        assert_same(batches, [[np.array([[-1, -1], [0, 0]]), ["-", "0"]], [np.array([[0, 0]]), ["-"]]])

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_several_places_take_turns(self, workers, drop_last):
        loader = load(range(10), places=cpu_places(3), batch_size=2, drop_last=drop_last, **workers)
        wanted = [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]][: 2 - drop_last]
        assert [values(step) for step in loader] == wanted
        assert len(loader) == len(wanted)

    def test_batches_that_are_kept_stay_as_they_are(self, workers):
        loader = load(Made(lambda index: (np.full((3, 5), index), index), 200), batch_size=2, **workers)
        with nothing_left_behind():
            kept = list(loader)
            for number, (images, labels) in enumerate(kept):
                assert labels.tolist() == [2 * number, 2 * number + 1]
                assert (images == labels[:, None, None]).all()
            del kept, images, labels
            loader._epochs._idle.clear()
        loader = load(Made(lambda index: np.full(100, index), 60), batch_size=2, **PROCESSES)
        kept = [batch[:, ::7] for batch in loader]
        del loader
        gc.collect()  # they outlive the loader
        assert [batch[:, -1].tolist() for batch in kept] == [[index, index + 1] for index in range(0, 60, 2)]
        epoch = iter(load(Made(Thing), batch_size=2, **workers))
        things = [weakref.ref(thing) for thing in next(epoch)]
        rest = list(epoch)  # a batch is freed with its last view
        gc.collect()
        assert all(thing() is None for thing in things)
        assert len(rest) == 3

    def test_memory_does_not_grow(self, workers):
        """Over 2,000 batches, neither the number of slots nor the number of objects grows."""
        loader = load(Made(lambda index: (np.zeros(8), f"{index}"), 500), batch_size=1, **workers)
        sizes = []
        for _ in range(4):
            for _ in loader:
                pass
            gc.collect()
            [buffers] = loader._epochs._idle
            ring = buffers.ring
            sizes.append((ring.count, ring.free + ring.leased, len(gc.get_objects()) // 200))
        assert sizes[1][:2] == sizes[3][:2]
        assert sizes[3][2] - sizes[1][2] <= 3  # of one object a batch, it would be 5


def test_an_epoch_has_a_length_and_a_call_begins_it():
    loader = load(range(5), batch_size=2)
    epoch = iter(loader)
    assert len(epoch) == len(loader()) == 3
    next(epoch)
    assert len(epoch) == 3  # of all of it, as in Paddle and PyTorch
    assert [next(loader()).tolist() for _ in range(2)] == [[0, 1], [0, 1]]
    assert values(loader()) == [[0, 1], [2, 3], [4]]
    items = iter(load(iter(range(5))))
    with pytest.raises(TypeError, match="no length"):
        len(items)
    assert items  # true without a length
    assert values(items) == [[0], [1], [2], [3], [4]]


def test_an_array_data_set_of_any_memory_order():
    rows = np.arange(24).reshape(4, 6)
    strange = [rows, rows.T[:4], rows[::-1], rows.astype(">i4"), np.asfortranarray(rows), rows[:, ::2]]
    unaligned = np.zeros(4 * 8 + 1, np.uint8)[1:].view(np.float64)
    unaligned[:] = range(4)
    for array in [*strange, unaligned]:
        dataset = TensorDataset(array)
        for part in (dataset, Subset(dataset, [3, 1, 1, -4])):
            for batches in ([[2, 0, 3], [1]], [range(3), range(3, 4)]):
                wanted = [stack([part[index] for index in indices]) for indices in batches]
                assert_same(list(load(part, batch_sampler=batches)), wanted)
            assert_same(list(load(part, batch_size=3)), wanted)


@pytest.mark.parametrize("reads_ahead", [True, False, "thread"])
def test_an_interrupt_in_the_middle_of_a_batch_is_no_end_of_the_epoch(reads_ahead):
    def read(index):
        if index == 3 and not interrupted:
            interrupted.append(index)
            raise KeyboardInterrupt
        return index

    interrupted = []
    loader = load(Made(read, 6), batch_size=2, seed=1, use_buffer_reader=reads_ahead)
    epoch = iter(loader)
    assert next(epoch).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(epoch)
    with pytest.raises(LoaderError, match="was interrupted in the middle of a batch"):
        next(epoch)
    again = load(Made(read, 6), batch_size=2)
    again.load_state_dict(loader.state_dict())
    assert values(again) == [[2, 3], [4, 5]]
