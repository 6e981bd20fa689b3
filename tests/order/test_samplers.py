"""Samplers of indices and of batches: as Paddle's and PyTorch's, with an order that a loader can slice."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.order import Shuffled
from gpuloader.order.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    RandomSampler,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tests.api.streams import Items

FIVE, TEN = range(5), range(10)

RANDOM = [
    pytest.param(lambda: RandomSampler(range(50)), id="random"),
    pytest.param(lambda: RandomSampler(range(50), num_samples=20), id="some"),
    pytest.param(lambda: RandomSampler(range(50), replacement=True), id="drawn"),
    pytest.param(lambda: WeightedRandomSampler(np.arange(50), 40), id="weighted"),
    pytest.param(lambda: WeightedRandomSampler(np.arange(50), 40, replacement=False), id="weighted once"),
    pytest.param(lambda: SubsetRandomSampler(range(100, 150)), id="subset"),
]


def ordered(sampler, seed=0, epoch=0):
    order = sampler.order(seed, epoch)
    return np.asarray(order.slice(0, len(order))).tolist()


class Own(Sampler):
    """A sampler of the user's, which never calls its base."""

    def __init__(self, *indices):
        self.indices = indices

    def __iter__(self):
        return iter(self.indices)


def test_a_sampler_of_ones_own_says_its_indices():
    assert list(Own(4, 3)) == [4, 3]
    assert Own(4, 3).order(0, 0) is None
    assert len(Sampler(FIVE)) == 5
    with pytest.raises(TypeError, match="Own has no data_source"):
        len(Own(1, 2))
    with pytest.raises(NotImplementedError, match="Sampler must define __iter__"):
        iter(Sampler(FIVE))


@pytest.mark.parametrize("make", RANDOM)
class TestRandomSamplers:
    def test_it_gives_as_many_python_integers_as_it_is_long(self, make):
        assert len(list(make())) == len(make()) == len(make().order(0, 0))
        assert {type(index) for index in make()} == {int}

    def test_numpy_s_seed_repeats_what_it_iterates_and_not_its_order(self, make):
        np.random.seed(7)
        first, second = list(make()), list(make())
        in_order = ordered(make(), 1, 2)
        np.random.seed(7)
        assert [list(make()), list(make())] == [first, second]
        assert first != second
        np.random.seed(1)
        assert ordered(make(), 1, 2) == ordered(pickle.loads(pickle.dumps(make())), 1, 2) == in_order
        assert in_order not in (ordered(make(), 1, 3), ordered(make(), 2, 2))

    def test_a_subclass_has_the_order_unless_it_iterates_itself(self, make):
        sampler = make()
        expected = ordered(sampler)
        sampler.__class__ = type("Named", (type(sampler),), {})
        assert ordered(sampler) == expected
        sampler.__class__ = type("Own", (type(sampler),), {"__iter__": lambda self: iter([0])})
        assert sampler.order(0, 0) is None


@given(
    count=st.integers(1, 100),
    wanted=st.none() | st.integers(1, 300),
    replacement=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_no_index_comes_twice_in_a_pass_over_all_but_with_replacement(count, wanted, replacement, seed):
    sampler = RandomSampler(range(count), replacement, wanted)
    for indices in (list(sampler), ordered(sampler, seed)):
        assert len(indices) == len(sampler) == (count if wanted is None else wanted)
        assert set(indices) <= set(range(count))
        passes = [indices[start : start + count] for start in range(0, len(indices), count)]
        assert replacement or all(len(set(one)) == len(one) for one in passes)


def test_permutations_that_follow_one_another_differ():
    order = RandomSampler(range(100), num_samples=300).order(1, 2)
    indices = order.slice(0, 300).tolist()
    assert indices[:100] == Shuffled(100, 1, 2).slice(0, 100).tolist()
    assert len({tuple(indices[start : start + 100]) for start in (0, 100, 200)}) == 3
    assert order.slice(95, 260).tolist() == indices[95:260]
    assert pickle.loads(pickle.dumps(order)).slice(0, 300).tolist() == indices


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
@pytest.mark.parametrize(("count", "draws"), [(5, 4), (5, 5), (5, 6), (5, 12), (1, 3)])
def test_a_numpy_generator_draws_one_permutation_after_another(make, count, draws):
    indices = list(RandomSampler(range(count), num_samples=draws, generator=make(5)))
    assert len(indices) == draws
    for start in range(0, draws - count + 1, count):
        assert sorted(indices[start : start + count]) == list(range(count))


SEEDED = {
    "weighted": lambda generator: WeightedRandomSampler(range(1, 41), 30, generator=generator),
    "subset": lambda generator: SubsetRandomSampler(range(40), generator),
}


@pytest.mark.parametrize("make", SEEDED.values(), ids=SEEDED)
@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
def test_a_generator_gives_the_seed(make, kind):
    """It is drawn once, so an epoch's order is the same wherever a loader resumes, whatever its own seed."""
    first, same, other = (make(kind(seed)) for seed in (5, 5, 6))
    assert ordered(first, 1, 2) == ordered(first, 99, 2) == ordered(same, 1, 2)
    assert ordered(first, 1, 2) != ordered(first, 1, 3)
    assert ordered(first, 1, 2) != ordered(other, 1, 2)
    assert list(first) == list(same)
    assert list(first) != list(first)


def test_a_subset_may_be_empty():
    assert list(SubsetRandomSampler([])) == ordered(SubsetRandomSampler([])) == []
    assert len(SubsetRandomSampler([])) == 0


def test_a_data_set_that_grows_is_read_whole():
    samples = [1, 2, 3]
    sampler = RandomSampler(samples)
    samples.append(4)
    assert sorted(sampler) == sorted(ordered(sampler)) == [0, 1, 2, 3]
    assert len(sampler) == sampler.num_samples == 4


def test_an_iterator_is_read_on_until_it_ends_and_no_further_than_asked_for():
    sampler = RandomSampler(FIVE, generator=iter([3, 1, 2, 0, 4, 4, 4]))
    assert [list(sampler) for _ in range(3)] == [[3, 1, 2, 0, 4], [4, 4], []]
    assert len(sampler) == 5
    assert sampler.order(0, 0) is None
    for replacement in (False, True):
        assert list(RandomSampler(FIVE, replacement, 3, read_three())) == [0, 1, 2]
    assert next(iter(BatchSampler(sampler=read_three(), batch_size=3))) == [0, 1, 2]


def read_three():
    yield from [0, 1, 2]
    raise AssertionError("read too far")


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
@pytest.mark.parametrize("replacement", [False, True])
def test_a_numpy_generator_draws(make, replacement):
    def sampler():
        return RandomSampler(range(40), replacement, 30, generator=make(5))

    one = sampler()
    first, second = list(one), list(one)
    assert first == list(sampler())
    assert first != second
    assert len(first) == 30
    assert set(first) <= set(range(40))
    assert (len(set(first)) == 30) is not replacement
    assert one.order(0, 0) is None


def test_numpys_seed_stands_for_the_same_order_in_every_release():
    """NumPy keeps what a `RandomState` draws, so the order of a program that seeds it must stay, too."""
    np.random.seed(1)
    assert list(RandomSampler(range(10))) == [9, 1, 3, 2, 0, 5, 7, 4, 6, 8]
    sampler = SubsetRandomSampler(range(10), np.random.RandomState(1))
    assert ordered(sampler) == Shuffled(10, 7692698082559361259, 0).slice(0, 10).tolist()


def test_weights_may_be_any_list_of_numbers():
    for weights in ([0, 1, 0, 2], (0, 1, 0, 2), np.array([0, 1, 0, 2], np.float32)):
        sampler = WeightedRandomSampler(weights, 30)
        assert set(sampler) == set(ordered(sampler)) == {1, 3}
        assert len(sampler) == 30
    assert sorted(WeightedRandomSampler([0, 1, 0, 2], 2, replacement=False)) == [1, 3]
    with pytest.raises(ValueError, match="read-only"):
        sampler.weights[0] = 1  # after the order has been computed, this would have no effect


@pytest.mark.parametrize(
    ("make", "kind", "problem"),
    [
        (lambda: SequenceSampler(5), TypeError, "data_source must have a length, got int"),
        (lambda: RandomSampler(iter([1])), TypeError, "data_source must have a length, got list_iterator"),
        (lambda: RandomSampler(Items(iter)), TypeError, "Items is an IterableDataset: .* no length"),
        (lambda: SequenceSampler(Items(iter)), TypeError, "Items is an IterableDataset: .* no length"),
        (lambda: RandomSampler(FIVE, 1), TypeError, "replacement must be True or False, got 1"),
        (lambda: RandomSampler(FIVE, num_samples=0), ValueError, "num_samples must be .* 1 or more, got 0"),
        (lambda: RandomSampler(FIVE, True, 2.5), ValueError, "num_samples must be .* 1 or more, got 2.5"),
        (lambda: RandomSampler(FIVE, True, True), ValueError, "num_samples must be .* 1 or more, got True"),
        (lambda: RandomSampler([]), ValueError, "num_samples=0, but the data source is empty"),
        (lambda: RandomSampler([], True, 6), ValueError, "num_samples=6, but the data source is empty"),
        (lambda: RandomSampler(FIVE, generator=3), TypeError, "an iterator of indices, .*, got int"),
        (lambda: RandomSampler(FIVE, generator=[1]), TypeError, "an iterator of indices, .*, got list"),
        (lambda: WeightedRandomSampler([1], 0), ValueError, "num_samples must be .* 1 or more, got 0"),
        (lambda: WeightedRandomSampler([1], 1, "x"), TypeError, "replacement must be True or False, got 'x'"),
        (lambda: WeightedRandomSampler([], 1), ValueError, "0 weights are above 0"),
        (lambda: WeightedRandomSampler([1, 0], 2, False), ValueError, "without replacement: 1 weights"),
        (lambda: WeightedRandomSampler(None, 2), ValueError, "weights must be "),
        (lambda: WeightedRandomSampler([1, -1], 2), ValueError, "finite and 0 or more, got -1.0 at index 1"),
        (lambda: WeightedRandomSampler([np.nan, 1], 2), ValueError, "0 or more, got nan at index 0"),
        (lambda: WeightedRandomSampler([1, np.inf], 2), ValueError, "0 or more, got inf at index 1"),
        (lambda: WeightedRandomSampler([[1, 1]], 2), ValueError, r"numbers, got list of shape \(1, 2\)"),
        (lambda: WeightedRandomSampler(["a"], 1), ValueError, "of numbers, got list: could not convert"),
        (lambda: WeightedRandomSampler([1e308, 1e308], 1), ValueError, "may exceed the range of float64"),
        (lambda: SubsetRandomSampler([1], 5), TypeError, "generator must be a torch.Generator, .*, got int"),
        (lambda: WeightedRandomSampler([1], 1, True, [5]), TypeError, "torch.Generator, .*, got list"),
        (lambda: SubsetRandomSampler(5), TypeError, "indices must be a list of integers, got int"),
        (lambda: SubsetRandomSampler(["a"]), TypeError, "got list of <U1"),
        (lambda: SubsetRandomSampler([True]), TypeError, "boolean mask; pass numpy.flatnonzero"),
        (lambda: SubsetRandomSampler([0.5]), TypeError, "that fit into int64, got list of float64"),
        (lambda: SubsetRandomSampler([2**63]), TypeError, "got list of uint64"),
        (lambda: SubsetRandomSampler([[1, 2], [3, 4]]), TypeError, r"got list of shape \(2, 2\)"),
        (lambda: SubsetRandomSampler([[1], [2, 3]]), TypeError, "must be a list of integers: "),
        (lambda: BatchSampler(), ValueError, "either dataset or sampler, got neither"),
        (lambda: BatchSampler(TEN, sampler=[1]), ValueError, "either dataset or sampler, got both"),
        (lambda: BatchSampler(sampler=[1], shuffle=True), ValueError, "shuffle must be False"),
        (lambda: BatchSampler(sampler=4), TypeError, "an iterable of indices, got 4"),
        (lambda: BatchSampler(list(TEN), 4, shuffle=True), TypeError, "an iterable of indices, got 4"),
        (lambda: BatchSampler(SequenceSampler(TEN), 4, "a"), TypeError, "shuffle must be .*, got 'a'"),
        (lambda: BatchSampler(TEN, 4, batch_size=3), TypeError, "an iterable of indices, got 4"),
        (lambda: BatchSampler(5, 4), TypeError, "sampler must be an iterable of indices, got int"),
        (lambda: BatchSampler(sampler=2.5), TypeError, "sampler must be an iterable of indices, got float"),
        (lambda: BatchSampler(4), TypeError, "dataset must have a length, got int"),
        (lambda: BatchSampler(Items(iter)), TypeError, "Items is an IterableDataset"),
        (lambda: BatchSampler(TEN, batch_size=0), ValueError, "batch_size must be .* 1 or more, got 0"),
        (lambda: BatchSampler(TEN, batch_size=1.5), ValueError, "batch_size must be .*, got 1.5"),
        (lambda: BatchSampler(TEN, shuffle="a"), TypeError, "shuffle must be True or False, got 'a'"),
        (lambda: BatchSampler(TEN, drop_last=1), TypeError, "drop_last must be True or False, got 1"),
        (lambda: DistributedBatchSampler(5, 1), TypeError, "dataset must have a length, got int"),
        (lambda: DistributedBatchSampler(None, 1), ValueError, "got neither"),
        (lambda: DistributedBatchSampler(TEN, 0), ValueError, "batch_size must be .*, got 0"),
        (lambda: DistributedBatchSampler(TEN, 1, 0, 0), ValueError, "num_replicas must be .*, got 0"),
        (lambda: DistributedBatchSampler(TEN, 1, 2, 2), ValueError, "rank must be .* from 0 to 1, got 2"),
        (lambda: DistributedBatchSampler(TEN, 1, 2, -1), ValueError, "rank must be .* from 0 to 1, got -1"),
        (lambda: DistributedBatchSampler(TEN, 1, seed=-1), ValueError, "seed must be .*, got -1"),
        (lambda: DistributedBatchSampler(TEN, 1, shuffle=1), TypeError, "shuffle must be .* False, got 1"),
        (lambda: DistributedBatchSampler(TEN, 1).set_epoch(-1), ValueError, "epoch must be .*, got -1"),
        (lambda: DistributedBatchSampler(TEN, 1).set_epoch("2"), ValueError, "epoch must be .*, got '2'"),
    ],
)
def test_a_bad_argument_is_an_error_that_names_it(make, kind, problem):
    with pytest.raises(kind, match=problem):
        make()


# Samplers of batches.


def joined(batches):
    return [index for batch in batches for index in batch]


@given(count=st.integers(0, 60), size=st.integers(1, 20), drop_last=st.booleans())
def test_batches_are_the_indices_in_groups(count, size, drop_last):
    sampler = BatchSampler(range(count), batch_size=size, drop_last=drop_last)
    batches = list(sampler)
    kept = count // size * size if drop_last else count
    assert joined(batches) == list(range(kept))
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(batches) == len(sampler)
    assert ordered(sampler) == list(range(count))


def test_shuffled_batches_have_every_index_once():
    sampler = BatchSampler(TEN, shuffle=True, batch_size=3, drop_last=True)
    assert isinstance(sampler.sampler, RandomSampler)
    assert isinstance(BatchSampler(TEN).sampler, SequenceSampler)
    assert (sampler.batch_size, sampler.drop_last) == (3, True)
    assert [len(batch) for batch in sampler] == [3, 3, 3]
    sampler = BatchSampler(TEN, shuffle=True, batch_size=3)
    np.random.seed(4)
    batches = list(sampler)
    assert sorted(joined(batches)) == list(TEN)
    np.random.seed(4)
    assert list(sampler) == batches


@pytest.mark.parametrize(
    "indices", [[4, 2, 0], (4, 2, 0), range(4, -1, -2), np.array([4, 2, 0]), Own(4, 2, 0)]
)
def test_any_iterable_of_indices_is_a_sampler(indices):
    sampler = BatchSampler(sampler=indices, batch_size=2)
    assert list(sampler) == list(sampler) == [[4, 2], [0]]
    assert sampler.order(0, 0) is None
    assert isinstance(indices, Own) or len(sampler) == 2


def test_a_sampler_without_a_length_has_batches_but_no_count():
    sampler = BatchSampler(sampler=(index for index in [1, 2, 3]), batch_size=2)
    with pytest.raises(TypeError, match="the sampler, of type generator, has no length"):
        len(sampler)
    assert list(sampler) == [[1, 2], [3]]


def test_the_order_is_that_of_the_sampler():
    sampler = RandomSampler(TEN)
    assert ordered(BatchSampler(sampler=sampler, batch_size=3), 5, 6) == ordered(sampler, 5, 6)
    assert BatchSampler(sampler=RandomSampler(TEN, generator=iter(TEN))).order(0, 0) is None


@pytest.mark.parametrize("kind", [BatchSampler, DistributedBatchSampler, SequenceSampler])
def test_a_subclass_with_its_own_iteration_has_no_order(kind):
    class Turned(kind):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    sampler = Turned(TEN) if kind is SequenceSampler else Turned(TEN, batch_size=1)
    assert list(sampler) == list(kind(TEN) if kind is SequenceSampler else kind(TEN, batch_size=1))[::-1]
    assert sampler.order(0, 0) is None


def test_the_positional_form_of_torch_is_understood():
    sampler = BatchSampler(SequenceSampler(TEN), 4, True)
    assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (sampler.batch_size, sampler.drop_last) == (4, True)
    assert list(BatchSampler(RandomSampler(FIVE, generator=iter([2, 0, 1])), np.int64(2))) == [[2, 0], [1]]
    assert list(BatchSampler(SequenceSampler(range(3)), 2, drop_last=True)) == [[0, 1]]


# Observed in PaddlePaddle 3.3.1: (samples, batch size, ranks, drop_last), then the batches of each rank.
ARRANGEMENTS = [
    ((10, 2, 2, False), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
    ((10, 2, 2, True), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
    ((7, 2, 3, False), [[[0, 1], [6]], [[2, 3], [0]], [[4, 5], [1]]]),
    ((2, 3, 4, False), [[[0]], [[1]], [[0]], [[1]]]),
    ((1, 2, 5, False), [[[0]], [[0]], [[0]], [[0]], [[0]]]),
    ((3, 1, 8, True), [[[0]], [[1]], [[2]], [[0]], [[1]], [[2]], [[0]], [[1]]]),
    ((11, 4, 2, False), [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7], [10, 0]]]),
    ((5, 4, 2, False), [[[0, 1, 2]], [[3, 4, 0]]]),
    ((2, 1, 3, True), [[[0]], [[1]], [[0]]]),
    ((0, 2, 2, False), [[], []]),
    ((16, 3, 2, True), [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]),
    ((7, 2, 1, True), [[[0, 1], [2, 3], [4, 5]]]),
]


@pytest.mark.parametrize(("case", "expected"), ARRANGEMENTS, ids=lambda value: str(value)[:20])
def test_ranks_get_what_paddle_gives_them(case, expected):
    count, size, ranks, drop_last = case
    samplers = [
        DistributedBatchSampler(range(count), size, ranks, rank, drop_last=drop_last) for rank in range(ranks)
    ]
    assert [list(sampler) for sampler in samplers] == expected
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in expected]
    for sampler, batches in zip(samplers, expected, strict=True):
        assert ordered(sampler) == joined(batches)


@given(
    count=st.integers(0, 50),
    size=st.integers(1, 9),
    ranks=st.integers(1, 6),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_ranks_have_equally_many_batches_that_are_those_of_their_order(
    count, size, ranks, drop_last, shuffle
):
    lengths = set()
    for rank in range(ranks):
        sampler = DistributedBatchSampler(range(count), size, ranks, rank, shuffle, drop_last)
        sampler.set_epoch(3)
        batches = list(sampler)
        sampler.set_epoch(3)
        assert ordered(sampler) == joined(batches)
        assert len(batches) == len(sampler)
        lengths.add(tuple(len(batch) for batch in batches))
    assert len(lengths) == 1


def shuffled(rank=0, **options):
    return DistributedBatchSampler(range(20), 5, 2, rank, shuffle=True, **options)


def test_ranks_agree_whatever_the_seeds_around_them():
    def read(rank, loader_seed, numpy_seed):
        np.random.seed(numpy_seed)
        return ordered(shuffled(rank, seed=9), loader_seed, 4)

    assert sorted(read(0, 1, 2) + read(1, 3, 4)) == list(range(20))
    assert read(0, 1, 2) == read(0, 5, 6)
    others = {tuple(ordered(shuffled(seed=seed), 0, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(others) == 9


def test_an_epoch_that_was_set_counts_and_not_the_loader_s():
    sampler = shuffled()
    by_epoch = [ordered(sampler, 0, epoch) for epoch in range(4)]
    sampler.set_epoch(2)
    assert sampler.epoch == 2
    assert ordered(sampler, 0, 0) == ordered(sampler, 0, 3) == by_epoch[2]
    sampler.set_epoch(0)
    assert ordered(sampler, 0, 3) == by_epoch[0]


def test_iterated_alone_every_epoch_is_another_one():
    sampler = shuffled()
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert [list(sampler), list(sampler)] == [first, second]
    in_sequence = DistributedBatchSampler(range(20), 5, 2, 0)
    assert list(in_sequence) == list(in_sequence)


def test_the_launcher_says_rank_and_world_size(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = DistributedBatchSampler(TEN, 2)
    assert (sampler.local_rank, sampler.nranks) == (1, 2)
    assert list(sampler) == [[2, 3], [6, 7], [9]]
    assert DistributedBatchSampler(TEN, 2, rank=0).nranks == 2
    assert DistributedBatchSampler(TEN, 2, rank=1).local_rank == 1
    assert DistributedBatchSampler(TEN, 2, num_replicas=4).local_rank == 1
    assert DistributedBatchSampler(TEN, 2, num_replicas=4, rank=3).local_rank == 3
    with pytest.raises(ValueError, match="rank must be an integer from 0 to 0, got 1"):
        len(DistributedBatchSampler(TEN, 2, num_replicas=1))
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="WORLD_SIZE='2' but not RANK"):
        list(DistributedBatchSampler(TEN, 2))
    assert DistributedBatchSampler(TEN, 2, num_replicas=4, rank=3).nranks == 4
