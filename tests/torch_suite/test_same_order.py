"""The same seed gives the same batches, and the same random numbers in the program that draws its own."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
import torch.utils.data as theirs
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import gpuloader.torch as ours
from tests.sample_sets import values
from tests.torch_suite.datasets import Made, Numbers, seeded

DATA = Numbers(23)


SAMPLERS = {
    "random": lambda: RandomSampler(DATA),
    "random, generator": lambda: RandomSampler(DATA, generator=seeded()),
    "fewer": lambda: RandomSampler(DATA, num_samples=9),
    "more": lambda: RandomSampler(DATA, num_samples=50),
    "more, generator": lambda: RandomSampler(DATA, num_samples=50, generator=seeded()),
    "replaced": lambda: RandomSampler(DATA, True, 50),
    "replaced, generator": lambda: RandomSampler(DATA, True, 70, generator=seeded()),
    "weighted": lambda: WeightedRandomSampler([0.5] * 23, 30),
    "weighted, generator": lambda: WeightedRandomSampler([0.5] * 23, 30, generator=seeded()),
    "weighted once": lambda: WeightedRandomSampler(range(23), 9, False),
    "subset": lambda: SubsetRandomSampler(range(3, 19)),
}
SHUFFLED = {"batch_size": 4, "shuffle": True}
OPTIONS = {
    "in order": lambda: {"batch_size": 4},
    "shuffled": lambda: SHUFFLED,
    "without the last": lambda: {**SHUFFLED, "drop_last": True},
    "single": lambda: {"batch_size": None, "shuffle": True},
    "generator": lambda: {**SHUFFLED, "generator": seeded()},
    **{name: lambda make=make: {"batch_size": 4, "sampler": make()} for name, make in SAMPLERS.items()},
    "batch sampler": lambda: {"batch_sampler": grouped("random")},
    "batch sampler, array": lambda: {"batch_sampler": BatchSampler(np.arange(22, -1, -1), 5, False)},
    "batch sampler, generator": lambda: {"batch_sampler": grouped("random, generator")},
    # Each index is a list, and the dataset reads a whole batch.
    "lists": lambda: {"batch_size": None, "sampler": grouped("random")},
    "lists, generator": lambda: {"batch_size": None, "sampler": grouped("random, generator")},
}


def grouped(name):
    return BatchSampler(SAMPLERS[name](), 5, False)


def make(lib, name, **options):
    dataset = torch.arange(23) if name.startswith("lists") else DATA
    return lib.DataLoader(dataset, **OPTIONS[name](), **options)


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


# PyTorch's sampler has reached its end when it yields a last batch that is not whole: batch 5.
LEFT_EARLY = [("shuffled", 2), ("generator", 2), ("weighted", 2), ("batch sampler", 2), ("generator", 5)]


@pytest.mark.parametrize(("name", "steps"), [*zip(OPTIONS, itertools.repeat(None)), *LEFT_EARLY])
def test_batches_and_the_programs_own_numbers(name, steps):
    """In whole epochs, and in those that the program leaves early."""
    assert run(make(ours, name), steps=steps) == run(make(theirs, name), steps=steps)


@pytest.mark.parametrize("name", ["shuffled", "in order", "weighted", "batch sampler, generator"])
def test_with_workers(name, persistent):
    first, second = (run(make(lib, name, num_workers=2, **persistent)) for lib in (ours, theirs))
    assert first == second


@pytest.mark.parametrize(("steps", "workers"), [([0, 2], 0), ([4, 100], 0), ([2, 100], 2)], ids=str)
@pytest.mark.parametrize("name", [name for name in OPTIONS if name.endswith("generator")])
def test_where_the_programs_own_generator_stands(name, steps, workers):
    """PyTorch's samplers draw when they are asked for an index, and with workers they are asked ahead."""

    def stands(lib):
        loader = make(lib, name, num_workers=workers)
        sampler = loader.sampler if loader.batch_size else getattr(loader.sampler, "sampler", loader.sampler)
        if "batch" in name:
            sampler = loader.batch_sampler.sampler
        found = []
        for count in steps:
            iterator = iter(loader)
            found.append(sampler.generator.get_state().tolist())
            for _, batch in zip(range(count), iterator, strict=False):
                found += [plain(batch), sampler.generator.get_state().tolist()]
            del iterator
        return found

    assert stands(ours) == stands(theirs)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name.endswith("generator")])
def test_a_program_that_draws_from_the_samplers_generator_in_its_loop(name):
    def draws(lib):
        loader, found = make(lib, name), []
        sampler = loader.batch_sampler.sampler if "batch" in name else loader.sampler
        generator = getattr(sampler, "sampler", sampler).generator
        for _ in range(2):
            for batch in loader:
                found += [plain(batch), torch.rand(1, generator=generator).item()]
        return found

    assert draws(ours) == draws(theirs)


class Asked:
    """A sampler, or a batch sampler, of the user's own, which draws when it is asked."""

    def __init__(self, batch_size=None):
        self.batch_size = batch_size
        self.count = 0

    def __len__(self):
        return 30 if self.batch_size is None else 6

    def __iter__(self):
        for _ in range(len(self)):
            self.count += 1
            drawn = torch.randint(23, (self.batch_size or 1,)).tolist()
            yield drawn[0] if self.batch_size is None else drawn


class Failing(Numbers):
    def __init__(self):
        super().__init__(23)

    def __getitem__(self, index):
        if index == 11:
            raise KeyError(index)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("grouped", [False, True], ids=["sampler", "batch sampler"])
@pytest.mark.parametrize(("workers", "kept"), [(0, False), (2, False), (2, True), (3, True)])
def test_when_a_sampler_of_the_users_own_is_asked(workers, grouped, kept):
    """With workers, a batch is replaced before it is delivered, and so is one that raises."""

    def find(lib):
        torch.manual_seed(7)
        sampler = Asked(5 if grouped else None)
        options = {"batch_sampler": sampler} if grouped else {"batch_size": 5, "sampler": sampler}
        loader = lib.DataLoader(Failing(), num_workers=workers, persistent_workers=kept, **options)
        found = []
        for steps in (7, 2, 7):
            iterator = iter(loader)
            for _ in range(steps):
                try:
                    found.append(plain(next(iterator)))
                except KeyError:
                    found.append("failed")
                except StopIteration:
                    break
                found += [sampler.count, torch.rand(1).item()]
            del iterator
        return found

    assert find(ours) == find(theirs)


@pytest.mark.parametrize(
    ("generator", "wrap", "workers"),
    [
        *itertools.product([lambda: None, seeded], [False, True], [0]),
        (lambda: None, True, 2),
        (seeded, False, 2),
    ],
)
def test_an_epoch_without_end(generator, wrap, workers):
    """Its indices would take 80 GB, so they are drawn as the loop needs them, also when it resumes."""

    def make_endless(lib):
        torch.manual_seed(7)
        sampler = RandomSampler(DATA, True, 10**10, generator())
        if wrap:
            return lib.DataLoader(DATA, batch_sampler=BatchSampler(sampler, 5, False), num_workers=workers)
        return lib.DataLoader(DATA, 5, sampler=sampler, num_workers=workers)

    loader = make_endless(ours)
    epoch = iter(loader)
    taken = [plain(next(epoch)) for _ in range(20)]
    judge = iter(make_endless(theirs))
    assert taken == [plain(next(judge)) for _ in range(20)]
    again = make_endless(ours)
    again.load_state_dict(loader.state_dict())
    resumed = iter(again)
    assert [plain(next(resumed)) for _ in range(20)] == [plain(next(judge)) for _ in range(20)]
    assert len(again) == len(make_endless(theirs))


def test_an_iterator_draws_its_seed_when_it_is_made():
    def run(lib):
        torch.manual_seed(7)
        iterators = [iter(lib.DataLoader(DATA, 4, shuffle=True)) for _ in range(2)]
        found = [torch.rand(1).item()]
        return found + [batch.tolist() for both in zip(*iterators, strict=True) for batch in both]

    assert run(ours) == run(theirs)


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 0) for name in OPTIONS), *((name, 2) for name in [*OPTIONS][1::5])]
)
def test_a_state_has_the_order(name, workers):
    """Whatever the program draws before it resumes. Later epochs need the global generator as it was."""
    torch.manual_seed(7)
    loader = make(ours, name)
    list(loader)
    epoch = iter(loader)
    next(epoch), next(epoch)
    state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
    expected = [[plain(batch) for batch in one] for one in (epoch, loader)]
    torch.manual_seed(99)
    again = make(ours, name, num_workers=workers)
    again.load_state_dict(state)
    assert [plain(batch) for batch in again] == expected[0]
    torch.set_rng_state(generator)
    again = make(ours, name, num_workers=workers)
    again.load_state_dict(state)
    assert [[plain(batch) for batch in one] for one in (again, again)] == expected


def test_a_state_between_epochs_draws_nothing():
    torch.manual_seed(7)
    loader, again = make(ours, "shuffled"), make(ours, "shuffled")
    before = torch.get_rng_state()
    again.load_state_dict(loader.state_dict())
    assert torch.equal(torch.get_rng_state(), before)
    assert run(again) == run(make(theirs, "shuffled"))


def test_a_seed_gives_an_order_that_draws_nothing():
    before = torch.get_rng_state()
    first, second = (values(make(ours, "shuffled", seed=5)) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("drawn", ["", "00", "no number", -1, 1.5, [1]])
def test_a_damaged_order(drawn):
    loader, again = make(ours, "shuffled"), make(ours, "shuffled")
    next(iter(loader))
    with pytest.raises(ValueError, match="damaged"):
        again.load_state_dict({**loader.state_dict(), "drawn": drawn})
        next(iter(again))


IMAGES = torch.rand(40, 1, 8, 8, generator=seeded())
LABELS = torch.randint(0, 3, (40,), generator=seeded())


def augment(index):
    """Return an image that is mirrored, shifted and made noisy with all three global generators."""
    image = IMAGES[index]
    if random.random() < 0.5:
        image = image.flip(2)
    image = image.roll(int(np.random.randint(3)), 1)
    return image + 0.1 * torch.randn(image.shape), LABELS[index]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
def test_a_training_has_the_same_losses_and_weights(options):
    """With a shuffle, augmentation in workers, dropout, and a validation between epochs."""

    def train(kind):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(144, 3)
        )
        training = kind(Made(augment, 40), batch_size=8, shuffle=True, drop_last=True, **options)
        validation = kind(Made(augment, 10), batch_size=4, **options)
        losses = []
        for _ in range(3):
            for images, labels in training:
                images, labels = images.to("cpu", non_blocking=True), labels.to("cpu", non_blocking=True)
                images.requires_grad_()
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                model.zero_grad()
                loss.backward()
                with torch.no_grad():  # PyTorch's optimizers import its compiler, which takes two seconds
                    for weights in model.parameters():
                        weights -= 0.1 * weights.grad
                losses += [loss.item(), images.grad.sum().item()]
            with torch.no_grad():
                losses += [model(images).sum().item() for images, _ in validation]
        return losses, [weights.tolist() for weights in model.parameters()]

    assert train(ours.DataLoader) == train(theirs.DataLoader)


def test_a_dataset_that_grows_during_an_epoch(lib):
    numbers, read = [*range(6)], []
    torch.manual_seed(0)
    for batch in lib.DataLoader(numbers, 2, shuffle=True):
        read.append(batch.tolist())
        numbers += [0] * (len(read) < 4)
    expected = [[0, 4], [3, 5], [2, 1]]
    assert read[:3] == expected
    assert (read == expected) == lib.differs("growth-waits-for-an-epoch")
