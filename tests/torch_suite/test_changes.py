"""What a program changes in samplers between epochs counts from the next, also with persistent workers."""

import pytest
import torch

from tests.torch_suite.datasets import Numbers
from tests.torch_suite.libraries import LIBRARIES

DATA = Numbers(12)


def grouped(sampler, size):
    return lambda lib: {"batch_sampler": lib.BatchSampler(sampler(lib), size, False)}


LOADERS = {
    "in order": lambda lib: {"batch_size": 2},
    "shuffled": lambda lib: {"batch_size": 5, "shuffle": True},
    "weighted": lambda lib: {"batch_size": 2, "sampler": lib.WeightedRandomSampler([1.0] * 12, 6)},
    "groups in order": grouped(lambda lib: lib.SequentialSampler(DATA), 2),
    "groups at random": grouped(lambda lib: lib.RandomSampler(DATA), 5),
}


def smaller(loader):
    loader.batch_sampler.batch_size = 3


def larger(loader):
    loader.batch_sampler.batch_size = 10


def whole(loader):
    loader.batch_sampler.batch_size = 5
    loader.batch_sampler.drop_last = True


def other(loader):
    loader.batch_sampler.sampler = [3, 1, 2, 5, 6]


def attributes(loader):
    for name, value in (("_num_samples", 4), ("num_samples", 4), ("replacement", True)):
        if name in vars(loader.batch_sampler.sampler):
            setattr(loader.batch_sampler.sampler, name, value)


def weights(loader):
    if hasattr(loader.batch_sampler.sampler, "weights"):
        loader.batch_sampler.sampler.weights[:11] = 0


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "persistent_workers": True}], ids=["inline", "workers"]
)
@pytest.mark.parametrize("change", [smaller, larger, whole, other, attributes, weights])
@pytest.mark.parametrize("name", LOADERS)
def test_changes_of_the_batch_sampler(name, change, options):
    def run(lib):
        torch.manual_seed(0)
        loader = lib.DataLoader(DATA, **LOADERS[name](lib), **options)
        found = [len(loader), [batch.tolist() for batch in loader]]
        change(loader)
        for _ in range(2):
            found += [len(loader), [batch.tolist() for batch in loader]]
        return [*found, loader.batch_size, type(loader.sampler), torch.rand(1).item()]

    ours, theirs = (run(*one.values) for one in LIBRARIES)
    assert ours == theirs


def test_lists_that_grow(lib):
    sampler, batches = [0, 1], [[0, 1]]
    loaders = lib.DataLoader(DATA, 2, sampler=sampler), lib.DataLoader(DATA, batch_sampler=batches)
    for loader in loaders:
        assert [batch.tolist() for batch in loader] == [[0, 1]]
    sampler += [2]
    batches.append([5, 6, 7])
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [
        [[0, 1], [2]],
        [[0, 1], [5, 6, 7]],
    ]


class Items(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_the_batch_size_of_items(lib):
    loader = lib.DataLoader(Items(), 2)
    assert len(list(loader)) == 3
    loader.batch_sampler.batch_size = 5
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": None}, {"batch_size": 2, "drop_last": True}, {"batch_sampler": [[0]]}],
    ids=str,
)
@pytest.mark.parametrize("dataset", [Items(), DATA], ids=["iterable", "map-style"])
def test_the_samplers_of_a_loader(dataset, options):
    """As trainers look at them: also those that the loader itself does not ask."""
    if "batch_sampler" in options and isinstance(dataset, Items):
        pytest.skip("an iterable dataset takes none")
    ours, theirs = (one.values[0].DataLoader(dataset, **options) for one in LIBRARIES)
    assert type(ours.sampler) is type(theirs.sampler)
    assert ours._auto_collation == theirs._auto_collation
    assert isinstance(ours.batch_sampler, type(theirs.batch_sampler))
    for name in ("batch_size", "drop_last"):
        assert getattr(ours.batch_sampler, name, None) == getattr(theirs.batch_sampler, name, None)
    if theirs.batch_sampler is not None and "batch_sampler" not in options:
        assert ours.batch_sampler.sampler is ours.sampler
