"""The same seed gives the same batches, and the same random numbers in the program that draws its own."""

import json
import random

import numpy as np
import pytest
import torch
import torch.utils.data as theirs

import gpuloader.torch as ours
from tests.torch_suite.datasets import Numbers


def seeded():
    return torch.Generator().manual_seed(3)


DATA = Numbers(23)

MAKERS = {
    "in order": lambda lib, **options: lib.DataLoader(DATA, 4, **options),
    "shuffled": lambda lib, **options: lib.DataLoader(DATA, 4, shuffle=True, **options),
    "without the last": lambda lib, **options: lib.DataLoader(DATA, 4, True, drop_last=True, **options),
    "single": lambda lib, **options: lib.DataLoader(DATA, None, shuffle=True, **options),
    "generator": lambda lib, **options: lib.DataLoader(DATA, 4, True, generator=seeded(), **options),
    "random": lambda lib, **options: sampled(lib, lib.RandomSampler(DATA), options),
    "random, generator": lambda lib, **options: sampled(
        lib, lib.RandomSampler(DATA, generator=seeded()), options
    ),
    "fewer": lambda lib, **options: sampled(lib, lib.RandomSampler(DATA, num_samples=9), options),
    "more": lambda lib, **options: sampled(lib, lib.RandomSampler(DATA, num_samples=50), options),
    "replaced": lambda lib, **options: sampled(lib, lib.RandomSampler(DATA, True, 50), options),
    "more, generator": lambda lib, **options: sampled(
        lib, lib.RandomSampler(DATA, num_samples=50, generator=seeded()), options
    ),
    "replaced, generator": lambda lib, **options: sampled(
        lib, lib.RandomSampler(DATA, True, 70, generator=seeded()), options
    ),
    "weighted": lambda lib, **options: sampled(lib, weighted(lib), options),
    "weighted, generator": lambda lib, **options: sampled(lib, weighted(lib, seeded()), options),
    "weighted once": lambda lib, **options: sampled(
        lib, lib.WeightedRandomSampler(range(23), 9, False), options
    ),
    "subset": lambda lib, **options: sampled(lib, lib.SubsetRandomSampler(range(3, 19)), options),
    "batch sampler": lambda lib, **options: grouped(lib, lib.RandomSampler(DATA), options),
    "batch sampler, generator": lambda lib, **options: grouped(
        lib, lib.RandomSampler(DATA, generator=seeded()), options
    ),
    "lists, generator": lambda lib, **options: listed(
        lib, lib.RandomSampler(DATA, generator=seeded()), options
    ),
    "lists": lambda lib, **options: listed(lib, lib.RandomSampler(DATA), options),
}


def listed(lib, sampler, options):
    """Bulk loading: each index is a list, and the dataset reads a whole batch."""
    lists = lib.BatchSampler(sampler, 5, False)
    return lib.DataLoader(torch.arange(23), sampler=lists, batch_size=None, **options)


def weighted(lib, generator=None):
    return lib.WeightedRandomSampler([0.5] * 23, 30, generator=generator)


def sampled(lib, sampler, options):
    return lib.DataLoader(DATA, 4, sampler=sampler, **options)


def grouped(lib, sampler, options):
    return lib.DataLoader(DATA, batch_sampler=lib.BatchSampler(sampler, 5, False), **options)


def plain(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def run(loader, *, epochs=3, steps=None):
    """Return the batches of some epochs, and the numbers that the program draws between and behind them."""
    torch.manual_seed(7)
    found = []
    for _ in range(epochs):
        for step, batch in enumerate(loader):
            found += [plain(batch), torch.rand(1).item()]
            if step == steps:
                break
        found.append(torch.rand(1).item())
    return found


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_batches_and_the_programs_own_numbers(make):
    assert run(make(ours)) == run(make(theirs))


@pytest.mark.parametrize("name", ["shuffled", "in order", "weighted", "batch sampler, generator"])
def test_with_workers(name, persistent):
    options = {"num_workers": 2, **persistent}
    assert run(MAKERS[name](ours, **options)) == run(MAKERS[name](theirs, **options))


@pytest.mark.parametrize("name", ["shuffled", "generator", "weighted", "batch sampler"])
def test_epochs_that_the_program_leaves_early(name):
    make = MAKERS[name]
    assert run(make(ours), steps=2) == run(make(theirs), steps=2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [0, 2, 4, 100])
@pytest.mark.parametrize("name", [name for name in MAKERS if name.endswith("generator")])
def test_where_the_programs_own_generator_stands(name, steps, workers):
    """PyTorch's samplers draw when they are asked for an index, and with workers they are asked ahead."""

    def stands(lib):
        loader = MAKERS[name](lib, num_workers=workers)
        sampler = loader.sampler if loader.batch_size else getattr(loader.sampler, "sampler", loader.sampler)
        if "batch" in name:
            sampler = loader.batch_sampler.sampler
        found = []
        for _ in range(2):
            iterator = iter(loader)
            found.append(sampler.generator.get_state().tolist())
            for _, batch in zip(range(steps), iterator, strict=False):
                found += [plain(batch), sampler.generator.get_state().tolist()]
            del iterator
        return found

    assert stands(ours) == stands(theirs)


def test_a_program_that_stops_at_the_last_batch():
    """PyTorch's sampler has reached its end when it yields a last batch that is not whole."""
    make = MAKERS["generator"]
    assert run(make(ours), steps=5) == run(make(theirs), steps=5)


def test_an_iterator_draws_its_seed_when_it_is_made():
    def run(lib):
        torch.manual_seed(7)
        iterators = [iter(lib.DataLoader(DATA, 4, shuffle=True)) for _ in range(2)]
        found = [torch.rand(1).item()]
        return found + [batch.tolist() for both in zip(*iterators, strict=True) for batch in both]

    assert run(ours) == run(theirs)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_state_has_the_order(make, workers):
    """Whatever the program draws before it resumes; it needs no generator in its old state."""
    torch.manual_seed(7)
    loader = make(ours)
    list(loader)
    epoch = iter(loader)
    next(epoch), next(epoch)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [plain(batch) for batch in epoch]
    torch.manual_seed(99)
    again = make(ours, num_workers=workers)
    again.load_state_dict(state)
    assert [plain(batch) for batch in again] == rest


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_later_epochs_of_a_resumed_program(make):
    """It restores the global generator; those of samplers are in the state."""
    torch.manual_seed(7)
    loader = make(ours)
    epoch = iter(loader)
    next(epoch)
    state, generator = loader.state_dict(), torch.get_rng_state()
    expected = [[plain(batch) for batch in one] for one in (epoch, loader)]
    torch.set_rng_state(generator)
    again = make(ours)
    again.load_state_dict(state)
    assert [[plain(batch) for batch in one] for one in (again, again)] == expected


def test_a_state_between_epochs_draws_nothing():
    torch.manual_seed(7)
    loader = ours.DataLoader(DATA, 4, shuffle=True)
    before = torch.get_rng_state()
    state = loader.state_dict()
    again = ours.DataLoader(DATA, 4, shuffle=True)
    again.load_state_dict(state)
    assert torch.equal(torch.get_rng_state(), before)
    assert run(again) == run(theirs.DataLoader(DATA, 4, shuffle=True))


def test_a_state_with_another_batch_size():
    torch.manual_seed(7)
    loader = ours.DataLoader(DATA, 4, shuffle=True)
    epoch = iter(loader)
    next(epoch)
    state = loader.state_dict()
    rest = [index for batch in epoch for index in batch.tolist()]
    again = ours.DataLoader(DATA, 6, shuffle=True)
    again.load_state_dict(state)
    assert [index for batch in again for index in batch.tolist()] == rest


def test_a_seed_gives_an_order_that_draws_nothing():
    def epoch():
        return [batch.tolist() for batch in ours.DataLoader(DATA, 4, shuffle=True, seed=5)]

    before = torch.get_rng_state()
    assert epoch() == epoch()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("drawn", ["", "00", "no number", -1, 1.5, [1]])
def test_a_damaged_order(drawn):
    loader = MAKERS["shuffled"](ours)
    next(iter(loader))
    with pytest.raises(ValueError, match="damaged"):
        again = MAKERS["shuffled"](ours)
        again.load_state_dict({**loader.state_dict(), "drawn": drawn})
        next(iter(again))


def test_keys_are_no_order():
    data = {"a": 1, "b": 2}
    assert [batch.item() for batch in ours.DataLoader(data, sampler=ours.SubsetRandomSampler(["b"]))] == [2]


class Augmented(theirs.Dataset):
    """Images that are mirrored, shifted and made noisy with all three global generators."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.rand(count, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 3, (count,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image.flip(2)
        image = image.roll(int(np.random.randint(3)), 1)
        return image + 0.1 * torch.randn(image.shape), self.labels[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_has_the_same_losses_and_weights(workers, persistent):
    """With a shuffle, augmentation in workers, dropout, and a validation between epochs."""
    if persistent["persistent_workers"] and not workers:
        pytest.skip("there are no workers to keep")

    def train(kind):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(144, 3)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"num_workers": workers, **persistent}
        training = kind(Augmented(40), batch_size=8, shuffle=True, drop_last=True, **options)
        validation = kind(Augmented(10), batch_size=4, **options)
        losses = []
        for _ in range(3):
            for images, labels in training:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            with torch.no_grad():
                losses += [model(images).sum().item() for images, _ in validation]
        return losses, [weights.tolist() for weights in model.parameters()]

    assert train(ours.DataLoader) == train(theirs.DataLoader)
