"""States, in the semantics of torchdata: what is left of an epoch, and the epochs that follow it."""

import json

import pytest
import torch
from torch.utils import data

from gpuloader.torch import DataLoader
from tests.torch_suite.datasets import Items, Numbers, seeded

COUNT = 20


def share():
    """Return the numbers of this worker."""
    info = data.get_worker_info()
    return range(COUNT) if info is None else range(info.id, COUNT, info.num_workers)


class Generator(data.IterableDataset):
    """Keeps its position on the dataset, and yields."""

    position, resumed = 0, False

    def begin(self):
        self.position = self.position if self.resumed else 0
        self.resumed, self.numbers = False, share()

    def __iter__(self):
        self.begin()
        while self.position < len(self.numbers):
            self.position += 1
            yield self.numbers[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position, self.resumed = state["position"], True


class Itself(Generator):
    """An `__iter__` that returns the dataset."""

    def __iter__(self):
        self.begin()
        return self

    def __next__(self):
        if self.position >= len(self.numbers):
            raise StopIteration
        self.position += 1
        return self.numbers[self.position - 1]


class Steps(data.Sampler):
    """A sampler of indices, or of batches, with a state that a loader need not ask for."""

    def __init__(self, entries):
        self.entries = entries

    def __len__(self):
        return len(self.entries)

    def __iter__(self):
        return iter(self.entries)

    def state_dict(self):
        return {"other": 1}

    def load_state_dict(self, state):
        raise AssertionError("the loader keeps the position")


NUMBERS = Numbers(COUNT)


LOADERS = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "generator": lambda: {"shuffle": True, "generator": seeded()},
    "replaced": lambda: {"sampler": data.RandomSampler(NUMBERS, True, 40, generator=seeded())},
    "weighted": lambda: {"sampler": data.WeightedRandomSampler([1.0] * COUNT, 14)},
    "batch sampler": lambda: grouped(data.BatchSampler(data.RandomSampler(NUMBERS), 3, True)),
    "a sampler with a state": lambda: {"sampler": Steps([number * 7 % COUNT for number in range(COUNT)])},
    "a batch sampler with a state": lambda: grouped(Steps([[0, 1, 2], [3, 4], [5], [6, 7, 8]])),
    "stateless items": lambda: {"dataset": Items(share)},
    "a generator": lambda: {"dataset": Generator()},
    "itself": lambda: {"dataset": Itself()},
    "single items": lambda: {"dataset": Itself(), "batch_size": None},
    "items without the last": lambda: {"dataset": Generator(), "drop_last": True},
}


def grouped(batches):
    return {"batch_size": 1, "batch_sampler": batches}


def plain(batches):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 2, "all", "ended"])
@pytest.mark.parametrize("name", LOADERS)
def test_what_is_left(name, taken, workers):
    """Before the first batch, in the middle, after the last, and at the end; loaded once and twice."""

    def make():
        return DataLoader(**{"dataset": NUMBERS, "batch_size": 3, "num_workers": workers, **LOADERS[name]()})

    torch.manual_seed(5)
    loader = make()
    length = len(list(make()))
    list(loader)  # the state is of the second epoch
    epoch = iter(loader)
    for _ in range(taken if isinstance(taken, int) else length):
        next(epoch)
    if taken == "ended":
        assert next(epoch, None) is None
    state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
    rest = [] if taken == "ended" else plain(epoch)
    expected = [rest, plain(loader)] if taken != "ended" else [plain(loader)]

    for times in range(3):
        torch.set_rng_state(generator)
        again = make()
        for _ in range(times):
            again.load_state_dict(state)
            next(iter(again), None)
        torch.set_rng_state(generator)
        if name in ("generator", "replaced") and taken == "ended":
            # As in PyTorch, a generator of the program's own is the program's to restore between epochs.
            continue
        again.load_state_dict(state)
        assert [plain(again) for _ in expected] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_before_the_first_batch(workers):
    """It is that of the iterator, whatever is drawn until its first batch, unless the iterator is gone."""

    def make():
        return DataLoader(NUMBERS, 3, shuffle=True, num_workers=workers)

    loader, again = make(), make()
    next(iter(loader))
    left = loader.state_dict()
    dropped = iter(loader)
    del dropped
    assert loader.state_dict() == left
    epoch = iter(loader)
    state = loader.state_dict()
    assert loader.state_dict() == state
    assert state["epoch"] == left["epoch"] + 1
    torch.rand(3)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert plain(again) == plain(epoch)
