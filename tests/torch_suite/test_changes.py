"""What a program changes in samplers between epochs counts from the next, also with persistent workers."""

import itertools

import pytest
import torch

from tests.sample_sets import values
from tests.torch_suite.datasets import Items, Numbers
from tests.torch_suite.libraries import LIBRARIES, assert_same_on_both

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
OF_THE_SAMPLER = {"_num_samples": 4, "num_samples": 4, "replacement": True}
CHANGES = {
    "smaller": {"batch_size": 3},
    "larger": {"batch_size": 10},
    "whole": {"batch_size": 5, "drop_last": True},
    "another sampler": {"sampler": [3, 1, 2, 5, 6]},
    "attributes": {},
    "weights": {},
}


def change(batch_sampler, name):
    for key, value in CHANGES[name].items():
        setattr(batch_sampler, key, value)
    inner = batch_sampler.sampler
    if name == "attributes":
        vars(inner).update({key: value for key, value in OF_THE_SAMPLER.items() if key in vars(inner)})
    elif name == "weights" and hasattr(inner, "weights"):
        inner.weights[:11] = 0


KEPT = {"num_workers": 2, "persistent_workers": True}


@pytest.mark.parametrize(
    ("name", "changed", "options"),
    [
        *itertools.product(LOADERS, CHANGES, [{}]),
        *zip([*LOADERS] * 2, itertools.cycle(CHANGES), itertools.repeat(KEPT), strict=False),
    ],
    ids=lambda one: one if isinstance(one, str) else "workers" if one else "inline",
)
def test_changes_of_the_batch_sampler(name, changed, options):
    def run(lib):
        loader = lib.DataLoader(DATA, **LOADERS[name](lib), **options)
        found = [len(loader), values(loader)]
        change(loader.batch_sampler, changed)
        for _ in range(2):
            found += [len(loader), values(loader)]
        return [*found, loader.batch_size, type(loader.sampler), torch.rand(1).item()]

    assert_same_on_both(run)


def test_lists_that_grow(lib):
    sampler, batches = [0, 1], [[0, 1]]
    loaders = lib.DataLoader(DATA, 2, sampler=sampler), lib.DataLoader(DATA, batch_sampler=batches)
    assert [values(loader) for loader in loaders] == [[[0, 1]]] * 2
    sampler += [2]
    batches.append([5, 6, 7])
    assert [values(loader) for loader in loaders] == [[[0, 1], [2]], [[0, 1], [5, 6, 7]]]


def test_the_batch_size_of_items(lib):
    loader = lib.DataLoader(Items(range(5)), 2)
    assert len(list(loader)) == 3
    loader.batch_sampler.batch_size = 5
    assert values(loader) == [[0, 1, 2, 3, 4]]


PLAIN = [{}, {"batch_size": None}, {"batch_size": 2, "drop_last": True}]
SAMPLED = [{"shuffle": True, "batch_size": 2}, {"batch_sampler": [[0]]}]
SAMPLED += [
    {"sampler": sampler, "batch_size": 2, "drop_last": True}
    for sampler in ([4, 0, 2], torch.tensor([4, 0, 2]), torch.utils.data.SubsetRandomSampler([0, 2]))
]


@pytest.mark.parametrize(
    ("dataset", "options"),
    [*((Items(range(5)), one) for one in PLAIN), *((DATA, one) for one in PLAIN + SAMPLED)],
    ids=str,
)
def test_the_samplers_of_a_loader(dataset, options):
    """As trainers look at them: also those that the loader itself does not ask."""
    ours, theirs = (one.values[0].DataLoader(dataset, **options) for one in LIBRARIES)
    assert type(ours.sampler) is type(theirs.sampler)
    assert ours._auto_collation == theirs._auto_collation
    assert isinstance(ours.batch_sampler, type(theirs.batch_sampler))
    for name in ("batch_size", "drop_last"):
        assert getattr(ours.batch_sampler, name, None) == getattr(theirs.batch_sampler, name, None)
    if theirs.batch_sampler is not None and "batch_sampler" not in options:
        assert ours.batch_sampler.sampler is ours.sampler
    if dataset is DATA and theirs.batch_sampler is not None:
        drawn = [sorted(index for batch in one.batch_sampler for index in batch) for one in (ours, theirs)]
        assert drawn[0] == drawn[1]
        assert len(ours.batch_sampler) == len(theirs.batch_sampler)
    if "sampler" in options:
        assert ours.sampler is options["sampler"]
