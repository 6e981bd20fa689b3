"""Samplers and batch samplers: the cases of Paddle's test_batch_sampler.py and of its distributed sampler."""

import random

import numpy as np
import pytest

from tests.paddle_suite.datasets import pictures

COUNT = 100


@pytest.fixture
def dataset(lib):
    return pictures(lib, COUNT)


def test_a_sampler_without_an_order(lib, dataset):
    with pytest.raises(NotImplementedError):
        iter(lib.io.Sampler(dataset))


def test_a_sequence(lib, dataset):
    sampler = lib.io.SequenceSampler(dataset)
    assert (len(sampler), list(sampler)) == (COUNT, list(range(COUNT)))


class TestRandom:
    def test_every_index_once(self, lib, dataset):
        sampler = lib.io.RandomSampler(dataset)
        assert len(sampler) == COUNT
        assert sorted(sampler) == list(range(COUNT))

    @pytest.mark.parametrize("count", [1, 50, COUNT, 150])
    def test_with_replacement(self, lib, dataset, count):
        sampler = lib.io.RandomSampler(dataset, num_samples=count, replacement=True)
        indices = list(sampler)
        assert len(sampler) == len(indices) == count
        assert all(0 <= index < COUNT for index in indices)

    def test_a_part_without_replacement(self, lib, dataset):
        if lib.name == "paddle" and lib.version < (3,):
            pytest.skip("Paddle 2 takes no num_samples without replacement")
        sampler = lib.io.RandomSampler(dataset, num_samples=80, replacement=False)
        indices = list(sampler)
        assert len(sampler) == len(set(indices)) == 80
        assert set(indices) <= set(range(COUNT))

    def test_a_generator_that_ends_ends_the_epoch(self, lib, dataset):
        sampler = lib.io.RandomSampler(dataset, generator=iter(range(60)))
        assert len(sampler) == COUNT
        assert list(sampler) == list(range(60))

    def test_a_generator_and_a_number(self, lib, dataset):
        sampler = lib.io.RandomSampler(dataset, generator=iter(range(60)), num_samples=50, replacement=True)
        assert (len(sampler), list(sampler)) == (50, list(range(50)))

    @pytest.mark.parametrize("options", [{"num_samples": 0, "replacement": True}, {"num_samples": 2.0}])
    def test_numbers_that_are_none(self, lib, dataset, options):
        with pytest.raises(ValueError, match="num_samples"):
            lib.io.RandomSampler(dataset, **options)

    def test_too_many_without_replacement(self, lib, dataset):
        if lib.differs("oversampling"):
            assert len(list(lib.io.RandomSampler(dataset, False, 120))) == 120
        else:
            with pytest.raises(ValueError, match="num_samples"):
                lib.io.RandomSampler(dataset, False, 120)

    def test_replacement_is_a_flag(self, lib, dataset):
        with pytest.raises(TypeError, match="replacement"):
            lib.io.RandomSampler(dataset, 1)

    def test_the_seed_of_numpy_repeats_an_order(self, lib, dataset):
        orders = []
        for _ in range(2):
            np.random.seed(0)
            orders.append(list(lib.io.RandomSampler(dataset)))
        assert orders[0] == orders[1]
        same = orders[0] == np.random.RandomState(0).permutation(COUNT).tolist()
        assert same != lib.differs("random-orders")

    def test_the_line_that_gives_paddles_order(self, lib, dataset):
        np.random.seed(0)
        theirs = [lib.io.RandomSampler(dataset) for _ in range(1)]
        if lib.name == "gpuloader":
            theirs = [lib.io.RandomSampler(dataset, generator=np.random.RandomState(0))]
        expected = np.random.RandomState(0)
        assert [list(theirs[0]) for _ in range(2)] == [expected.permutation(COUNT).tolist() for _ in range(2)]


class TestSubset:
    def test_every_given_index_once(self, lib):
        indices = random.Random(3).sample(range(COUNT), 30)
        sampler = lib.io.SubsetRandomSampler(indices)
        assert len(sampler) == 30
        assert sorted(sampler) == sorted(indices)

    def test_no_indices(self, lib):
        if lib.differs("empty-subsets"):
            assert list(lib.io.SubsetRandomSampler([])) == []
        else:
            with pytest.raises(ValueError, match="indices"):
                lib.io.SubsetRandomSampler([])


def weights(total, positive):
    values = np.zeros(total, "float32")
    values[:positive] = np.random.default_rng(5).random(positive) + 0.1
    return np.random.default_rng(6).permutation(values)


class TestWeighted:
    def test_with_replacement(self, lib):
        given = weights(20, 10)
        sampler = lib.io.WeightedRandomSampler(given, 30, True)
        indices = list(sampler)
        assert len(sampler) == len(indices) == 30
        assert all(given[index] > 0 for index in indices)

    def test_without_replacement(self, lib):
        given = weights(20, 10)
        indices = list(lib.io.WeightedRandomSampler(given, 10, False))
        assert sorted(indices) == np.flatnonzero(given).tolist()

    @pytest.mark.parametrize(
        ("given", "count", "replacement"),
        [(np.zeros(10), 10, True), (weights(10, 5), 10, False), (-np.ones(10), 10, True)],
    )
    def test_impossible_weights(self, lib, given, count, replacement):
        """gpuloader refuses them when the sampler is made, Paddle when it is iterated."""
        with pytest.raises(AssertionError, match="weights"):
            list(lib.io.WeightedRandomSampler(given, count, replacement))

    @pytest.mark.parametrize("arguments", [(2.3, True), (-1, True), (5, 5)])
    def test_arguments(self, lib, arguments):
        with pytest.raises(ValueError, match=r"num_samples|replacement"):
            lib.io.WeightedRandomSampler(weights(10, 5), *arguments)

    def test_a_list_of_weights(self, lib):
        sampler = lib.io.WeightedRandomSampler([1.0, 2.0], 2)
        assert len(list(iter(sampler))) == 2  # `list` would ask the sampler for its length
        if lib.differs("weights-are-a-list"):
            assert len(sampler) == 2
        else:
            with pytest.raises(AttributeError):
                len(sampler)


def whole(count, size, drop_last):
    batches = [list(range(first, min(first + size, count))) for first in range(0, count, size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


class TestBatches:
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("source", ["dataset", "sampler", "iterable"])
    @pytest.mark.parametrize("size", [1, 32, 99, 100, 101])
    def test_batches(self, lib, dataset, source, size, drop_last):
        given = {
            "dataset": {"dataset": dataset},
            "sampler": {"sampler": lib.io.SequenceSampler(dataset)},
            "iterable": {"sampler": range(COUNT)},
        }[source]
        if source == "iterable" and lib.name == "paddle" and lib.version < (3,):
            pytest.skip("Paddle 2 takes no iterable for a sampler")
        sampler = lib.io.BatchSampler(**given, batch_size=size, drop_last=drop_last)
        batches = whole(COUNT, size, drop_last)
        assert (len(sampler), list(sampler)) == (len(batches), batches)
        assert (sampler.batch_size, sampler.drop_last, sampler.shuffle) == (size, drop_last, False)

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_shuffled(self, lib, dataset, drop_last):
        sampler = lib.io.BatchSampler(dataset, shuffle=True, batch_size=32, drop_last=drop_last)
        batches = list(sampler)
        assert [len(batch) for batch in batches] == [len(batch) for batch in whole(COUNT, 32, drop_last)]
        assert len({index for batch in batches for index in batch}) == sum(len(batch) for batch in batches)
        assert sampler.shuffle

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"both": True},
            {"sampler": range(9), "shuffle": True},
            {"sampler": 3},
            {"dataset": range(9), "batch_size": 0},
            {"dataset": range(9), "batch_size": 2.0},
            {"dataset": range(9), "shuffle": 1},
            {"dataset": range(9), "drop_last": 1},
            {"iterable": True},
        ],
    )
    def test_arguments(self, lib, dataset, options):
        options = dict(options)
        if options.pop("both", False):
            options = {"dataset": dataset, "sampler": lib.io.SequenceSampler(dataset)}
        if options.pop("iterable", False):
            options["dataset"] = lib.io.IterableDataset()
        with pytest.raises(AssertionError):
            lib.io.BatchSampler(**options)


class TestDistributed:
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("ranks", [1, 2, 3, 4])
    @pytest.mark.parametrize("count", [5, 16, 17, 2])
    def test_ranks_share_all_samples(self, lib, count, ranks, drop_last):
        dataset = pictures(lib, count)
        share = -(-count // ranks)
        indices = []
        for rank in range(ranks):
            sampler = lib.io.DistributedBatchSampler(dataset, 2, ranks, rank, drop_last=drop_last)
            assert (sampler.num_samples, sampler.total_size) == (share, share * ranks)
            assert (sampler.nranks, sampler.local_rank, sampler.epoch) == (ranks, rank, 0)
            batches = list(sampler)
            assert len(sampler) == len(batches) == (share // 2 if drop_last else -(-share // 2))
            indices += [index for batch in batches for index in batch]
        padded = [number % count for number in range(share * ranks)]
        assert drop_last or sorted(indices) == sorted(padded)

    def test_consecutive_batches_go_to_consecutive_ranks(self, lib):
        dataset = pictures(lib, 5)
        ranks = [list(lib.io.DistributedBatchSampler(dataset, 2, 2, rank)) for rank in (0, 1)]
        assert ranks == [[[0, 1], [4]], [[2, 3], [0]]]

    def test_epochs_are_shuffled_alike_on_all_ranks(self, lib):
        dataset = pictures(lib, 32)
        samplers = [lib.io.DistributedBatchSampler(dataset, 4, 2, rank, shuffle=True) for rank in (0, 1)]
        orders = []
        for epoch in (0, 1, 0):
            batches = []
            for sampler in samplers:
                sampler.set_epoch(epoch)
                batches.append(list(sampler))
            assert sorted(index for rank in batches for batch in rank for index in batch) == list(range(32))
            orders.append(batches)
        assert orders[0] == orders[2] != orders[1]

    @pytest.mark.parametrize(
        "options",
        [
            {"batch_size": 0},
            {"batch_size": 2, "num_replicas": 0, "rank": 0},
            {"batch_size": 2, "num_replicas": 2, "rank": -1},
            {"batch_size": 2, "num_replicas": 2, "rank": 0, "shuffle": 1},
            {"batch_size": 2, "num_replicas": 2, "rank": 0, "drop_last": 1},
        ],
    )
    def test_arguments(self, lib, options):
        with pytest.raises(AssertionError):
            lib.io.DistributedBatchSampler(pictures(lib, 5), **options)
