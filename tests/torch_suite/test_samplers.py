"""Samplers, by themselves and in loaders."""

import collections

import pytest
import torch

from tests.sample_sets import values
from tests.torch_suite.datasets import PICTURES, pictures


def count(sampler):
    """Return how many indices repeat, the smallest, the largest, and how many there are."""
    counts = collections.Counter(map(int, sampler))
    return sum(times > 1 for times in counts.values()), min(counts), max(counts), sum(counts.values())


def make_samplers(lib, **options):
    weights = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6] * 10
    return [
        lib.RandomSampler(range(100), num_samples=50, replacement=True, **options),
        lib.RandomSampler(range(100), **options),
        lib.WeightedRandomSampler(weights, num_samples=50, replacement=True, **options),
        lib.WeightedRandomSampler(weights, num_samples=50, replacement=False, **options),
        lib.SubsetRandomSampler(range(50), **options),
    ]


@pytest.mark.parametrize("kind", range(5))
class TestSeeds:
    def test_a_generator_determines_the_order(self, lib, kind):
        before = torch.get_rng_state()
        first, second, third = (
            list(make_samplers(lib, generator=torch.Generator().manual_seed(seed))[kind])
            for seed in (4, 4, 5)
        )
        assert first == second != third
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_global_seed_determines_the_order(self, lib, kind):
        orders = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            sampler = make_samplers(lib)[kind]
            orders.append([list(sampler), list(sampler)])
        assert orders[0] == orders[1] != orders[2]
        assert orders[0][0] != orders[0][1]

    def test_seeding_again_while_a_sampler_is_used(self, lib, kind):
        sampler = make_samplers(lib)[kind]
        orders = []
        for _ in range(2):
            torch.manual_seed(0)
            orders.append(list(sampler))
        assert orders[0] == orders[1]

    def test_iterators_do_not_disturb_each_other(self, lib, kind):
        """Each draws its own order when it is asked for its first index."""
        sampler = make_samplers(lib)[kind]
        both = [iter(sampler), iter(sampler)]
        drawn = [[], []]
        for position in range(len(sampler)):
            for one, found in zip(both, drawn, strict=True):
                if position == 0:
                    torch.manual_seed(0)
                found.append(int(next(one)))
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_seed_between_epochs_of_a_loader(lib, workers):
    loader = lib.DataLoader(range(100), batch_size=10, shuffle=True, num_workers=workers)
    orders = []
    for _ in range(2):
        torch.manual_seed(0)
        orders.append(values(loader))
    assert orders[0] == orders[1]


by_workers = pytest.mark.parametrize("workers", [{}, {"num_workers": 4}], ids=["inline", "4 workers"])


@by_workers
def test_any_iterable_is_a_sampler(lib, workers):
    loader = lib.DataLoader(pictures(lib), sampler=range(2, 12), batch_size=2, **workers)
    assert len(loader) == 5
    for number, (images, _) in enumerate(loader):
        assert torch.equal(images, PICTURES[2 * number + 2 : 2 * number + 4])


@by_workers
def test_any_iterable_of_batches_is_a_batch_sampler(lib, workers):
    batches = [(0, 1), (2, 3, 4), (5, 6), (7, 8, 9), (10, 11), (12, 13, 14), (15, 16), (17, 18, 19)]
    loader = lib.DataLoader(pictures(lib), batch_sampler=batches, **workers)
    assert len(loader) == 8
    for batch, (images, _) in zip(batches, loader, strict=True):
        assert torch.equal(images, PICTURES[list(batch)])
