"""The order of samples, by Hypothesis: the same with any workers, and after any interruption."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from gpuloader import (
    BatchSampler,
    BucketSampler,
    DistributedBatchSampler,
    MixDataset,
    RandomSampler,
    Sampler,
    SequenceSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from tests.loading import load, resume
from tests.sample_sets import INLINE, PROCESSES, WORKERS, Counting, Made, Stateful, name_workers, values


class Backwards(Sampler):
    """A user's own sampler, with only what Python's protocols require."""

    def __init__(self, count):
        super().__init__()
        self.indices = range(count)[::-1]

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


class Uneven:
    """A user's own batch sampler: batches of 1, 2, 3, 1, 2, … samples, as lists, tuples and arrays."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        start, sizes, kinds = 0, itertools.cycle([1, 2, 3]), itertools.cycle([list, tuple, np.array])
        while start < self.count:
            stop = min(start + next(sizes), self.count)
            yield next(kinds)(range(start, stop))
            start = stop


def mixed(count):
    """Return the sampler of a mix of two halves of a dataset."""
    halves = [range(half) for half in (count // 2, count - count // 2) if half]
    return MixDataset(halves, [1, 2][: len(halves)], at_end="drop").default_sampler(shuffle=True)


SAMPLERS = {
    "in order": lambda count, size: {"batch_size": size},
    "short ones dropped": lambda count, size: {"batch_size": size, "drop_last": True},
    "shuffled": lambda count, size: {"batch_size": size, "shuffle": True},
    "one by one": lambda count, size: {"batch_size": None, "shuffle": True},
    "with replacement": lambda count, size: {
        "batch_size": size, "sampler": RandomSampler(range(count), replacement=True, num_samples=count + 3)
    },
    "weighted": lambda count, size: {
        "batch_size": size, "sampler": WeightedRandomSampler(np.arange(1.0, count + 1), count)
    },
    "subset": lambda count, size: {"batch_size": size, "sampler": SubsetRandomSampler(range(0, count, 2))},
    "numpy's generator": lambda count, size: {
        "batch_size": size, "sampler": RandomSampler(range(count), generator=np.random.default_rng(5))
    },
    "an iterator": lambda count, size: {
        "batch_size": size, "sampler": RandomSampler(range(count), generator=iter(range(count)))
    },
    "a generator": lambda count, size: {"batch_size": size, "sampler": (one for one in range(count))},
    "a list": lambda count, size: {"batch_size": size, "sampler": list(range(count))[::-2]},
    "the user's": lambda count, size: {"batch_size": size, "sampler": Backwards(count), "drop_last": True},
    "batches": lambda count, size: {
        "batch_sampler": BatchSampler(range(count), shuffle=True, batch_size=size)
    },
    "batches of a sampler": lambda count, size: {
        "batch_sampler": BatchSampler(sampler=SequenceSampler(range(count)), batch_size=size, drop_last=True)
    },
    "buckets": lambda count, size: {
        "batch_sampler": BucketSampler(np.arange(count) % 5, size, pool=2, drop_last=count % 2 == 0)
    },
    "a budget": lambda count, size: {
        "batch_sampler": BucketSampler(np.arange(count) % 5, max_tokens=4 * size, pool=2)
    },
    "a rank's": lambda count, size: {
        "batch_sampler": DistributedBatchSampler(
            range(count), size, num_replicas=2, rank=1, shuffle=True, seed=3
        )
    },
    "a mix": lambda count, size: {"batch_size": size, "sampler": mixed(count)},
    "the user's batches": lambda count, size: {"batch_sampler": Uneven(count)},
}  # fmt: skip

DATA_SETS = {
    "list": lambda count: list(range(count)),
    "arrays": lambda count: TensorDataset(np.arange(count)),
    "part of arrays": lambda count: Subset(TensorDataset(np.arange(count)[::-1]), range(count - 1, -1, -1)),
}

workers = st.sampled_from(WORKERS)
sizes = st.integers(1, 5)
legs = st.lists(st.tuples(st.integers(0, 6), workers), max_size=4)


def run(loader, most=None):
    """Return the steps of an epoch, at most `most` of them: one list of numbers per place, or per field."""
    return [
        [np.asarray(array).ravel().tolist() for array in (step if isinstance(step, list) else [step])]
        for step in itertools.islice(loader, most)
    ]


def resume_in_legs(make, legs, epoch=0, seed=11):
    """Return the steps of an epoch that was interrupted after each leg and resumed in a new loader."""
    first = make(seed=seed, **INLINE)
    first.set_epoch(epoch)
    state, steps = first.state_dict(), []
    for most, choice in [*legs, (None, INLINE)]:
        text = json.dumps(state)
        assert len(text) < 1024
        loader = make(seed=99, **choice)
        loader.load_state_dict(json.loads(text))
        if most != 0:
            steps += run(loader, most)
        state = loader.state_dict()
        if most is None:
            assert (state["epoch"], state["batches"]) == (epoch + 1, 0)
        elif state["epoch"] != epoch:  # the leg reached the end
            break
    return steps


@st.composite
def sampled_data_sets(draw):
    """Draw a function that makes loaders of one dataset, read in one way."""
    count, size = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    kind, data_set = draw(st.sampled_from(sorted(SAMPLERS))), draw(st.sampled_from(sorted(DATA_SETS)))
    note(f"{kind}, {data_set}, count={count}, size={size}")

    def make(**options):
        return load(DATA_SETS[data_set](count), **SAMPLERS[kind](count, size), **options)

    return make


@given(make=sampled_data_sets(), epoch=st.integers(0, 3), choice=workers)
def test_the_order_does_not_depend_on_the_workers(make, epoch, choice):
    def run_epoch(**options):
        loader = make(seed=7, **options)
        loader.set_epoch(epoch)
        return run(loader)

    alone = run_epoch(**INLINE)
    assert run_epoch(**choice) == alone
    assert sorted(run_epoch(in_order=False, **choice)) == sorted(alone)


@given(make=sampled_data_sets(), epoch=st.integers(0, 2), legs=legs)
def test_an_interrupted_epoch_resumes_where_it_was(make, epoch, legs):
    whole = make(seed=11, **INLINE)
    whole.set_epoch(epoch)
    assert resume_in_legs(make, legs, epoch) == run(whole)


@given(count=st.integers(1, 40), size=sizes, legs=legs)
def test_batches_received_out_of_order_are_not_repeated(count, size, legs):
    def make(**options):
        return load(list(range(count)), batch_size=size, in_order=False, **options)

    assert sorted(resume_in_legs(make, legs)) == sorted(run(make(seed=11, **INLINE)))


@given(
    kind=st.sampled_from([Counting, Stateful]),
    count=st.integers(0, 40),
    size=sizes,
    drop_last=st.booleans(),
    threads=st.integers(1, 3),
    breaks=st.lists(st.integers(0, 5), max_size=4),
)
@example(kind=Stateful, count=13, size=3, drop_last=False, threads=1, breaks=[5])
def test_an_iterable_data_set_resumes(kind, count, size, drop_last, threads, breaks):
    options = {"num_workers": threads, "worker_type": "thread"}
    if kind is Stateful and threads > 1:
        kind = Counting  # threads share one dataset, whose state does not tell them apart

    def make(**chosen):
        if threads == 1:  # the caller itself is worker 0 of 1
            options["num_workers"] = chosen["num_workers"] % 2
        return load(kind(count), batch_size=size, drop_last=drop_last, seed=chosen["seed"], **options)

    whole = run(make(seed=1, num_workers=1))
    if threads == 1:
        assert [one for [batch] in whole for one in batch] == list(
            range(count - count % size if drop_last else count)
        )
    legs = [(most, WORKERS[position % 2]) for position, most in enumerate(breaks)]
    assert resume_in_legs(make, legs) == whole


def test_processes_and_all_others_resume_each_other():
    def make(**options):
        return load(list(range(50)), batch_size=3, shuffle=True, **options)

    whole = run(make(seed=11, **INLINE))
    assert run(make(seed=11, **PROCESSES)) == whole
    assert sorted(run(make(seed=11, in_order=False, **PROCESSES))) == sorted(whole)
    assert resume_in_legs(make, [(3, PROCESSES), (4, WORKERS[2]), (1, PROCESSES), (2, INLINE)]) == whole


def test_without_a_seed_numpys_global_state_decides():
    orders = []
    for _ in range(2):
        np.random.seed(3)
        orders += run(load(list(range(20)), batch_size=20, shuffle=True))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("options", [*WORKERS, PROCESSES], ids=name_workers)
def test_a_batch_sampler_as_sampler_reads_whole_batches(options):
    """As in PyTorch: with batch_size=None, the dataset gets the list of a batch's indices."""

    def read(indices):
        assert type(indices) is list
        return np.array(indices)

    def make():
        sampler = BatchSampler(sampler=RandomSampler(range(7)), batch_size=3)
        return load(Made(read), sampler=sampler, batch_size=None, seed=1, **options)

    order = RandomSampler(range(7)).order(1, 0).slice(0, 7).tolist()
    wanted = [order[:3], order[3:6], order[6:]]
    loader = make()
    assert len(loader) == 3
    assert values(loader) == wanted != values(loader)
    before, again = resume(make, 1)
    assert values(before) + values(again) == wanted
    with pytest.raises(ValueError, match="which BatchSampler does not guarantee"):
        load(range(5), shard=(0, 2), uneven="drop", batch_size=None, sampler=BatchSampler(range(5)))
