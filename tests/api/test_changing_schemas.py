"""A batch's own samples settle its schema: shapes, dtypes and keys may change between batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader import DataLoader, Dataset, IterableDataset, SampleError, cpu_places, data, get_worker_info
from gpuloader.testing import simulated_places
from gpuloader.transforms import Cast, Normalize
from tests.fakes import nothing_left_behind
from tests.loading import load
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, Made, assert_same, name_workers, stack

ALL = [INLINE, ONE_THREAD, THREADS, PROCESSES, {**PROCESSES, "persistent_workers": True}]
KINDS = ["map-style", "at once", "iterable"]
by_workers = pytest.mark.parametrize("workers", ALL, ids=lambda one: f"{name_workers(one)} {len(one)}")

LENGTHS = [3, 3, 5, 5, 3, 3, 1, 1, 400, 400, 5, 5, 3, 3]
"""The shapes of samples: both of a batch of two have one, and the next batch often another."""


def make_sample(index):
    """Return a sample whose shapes, dtypes and keys depend on its batch."""
    length, turn = LENGTHS[index], index // 2
    sample = {"x": np.full((length, 2), index, "fd"[turn % 2]), "y": (turn / 2, turn)[turn % 2]}
    if turn % 3 == 0:
        sample["name"] = (f"{index}", np.arange(length))
    if turn % 3 == 1:
        sample["name"] = np.int16(index)
    return sample if turn % 4 else dict(reversed(sample.items()))


class AtOnce(Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitems__(self, indices):
        return [make_sample(index) for index in indices]


class Stream(IterableDataset):
    """Yields pairs of samples, which are batches; workers divide the pairs."""

    def __init__(self, make=make_sample, count=14):
        self.make = make
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for pair in range(first, self.count // 2, step):
            yield self.make(2 * pair)
            yield self.make(2 * pair + 1)


def make_dataset(kind):
    return {"map-style": lambda: Made(make_sample, len(LENGTHS)), "at once": AtOnce, "iterable": Stream}[
        kind
    ]()


def pairs():
    return [stack([make_sample(index), make_sample(index + 1)]) for index in range(0, len(LENGTHS), 2)]


@pytest.mark.parametrize("kind", KINDS)
@by_workers
def test_every_batch_may_have_another_schema(workers, kind):
    """In three epochs; a worker that has seen other batches settles no other schemas."""
    with nothing_left_behind():
        loader = load(make_dataset(kind), batch_size=2, **workers)
        for _ in range(3):
            assert_same(list(loader), pairs())
        loader.close()
        loader._epochs._idle.clear()


@by_workers
def test_buckets(workers):
    """A batch sampler that makes batches of samples of equal length."""
    samples = [np.full(length, float(length)) for length in [7, 3, 5, 3, 5, 7, 3]]
    buckets = [[1, 3], [0, 5], [6], [2, 4], [5, 0]]
    loader = load(samples, batch_sampler=buckets, **workers)
    for _ in range(2):
        assert_same(list(loader), [np.stack([samples[index] for index in one]) for one in buckets])


@pytest.mark.parametrize("kind", KINDS)
@by_workers
def test_a_loader_resumes_where_another_was(workers, kind):
    """The batches after the state do not depend on the ones before it."""
    options = {"places": "cpu", "batch_size": 2, **workers}
    for received in (1, 4, 6):
        first = DataLoader(make_dataset(kind), seed=1, **options)
        epoch = iter(first)
        for _ in range(received):
            next(epoch)
        state = first.state_dict()
        epoch.close()
        second = DataLoader(make_dataset(kind), seed=1, **options)
        second.load_state_dict(state)
        assert_same(list(second), pairs()[received:])
        for loader in (first, second):
            loader.close()


class Lengths(Dataset):
    """Samples of given lengths and dtypes; the value is the index."""

    def __init__(self, kinds):
        self.kinds = kinds

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        length, dtype = self.kinds[index]
        return {"x": np.full(length, index, dtype), "n": index}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["i2", "i8", "f4", "f8"])), min_size=1, max_size=8),
    st.integers(1, 3),
)
@settings(deadline=None, max_examples=40)
def test_batches_depend_on_their_own_samples_only(kinds, size):
    """Every batch is what it would be in a loader of its own, and so is every error."""
    dataset = Lengths(kinds)
    outcomes = []
    for start in range(0, len(kinds), size):
        batch = range(start, min(start + size, len(kinds)))
        try:
            outcomes += list(load(dataset, batch_sampler=[batch]))
        except SampleError as error:
            outcomes.append(error.problem)
    good = list(itertools.takewhile(lambda outcome: not isinstance(outcome, str), outcomes))
    for workers in (INLINE, THREADS):
        epoch = iter(load(dataset, batch_size=size, **workers))
        assert_same(list(itertools.islice(epoch, len(good))), good)
        if len(good) < len(outcomes):
            with pytest.raises(SampleError) as caught:
                next(epoch)
            assert caught.value.problem == outcomes[len(good)]
            assert caught.value.batch == len(good)


@by_workers
def test_samples_of_one_batch_must_agree(workers):
    """The error names the ways out: ragged, pad, and batches of samples of equal length."""
    samples = [np.zeros(3), np.zeros(3), np.zeros(4), np.zeros(4), np.zeros(4), np.zeros(5)]
    epoch = iter(load(samples, batch_size=2, **workers))
    assert [next(epoch).shape for _ in range(2)] == [(2, 3), (2, 4)]
    message = (
        r"expected shape \(4,\) as in the batch's first sample, got \(5,\); if its length varies, name the"
    )
    with pytest.raises(SampleError, match=rf"{message} field in ragged, .* \(bucketing\)") as caught:
        next(epoch)
    assert (caught.value.batch, caught.value.index, caught.value.dataset_index) == (2, 1, 5)
    epoch.close()


@by_workers
def test_a_feed_list_still_fixes_dtype_and_dimensions(workers):
    samples = [(np.full((length, 2), length), length) for length in (1, 1, 3, 3, 2, 2)]
    feeds = [data("x", [None, None, 2], "float32"), data("n", [None], "int16")]
    batches = list(DataLoader(samples, feeds, "cpu", batch_size=2, **workers))
    wanted = [[np.full((2, length, 2), length, "f4"), np.full(2, length, "i2")] for length in (1, 3, 2)]
    assert_same(batches, wanted)
    feeds[0] = data("x", [None, 1, 2], "float32")
    epoch = iter(DataLoader(samples, feeds, "cpu", batch_size=2, **workers))
    next(epoch)
    with pytest.raises(SampleError, match=r"field 'x'.*expected shape \(1, 2\), got \(3, 2\)") as caught:
        next(epoch)
    assert (caught.value.batch, caught.value.index) == (1, 0)
    epoch.close()


@pytest.mark.parametrize("places", ["cpu", "simulated"])
@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)
def test_transforms_are_planned_for_every_schema(workers, places):
    """Also for two fields of the same shapes under other names."""

    def make(index):
        turn = index // 2
        shape = (2, 1 + turn % 2, 3)
        names = ("a", "b") if turn % 4 < 2 else ("b", "a")
        return {names[0]: np.full(shape, index, "u1"), names[1]: np.full(shape, index + 100, "u1")}

    loader = DataLoader(
        Made(make, 16),
        places=simulated_places(1, seed=3) if places == "simulated" else "cpu",
        batch_size=2,
        transforms=[Normalize("a", mean=1, std=2, layout="CHW"), Cast("b", "int16")],
        **workers,
    )
    for _ in range(2):
        for number, batch in enumerate(loader):
            samples = stack([make(2 * number), make(2 * number + 1)])
            assert list(batch) == list(samples)
            wanted = (samples["a"].astype("f4") - 1) / 2
            assert_same(np.asarray(batch["a"]), wanted)
            assert_same(np.asarray(batch["b"]), samples["b"].astype("i2"))


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)
def test_shards_of_batches_of_any_shape(workers):
    samples = [np.full(length, index) for index, length in enumerate(np.repeat([3, 1, 4], 4))]
    options = {"places": cpu_places(2), "split": "shards", "batch_size": 4}
    loader = DataLoader(samples, **options, **workers)
    steps = [[part.tolist() for part in step] for step in loader]
    assert steps == [
        [[samples[index].tolist() for index in part] for part in ((at, at + 1), (at + 2, at + 3))]
        for at in (0, 4, 8)
    ]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            np.zeros(3),
            np.zeros(4),
            r"field '0': expected shape \(3,\) and dtype float64 .*, got shape \(4,\)",
        ),
        (1, 0.5, r"field '0': expected shape \(\) and dtype int64 .* dtype float64"),
        ({"a": 1}, {"b": 1}, r"expected a dict with the keys \['a'\] .* got a dict with the keys \['b'\]"),
        ((1, "a"), (1, 2), r"expected a tuple of 2 with the array fields \['0'\] .* \['0', '1'\]"),
    ],
)
@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)
def test_the_parts_of_one_batch_must_agree(workers, first, second, message):
    """With one place, they would have to agree as well: a step is one batch for any number of places."""
    samples = [first, first, first, first, first, first, second, second]
    loader = DataLoader(samples, places=cpu_places(2), split="shards", batch_size=4, **workers)
    epoch = iter(loader)
    next(epoch)
    with pytest.raises(SampleError, match=f"{message}.*bucketing") as caught:
        next(epoch)
    assert caught.value.batch == 3
    assert list(epoch) == []


@pytest.mark.parametrize("workers", [INLINE, THREADS], ids=name_workers)
def test_batches_of_any_shape_reach_a_device(workers):
    """Device slots grow as host slots do."""
    shapes = [(1,), (5, 5), (2,), (100,), (3,), (101,), (1,), (200, 3)]
    samples = [np.full(shape, index) for index, shape in enumerate(shapes)]
    loader = DataLoader(samples, places=simulated_places(1, seed=5), **workers)
    for _ in range(2):
        kept = [np.asarray(batch).copy() for batch in loader]
        assert_same(kept, [sample[None] for sample in samples])


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
def test_a_ranks_batches_may_have_any_shape(workers):
    """Items are divided among ranks, so two ranks' parts of a step have their own schemas."""

    def make(index):
        return np.full(1 + index % 2 + index // 4, index)

    for rank in (0, 1):
        loader = load(Stream(make, 12), batch_size=2, shard=(rank, 2), uneven="drop", seed=1, **workers)
        wanted = [np.stack([make(first), make(first + 2)]) for first in range(rank, 12, 4)]
        assert_same(list(loader), wanted)


def test_text_stands_beside_sequences_of_its_own_sample():
    samples = [{"words": [1] * (number + 1), "name": f"n{number}"} for number in range(4)]
    batches = load(samples, batch_size=2, ragged=["words"])
    assert [batch["name"] for batch in batches] == [["n0", "n1"], ["n2", "n3"]]
