"""`prefetch`: batches of any other loader, copied ahead, in the structure in which they came."""

import copy
import dataclasses
import gc
import itertools
import pickle
import time
import types
import weakref
from collections import OrderedDict, UserDict, defaultdict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuloader
from gpuloader import DataLoader, LoaderError, Ragged, ReaderError, SampleError
from gpuloader.batches import kept as nested
from gpuloader.testing import CustomPlace, SimulatedArray, SimulatedDevice, simulated_places
from gpuloader.transforms import Cast, Normalize, OneHot, Pad, RandomCropFlip, Resize
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from tests.api.streams import Items
from tests.fakes import leave_early, loader_threads, nothing_left_behind, wait_until
from tests.loading import resume

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object
    name: str
    rest: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: object
    y: object


class Odd:
    """Not a container: it is handed through."""


class BatchEncoding(UserDict):
    """Like that of Transformers: the class takes more than the data."""

    def __init__(self, data=None, encodings=None):
        super().__init__(data)
        self.encodings = encodings


def rows(number, count=3):
    return number * 1000 + np.arange(count * 5).reshape(count, 5)


def plain(count):
    return [rows(number) for number in range(count)]


def firsts(batches):
    """Return the first number of each batch, in thousands: the numbers of the batches from `rows`."""
    return [int(np.asarray(batch)[0, 0]) // 1000 for batch in batches]


def on_device(batches, **options):
    return gpuloader.prefetch(batches, places=simulated_places(1), **options)


def note_copies(device, monkeypatch):
    """Return a list of the source and the size of each copy that the device will make."""
    copies, original = [], device.copy_async

    def copy_async(target, source, nbytes, *more):
        copies.append((source.address, nbytes))
        original(target, source, nbytes, *more)

    monkeypatch.setattr(device, "copy_async", copy_async)
    return copies


def wholly(value):
    """Return a batch with its arrays as lists, so that it can be compared."""
    if isinstance(value, dict | UserDict):
        return {key: wholly(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        entries = map(wholly, value)
        return type(value)(*entries) if hasattr(value, "_make") else type(value)(entries)
    if isinstance(value, Ragged):
        return ("ragged", wholly(value.values), *map(wholly, value.row_splits))
    if dataclasses.is_dataclass(value):
        return {one.name: wholly(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | SimulatedArray):
        array = np.asarray(value)
        return ("array", str(array.dtype), array.tolist())
    return value


ODD = Odd()
IMAGES = np.arange(2 * 90 * 90 * 3).reshape(2, 90, 90, 3).transpose(0, 3, 1, 2)
"""Images with their channels last in memory, and first in their shape."""

BATCHES = {
    "an array": rows(1),
    "a list": [rows(1), np.float32([1, 2])],
    "a tuple": (rows(1), "text", 3, None, 2.5, True),
    "a dict": {"x": rows(1), 3: np.zeros((2, 2), bool), "text": "cat"},
    "nested": {"a": [{"b": (rows(1), [np.arange(3.0)])}], "c": ({}, [], ())},
    "a named tuple": Pair(rows(1), Pair("left", np.arange(2))),
    "a dataclass": Frozen(rows(1), "name", {"more": Slotted(np.arange(3), "y")}),
    "an ordered dict": OrderedDict(b=rows(1), a=rows(2)),
    "a default dict": defaultdict(list, x=rows(1)),
    "a user's dict": BatchEncoding({"input_ids": rows(1)}, encodings="kept"),
    "other leaves": [np.array(["text"]), np.array([None]), np.float32(2), np.int64(3), ODD, b"bytes", {1, 2}],
    "dimensions": [np.float64(1).reshape(()), np.zeros((0, 4)), np.zeros((2, 0), "int8"), np.arange(6)[::-2]],
    "varying rows": {"words": Ragged.from_samples([[1, 2, 3], [4]], "int64"), "n": np.arange(2)},
    "other orders": [IMAGES, IMAGES[:, :2], np.asfortranarray(rows(1)), np.arange(3)],
    "nothing": [],
}


VALUES = {
    "array": lambda number: np.full((3, 2), number),
    "other shape": lambda number: np.full((2, 3), number),
    "other dtype": lambda number: np.full((3, 2), number, np.int32),
    "other byte order": lambda number: np.full((3, 2), number, ">i8"),
    "turned": lambda number: np.full((2, 3), number).T,
    "strided": lambda number: np.full((6, 2), number)[::2],
    "objects": lambda number: np.array([None, number]),
    "text": lambda number: f"text {number}",
    "number": lambda number: number,
}
LOOKS = st.tuples(
    st.sampled_from(["ab", "ba", "abc", "list", "tuple"]),
    st.lists(st.sampled_from(["array", "array", "array", "text", *VALUES]), min_size=3, max_size=3),
)


def wear(look, number):
    """Return a batch of this look whose values tell its number."""
    kind, names = look
    values = [VALUES[name](number) for name in names]
    if kind in ("list", "tuple"):
        return values if kind == "list" else tuple(values)
    return dict(zip(kind, values, strict=False))


def native(look, host):
    """Return the look with which a batch is delivered: numbers on a device have its byte order."""
    kind, names = look
    keys = kind if kind in ("ab", "ba", "abc") else [None] * len(names)
    stays = [key in host for key in keys] + [False] * len(names)
    return kind, [
        "array" if name == "other byte order" and not kept else name
        for name, kept in zip(names, stays, strict=False)
    ]


class TestStructure:
    @pytest.mark.parametrize("name", BATCHES)
    def test_a_batch_comes_back_as_it_was(self, place, name):
        batch = BATCHES[name]
        [found] = gpuloader.prefetch([batch], places=place)
        assert type(found) is (SimulatedArray if place != "cpu" and name == "an array" else type(batch))
        assert wholly(found) == wholly(batch)
        for attribute in ("encodings", "default_factory"):  # which are not entries
            assert getattr(found, attribute, None) == getattr(batch, attribute, None)

    def test_dense_arrays_keep_the_order_of_their_dimensions_in_memory(self):
        [found] = on_device([BATCHES["other orders"]])
        assert [one._data.flags.c_contiguous for one in found] == [False, True, False, True]
        assert found[0]._data.transpose(0, 2, 3, 1).flags.c_contiguous
        batches = [IMAGES.copy(), IMAGES, IMAGES.copy(), IMAGES]  # which differ in that order alone
        found = list(on_device([[one] for one in batches]))
        assert [wholly(one) for [one] in found] == [wholly(one) for one in batches]
        assert [one._data.flags.c_contiguous for [one] in found] == [True, False, True, False]

    @given(st.lists(LOOKS, min_size=2, max_size=8), st.booleans())
    def test_batches_that_look_alike_are_told_from_those_that_do_not(self, looks, hosted):
        """A batch that looks like the one before it is staged without another look at its structure."""
        batches = [wear(look, number) for number, look in enumerate(looks)]
        host = ["b"] if hosted and type(batches[0]) is dict else ()
        found = list(on_device(batches, host=host))
        wanted = [wear(native(look, host), number) for number, look in enumerate(looks)]
        assert [wholly(one) for one in found] == [wholly(one) for one in wanted]
        for batch, one in zip(batches, found, strict=True):
            for name in batch if type(batch) is dict else range(len(batch)):
                is_there = isinstance(batch[name], np.ndarray) and batch[name].dtype != object
                assert (type(one[name]) is SimulatedArray) == (is_there and name not in host)

    def test_what_cannot_be_delivered_is_an_error(self):
        with pytest.raises(SampleError, match="masked") as caught:
            list(on_device([{"x": np.ma.masked_array([1, 2], [False, True])}]))
        assert (caught.value.batch, caught.value.field) == (0, "x")
        batch = [rows(0)]
        batch.append(batch)
        with pytest.raises(SampleError, match="contains itself"):
            list(on_device([batch]))


class TestHostFields:
    def test_they_are_handed_through(self):
        lengths, ids = np.int32([0, 3, 9]), rows(1)
        batch = {"ids": ids, "cu_seqlens": lengths, "meta": {"a": ids, "b": [ids]}}
        found, later = on_device([batch, {"ids": ids}], host=["cu_seqlens", "meta.b"])
        assert found["cu_seqlens"] is lengths
        assert found["meta"]["b"][0] is ids
        assert type(found["ids"]) is type(found["meta"]["a"]) is SimulatedArray
        assert wholly(later) == wholly({"ids": ids})  # later batches may lack them
        [found] = on_device([(ids, ids)], host=["1"])  # a position is a name, too
        assert found[1] is ids
        assert type(found[0]) is SimulatedArray

    def test_a_name_that_is_unknown(self, place):
        known, crop = r"host names \['cu_seqlen'\], .* it has \['ids'\]", RandomCropFlip("y", (2, 2))
        cases = [("host", "cu_seqlen", known), ("transforms", crop, "no such array field")]
        for option, unknown, message in cases:
            with pytest.raises(SampleError, match=message):
                list(gpuloader.prefetch([{"ids": rows(1)}], places=place, **{option: [unknown]}))


class TestOnAHost:
    @pytest.mark.parametrize("prefetch", [0, 1, 5])
    def test_the_batch_is_the_very_object(self, prefetch):
        batches = [{"x": rows(n), "odd": Odd()} for n in range(20)]
        loader = gpuloader.prefetch(batches, places="cpu", prefetch=prefetch)
        for _ in range(2):
            assert all(one is other for one, other in zip(loader, batches, strict=True))
        converted = gpuloader.prefetch(batches, places="cpu", prefetch=prefetch, output="numpy")
        assert all(one["x"] is other["x"] for one, other in zip(converted, batches, strict=True))

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_several_places(self, drop_last):
        loader = gpuloader.prefetch(plain(5), places=["cpu"] * 2, drop_last=drop_last)
        steps = [[0, 1], [2, 3], [4]][: 3 - drop_last]
        assert [firsts(step) for step in loader] == steps
        assert len(loader) == len(steps)

    def test_nothing_is_read_ahead_if_nothing_shall_be(self):
        read = []
        loader = gpuloader.prefetch((read.append(n) or [n] for n in range(9)), places="cpu", prefetch=0)
        for number, _ in enumerate(loader, 1):
            assert len(read) == number
        assert not loader_threads()


class TestOrderAndLife:
    """The promises, over the simulated device, which reports each race."""

    @given(
        sizes=st.lists(st.integers(0, 6), max_size=12),
        keep=st.lists(st.booleans(), min_size=1, max_size=5),
        places=st.integers(1, 3),
        prefetch=st.integers(0, 4),
        seed=st.integers(0, 99),
        locked=st.booleans(),
    )
    def test_batches_arrive_whole_and_stay(self, sizes, keep, places, prefetch, seed, locked):
        where = simulated_places(places, seed)
        for place in where:
            place.device.is_page_locked = lambda address, nbytes: locked and address % 512 == 0
        batches = [{"x": rows(n, size), "y": [np.full(size, n), n]} for n, size in enumerate(sizes)]
        wanted = [wholly(batch) for batch in batches]
        nested_small = nested.SMALL
        nested.SMALL = 1
        try:
            loader = gpuloader.prefetch(batches, places=where, prefetch=prefetch)
            for _ in range(2):
                kept, number = [], 0
                for step in loader:
                    for batch in [step] if places == 1 else step:
                        kept.append((batch["x"].launch_read(), batch if keep[number % len(keep)] else None))
                        number += 1
                    del batch, step
                assert number == len(batches)
                for place in where:
                    place.device.finish(place.device.consumer_stream())
                assert [seen[0].tolist() for seen, _ in kept] == [one["x"][2] for one in wanted]
                for (_, batch), other in zip(kept, wanted, strict=True):
                    assert batch is None or wholly(batch) == other
        finally:
            nested.SMALL = nested_small
        assert not loader_threads()

    @pytest.mark.parametrize("prefetch", [1, 2, 3])
    def test_copies_are_issued_ahead(self, monkeypatch, prefetch):
        [place] = simulated_places(1)
        copies = note_copies(place.device, monkeypatch)
        loader = gpuloader.prefetch(plain(20), places=place, prefetch=prefetch)
        loader._epochs.policy = ReadAheadPolicy(fixed=True, bound=True)  # a thread always reads
        ahead = []
        for number, batch in enumerate(loader, 1):
            ahead.append(len(copies) - number)
            np.asarray(batch)  # its copy has run, so its slot is free
            wait_until(lambda: loader.stats().batches >= min(number + prefetch, 20))  # noqa: B023
        # Batches that are ready when a step is asked for are copied ahead, and no more than were asked for.
        assert all(prefetch - 1 <= count <= prefetch for count in ahead[1 : 20 - prefetch])

    @pytest.mark.parametrize("ending", ["break", "exception", "dropped", "cycle", "closed"])
    def test_nothing_is_left_behind(self, place, ending):
        def endless():
            return map(rows, itertools.count())

        def leave():
            for prefetch in (0, 2):
                leave_early(gpuloader.prefetch(Items(endless), places=place, prefetch=prefetch), ending)

        leave()
        with nothing_left_behind():
            leave()

    def test_a_pass_begins_with_its_first_batch(self, place):
        begun = []
        loader = gpuloader.prefetch(Items(lambda: begun.append(1) or plain(6)), places=place)
        unused = iter(loader)
        assert not begun
        unused.close()
        assert list(unused) == []
        # Several loops may run at once.
        assert [firsts(pair) for pair in zip(loader, loader, strict=True)] == [[n, n] for n in range(6)]
        assert len(begun) == 2

    @pytest.mark.parametrize(
        ("read", "error", "message"),
        [
            (lambda loader: 1 // 0, ZeroDivisionError, "division"),
            (lambda loader: (next(iter(loader)) for _ in range(2)), LoaderError, "would read itself"),
        ],
    )
    def test_a_pass_that_cannot_begin(self, read, error, message):
        loader = gpuloader.prefetch(Items(lambda: read(loader)), places="cpu", prefetch=0)
        with pytest.raises(error, match=message):
            list(loader)


class TestTransforms:
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 9, 8, 3), np.uint8)

    def batches(self):
        return [(one, np.arange(4)) for one in self.images]

    def test_they_run_where_the_batch_lands(self, place):
        loader = gpuloader.prefetch(self.batches(), places=place, transforms=[Cast("0", "float32", 1 / 256)])
        for (found, labels), images in zip(loader, self.images, strict=True):
            np.testing.assert_array_equal(np.asarray(found), np.float32(images) / 256)
            assert np.asarray(labels).tolist() == [0, 1, 2, 3]
        # Fields may have numbers of rows of their own.
        batches = [{"scale": np.ones(1), "x": one, "n": np.zeros(())} for one in self.images]
        loader = gpuloader.prefetch(batches, places=place, transforms=[RandomCropFlip("x", (5, 4))], seed=1)
        assert [batch["x"].shape for batch in loader] == [(4, 5, 4, 3)] * 6

    def test_random_numbers_follow_from_seed_epoch_batch_and_row(self, place):
        def load(seed=1):
            steps = [RandomCropFlip("0", (5, 4))]
            return gpuloader.prefetch(self.batches(), places=place, transforms=steps, seed=seed)

        def read(loader):
            return [np.asarray(found).tolist() for found, _ in loader]

        loader = load()
        epochs = [read(loader) for _ in range(2)]
        assert epochs[0] != epochs[1]
        assert len({str(windows) for windows in epochs[0]}) == 6
        again = load()
        again.set_epoch(1)
        assert read(again) == epochs[1]
        assert read(load(2)) != epochs[0]
        before, later = resume(load, 2)
        assert [*read(before), *read(later)] == epochs[0]
        drawn = load(None)
        read(drawn)
        state = drawn.state_dict()
        read(drawn)
        assert drawn.state_dict()["seed"] == state["seed"]  # drawn once


MIXED = ["cpu", *simulated_places(1)]


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "prefetch"), [(KeyError, 0), (KeyError, 1), (KeyError, 4), (KeyboardInterrupt, 0)]
    )
    def test_an_error_comes_behind_the_batches_before_it(self, place, error, prefetch):
        def read():
            yield from plain(2)
            raise error("third")

        epoch = iter(gpuloader.prefetch(Items(read), places=place, prefetch=prefetch))
        assert firsts([next(epoch), next(epoch)]) == [0, 1]
        with pytest.raises(error, match="third") as caught:
            next(epoch)
        if error is KeyError:
            assert any("batch 2" in note for note in caught.value.__notes__)
            assert list(epoch) == []
        epoch.close()
        assert not loader_threads()

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"prefetch": -1}, ValueError, "prefetch must be an integer from 0"),
            ({"output": "tensorflow"}, ValueError, "output must be one of"),
            ({"places": "nowhere"}, ValueError, "not a place: 'nowhere'"),
            ({"places": simulated_places(1), "output": "numpy"}, ValueError, "output"),
            ({"seed": -1}, ValueError, "seed must be"),
            ({"host": "ids"}, TypeError, "host must be a list of field names"),
            ({"transforms": [Resize("0", 8)]}, TypeError, "Resize works on single images, before they"),
            ({"places": MIXED, "transforms": [Cast("0", "int8")]}, ValueError, "all GPUs or all host memory"),
        ],
    )
    def test_options_out_of_range(self, options, error, message):
        with pytest.raises(error, match=message):
            gpuloader.prefetch([], **{"places": "cpu", **options})

    @pytest.mark.parametrize(
        ("batches", "message"),
        [
            (3, "batches must be an iterable of batches, such as a loader, got int"),
            (None, "got NoneType"),
            ("text", "got str"),
            ({"x": rows(0)}, "got dict"),
            (plain, "got function; call it, and pass what it returns"),
            (list, "got type"),
        ],
    )
    def test_what_is_no_iterable_of_batches(self, batches, message):
        with pytest.raises(TypeError, match=message):
            gpuloader.prefetch(batches, places="cpu")


class TestOnePass:
    @pytest.mark.parametrize(
        ("make", "most", "message"),
        [
            (lambda: map(rows, range(3)), 3, "map, which can be read only once"),
            (lambda: (rows(n) for n in range(3)), 3, "a generator that has been read already: pass a loader"),
            (lambda: (rows(n) for n in range(30)), 1, "has been read already"),  # the loop was left
        ],
    )
    def test_an_iterator_has_one(self, place, make, most, message):
        loader = gpuloader.prefetch(make(), places=place)
        assert len(list(itertools.islice(loader, most))) == most
        with pytest.raises(ReaderError, match=message):
            list(loader)
        empty = gpuloader.prefetch([], places=place)  # and stays so
        assert list(empty) == list(empty) == []


class Inner:
    """A loader with what trainers look for; `read` is how far it has read."""

    def __init__(self, count=6):
        self.batch_size = 3
        self.sampler = self.batch_sampler = types.SimpleNamespace(epoch=0)
        self.dataset = range(count)
        self.epoch = self.begin = self.read = self.farthest = 0

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for number in range(begin, len(self.dataset)):
            self.read = self.farthest = number + 1
            yield rows(number)
        self.read = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


class Stateful(Inner):
    def state_dict(self):
        return {"read": self.read, "of": "inner"}

    def load_state_dict(self, state):
        self.begin = self.read = state["read"]


class Numbered(Inner):
    """A loader whose state is a number."""

    def state_dict(self):
        return self.read

    def load_state_dict(self, state):
        self.begin = self.read = state


class TestWrappedLoader:
    def test_its_attributes_are_reached(self):
        inner = Inner()
        loader = gpuloader.prefetch(inner, places="cpu")
        assert loader.sampler is inner.sampler
        assert (loader.batch_size, loader.dataset, len(loader), len(iter(loader))) == (3, range(6), 6, 6)
        loader.batch_size = 5
        assert inner.batch_size == 5
        loader.set_epoch(4)
        assert inner.epoch == 4
        with pytest.raises(AttributeError, match="'Inner' object has no attribute 'missing'"):
            loader.missing  # noqa: B018
        assert not hasattr(loader, "__missing__")
        inner = DataLoader(plain(4), batch_size=None, places="cpu")
        loader = gpuloader.prefetch(inner, places="cpu")
        assert loader._meter is not inner._meter  # private names are not the wrapped loader's
        assert len(list(loader)) == inner.stats().batches == loader.stats().batches == 4

    def test_what_it_does_not_have_is_not_needed(self):
        loader = gpuloader.prefetch((rows(n) for n in range(2)), places="cpu")
        with pytest.raises(TypeError, match=r"object of type 'generator' has no len\(\)"):
            len(loader)
        loader.set_epoch(7)
        assert loader.state_dict()["epoch"] == 7
        assert len(list(loader)) == 2

    def test_copies_pickles_and_descriptions(self):
        loader = gpuloader.prefetch(Inner(), places="cpu", host=[], prefetch=3)
        for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert firsts(other) == firsts(loader)
            assert repr(other) == repr(loader) == "<prefetch of Inner: 3 steps ahead, on cpu>"
        assert copy.copy(loader)._batches is loader._batches
        assert "nothing ahead" in repr(on_device([], prefetch=0))


class TestState:
    @pytest.mark.parametrize("prefetch", [0, 1, 4])
    def test_it_is_the_wrapped_loaders_as_of_the_last_batch(self, place, prefetch):
        inner = Stateful()
        loader = gpuloader.prefetch(inner, places=place, prefetch=prefetch)
        loader._epochs.policy = ReadAheadPolicy(fixed=True, bound=True)  # a thread always reads
        assert loader.state_dict()["read"] == 0
        for number, _ in enumerate(loader, 1):
            if prefetch and number == 1:
                wait_until(lambda: inner.farthest >= 2)  # it is ahead
            assert loader.state_dict() == {
                "read": number,
                "of": "inner",
                "gpuloader_prefetch": {"version": 1, "epoch": 0, "batches": number},
            }
        assert loader.state_dict()["read"] == 0
        assert loader.state_dict()["gpuloader_prefetch"]["epoch"] == 1

    @pytest.mark.parametrize("kind", [Stateful, Numbered, Inner])
    @pytest.mark.parametrize("batches", range(1, 7))
    def test_it_resumes_behind_the_last_batch(self, place, batches, kind):
        loader = gpuloader.prefetch(kind(), places=place)
        before = firsts(itertools.islice(loader, batches))
        state = loader.state_dict()
        if kind is Inner:  # without a state of its own, its batches are counted
            assert state == {"version": 1, "epoch": 0, "batches": batches}
        later = gpuloader.prefetch(kind(), places=place)
        later.load_state_dict(state)
        assert later.state_dict() == state
        assert before + firsts(later) == list(range(6))
        assert firsts(later) == list(range(6))

    def test_states_may_be_exchanged_with_the_wrapped_loader(self):
        loader = gpuloader.prefetch(Stateful(), places="cpu")
        assert firsts(itertools.islice(loader, 2)) == [0, 1]
        inner = Stateful()
        inner.load_state_dict(loader.state_dict())
        assert firsts(inner) == [2, 3, 4, 5]
        later = gpuloader.prefetch(Stateful(), places="cpu")
        later.load_state_dict({"read": 4, "of": "inner"})
        assert firsts(later) == [4, 5]

    def test_a_first_step_that_fails_is_not_counted(self):
        """One of its batches, which was for the other place, had been read."""

        class Failing(Stateful):
            def __iter__(self):
                yield from itertools.islice(super().__iter__(), 1)
                raise OSError("the disk is gone")

        places = simulated_places(2)
        loader = gpuloader.prefetch(Failing(), places=places)
        with pytest.raises(OSError, match="the disk is gone"):
            next(iter(loader))
        later = gpuloader.prefetch(Stateful(), places=places)
        later.load_state_dict(loader.state_dict())
        assert [firsts(step) for step in later] == [[0, 1], [2, 3], [4, 5]]

    @pytest.mark.parametrize(
        ("batches", "state", "error", "message"),
        [
            ([], 3, TypeError, "a state must be a dict"),
            ([], {}, ValueError, "version"),
            (Stateful(), {"other": 3}, KeyError, "read"),  # the wrapped loader's own error, at once
        ],
    )
    def test_a_state_that_is_none(self, batches, state, error, message):
        with pytest.raises(error, match=message):
            gpuloader.prefetch(batches, places="cpu").load_state_dict(state)


class TestPreparedByAccelerate:
    """The loader announces its last batch to the whole program: not before the user has it."""

    class Prepared(Inner):
        gradient_state, end_of_dataloader, ends = None, False, 0

        def __iter__(self):
            self.end_of_dataloader = False
            for number in range(6):
                self.end_of_dataloader = number == 5
                yield rows(number)
            self.ends += 1

    @pytest.mark.parametrize("prefetch", [0, 1, 8])
    def test_the_last_batch_is_announced_with_it(self, place, prefetch):
        inner = self.Prepared()
        loader = gpuloader.prefetch(inner, places=place, prefetch=prefetch)
        for epoch in range(2):
            told = [(loader.end_of_dataloader, inner.ends) for _ in loader]
            assert told == [(False, epoch)] * 5 + [(True, epoch)]
            assert inner.ends == epoch + 1
        next(iter(loader))  # and leave early
        assert firsts(loader) == list(range(6))


class TestMeasuring:
    @pytest.mark.parametrize(
        ("prefetch", "advice"),
        [(2, "more workers in the wrapped loader"), (0, "prefetch=2: reads and copies")],
    )
    def test_what_limits_the_loop(self, prefetch, advice):
        def slow():
            for number in range(8):
                time.sleep(0.04)  # long beside what other programs take from the thread
                yield rows(number)

        loader = gpuloader.prefetch(Items(slow), places="cpu", prefetch=prefetch)
        list(loader)
        explanation = loader.explain()
        assert explanation.bound == "input"
        assert advice in explanation.advice[0]
        assert loader.stats().steps == 8


class Locked(SimulatedDevice):
    """A device that takes some arrays for page-locked ones."""

    def __init__(self, *arrays, **options):
        super().__init__(**options)
        self.spans = [(one.ctypes.data, one.nbytes) for one in arrays]
        self.asked = []

    def is_page_locked(self, address, nbytes):
        self.asked.append(nbytes)
        return any(start <= address and address + nbytes <= start + size for start, size in self.spans)


class TestPageLockedArrays:
    big = staticmethod(lambda number: np.full((100, 200), number, np.int64))

    @pytest.mark.parametrize("first", [0, 1])
    def test_they_are_copied_from_where_they_lie(self, monkeypatch, first):
        """Also after batches that look like them, but do not lie in such memory."""
        arrays = [self.big(n) for n in range(5)]
        device = Locked(*arrays[first:])
        copies = note_copies(device, monkeypatch)
        batches = [{"a": np.arange(n + 3), "x": one, "b": np.ones(2)} for n, one in enumerate(arrays)]
        loader = gpuloader.prefetch(batches, places=CustomPlace(device))
        for number, batch in enumerate(loader):
            assert wholly(batch) == wholly(batches[number])
        assert copies[first::2] == [(one.ctypes.data, one.nbytes) for one in arrays[first:]]
        if not first:
            [buffers] = loader._epochs._idle
            assert buffers.ring.slot_nbytes < 2000  # the slots have no room for them
            small = loader.stats().nbytes - sum(one.nbytes for one in arrays)
            assert 0 < small <= len(arrays) * buffers.ring.slot_nbytes

    @pytest.mark.parametrize("locked", [False, True])
    def test_only_what_is_page_locked_is_asked_about_again(self, locked):
        """Loaders use memory again; what is page-locked by then may go through a slot all the same."""
        arrays = [self.big(n) for n in range(3)]
        device = Locked(*arrays[: 3 * locked])
        batches = ({"x": arrays[number % 3], "n": number} for number in range(30))
        for number, batch in enumerate(gpuloader.prefetch(batches, places=CustomPlace(device))):
            assert np.asarray(batch["x"])[0, 0] == number % 3
            if number == 20:
                device.spans = [] if locked else [(one.ctypes.data, one.nbytes) for one in arrays]
        assert 20 < len(device.asked) < 30 if locked else len(device.asked) == 3

    def test_small_and_strided_ones_go_through_the_slot(self, monkeypatch):
        small = np.arange(100)
        device = Locked(small)
        copies = note_copies(device, monkeypatch)
        assert len(list(gpuloader.prefetch([{"x": small}] * 3, places=CustomPlace(device)))) == 3
        assert (len(copies), device.asked) == (3, [])
        array = np.arange(40_000).reshape(200, 200)
        batch = [array.T, array[:, ::2], array[3:]]
        [found] = gpuloader.prefetch([batch], places=CustomPlace(Locked(array)))
        assert wholly(found) == wholly(batch)

    def test_where_some_batches_stay_on_the_host_none_is_asked_about(self):
        arrays = [self.big(n) for n in range(4)]
        device = Locked(*arrays)
        for step in gpuloader.prefetch(arrays, places=["cpu", CustomPlace(device)]):
            assert [np.asarray(one).shape for one in step] == [(100, 200)] * 2
        assert device.asked == []

    def test_they_are_kept_until_their_copy_has_run_and_no_longer(self):
        gone = []

        class Device(Locked):
            def is_page_locked(self, address, nbytes):
                return True

        device = Device()

        def batches():
            for number in range(4):
                array = self.big(number)
                weakref.finalize(array, gone.append, number)
                yield {"x": array.view()}
                del array

        epoch = iter(gpuloader.prefetch(batches(), places=CustomPlace(device), prefetch=0))
        seen = []
        for number, batch in enumerate(epoch):
            gc.collect()
            assert number not in gone  # its copy may not have run
            seen.append(batch["x"].launch_read())
            del batch
            device.finish(device.consumer_stream())
        gc.collect()
        assert gone == [0, 1, 2, 3]
        assert [one[0][0, 0] for one in seen] == [0, 1, 2, 3]

    def test_with_transforms(self):
        images = [np.random.default_rng(n).integers(0, 256, (9, 40, 40, 3), np.uint8) for n in range(4)]
        batches = [{"label": np.arange(9) % 4, "x": one} for one in images]
        steps = [RandomCropFlip("x", (32, 32)), Normalize("x", scale=1 / 255), OneHot("label", 4)]
        options = {"transforms": steps, "seed": 5}
        found = [
            [wholly(batch) for batch in gpuloader.prefetch(batches, places=place, **options)]
            for place in (CustomPlace(Locked(*images)), simulated_places(1)[0], "cpu")
        ]
        assert found[0] == found[1] == found[2]
        assert found[0][0]["x"][1] == "float32"
        big = self.big(0)
        batches = [{"x": big, "words": Ragged.from_samples([[1], [1] * n], "int64")} for n in (2, 3)]
        loader = gpuloader.prefetch(batches, places=CustomPlace(Locked(big)), transforms=[Pad("words", 2)])
        epoch = iter(loader)
        assert wholly(next(epoch))["words"][2] == [[1, 0], [1, 1]]
        with pytest.raises(SampleError, match=r"batch 1.*expected at most 2 steps, got 3"):
            next(epoch)
