"""Samplers and batch samplers: the cases of Paddle's test_batch_sampler.py and of its distributed sampler.

Only what has something to compare is here: that samplers of both libraries refuse the same is in
`test_mistakes.py`, and `tests/order/test_samplers.py` has the arrangements of Paddle's ranks as recorded.
"""

import numpy as np
import pytest

COUNT = 100


class TestRandom:
    def test_the_seed_of_numpy_repeats_an_order(self, lib):
        orders = []
        for _ in range(2):
            np.random.seed(0)
            orders.append(list(lib.io.RandomSampler(range(COUNT))))
        assert orders[0] == orders[1]
        same = orders[0] == np.random.RandomState(0).permutation(COUNT).tolist()
        assert same != lib.differs("random-orders")

    def test_the_line_that_gives_paddles_order(self, lib):
        np.random.seed(0)
        options = {"generator": np.random.RandomState(0)} if lib.name == "gpuloader" else {}
        sampler, expected = lib.io.RandomSampler(range(COUNT), **options), np.random.RandomState(0)
        assert [list(sampler) for _ in range(2)] == [expected.permutation(COUNT).tolist() for _ in range(2)]

    def test_a_list_of_weights(self, lib):
        sampler = lib.io.WeightedRandomSampler([1.0, 2.0], 2)
        assert len(list(iter(sampler))) == 2  # `list` would ask the sampler for its length


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [5, 16, 17, 2])
def test_ranks_share_all_samples(lib, count, ranks, drop_last):
    share = -(-count // ranks)
    indices = []
    for rank in range(ranks):
        sampler = lib.io.DistributedBatchSampler(range(count), 2, ranks, rank, drop_last=drop_last)
        assert (sampler.num_samples, sampler.total_size) == (share, share * ranks)
        assert (sampler.nranks, sampler.local_rank, sampler.epoch) == (ranks, rank, 0)
        batches = list(sampler)
        assert len(sampler) == len(batches) == (share // 2 if drop_last else -(-share // 2))
        indices += [index for batch in batches for index in batch]
    padded = [number % count for number in range(share * ranks)]
    assert drop_last or sorted(indices) == sorted(padded)
