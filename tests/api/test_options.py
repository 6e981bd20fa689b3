"""Options and samples of a dataset's loader: what it accepts, and errors that name the culprit."""

import inspect
import pickle
import re
from typing import ClassVar

import numpy as np
import pytest

from gpuloader import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    PlaceError,
    Ragged,
    SampleError,
    SequenceSampler,
    Subset,
    TensorDataset,
    cpu_places,
    data,
)
from gpuloader.api.options import Options
from gpuloader.testing import simulated_places
from tests.api.streams import Items
from tests.fakes import nothing_left_behind
from tests.loading import load
from tests.sample_sets import (
    PROCESSES,
    WORKERS,
    Counting,
    Made,
    MadeAtOnce,
    assert_same,
    name_workers,
    values,
)

by_workers = pytest.mark.parametrize("workers", WORKERS, ids=name_workers)
NUMBERS = list(range(5))


class Endless:
    """A map-style dataset without a length."""

    def __getitem__(self, index):
        return index


class Unfinished(Dataset):
    """A dataset that does not override `__len__`."""

    def __getitem__(self, index):
        return index


TOO_BIG = "^batch_size must be an integer of at most 9223372036854775807"
FEED, LEVEL = data("x", [None]), data("x", [None], "uint8", 1)
UNCOPIED, DEVICE = {"copy": False, "batch_size": None}, simulated_places(1)
SHARDS = {"split": "shards", "places": ["cpu", "cpu"]}
OF_ITEMS = {**SHARDS, "dataset": Counting(9), "batch_size": 4, "uneven": "drop"}
OF_BATCHES = {"batch_size": 2, "shuffle": True, "drop_last": True, "sampler": [1]}
OWN_ORDER = "an iterable dataset determines its own order: (shuffle|sampler|batch_sampler) cannot"
OF_ORDER = {"shuffle": True, "sampler": [0], "sampler of an array": np.arange(3), "sampler of nothing": [],
            "batch_sampler": [[0]], "batch_sampler of nothing": []}  # fmt: skip

BAD_OPTIONS = {
    "no dataset": ({"dataset": 5}, TypeError, "must have __getitem__ and __len__, or __iter__; got int"),
    "a function": ({"dataset": lambda: [1]}, TypeError, "got function.*use DataLoader.from_generator"),
    "no length": ({"dataset": Endless()}, TypeError, "without a sampler must have a length, got Endless"),
    "no __len__": ({"dataset": Unfinished()}, NotImplementedError, "Unfinished must define __len__"),
    "feed_list": ({"feed_list": 3.5}, TypeError, "feed_list must be a list of feeds, got float"),
    "no feeds": ({"feed_list": []}, ValueError, "feed_list is empty"),
    "unknown feed": ({"feed_list": ["nobody"]}, ValueError, "no feed named 'nobody'"),
    "places": ({"places": "tpu"}, PlaceError, "not a place: 'tpu'"),
    "no places": ({"places": []}, PlaceError, "got an empty list of places"),
    "return_list 0": ({"return_list": 0}, TypeError, "return_list must be True or False, got 0"),
    "batch_size 0": ({"batch_size": 0}, ValueError, "batch_size must be an integer of 1 or more, got 0"),
    "batch_size 2.0": ({"batch_size": 2.0}, ValueError, "batch_size must be an integer"),
    "batch_size true": ({"batch_size": True}, ValueError, "batch_size must be an integer"),
    "huge shards": ({**SHARDS, "batch_size": 2**63}, ValueError, TOO_BIG),
    "huge parts": ({"batch_size": 2**63, "shard": (0, 2), "uneven": "pad"}, ValueError, TOO_BIG),
    "shuffle": ({"shuffle": "no"}, TypeError, "shuffle must be True, False or 'chunks', got 'no'"),
    "drop_last": ({"drop_last": 1}, TypeError, "drop_last must be True or False, got 1"),
    "static": ({"static": 1}, TypeError, "static must be True or False, got 1"),
    "copy": ({"copy": 0}, TypeError, "copy must be True or False, got 0"),
    "copy of samples": ({"copy": False}, ValueError, "makes batches of samples: pass batch_size=None"),
    "copy to a device": ({**UNCOPIED, "places": DEVICE}, ValueError, "batches for simulated:0 must"),
    "copy, static": ({**UNCOPIED, "static": True}, ValueError, "but static=True must be copied"),
    "copy, processes": ({**UNCOPIED, "num_workers": 1}, ValueError, "pass num_workers=0, or worker_t"),
    "stream": ({"stream": "0"}, TypeError, "^stream must have __cuda_stream__, .*, got str"),
    "collate_fn": ({"collate_fn": [1]}, TypeError, "collate_fn must be callable, got list"),
    "num_workers": ({"num_workers": -1}, ValueError, "must be 'auto' or an integer of 0 or more, got -1"),
    "num_workers 1.0": ({"num_workers": 1.0}, ValueError, "num_workers must be 'auto' or an integer"),
    "num_workers none": ({"num_workers": None}, ValueError, "must be 'auto' or an integer .* got None"),
    "use_buffer_reader": ({"use_buffer_reader": 2}, TypeError, "must be True, False or 'thread', got 2"),
    "prefetch_factor": ({"prefetch_factor": 0}, ValueError, "prefetch_factor must be an integer of 1"),
    "timeout": ({"timeout": -1}, ValueError, "timeout must be a number of seconds"),
    "timeout nan": ({"timeout": float("nan")}, ValueError, "timeout must be a number of seconds"),
    "timeout text": ({"timeout": "5"}, ValueError, "timeout must be a number of seconds"),
    "worker_init_fn": ({"worker_init_fn": 3}, TypeError, "worker_init_fn must be callable, got int"),
    "persistent 1": ({"persistent_workers": 1, "num_workers": 1}, TypeError, "persistent_workers must be"),
    "sampler": ({"sampler": 3}, TypeError, "sampler must be iterable, got int"),
    "sampler and shuffle": ({"sampler": [1], "shuffle": True}, ValueError, "shuffle cannot be given"),
    "batch_sampler": ({"batch_sampler": 3}, TypeError, "batch_sampler must be iterable, got int"),
    "seed": ({"seed": -1}, ValueError, r"seed must be an integer from 0 to 2\*\*64 - 1, got -1"),
    "seed too big": ({"seed": 2**64}, ValueError, "seed must be an integer"),
    "seed text": ({"seed": "1"}, ValueError, "seed must be an integer"),
    "prefetch": ({"prefetch": 0}, ValueError, "prefetch must be an integer of 1 or more, got 0"),
    "unused prefetch": ({"prefetch": -1, "use_buffer_reader": False}, ValueError, "prefetch must be"),
    "in_order": ({"in_order": "yes"}, TypeError, "in_order must be True or False, got 'yes'"),
    "worker_type": ({"worker_type": "fiber"}, ValueError, "worker_type must be one of 'process', 'thread'"),
    "start_method": ({"start_method": "exec"}, ValueError, "start_method must be one of 'fork'"),
    "on_worker_death": ({"on_worker_death": "ignore"}, ValueError, "on_worker_death must be one of"),
    "ragged text": ({"ragged": "x"}, TypeError, "ragged must be a list of field names, got 'x'"),
    "ragged number": ({"ragged": 5}, TypeError, "ragged must be a list of field names, got 5"),
    "ragged numbers": ({"ragged": [0]}, TypeError, r"ragged must be a list of field names, got \[0\]"),
    "pad": ({"pad": ["x"]}, TypeError, "pad must map field names to fill values"),
    "pad text": ({"pad": {"x": "0"}}, TypeError, "fill field 'x' with a number or a Padding, got '0'"),
    "pad number": ({"pad": {0: 1}}, TypeError, "pad must map field names"),
    "both": ({"ragged": ["x"], "pad": {"x": 0}}, ValueError, r"\['x'\] are in both ragged and pad"),
    "ragged and collate_fn": ({"ragged": ["x"], "collate_fn": list}, ValueError, "ragged and pad need"),
    "pad without batches": ({"pad": {"x": 0}, "batch_size": None}, ValueError, "ragged and pad need"),
    "ragged and feeds": ({"feed_list": [FEED], "ragged": ["x"]}, ValueError, "declare the fields with lod_l"),
    "pad of a dense feed": ({"feed_list": [FEED], "pad": {"x": 0}}, ValueError, r"pad names \['x'\], which"),
    "pad beyond a feed": ({"feed_list": [LEVEL], "pad": {"x": -1}}, ValueError, "pad rows of uint8 with -1"),
    "ranks and no seed": ({"shard": "auto", "shuffle": True}, ValueError, "pass the same seed to all"),
    "ranks and no order": ({"shard": "auto", "in_order": False}, ValueError, "shard needs in_order=True"),
    "ranks and single": ({"shard": "auto", "batch_size": None}, ValueError, "uneven='pad' adds a mask"),
    "ranks and a set": ({"shard": "auto", "sampler": {1, 2}}, ValueError, "the same on every rank"),
    "'auto' for items": ({"dataset": Counting(3), "num_workers": "auto"}, ValueError, "a map-style dataset"),
    "num_workers text": ({"num_workers": "many"}, ValueError, "num_workers must be 'auto' or an integer"),
    "prefetch text": ({"prefetch": "deep"}, ValueError, "prefetch must be"),
    "addresses for jax": ({"output": "jax", "static": True}, ValueError, "output='jax' delivers copies"),
    "split": ({"split": "halves"}, ValueError, "split must be one of 'batches', 'shards', got 'halves'"),
    "odd shards": ({**SHARDS, "batch_size": 7}, ValueError, "of 7 samples cannot be cut into 2 equal parts"),
    "no shards": ({**SHARDS, "uneven": "drop"}, ValueError, "a batch of 1 samples cut into 2 .* nothing"),
    "shards, single": ({**SHARDS, "batch_size": None}, ValueError, "batch_size=None yields single samples"),
    "shards of items": ({**OF_ITEMS, "uneven": "pad"}, ValueError, "uneven='drop' .* a last step"),
    "odd shards of items": ({**OF_ITEMS, "batch_size": 5}, ValueError, "a batch of 5 samples cannot be cut"),
    "a rank beyond": ({"shard": (2, 2)}, ValueError, "the rank in shard must be an integer from 0 to 1"),
    **{f"batches and {name}": ({"batch_sampler": [[0]], name: value}, ValueError, "determines the batches")
       for name, value in OF_BATCHES.items()},
    "batches of none": ({"batch_sampler": [[0]], "batch_size": None}, ValueError, "determines the batches"),
    **{f"items and {name}": ({"dataset": Counting(3), name.split()[0]: value}, ValueError, OWN_ORDER)
       for name, value in OF_ORDER.items()},
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_refused_at_once(case):
    options, error, message = BAD_OPTIONS[case]
    with pytest.raises(error, match=message):
        DataLoader(**{"dataset": NUMBERS, "places": "cpu", **options})


WORDS = "use_buffer_reader worker_type start_method on_worker_death decode on_bad cache split output uneven"


@pytest.mark.parametrize("name", WORDS.split())
def test_an_array_is_no_word(name):
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must be .*, got array\(\[1, 2\]\)$"):
        DataLoader(NUMBERS, places="cpu", **{name: np.array([1, 2])})


def test_a_batch_larger_than_any_dataset():
    options = {"collate_fn": len, "shard": (0, 2), "uneven": "drop"}
    assert list(load(Items(lambda: [3] * 4), batch_size=2**63 - 1, **options)) == [2]


def test_other_kinds_of_values_will_do():
    options = {"batch_size": np.int64(2), "num_workers": np.int32(0), "shuffle": np.False_}
    loader = load(NUMBERS, timeout=np.float64(1), seed=np.uint64(3), **options)
    assert values(loader) == [[0, 1], [2, 3], [4]]
    [batch] = load([{"x": np.arange(2)}, {"x": np.arange(3)}], batch_size=2, ragged=iter(["x"]))
    assert batch["x"].values.tolist() == [0, 1, 0, 1, 2]


def test_the_table_has_the_options_of_a_loader():
    """Same names, order and defaults as the parameters."""
    table, parameters = (
        [(one.name, one.default) for one in inspect.signature(kind).parameters.values()]
        for kind in (Options, DataLoader)
    )
    assert table == parameters


def test_the_documentation_has_every_option():
    text = inspect.cleandoc(DataLoader.__doc__).partition("Parameters\n")[2].partition("Raises\n")[0]
    documented = ", ".join(re.findall(r"^([\w, ]+) : ", text, re.MULTILINE)).split(", ")
    assert sorted(documented) == sorted(inspect.signature(Options).parameters)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"remainder": "drop"}, "pass uneven"),
        ({"memory_budget": 1 << 20}, "no effect"),
        ({"copy_priority": "high"}, "no effect"),
    ],
)
def test_a_deprecated_option_warns_and_still_works(options, advice):
    with pytest.warns(DeprecationWarning, match=f"{next(iter(options))} is deprecated .*{advice}") as seen:
        loader = DataLoader(NUMBERS, places="cpu", batch_size=2, **options)
    assert [one.filename for one in seen] == [__file__]
    assert values(loader) == [[0, 1], [2, 3], [4]]
    assert values(pickle.loads(pickle.dumps(loader))) == values(loader)  # without another warning


def test_uneven_is_one_word_for_ranks_and_places():
    two = {"places": cpu_places(2), "batch_size": 4, "split": "shards"}
    steps = [[part.tolist() for part in step] for step in DataLoader(range(7), uneven="drop", **two)]
    assert steps == [[[0, 1], [2, 3]], [[4], [5]]]
    with pytest.warns(DeprecationWarning, match="remainder"):
        loader = DataLoader(range(7), remainder="drop", **two)
    assert [[part.tolist() for part in step] for step in loader] == steps
    for uneven in (None, "error", "repeat"):  # a batch is never padded for places unless that is asked for
        with pytest.raises(ValueError, match="last batch, of 3 samples, cannot be cut into 2 equal parts"):
            DataLoader(range(7), uneven=uneven, **two)
    with pytest.warns(DeprecationWarning, match="remainder"):
        loader = DataLoader(range(7), shard=(0, 2), uneven="pad", remainder="drop", **two)
    assert [[part[0].tolist() for part in step] for step in loader] == [[[0, 1], [2, 3]]]


LENGTHS = [
    (NUMBERS, {}, 5),
    (NUMBERS, {"batch_size": 2}, 3),
    (NUMBERS, {"batch_size": 2, "drop_last": True}, 2),
    (NUMBERS, {"batch_size": None}, 5),
    (NUMBERS, {"sampler": [1, 2], "batch_size": 2}, 1),
    (NUMBERS, {"batch_sampler": [[0, 1], [4]]}, 2),
    (NUMBERS, {"batch_sampler": BatchSampler(NUMBERS, batch_size=2, drop_last=True)}, 2),
    (Endless(), {"sampler": range(7), "batch_size": 2}, 4),
    (Endless(), {"sampler": SequenceSampler(range(3))}, 3),
    (Unfinished(), {"batch_sampler": [[1], [2]]}, 2),
    (Counting(3), {}, None),
    (iter([1]), {}, None),
    (NUMBERS, {"sampler": iter([1])}, None),
    (NUMBERS, {"batch_sampler": iter([[1]])}, None),
    (Endless(), {"sampler": (index for index in [1])}, None),
]


@pytest.mark.parametrize(("dataset", "options", "count"), LENGTHS)
def test_the_length_is_the_number_of_batches(dataset, options, count):
    loader = load(dataset, **options)
    if count is None:
        with pytest.raises(TypeError, match="has no length"):
            len(loader)
    else:
        assert len(loader) == len(list(loader)) == count


BAD_SAMPLES = {
    "another shape": (np.zeros(3), np.zeros(4), None, r"shape \(3,\) .* got \(4,\).*ragged.*pad.*bucketing"),
    "would broadcast": (np.zeros((2, 3)), np.zeros(3), None, r"expected shape \(2, 3\) .*, got \(3,\)"),
    "one dimension more": (np.zeros((2, 3)), np.zeros((1, 2, 3)), None, r"expected shape \(2, 3\)"),
    "as many numbers": (np.zeros((2, 3)), np.zeros((3, 2)), None, r"shape \(2, 3\) .*, got \(3, 2\)"),
    "flattened": (np.zeros((2, 3)), np.zeros(6), None, r"expected shape \(2, 3\) .*, got \(6,\)"),
    "an array for a number": (1, np.array([1]), None, r"expected shape \(\) .*, got \(1,\)"),
    "a number for an array": (np.array([1]), 1, None, r"expected shape \(1,\) .*, got \(\)"),
    "a list for a number": (1, [1], None, r"expected shape \(\) .*, got \(1,\)"),
    "a fraction": (1, 0.5, None, "expected int64 .* got float64; make it one dtype in every sample, such as"),
    "a whole fraction": (1, 2.0, None, "expected int64 as in the batch's first sample, got float64"),
    "an array of fractions": (np.arange(2), np.zeros(2), None, "expected int64 .*, got float64"),
    "a number for a flag": (True, 1, None, "expected bool as in the batch's first sample, got int64"),
    "complex": (1.0, 1j, None, "expected float64 as in the batch's first sample, got complex128"),
    "too big": (np.uint8(1), 256, None, "expected numbers of dtype uint8"),
    "negative": (np.uint8(1), np.int64(-1), None, "expected numbers of dtype uint8"),
    "too big a float": (np.float16(1), 7e4, None, r"expected numbers of dtype float16 \(at most 65504"),
    "text": (1, "2", None, "expected numbers as in the batch's first sample, got text: '2'"),
    "none": (1, None, None, "expected numbers, got None"),
    "an object": (1, object(), None, "expected an array of numbers, got dtype object"),
    "a dict": (1, {"a": 1}, None, "expected an array of numbers, got dtype object"),
    "fewer fields": ((1, 2), (1,), False, r"expected 2 fields \(0, 1\), got 1"),
    "more fields": ((1, "a"), (1, "a", 2), False, "a tuple of 2 as in .* first sample, got a tuple of 3"),
    "no tuple": ((1, 2), 3, False, "expected a tuple with one value per field, got int"),
    "another key": ({"a": 1}, {"b": 1}, False, r"expected a dict with the keys \['a'\] .* the keys \['b'\]"),
    "a key more": ({"a": 1}, {"a": 1, "b": 2}, False, r"expected a dict with the keys \['a'\]"),
    "no dict": ({"a": 1}, (1,), False, r"expected a dict .*, got a tuple of 1"),
    "inside": ({"a": (1, {"b": 2})}, {"a": (1, 2)}, "a.1", r"a dict with the keys \['b'\] .* got int"),
    "inside, a shape": ({"a": [1, np.zeros(2)]}, {"a": [1, np.zeros(3)]}, "a.1", r"expected shape \(2,\)"),
}  # fmt: skip


FIRST_SAMPLES = {
    "nothing": ((), "expected a sample with at least one value, got a tuple of 0", None),
    "an empty dict": ({"a": {}}, r"expected a sample with at least one value", None),
    "numbers of no dtype": ({"a": Ragged(np.zeros(2), ())}, "expected an array of numbers", "a"),
}


def fail_at(bad):
    def make(index):
        if index == bad:
            raise KeyError("no such file")
        return index

    return make


class Broken(IterableDataset):
    """Raises at the point that `where` names."""

    def __init__(self, where):
        self.where = where

    def __iter__(self):
        self.fail("begin")
        return self.numbers()

    def numbers(self):
        yield from range(3)
        self.fail("item")

    def state_dict(self):
        self.fail("state")
        return {}

    def load_state_dict(self, state):
        raise AssertionError

    def fail(self, where):
        if self.where == where:
            raise KeyError("closed")


@pytest.mark.parametrize(("where", "place"), [("begin", (0, None)), ("item", (1, 1)), ("state", (0, None))])
@pytest.mark.parametrize("workers", WORKERS[:2], ids=name_workers)
def test_what_an_iterable_data_set_raises(where, place, workers):
    with pytest.raises(SampleError, match="the dataset raised KeyError: 'closed'") as caught:
        list(load(Broken(where), batch_size=2, **workers))
    assert (caught.value.batch, caught.value.index) == place
    assert type(caught.value.__cause__) is KeyError


FEEDS = [data("image", [None, 1, 4]), data("label", [None, 1], "int64")]


VARYING = {
    "another dtype": ({"x": np.zeros(2)}, "x", "expected int64 as in the batch's first sample, got float64"),
    "other steps": ({"x": np.zeros((2, 2), int)}, "x", r"expected shape \(-,\) .*, got \(2, 2\)"),
    "a number": ({"x": 3}, "x", r"expected shape \(-,\) .*, got \(\)"),
    "another form": ({"y": np.arange(2)}, None, r"expected a dict with the keys \['x'\]"),
    "text": ({"x": "abc"}, "x", "got text"),
}


@by_workers
class TestWithAnyWorkers:
    def test_an_empty_data_set_has_no_batches(self, workers):
        for dataset in ([], TensorDataset(np.zeros((0, 3))), Subset([1, 2], [])):
            for options in ({}, {"batch_size": None}, {"drop_last": True}):
                loader = load(dataset, **options, **workers)
                assert (len(loader), list(loader), list(loader)) == (0, [], [])
            with pytest.raises(ValueError, match="the data source is empty"):  # as in PyTorch and Paddle
                load(dataset, shuffle=True, **workers)
        assert list(load(Counting(0), **workers)) == []

    @pytest.mark.parametrize("case", BAD_SAMPLES)
    def test_a_sample_unlike_the_first(self, case, workers):
        first, bad, field, message = BAD_SAMPLES[case]
        dataset = [bad if index == 5 else first for index in range(9)]
        with nothing_left_behind():
            loader = load(dataset, batch_sampler=[[0, 1], [7, 8, 5], [3]], **workers)
            epoch = iter(loader)
            next(epoch)
            with pytest.raises(SampleError) as caught:
                next(epoch)
            error = caught.value
            assert (error.batch, error.index, error.dataset_index) == (1, 2, 5)
            assert error.field == ("0" if field is None else field or None)
            assert re.search(message, str(error)), str(error)
            with pytest.raises(StopIteration):
                next(epoch)
            loader._epochs._idle.clear()
            del epoch, loader, error, caught

    @pytest.mark.parametrize("case", FIRST_SAMPLES)
    def test_a_first_sample_without_a_form(self, case, workers):
        sample, message, field = FIRST_SAMPLES[case]
        for dataset, index in (([sample] * 4, 0), (Items(lambda: [sample] * 4), None)):
            with pytest.raises(SampleError, match=message) as caught:
                list(load(dataset, batch_size=2, **workers))
            error = caught.value
            assert (error.batch, error.index, error.dataset_index, error.field) == (0, 0, index, field)

    @pytest.mark.parametrize("bad", [0, 5])
    @pytest.mark.parametrize("in_order", [True, False])
    def test_what_a_data_set_raises(self, bad, in_order, workers):
        loader = load(Made(fail_at(bad)), batch_size=2, in_order=in_order, **workers)
        for _ in range(2):  # a failed epoch does not affect the next one
            with pytest.raises(SampleError, match="the dataset raised KeyError: 'no such file'") as caught:
                list(loader)
            error = caught.value
            assert (error.batch, error.index, error.dataset_index) == (bad // 2, bad % 2, bad)
            assert type(error.__cause__) is KeyError
        loader.dataset.make = fail_at(None)
        assert sorted(values(loader)) == [[0, 1], [2, 3], [4, 5], [6]]

    def test_what_a_data_set_that_reads_whole_batches_raises(self, workers):
        with pytest.raises(SampleError, match=r"batch 0.*__getitems__ raised KeyError.*for the indices \[0"):
            list(load(MadeAtOnce(fail_at(0)), batch_size=3, **workers))
        for found, message in (([1] * 9, r"returned 9 samples for \d indices"), (None, "raised TypeError")):
            kind = type("Wrong", (MadeAtOnce,), {"__getitems__": lambda self, indices: found})  # noqa: B023
            with pytest.raises(SampleError, match=f"batch 0.*__getitems__ {message}"):
                list(load(kind(None), batch_size=3, **workers))

    def test_what_a_collate_fn_raises(self, workers):
        message = r"batch 0.*: collate_fn raised KeyError: 'no such column'"
        with pytest.raises(SampleError, match=message) as caught:
            list(load(NUMBERS, batch_size=2, collate_fn=lambda samples: {}["no such column"], **workers))
        assert type(caught.value.__cause__) is KeyError
        feeds = [data("x", [None]), data("y", [None])]
        with pytest.raises(SampleError, match="expected a tuple of 2"):
            list(DataLoader(NUMBERS, feeds, "cpu", collate_fn=lambda samples: {"x": 1}, **workers))

    def test_a_users_sampler(self, workers):
        def sampler():
            yield from (0, 1)
            raise ZeroDivisionError("mine")

        class Reusing:
            """Goes on with its own list, and means something else by its batch size."""

            batch_size: ClassVar = {"short": 2, "long": 1}

            def __iter__(self):
                batch = []
                for index in range(4):
                    batch.append(index)
                    if len(batch) == 2:
                        yield batch
                        batch.clear()

        epoch = iter(load(NUMBERS, batch_size=2, sampler=sampler(), **workers))
        assert next(epoch).tolist() == [0, 1]
        with pytest.raises(ZeroDivisionError, match="mine"):
            next(epoch)
        loader = load(NUMBERS, batch_sampler=Reusing(), **workers)
        assert values(loader) == [[0, 1], [2, 3]]
        assert loader.state_dict().get("batch_size") is None

    @pytest.mark.parametrize("dataset", [TensorDataset(np.arange(4)), [0, 1, 2, 3]], ids=["arrays", "list"])
    def test_an_index_outside_the_data_set(self, dataset, workers):
        options = {"places": "cpu", "batch_size": 2, **workers}
        for index in (4, -5, 2**62, -(2**62)):
            message = rf"batch 1, sample 0, dataset index {index}.*index {index} is out of range for 4"
            with pytest.raises(SampleError, match=message) as caught:
                list(DataLoader(dataset, sampler=[0, 1, index, 2], **options))
            assert (caught.value.batch, caught.value.index, caught.value.dataset_index) == (1, 0, index)
        for index in ("a", 1.5, [1], None, 2**70):
            with pytest.raises(SampleError, match="batch 0"):
                list(DataLoader(dataset, sampler=[index], **options))

    def test_feeds_convert_as_from_generator_does(self, workers):
        samples = [([[1, 2], [3, 4]], 7), (np.arange(4.0), np.array([8])), ([0, 0, 0, 1], 9.0)]
        wanted = [np.array([[[1, 2, 3, 4]], [[0, 1, 2, 3]], [[0, 0, 0, 1]]], "f4"), np.array([[7], [8], [9]])]
        [batch] = DataLoader(samples, FEEDS, "cpu", batch_size=3, **workers)
        assert_same(batch, wanted)
        [step] = DataLoader(samples, FEEDS, "cpu", return_list=False, batch_size=3, **workers)
        assert_same(step, [{"image": wanted[0], "label": wanted[1]}])
        reference = DataLoader.from_generator(FEEDS, capacity=1, return_list=True)
        [[by_generator]] = reference.set_sample_generator(lambda: samples, batch_size=3, places="cpu")
        assert_same(by_generator, wanted)
        with pytest.raises(SampleError, match=r"sample 0, dataset index 3, field 'image'.*expected shape"):
            list(DataLoader([*samples, (np.zeros(5), 1)], FEEDS, "cpu", batch_size=3, **workers))

    def test_feeds_of_varying_length(self, workers):
        feeds = [
            data("words", [None, 1], "int64", lod_level=1),
            data("lines", [None], "int64", lod_level=2),
            data("label", [None], "int32"),
        ]
        samples = [([1, 2, 3], [[1, 2], [3]], 0), ([], [], 1), ([4], [[], [5]], 2)]
        [batch] = DataLoader(samples, feeds, "cpu", batch_size=3, **workers)
        words, lines, labels = batch
        assert_same(words.values, np.array([[1], [2], [3], [4]]))
        assert words.recursive_sequence_lengths() == [[3, 0, 1]]
        assert_same(lines.values, np.array([1, 2, 3, 5]))
        assert lines.recursive_sequence_lengths() == [[2, 0, 2], [2, 1, 0, 1]]
        assert_same(labels, np.array([0, 1, 2], "i4"))
        [[step]] = DataLoader(
            samples, feeds, "cpu", batch_size=3, return_list=False, pad={"words": -1}, **workers
        )
        assert_same(step["words"], np.array([[[1], [2], [3]], [[-1]] * 3, [[4], [-1], [-1]]]))
        assert isinstance(step["lines"], Ragged)

    def test_ragged_fields_by_name(self, workers):
        samples = [
            {
                "a": (np.arange(2, dtype="i2"), index),
                "b": {"c": np.ones((index, 2, 3), ">f4")},
                "d": f"{index}",
            }
            for index in (0, 2, 1)
        ]
        samples[1]["a"] = (np.zeros(0, "i2"), 2)
        loader = load(samples, batch_size=3, ragged=["a.0", "b.c"], **workers)
        [batch] = loader
        (first, second), steps = batch["a"], batch["b"]["c"]
        assert_same(first.values, np.array([0, 1, 0, 1], "i2"))
        assert first.recursive_sequence_lengths() == [[2, 0, 2]]
        assert_same(second, np.array([0, 2, 1]))
        assert_same(steps.values, np.ones((3, 2, 3), "f4"))
        assert steps.row_splits[0].tolist() == [0, 0, 2, 3]
        assert batch["d"] == ["0", "2", "1"]
        [padded] = load(samples, batch_size=3, pad={"a.0": 9, "b.c": np.nan}, **workers)
        assert_same(padded["a"][0], np.array([[0, 1], [9, 9], [0, 1]], "i2"))
        assert padded["b"]["c"].shape == (3, 2, 2, 3)
        assert np.isnan(padded["b"]["c"][0]).all()
        assert np.isnan(padded["b"]["c"]).sum() == 3 * 6

    def test_ragged_fields_may_be_lists(self, workers):
        samples = [{"x": [1, 2]}, {"x": []}, {"x": (3,)}, {"x": np.array([4], "i4")}]
        for part, wanted in ((samples, [1, 2, 3, 4]), (samples[1:], [3, 4])):
            [batch] = load(part, batch_size=4, ragged=["x"], **workers)
            assert_same(batch["x"].values, np.array(wanted))
        with pytest.raises(SampleError, match=r"field 'x'.*: the lists of all samples .* are empty"):
            list(load(samples[1:], ragged=["x"], **workers))
        samples = [{"x": np.arange(index), "y": index, "z": "text"} for index in range(1, 8)]
        for batch in load(samples, batch_size=3, ragged=["x"], **PROCESSES):
            assert batch["x"].recursive_sequence_lengths() == [batch["y"].tolist()]

    @pytest.mark.parametrize("case", VARYING)
    @pytest.mark.parametrize("how", [{"ragged": ["x"]}, {"pad": {"x": 0}}], ids=["ragged", "pad"])
    def test_a_ragged_sample_unlike_the_first(self, case, how, workers):
        bad, field, message = VARYING[case]
        samples = [{"x": np.arange(2)}] * 3 + [bad] + [{"x": np.arange(3)}] * 2
        with pytest.raises(SampleError, match=message) as caught:
            list(load(samples, batch_size=2, **how, **workers))
        error = caught.value
        assert (error.batch, error.index, error.dataset_index, error.field) == (1, 1, 3, field)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"ragged": ["z"]}, r"Boxes names \['z'\], but the sample's array fields are \['x', 'y'\]"),
        ({"pad": {"x.0": 1}}, r"ragged, pad or Boxes names \['x.0'\]"),
        ({"ragged": ["y"]}, "field 'y': expected an array of varying length, got a number"),
        ({"pad": {"x": 0.5}}, "field 'x': cannot pad rows of int64 with 0.5"),
        ({"pad": {"x": float("nan")}}, "field 'x': cannot pad rows of int64 with nan"),
        ({"pad": {"x": 2**63}}, "field 'x': cannot pad rows of int64 with 9223372036854775808"),
    ],
)
def test_varying_fields_that_are_not_there_or_do_not_vary(how, message):
    with pytest.raises(SampleError, match=message):
        list(load([{"x": np.arange(2), "y": 1}], **how))


def test_steps_of_a_free_shape_must_agree_within_a_batch():
    feeds = [data("x", [None, None], "int64", lod_level=1)]
    samples = [(np.zeros((2, 3), int),), (np.zeros((1, 4), int),)]
    message = r"sample 1, dataset index 1, field 'x': expected steps of shape \(3,\)"
    with pytest.raises(SampleError, match=message):
        list(DataLoader(samples, feeds, "cpu", batch_size=2))
    assert [batch[0].values.shape for batch in DataLoader(samples, feeds, "cpu")] == [(2, 3), (1, 4)]
