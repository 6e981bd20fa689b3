import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    RandomSampler,
    Sampler,
    SequenceSampler,
)
from gpuloader.sources.dataset import IterableDataset

TEN = range(10)


def flat(order):
    return np.asarray(order.slice(0, len(order))).tolist()


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
    assert flat(sampler.order(0, 0)) == list(range(count))


def test_shuffled_batches_have_every_index_once():
    sampler = BatchSampler(TEN, shuffle=True, batch_size=3)
    np.random.seed(4)
    batches = list(sampler)
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert sorted(joined(batches)) == list(TEN)
    np.random.seed(4)
    assert list(sampler) == batches


def test_what_it_was_made_of_can_be_asked_for():
    sampler = BatchSampler(TEN, shuffle=True, batch_size=3, drop_last=True)
    assert isinstance(sampler.sampler, RandomSampler)
    assert (sampler.batch_size, sampler.drop_last) == (3, True)
    assert isinstance(BatchSampler(TEN).sampler, SequenceSampler)


@pytest.mark.parametrize("indices", [[4, 2, 0], (4, 2, 0), range(4, -1, -2), np.array([4, 2, 0])])
def test_any_iterable_of_indices_is_a_sampler(indices):
    sampler = BatchSampler(sampler=indices, batch_size=2)
    assert list(sampler) == list(sampler) == [[4, 2], [0]]
    assert len(sampler) == 2
    assert sampler.order(0, 0) is None


def test_a_sampler_without_a_length_has_batches_but_no_count():
    sampler = BatchSampler(sampler=(index for index in [1, 2, 3]), batch_size=2)
    with pytest.raises(TypeError, match="the sampler, of type generator, has no length"):
        len(sampler)
    assert list(sampler) == [[1, 2], [3]]


def test_the_order_is_that_of_the_sampler():
    sampler = RandomSampler(TEN)
    assert flat(BatchSampler(sampler=sampler, batch_size=3).order(5, 6)) == flat(sampler.order(5, 6))
    assert BatchSampler(sampler=RandomSampler(TEN, generator=iter(TEN))).order(0, 0) is None


def test_a_sampler_of_ones_own_is_iterated():
    class Evens(Sampler):
        def __iter__(self):
            return iter([0, 2, 4])

    batches = BatchSampler(sampler=Evens(TEN), batch_size=2)
    assert list(batches) == [[0, 2], [4]]
    assert batches.order(0, 0) is None


@pytest.mark.parametrize("kind", [BatchSampler, DistributedBatchSampler])
def test_a_subclass_with_its_own_iteration_has_no_order(kind):
    class Own(kind):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    assert list(Own(TEN, batch_size=5)) == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
    assert Own(TEN, batch_size=5).order(0, 0) is None


def test_no_more_is_read_of_a_sampler_than_the_batches_asked_for():
    def indices():
        yield from [0, 1]
        raise AssertionError("read too far")

    assert next(iter(BatchSampler(sampler=indices(), batch_size=2))) == [0, 1]


def test_the_positional_form_of_torch_is_understood():
    sampler = BatchSampler(SequenceSampler(TEN), 4, True)
    assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (sampler.batch_size, sampler.drop_last) == (4, True)
    assert list(BatchSampler(RandomSampler(range(3), generator=iter([2, 0, 1])), np.int64(2))) == [
        [2, 0],
        [1],
    ]
    assert list(BatchSampler(SequenceSampler(range(3)), 2, drop_last=True)) == [[0, 1]]


class Letters(IterableDataset):
    def __iter__(self):
        return iter("abc")


@pytest.mark.parametrize(
    ("make", "kind", "problem"),
    [
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
        (lambda: BatchSampler(Letters()), TypeError, "Letters is an IterableDataset"),
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
        (
            lambda: DistributedBatchSampler(TEN, 1, shuffle=1),
            TypeError,
            "shuffle must be True or False, got 1",
        ),
        (lambda: DistributedBatchSampler(TEN, 1).set_epoch(-1), ValueError, "epoch must be .*, got -1"),
        (lambda: DistributedBatchSampler(TEN, 1).set_epoch("2"), ValueError, "epoch must be .*, got '2'"),
    ],
)
def test_a_bad_argument_is_an_error_that_names_it(make, kind, problem):
    with pytest.raises(kind, match=problem):
        make()


# Observed in PaddlePaddle 3.3.1: (samples, batch size, ranks, drop_last), then the batches of each rank.
ARRANGEMENTS = [
    ((10, 2, 2, False), [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
    ((10, 2, 2, True), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
    ((10, 3, 2, False), [[[0, 1, 2], [6, 7]], [[3, 4, 5], [8, 9]]]),
    ((10, 3, 2, True), [[[0, 1, 2]], [[3, 4, 5]]]),
    ((7, 2, 3, False), [[[0, 1], [6]], [[2, 3], [0]], [[4, 5], [1]]]),
    ((7, 2, 3, True), [[[0, 1]], [[2, 3]], [[4, 5]]]),
    ((2, 3, 4, False), [[[0]], [[1]], [[0]], [[1]]]),
    ((1, 2, 5, False), [[[0]], [[0]], [[0]], [[0]], [[0]]]),
    ((3, 4, 8, False), [[[0]], [[1]], [[2]], [[0]], [[1]], [[2]], [[0]], [[1]]]),
    ((3, 1, 8, True), [[[0]], [[1]], [[2]], [[0]], [[1]], [[2]], [[0]], [[1]]]),
    ((11, 4, 2, False), [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7], [10, 0]]]),
    ((11, 4, 2, True), [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]),
    ((9, 2, 3, False), [[[0, 1], [6]], [[2, 3], [7]], [[4, 5], [8]]]),
    ((12, 2, 3, False), [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]),
    ((5, 4, 2, False), [[[0, 1, 2]], [[3, 4, 0]]]),
    ((5, 4, 2, True), [[], []]),
    ((3, 1, 2, False), [[[0], [2]], [[1], [0]]]),
    ((3, 1, 2, True), [[[0], [2]], [[1], [0]]]),
    ((2, 1, 3, True), [[[0]], [[1]], [[0]]]),
    ((10, 3, 3, False), [[[0, 1, 2], [9]], [[3, 4, 5], [0]], [[6, 7, 8], [1]]]),
    ((10, 3, 3, True), [[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 8]]]),
    ((0, 2, 2, False), [[], []]),
    (
        (13, 2, 4, False),
        [[[0, 1], [8, 9]], [[2, 3], [10, 11]], [[4, 5], [12, 0]], [[6, 7], [1, 2]]],
    ),
    (
        (13, 2, 4, True),
        [[[0, 1], [8, 9]], [[2, 3], [10, 11]], [[4, 5], [12, 0]], [[6, 7], [1, 2]]],
    ),
    ((16, 3, 2, False), [[[0, 1, 2], [6, 7, 8], [12, 13]], [[3, 4, 5], [9, 10, 11], [14, 15]]]),
    ((16, 3, 2, True), [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]),
    ((6, 2, 1, False), [[[0, 1], [2, 3], [4, 5]]]),
    ((7, 2, 1, True), [[[0, 1], [2, 3], [4, 5]]]),
    (
        (17, 4, 4, False),
        [[[0, 1, 2, 3], [16]], [[4, 5, 6, 7], [0]], [[8, 9, 10, 11], [1]], [[12, 13, 14, 15], [2]]],
    ),
    ((17, 4, 4, True), [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9, 10, 11]], [[12, 13, 14, 15]]]),
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
        assert flat(sampler.order(0, 0)) == joined(batches)


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
        assert flat(sampler.order(0, 0)) == joined(batches)
        assert len(batches) == len(sampler)
        lengths.add(tuple(len(batch) for batch in batches))
    assert len(lengths) == 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_rank_of_an_empty_dataset_reads_nothing(shuffle):
    sampler = DistributedBatchSampler([], 2, 2, 1, shuffle)
    assert (list(sampler), len(sampler)) == ([], 0)


def test_together_shuffled_ranks_read_everything():
    ranks = [DistributedBatchSampler(range(22), 3, 4, rank, shuffle=True) for rank in range(4)]
    read = joined(joined(ranks))
    assert len(read) == 24
    assert set(read) == set(range(22))


def test_ranks_agree_whatever_the_seeds_around_them():
    def read(rank, loader_seed, numpy_seed):
        np.random.seed(numpy_seed)
        sampler = DistributedBatchSampler(range(20), 5, 2, rank, shuffle=True, seed=9)
        return flat(sampler.order(loader_seed, 4))

    assert sorted(read(0, 1, 2) + read(1, 3, 4)) == list(range(20))
    assert read(0, 1, 2) == read(0, 5, 6)


def test_seeds_and_epochs_shuffle_differently():
    def read(seed, epoch):
        return tuple(
            flat(DistributedBatchSampler(range(20), 5, 2, 0, shuffle=True, seed=seed).order(0, epoch))
        )

    assert len({read(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9


def test_an_epoch_that_was_set_counts_and_not_the_loader_s():
    sampler = DistributedBatchSampler(range(20), 5, 2, 0, shuffle=True)
    by_epoch = [flat(sampler.order(0, epoch)) for epoch in range(4)]
    sampler.set_epoch(2)
    assert sampler.epoch == 2
    assert flat(sampler.order(0, 0)) == flat(sampler.order(0, 3)) == by_epoch[2]
    sampler.set_epoch(0)
    assert flat(sampler.order(0, 3)) == by_epoch[0]


def test_iterated_alone_every_epoch_is_another_one():
    sampler = DistributedBatchSampler(range(20), 5, 2, 0, shuffle=True)
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


def test_batch_samplers_pickle():
    for sampler in (
        BatchSampler(TEN, shuffle=True, batch_size=3),
        DistributedBatchSampler(TEN, 3, 2, 1, shuffle=True, seed=5),
    ):
        again = pickle.loads(pickle.dumps(sampler))
        assert flat(again.order(1, 2)) == flat(sampler.order(1, 2))
        assert len(again) == len(sampler)
