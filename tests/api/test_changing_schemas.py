"""A batch's own samples settle its schema: shapes, dtypes and keys may change between batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import DataLoader, IterableDataset, SampleError, cpu_places, data, get_worker_info
from gpuloader.testing import simulated_places
from gpuloader.transforms import Cast, Normalize
from tests.fakes import nothing_left_behind
from tests.loading import load
from tests.sample_sets import (
    INLINE,
    ONE_THREAD,
    PROCESSES,
    THREADS,
    Made,
    MadeAtOnce,
    assert_same,
    name_workers,
    stack,
)

ALL = [INLINE, ONE_THREAD, THREADS, {**PROCESSES, "persistent_workers": True}]
KINDS = {
    "map-style": lambda: Made(make_sample, len(LENGTHS)),
    "at once": lambda: MadeAtOnce(make_sample, len(LENGTHS)),
    "iterable": lambda: Stream(),
}
by_workers = pytest.mark.parametrize("workers", ALL, ids=name_workers)
by_kinds = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)

LENGTHS = [3, 3, 5, 5, 3, 3, 1, 1, 400, 400, 5, 5, 3, 3]
"""The shapes of samples: both of a batch of two have one, and the next batch often another."""


def make_sample(index):
    """Return a sample whose shapes, dtypes and keys depend on its batch."""
    length, turn = LENGTHS[index], index // 2
    sample = {"x": np.full((length, 2), index, "fd"[turn % 2]), "y": (turn / 2, turn)[turn % 2]}
    if turn % 3 < 2:
        sample["name"] = np.int16(index) if turn % 3 else (f"{index}", np.arange(length))
    return sample if turn % 4 else dict(reversed(sample.items()))


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


def pairs():
    return [stack([make_sample(index), make_sample(index + 1)]) for index in range(0, len(LENGTHS), 2)]


@pytest.mark.parametrize("kind", KINDS)
@by_workers
def test_every_batch_may_have_another_schema(workers, kind):
    """In three epochs; a worker that has seen other batches settles no other schemas."""
    with nothing_left_behind():
        loader = load(KINDS[kind](), batch_size=2, **workers)
        for _ in range(3):
            assert_same(list(loader), pairs())
        loader.close()
        loader._epochs._idle.clear()


KINDS_OF_SAMPLES = st.tuples(st.integers(0, 3), st.sampled_from(["i2", "i8", "f4", "f8"]))


@given(st.lists(KINDS_OF_SAMPLES, min_size=1, max_size=8), st.integers(1, 3))
def test_batches_depend_on_their_own_samples_only(kinds, size):
    """Every batch is what it would be in a loader of its own, and so is every error."""

    def make(index):
        length, dtype = kinds[index]
        return {"x": np.full(length, index, dtype), "n": index}

    dataset = Made(make, len(kinds))
    outcomes = []
    for start in range(0, len(kinds), size):
        try:
            outcomes += load(dataset, batch_sampler=[range(start, min(start + size, len(kinds)))])
        except SampleError as error:
            outcomes.append(error.problem)
    good = list(itertools.takewhile(lambda outcome: not isinstance(outcome, str), outcomes))
    for workers in (INLINE, THREADS):
        epoch = iter(load(dataset, batch_size=size, **workers))
        assert_same(list(itertools.islice(epoch, len(good))), good)
        if len(good) < len(outcomes):
            with pytest.raises(SampleError) as caught:
                next(epoch)
            assert (caught.value.problem, caught.value.batch) == (outcomes[len(good)], len(good))


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


@pytest.mark.parametrize("places", ["cpu", simulated_places(1, seed=3)], ids=["cpu", "simulated"])
@by_kinds
def test_transforms_are_planned_for_every_schema(workers, places):
    """Also for two fields of the same shapes under other names."""

    def make(index):
        turn = index // 2
        names = ("a", "b") if turn % 4 < 2 else ("b", "a")
        return {name: np.full((2, 1 + turn % 2, 3), index + 100 * at, "u1") for at, name in enumerate(names)}

    steps = [Normalize("a", mean=1, std=2, layout="CHW"), Cast("b", "int16")]
    loader = DataLoader(Made(make, 16), places=places, batch_size=2, transforms=steps, **workers)
    for _ in range(2):
        for number, batch in enumerate(loader):
            samples = stack([make(2 * number), make(2 * number + 1)])
            assert list(batch) == list(samples)
            assert_same(np.asarray(batch["a"]), (samples["a"].astype("f4") - 1) / 2)
            assert_same(np.asarray(batch["b"]), samples["b"].astype("i2"))


SHARDS = {"places": cpu_places(2), "split": "shards", "batch_size": 4}


@by_kinds
def test_shards_of_batches_of_any_shape(workers):
    samples = [np.full(length, index) for index, length in enumerate(np.repeat([3, 1, 4], 4))]
    parts = [part.tolist() for step in DataLoader(samples, **SHARDS, **workers) for part in step]
    assert parts == [[sample.tolist() for sample in samples[at : at + 2]] for at in range(0, 12, 2)]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros(3), np.zeros(4), r"'0': expected shape \(3,\) and dtype float64 .*, got shape \(4,\)"),
        (1, 0.5, r"field '0': expected shape \(\) and dtype int64 .* dtype float64"),
        ({"a": 1}, {"b": 1}, r"expected a dict with the keys \['a'\] .* got a dict with the keys \['b'\]"),
        ((1, "a"), (1, 2), r"expected a tuple of 2 with the array fields \['0'\] .* \['0', '1'\]"),
    ],
)
@by_kinds
def test_the_parts_of_one_batch_must_agree(workers, first, second, message):
    """With one place, they would have to agree as well: a step is one batch for any number of places."""
    epoch = iter(DataLoader([first] * 6 + [second] * 2, **SHARDS, **workers))
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
