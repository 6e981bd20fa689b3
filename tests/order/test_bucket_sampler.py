"""Batches of similar length: a random order that depends on seed and epoch, and can be entered anywhere."""

import itertools
import json
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import (
    BucketSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from gpuloader.order.order import Shuffled
from gpuloader.order.samplers import find_batches
from tests.sample_sets import INLINE, PROCESSES, MadeAtOnce, name_workers, values

LENGTHS = np.random.default_rng(0).lognormal(4, 0.8, 2000).astype(int)


def flat(order):
    return np.asarray(order.slice(0, len(order))).tolist()


def padding(sampler):
    """Return the share of padding in an epoch's batches."""
    batches = [LENGTHS[one] for one in np.split(np.array(flat(sampler.order(1, 0))), range(20, 2000, 20))]
    return 1 - LENGTHS.sum() / sum(batch.max() * len(batch) for batch in batches)


@given(
    lengths=st.lists(st.integers(0, 5), max_size=40),
    size=st.integers(1, 6),
    pool=st.integers(1, 4),
    seed=st.integers(0, 2**64 - 1),
    cut=st.integers(0, 40),
)
def test_an_epoch_has_every_index_once_and_can_be_entered_anywhere(lengths, size, pool, seed, cut):
    order = BucketSampler(lengths, size, pool=pool).order(seed, 3)
    indices, count = flat(order), len(lengths)
    assert sorted(indices) == list(range(count))
    cut = min(cut, count)
    assert order.slice(cut, count).tolist() == indices[cut:]
    assert order.at(np.arange(count)[::-1]).tolist() == indices[::-1]
    assert flat(pickle.loads(pickle.dumps(order))) == indices


def test_batches_need_little_padding():
    random = np.mean([LENGTHS[one].max() for one in np.split(Shuffled(2000, 1, 0).slice(0, 2000), 100)])
    assert random * 2000 / LENGTHS.sum() > 2  # without buckets, more than half would be padding
    assert padding(BucketSampler(LENGTHS, 20)) < 0.06
    assert padding(BucketSampler(LENGTHS, 20, pool=5)) > padding(BucketSampler(LENGTHS, 20, pool=20))


def test_another_random_order_each_epoch_and_seed_but_none_between_releases():
    sampler = BucketSampler(LENGTHS, 20)
    orders = [flat(sampler.order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert flat(sampler.order(1, 0)) == orders[0]
    groups = [{tuple(sorted(order[at : at + 20])) for at in range(0, 2000, 20)} for order in orders[:2]]
    assert len(groups[0] & groups[1]) < 5  # other samples share a batch
    assert abs(np.corrcoef(np.arange(100), LENGTHS[orders[0]][::20])[0, 1]) < 0.3
    assert flat(BucketSampler([3, 1, 2, 1, 3, 2, 1], 2, pool=2).order(7, 1)) == [2, 0, 6, 3, 5, 4, 1]


def test_long_samples_are_not_those_that_are_dropped():
    sampler = BucketSampler(range(105), 10, drop_last=True)
    dropped = [set(range(105)) - {one for batch in sampler for one in batch} for _ in range(20)]
    assert all(len(one) == 5 for one in dropped)
    assert np.mean([max(one) for one in dropped]) < 100


def test_without_shuffling_it_sorts():
    sampler = BucketSampler([5, 1, 4, 1], 2, shuffle=False)
    assert list(sampler) == [[1, 3], [2, 0]]
    assert flat(sampler.order(5, 6)) == [1, 3, 2, 0]
    loader = DataLoader(range(4), places="cpu", batch_sampler=sampler, shard=(1, 2), uneven="drop")  # no seed
    assert values(loader) == [[2, 0]]
    assert list(BucketSampler([2.5, 0.5, 1.25, 0.75], 2, shuffle=False)) == [[1, 3], [2, 0]]  # seconds


def test_lengths_are_kept_as_they_were_or_measured_by_a_key():
    lengths = np.array([1, 2, 3])
    sampler = BucketSampler(lengths, 2)
    lengths[:] = 0
    assert sampler.lengths.tolist() == [1, 2, 3]
    words = ["a", "abc", "ab", "abcd"]
    assert BucketSampler(words, 2, key=len).lengths.tolist() == [1, 3, 2, 4]
    many = MadeAtOnce(lambda index: words[index % 4], 3000)
    assert BucketSampler(many, 2, key=len).lengths[-2:].tolist() == [2, 4]
    assert many.calls == 3


def test_iterating_draws_from_numpys_global_state():
    sampler = BucketSampler(LENGTHS, 20)
    np.random.seed(3)
    batches = list(sampler)
    assert (len(batches), len(sampler)) == (100, 100)
    assert list(sampler) != batches
    np.random.seed(3)
    assert list(sampler) == batches


@pytest.mark.parametrize(
    ("kind", "source", "options", "message"),
    [
        (ValueError, [1, np.nan], {}, "lengths must be finite and 0 or more, got nan at index 1"),
        (ValueError, [1.5, np.inf], {}, "lengths must be finite and 0 or more, got inf at index 1"),
        (ValueError, [1, -2], {}, "lengths must be finite and 0 or more, got -2 at index 1"),
        (ValueError, "ab", {"key": lambda letter: -0.5}, "finite and 0 or more, got -0.5 at index 0"),
        (ValueError, [1, None], {}, "list of numbers, one per sample, got list of dtype object"),
        (ValueError, [True], {}, "lengths must be a list of numbers, one per sample, got list of dtype bool"),
        (ValueError, [1 + 2j], {}, "list of numbers, one per sample, got list of dtype complex128"),
        (ValueError, [[1, 2]], {}, r"list of dtype int64 and shape \(1, 2\); for a dataset, pass key=len"),
        (ValueError, ["abc", "de"], {}, "got list of dtype <U3"),
        (ValueError, [[1], [1, 2]], {}, "list of numbers, one per sample: .*; for a dataset, pass key"),
        (ValueError, [1], {"batch_size": None}, "pass batch_size, the samples per batch, or max_tokens"),
        (ValueError, [1, 9, 7], {"max_tokens": 6}, "sample 1 has length 9, but .*=6; 2 samples are too long"),
        *((ValueError, [1], {"max_tokens": bad}, "a number above 0") for bad in (0, -1, "8", True, np.inf)),
        (ValueError, [1], {"pool": 0}, "pool must be"),
        (ValueError, [1], {"batch_size": 0}, "batch_size must be"),
        (TypeError, [1], {"shuffle": 1}, "shuffle must be"),
        (TypeError, [1], {"key": 3}, "key must be callable, got int"),
        (TypeError, IterableDataset(), {"key": len}, "IterableDataset is an IterableDataset"),
        (TypeError, iter([1]), {"key": len}, "a dataset whose samples are measured must have a length"),
    ],
)
def test_bad_arguments(kind, source, options, message):
    with pytest.raises(kind, match=message):
        BucketSampler(source, **{"batch_size": 2, **options})


@pytest.mark.parametrize("count", [3, 5])
def test_a_loader_needs_one_length_per_sample(count):
    sampler = BucketSampler(range(count), 2)
    message = f"the BucketSampler has {count} lengths, but the dataset has 4 samples: pass the length of each"
    with pytest.raises(ValueError, match=message):
        DataLoader(range(4), places="cpu", batch_sampler=sampler)


class TestTheWrongOption:
    """A sampler of batches as `sampler`, or one of indices as `batch_sampler`."""

    @pytest.mark.parametrize("size", [1, 2])
    def test_buckets_as_sampler(self, size):
        message = "a BucketSampler yields whole batches: pass it as batch_sampler, without a batch_size"
        with pytest.raises(TypeError, match=message):
            DataLoader(range(4), places="cpu", sampler=BucketSampler(range(4), 2), batch_size=size)

    @pytest.mark.parametrize(
        ("kind", "source"),
        [
            *[(kind, range(4)) for kind in (SequenceSampler, RandomSampler, SubsetRandomSampler)],
            (partial(WeightedRandomSampler, num_samples=2), [1, 1]),
        ],
    )
    def test_indices_as_batch_sampler(self, kind, source):
        sampler = kind(source)
        message = f"a {type(sampler).__name__} yields single indices: pass it as sampler, with a batch_size"
        with pytest.raises(TypeError, match=message):
            DataLoader(range(4), places="cpu", batch_sampler=sampler)

    def test_whole_batches_of_indices_may_be_read_as_samples(self):
        sampler = BucketSampler([3, 1, 2, 4], 2, shuffle=False)
        loader = DataLoader(TensorDataset(np.arange(4)), places="cpu", sampler=sampler, batch_size=None)
        assert [batch.tolist() for (batch,) in loader] == [[1, 2], [0, 3]]

    def test_a_sampler_of_the_users_may_yield_batches(self):
        pairs = type("Pairs", (Sampler,), {"__iter__": lambda self: iter([[0, 1], [2, 3]])})
        loader = DataLoader(range(4), places="cpu", batch_sampler=pairs())
        assert values(loader) == [[0, 1], [2, 3]]


SAMPLERS = {
    "of one size": lambda: BucketSampler(LENGTHS[:50], 4, pool=3),
    "of a budget": lambda: BucketSampler(LENGTHS[:50], max_tokens=400),
}
by_samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def load(sampler, **options):
    return DataLoader(range(50), places="cpu", batch_sampler=sampler, **{"seed": 3, **options})


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
@by_samplers
def test_ranks_take_batches_in_turn_and_others_resume(make, workers):
    def ranks(count):
        return [load(make(), seed=5, shard=(rank, count), uneven="drop", **workers) for rank in range(count)]

    whole, found, others = values(load(make(), seed=5)), ranks(2), ranks(3)
    epochs = [iter(one) for one in found]
    steps = [[next(epoch).tolist() for epoch in epochs] for _ in range(2)]
    assert [batch for step in steps for batch in step] == whole[:4]
    for one in others:
        one.load_state_dict(json.loads(json.dumps(found[1].state_dict())))
    steps = zip(*map(values, others), strict=True)
    read = [index for step in steps for batch in step for index in batch]
    rest = whole[4:]
    if make().order(5, 0):  # batches of one size are an order, whose last step can be divided
        rest = [[index] for batch in rest for index in batch]
    assert read == [*itertools.chain(*rest[: len(rest) // 3 * 3])]


def test_a_state_for_another_batch_size_is_refused():
    """Its position would be one in another order."""
    four, five = BucketSampler(LENGTHS[:50], 4), BucketSampler(LENGTHS[:50], 5)
    state = load(four).state_dict()
    assert state["order_batch_size"] == 4
    message = "an order for batches of 4 samples .*, but this loader reads an order for batches of 5"
    divided = load(four, shard=(0, 1)).state_dict()
    for shard, other in ((None, state), ((0, 1), state), ((0, 2), divided)):
        with pytest.raises(ValueError, match=message):
            load(five, shard=shard).load_state_dict(other)
    plain = DataLoader(range(50), places="cpu", batch_size=4, shuffle=True, seed=3)
    with pytest.raises(ValueError, match="reads an order for any batch size; resume with the same"):
        plain.load_state_dict(state)
    with pytest.raises(ValueError, match="the state is a position in an order for any batch size"):
        load(four).load_state_dict(plain.state_dict())


class TestBudgets:
    """Batches of at most so many tokens, padding included."""

    @given(
        lengths=st.lists(st.integers(0, 30) | st.floats(0, 30), max_size=60),
        most=st.none() | st.integers(1, 6),
        pool=st.integers(1, 9),
        shuffle=st.booleans(),
        drop_last=st.booleans(),
        seed=st.integers(0, 2**64 - 1),
    )
    def test_every_batch_keeps_within_it(self, lengths, most, pool, shuffle, drop_last, seed):
        sampler = BucketSampler(lengths, most, max_tokens=60, pool=pool, shuffle=shuffle, drop_last=drop_last)
        batches = [one.tolist() for one in find_batches(sampler, seed, 3)]
        assert [one.tolist() for one in find_batches(pickle.loads(pickle.dumps(sampler)), seed, 3)] == batches
        assert len(batches) == len(sampler) == len(list(sampler))
        found = sorted(itertools.chain.from_iterable(batches))
        whole = len(BucketSampler(lengths, most, max_tokens=60, pool=pool))
        assert len(batches) in ((whole - 1, whole) if drop_last else (whole,))
        assert found == list(range(len(lengths))) or (len(set(found)) == len(found) and len(batches) < whole)
        for batch in batches:
            assert len(batch) * max(lengths[one] for one in batch) <= 60
            assert 0 < len(batch) <= min(most or 60, sampler.batch_size)
        assert sampler.order(seed, 3) is None

    def test_batches_are_full_and_differ_from_epoch_to_epoch(self):
        sampler = BucketSampler(LENGTHS, max_tokens=4000)
        epochs = [find_batches(sampler, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
        for batches in epochs:
            padded = sum(LENGTHS[one].max() * len(one) for one in batches)
            assert LENGTHS.sum() / padded > 0.9
            assert padded / (4000 * len(batches)) > 0.95
            sizes = [len(one) for one in batches]
            assert max(sizes) > 10 * min(sizes)
            assert abs(np.corrcoef(np.arange(len(sizes)), sizes)[0, 1]) < 0.4
        assert len({len(batches) for batches in epochs}) == 1
        groups = [{tuple(sorted(one.tolist())) for one in batches} for batches in epochs]
        assert all(len(one & other) < 15 for one, other in itertools.combinations(groups, 2))
        assert [one.tolist() for one in find_batches(sampler, 1, 0)] == [one.tolist() for one in epochs[0]]
        small = BucketSampler([3, 1, 2, 1, 3, 2, 1], max_tokens=6, pool=2)
        assert [one.tolist() for one in find_batches(small, 7, 1)] == [[6, 2, 5], [3, 1], [0, 4]]

    def test_without_shuffling_the_shortest_come_first(self):
        sampler = BucketSampler([5, 1, 4, 1, 3], max_tokens=6, shuffle=False)
        assert list(sampler) == [[1], [4, 3], [2], [0]]
        divided = DataLoader(range(5), places="cpu", batch_sampler=sampler, shard=(1, 2), uneven="drop")
        assert values(divided) == [[4, 3], [0]]

    def test_ranks_need_one_seed_and_states_one_budget(self):
        with pytest.raises(ValueError, match="all ranks need the same order: pass the same seed"):
            load(SAMPLERS["of a budget"](), seed=None, shard=(0, 2), uneven="drop")
        state = load(SAMPLERS["of a budget"]()).state_dict()
        with pytest.raises(ValueError, match=r"this loader reads an order for batches of \d+ samples"):
            load(BucketSampler(LENGTHS[:50], max_tokens=4000)).load_state_dict(state)
