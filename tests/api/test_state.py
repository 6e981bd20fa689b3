"""The state of a loader: what it counts, what it looks like, and which states are refused."""

import copy
import itertools
import json
import threading

import numpy as np
import pytest

from gpuloader import DataLoader, IterableDataset, SampleError, get_worker_info, sample_rng
from gpuloader.testing import simulated_places
from tests.api.streams import Items
from tests.loading import load, resume
from tests.sample_sets import (
    INLINE,
    ONE_THREAD,
    PROCESSES,
    THREADS,
    WORKERS,
    Counting,
    Made,
    Stateful,
    name_workers,
    values,
)

by_workers = pytest.mark.parametrize("workers", WORKERS, ids=name_workers)


def make(**options):
    return DataLoader(list(range(12)), **{"places": "cpu", "batch_size": 2, "seed": 5, **options})


@pytest.mark.parametrize(
    "options", [*WORKERS, pytest.param({"places": simulated_places(2), "prefetch": 2}, id="places")], ids=str
)
def test_only_what_was_received_counts(options):
    """And neither what was read ahead nor what was copied ahead."""
    loader, places = make(prefetch_factor=4, **options), len(options.get("places", "1"))
    epoch = iter(loader)
    for number in range(3):
        assert loader.state_dict()["batches"] == number * places
        next(epoch)
    state = {"version": 1, "epoch": 0, "batches": 3 * places, "seed": 5, "batch_size": 2}
    assert loader.state_dict() == state
    next(iter(loader))  # an epoch that was left is where it was; the next one begins
    assert loader.state_dict() == {**state, "epoch": 1, "batches": places}


def test_the_states_before_between_and_after():
    loader = make(shuffle=True)
    fresh = loader.state_dict()
    epochs = [values(loader) for _ in range(2)]
    ended = loader.state_dict()
    assert [(state["epoch"], state["batches"]) for state in (fresh, ended)] == [(0, 0), (2, 0)]
    epochs.append(values(loader))
    for state, wanted in [(fresh, epochs[0]), (ended, epochs[2])]:
        other = make(shuffle=True, seed=77)
        other.load_state_dict(state)
        assert other.state_dict() == state  # loaded but not begun
        assert values(other) == wanted
    other.load_state_dict(fresh)
    assert other.state_dict() == fresh
    assert [values(other) for _ in range(3)] == epochs  # later epochs follow


@by_workers
def test_after_an_error_the_state_is_that_of_what_was_received(workers):
    def draw(index):
        if index == bad:
            raise OSError("gone")
        return sample_rng().random()

    bad = None
    whole = values(load(Made(draw, 12), batch_size=2, seed=4))
    bad, loader = 7, load(Made(draw, 12), batch_size=2, seed=4, **workers)
    with pytest.raises(SampleError, match="gone"):
        list(loader)
    bad, state = None, loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 3)
    other = load(Made(draw, 12), batch_size=2, **workers)
    other.load_state_dict(state)
    assert values(other) == whole[3:]  # with the random numbers that it would have drawn


def test_set_epoch():
    loader = make(shuffle=True)
    epochs = [values(loader) for _ in range(4)]
    next(iter(loader))
    loader.set_epoch(2)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (2, 0)
    assert [values(loader), values(loader)] == epochs[2:]
    for epoch in (-1, 1.0, True, "1", None, 2**64):
        with pytest.raises(ValueError, match="epoch must be an integer from 0 to"):
            loader.set_epoch(epoch)


def test_set_epoch_does_not_undo_what_is_resumed():
    loader = make(shuffle=True)
    loader.set_epoch(3)
    epoch = iter(loader)
    next(epoch)
    state, rest = loader.state_dict(), values(epoch)
    loop = make(shuffle=True)
    loop.load_state_dict(state)
    loop.set_epoch(3)  # as in a training loop that numbers its epochs
    assert loop.state_dict() == state
    assert values(loop) == rest
    loop.load_state_dict(state)
    loop.set_epoch(0)  # another epoch does start afresh
    assert values(loop) == values(make(shuffle=True))


@pytest.mark.parametrize("options", [{}, {"shard": (0, 1)}], ids=str)
def test_a_state_stays_small_however_long_a_batch_takes(options):
    """While one worker holds the oldest batch, the others deliver any number of later ones."""
    held = threading.Event()

    def read(index):
        if index == 1:
            held.wait()
        return index

    def make():
        return load(Made(read, 2000), batch_size=1, in_order=False, seed=2**64 - 1, **THREADS, **options)

    loader, got = make(), []
    try:
        epoch = iter(loader)
        for batch in itertools.islice(epoch, 1000):
            got += batch.tolist()
            state = json.dumps(loader.state_dict())
            assert len(state) < 1024
        assert 1 not in got
    finally:
        held.set()
    epoch.close()
    again = make()
    again.load_state_dict(json.loads(state))
    assert again.state_dict() == json.loads(state)
    assert sorted(got + [number for batch in again for number in batch.tolist()]) == list(range(2000))


def test_a_state_of_numbers_only_still_loads():
    numbers = {"version": 1, "epoch": 0, "batches": 1, "seed": 5, "batch_size": 2, "beyond": [3, 4, 5]}
    loader, state = make(**ONE_THREAD), copy.deepcopy(numbers)
    loader.load_state_dict(state)
    assert loader.state_dict() == {**numbers, "beyond": [[3, 5]]}
    assert values(loader) == [[2, 3], [4, 5]]
    assert state == numbers  # which is not written to


def test_a_state_stays_small_however_uneven_the_workers_are():
    items = Items(lambda: range(1200 if get_worker_info().id == 2 else 3))
    uneven = load(items, batch_size=7, in_order=False, **THREADS)
    for _ in uneven:
        assert len(json.dumps(uneven.state_dict())) < 1024
        assert "beyond" not in uneven.state_dict()


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
def test_an_iterable_data_sets_own_state(workers):
    """Nothing is read again, and the state follows what was received, not what was read ahead."""

    def make_loader(kind=Stateful, **workers):
        return load(kind(20), batch_size=2, seed=1, prefetch_factor=3, **workers)

    count = max(workers["num_workers"], 1)
    before, other = resume(lambda: make_loader(**workers), 2 * count)
    state = other.state_dict()
    assert [own["next"] for _, own in state["workers"]] == [4 * count + worker for worker in range(count)]
    whole = values(make_loader(**workers))
    assert values(before) + values(other) == whole
    if count == 1:
        assert other.dataset.given == list(range(4, 20))
    # Counting has no state, so threads that share it read and drop what was received.
    threads = make_loader(Counting, num_workers=count, worker_type="thread")
    threads.load_state_dict(state)
    assert values(threads) == whole[2 * count :]


WRONG = {
    "nothing": (None, TypeError, "a state must be a dict, .* got NoneType"),
    "a list": ([1], TypeError, "a state must be a dict, .* got int"),
    "no states": ([], TypeError, "got list"),
    "empty": ({}, ValueError, "version None, expected 1 or 2"),
    "a model's": ({"weight": np.zeros(3)}, ValueError, "it was not made by a loader's state_dict"),
    "a later release's": ({"version": 3}, ValueError, "version 3, expected 1 or 2.*by a later release"),
    "no epoch": ({"epoch": ...}, ValueError, r"damaged \(KeyError: 'epoch'\)"),
    "negative": ({"batches": -1}, ValueError, "damaged .*expected a whole number of 0 or more, got -1"),
    "text": ({"batches": "3"}, ValueError, "damaged .*got '3'"),
    "a float": ({"epoch": 1.0}, ValueError, "damaged .*got 1.0"),
    "true": ({"epoch": True}, ValueError, "damaged .*got True"),
    "seed too big": ({"seed": 2**64}, ValueError, "damaged .*expected a whole number below"),
    "beyond": ({"beyond": 3}, ValueError, r"damaged \(TypeError"),
    "a run": ({"beyond": [[3, 4, 5]]}, ValueError, r"damaged \(ValueError"),
    "an endless run": ({"beyond": [[3, 2**60]]}, ValueError, r"damaged \(ValueError: expected fewer batches"),
    "no state of its own": ({"dataset": [0, []]}, ValueError, r"damaged \(KeyError: 0\)"),
    "workers": ({"workers": [1]}, ValueError, r"damaged \(TypeError"),
    "turn": ({"workers": [[1, None]], "turn": 1}, ValueError, "damaged .*expected a whole number below 1"),
    "a reader's": ({"seed": ...}, ValueError, "state of a loader made by DataLoader.from_generator"),
    "of shards": ({"shards": 2}, ValueError, "batches of 2 samples per place, 2 per step; .* batches of 2"),
    "as they came": ({"batch_size": 3, "beyond": [4]}, ValueError, "batches of 3 samples.* batches of 2"),
    "no size": ({"batch_size": None}, ValueError, "batches of None samples"),
    "an iterable's": ({"workers": [[1, None]]}, ValueError, "belongs to an iterable dataset, .* map-style"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_state_is_refused(case):
    changes, error, message = WRONG[case]
    state = changes
    if isinstance(changes, dict) and changes and not {"weight", "version"} & changes.keys():
        good = {"version": 1, "epoch": 0, "batches": 1, "seed": 5, "batch_size": 2}
        state = {key: value for key, value in {**good, **changes}.items() if value is not ...}
    loader = make()
    with pytest.raises(error, match=message):
        loader.load_state_dict(state)
    assert len(values(loader)) == 6  # the refused state changed nothing


def test_a_state_of_another_dataset_or_other_workers_is_refused():
    def read(loader, count):
        for _ in itertools.islice(loader, count):
            pass
        return loader.state_dict()

    items = load(Counting(20), batch_size=2)
    for loader, state, message in [
        (items, read(load(Counting(20), batch_size=2, **THREADS), 1), "read by 3 workers, but this loader"),
        (items, make().state_dict(), "belongs to a map-style dataset, but this loader reads an iterable"),
        (load(range(8), batch_size=4), read(load(range(40), batch_size=4), 3), "3 batches .* dataset has 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict(state)


class Self(IterableDataset):
    """Its `__iter__` returns itself, and either starts over or continues."""

    def __init__(self, restart):
        self.restart, self.start, self.next = restart, 0, 0

    def __iter__(self):
        self.next, self.start = 0 if self.restart else self.start, 0
        return self

    def __next__(self):
        if self.next == 20:
            raise StopIteration
        self.next += 1
        return self.next - 1

    def state_dict(self):
        return {"at": np.array(self.next)}

    def load_state_dict(self, state):
        self.start = self.next = int(state["at"])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("restart", [True, False])
def test_a_dataset_that_is_its_own_iterator_resumes_and_then_starts_over(restart, workers):
    loader, again = (load(Self(restart), batch_size=5, num_workers=workers) for _ in range(2))
    epoch = iter(loader)
    assert [next(epoch).tolist()[0] for _ in range(2)] == [0, 5]
    again.load_state_dict(loader.state_dict())
    assert [[batch.tolist()[0] for batch in again] for _ in range(2)] == [[10, 15], [0, 5, 10, 15]]
