"""States, in the semantics of torchdata: what is left of an epoch, and the epochs that follow it.

They follow `test/stateful_dataloader/test_state_dict.py` of torchdata. What differs: a state fits any number
of workers unless the dataset has a state of its own; it has a random order itself and not as a state of the
sampler; and that of an iterable dataset is kept between the first batch of an epoch and its last.
"""

import itertools
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


class Position:
    """An iterator with a state, to which the random numbers belong."""

    def __init__(self, numbers):
        self.numbers, self.position = numbers, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position >= len(self.numbers):
            raise StopIteration
        self.position += 1
        return self.numbers[self.position - 1] + drawn()

    def state_dict(self):
        return {"position": self.position, **RANDOM.state_dict()}

    def load_state_dict(self, state):
        self.position = state["position"]
        RANDOM.load_state_dict(state)


class Iterators(data.IterableDataset):
    def __iter__(self):
        return Position(share())


class Shifted(Iterators):
    """Has a state besides that of its iterator."""

    def __init__(self, shift):
        self.shift = shift

    def __iter__(self):
        return Position([number + self.shift for number in share()])

    def state_dict(self):
        return {"shift": self.shift}

    def load_state_dict(self, state):
        self.shift = state["shift"]


def drawn():
    return 1000 * int(torch.randint(100, (1,)))


class Drawing(Numbers):
    """Samples with random numbers, whose generator is the state of the dataset."""

    def __getitem__(self, index):
        return index + drawn()

    def state_dict(self):
        return {"generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state):
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


RANDOM = Drawing(COUNT)


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
    "iterators with a state": lambda: {"dataset": Iterators()},
    "random samples": lambda: {"dataset": RANDOM},
    "random samples, shuffled": lambda: {"dataset": RANDOM, "shuffle": True},
}


def grouped(batches):
    return {"batch_size": 1, "batch_sampler": batches}


def plain(batches):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


WITH = {"no workers": {}, "workers": {"num_workers": 2}}
KEPT = {"num_workers": 2, "persistent_workers": True, "snapshot_every_n_steps": 3}
STAYING = ["shuffled", "generator", "a generator", "random samples, shuffled"]
TAKEN = [0, 2, "all", "ended"]
READ_IN_WORKERS = ["single items", "items without the last", "iterators with a state", "random samples"]
DRAWN_OUTSIDE = ["shuffled", "generator", "a batch sampler with a state", "random samples, shuffled"]
WITH_WORKERS = [*DRAWN_OUTSIDE, "stateless items", "a generator", "itself", *READ_IN_WORKERS]


@pytest.mark.filterwarnings("ignore:the loader does not use the state_dict of the:UserWarning")
@pytest.mark.parametrize(
    ("name", "options", "taken"),
    [
        *itertools.product(LOADERS, [WITH["no workers"]], TAKEN),
        *itertools.product(WITH_WORKERS, [WITH["workers"]], [2]),
        *itertools.product(["shuffled", "a generator"], [WITH["workers"]], [0, "all", "ended"]),
        *itertools.product(READ_IN_WORKERS, [WITH["workers"]], ["ended"]),
        *itertools.product(STAYING, [KEPT], [2, "all"]),
    ],
    ids=str,
)
def test_what_is_left(name, options, taken):
    """Before the first batch, in the middle, after the last, and at the end; loaded once and twice."""
    if not options and taken == 0 and name == "iterators with a state":
        pytest.skip("there is no iterator yet, and so no state of it")

    def make():
        return DataLoader(**{"dataset": NUMBERS, "batch_size": 3, **options, **LOADERS[name]()})

    torch.manual_seed(5)
    loader = make()
    length = len(list(loader))
    epoch = iter(loader)  # the state is of the second epoch
    for _ in range(taken if isinstance(taken, int) else length):
        next(epoch)
    if taken == "ended":
        assert next(epoch, None) is None
    state, generator = json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()
    rest = [] if taken == "ended" else plain(epoch)
    expected = [rest, plain(loader)] if taken != "ended" else [plain(loader)]

    for times in (0, 1) if not options else (1,):
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


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (2, 1)])
def test_the_states_of_a_dataset_need_as_many_workers(before, after):
    loader = DataLoader(RANDOM, 3, num_workers=before)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match=f"in {before} workers, and this loader has {after}"):
        DataLoader(RANDOM, 3, num_workers=after).load_state_dict(state)
    DataLoader(RANDOM, 3, num_workers=before, worker_type="thread").state_dict()


@pytest.mark.parametrize("options", [{}, WITH["workers"], KEPT], ids=str)
def test_one_loader_goes_back(options):
    """To its middle and to its start, whose random numbers come again."""
    loader = DataLoader(RANDOM, 3, shuffle=True, **options)
    epoch = iter(loader)
    begun = loader.state_dict()
    found = plain(itertools.islice(epoch, 4))
    loader.load_state_dict(loader.state_dict())
    found += plain(loader)
    loader.load_state_dict(begun)
    assert plain(loader) == found


@pytest.mark.parametrize("options", WITH.values(), ids=WITH)
def test_a_dataset_and_its_iterator_both_have_a_state(options):
    loader, again = (DataLoader(Shifted(shift), 3, **options) for shift in (500, 0))
    epoch = iter(loader)
    next(epoch), next(epoch)
    state = loader.state_dict()
    expected = plain(epoch)
    again.load_state_dict(state)
    assert plain(again) == expected


@pytest.mark.parametrize("epochs", [0, 1])
def test_workers_that_stay_draw_no_seed_again(epochs):
    loader, again = (DataLoader(RANDOM, 3, shuffle=True, **KEPT) for _ in range(2))
    for _ in range(epochs):
        list(loader)
    epoch = iter(loader)
    next(epoch)
    state, generator = loader.state_dict(), torch.get_rng_state()
    expected = [plain(epoch), plain(loader), plain(loader)]
    torch.set_rng_state(generator)
    again.load_state_dict(state)
    assert [plain(again) for _ in range(3)] == expected
