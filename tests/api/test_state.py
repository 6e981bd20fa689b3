"""The state of a loader: what it counts, what it looks like, and which states are refused."""

import json
import threading

import numpy as np
import pytest

from gpuloader import DataLoader, IterableDataset, SampleError, sample_rng
from gpuloader.api.state import Position, read_state
from gpuloader.batches.items import ItemState
from gpuloader.batches.staged import StagedBatch
from gpuloader.testing import simulated_places
from tests.loading import load
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


def batch(number, state=None):
    return StagedBatch(None, None, (), number, state=state)


def make(**options):
    return DataLoader(list(range(12)), **{"places": "cpu", "batch_size": 2, "seed": 5, **options})


def test_a_position_counts_batches_as_they_come():
    position = Position(seed=1, epoch=0)
    for number, batches, beyond in [(0, 1, []), (3, 1, [3]), (2, 1, [2, 3]), (1, 4, []), (5, 4, [5])]:
        position.received(batch(number))
        assert (position.batches, sorted(position.beyond)) == (batches, beyond)
    again = read_state(json.loads(json.dumps(position.to_json())))
    assert (again.batches, again.beyond, again.seed, again.epoch) == (4, {5}, 1, 0)


def test_a_position_of_workers_in_turn():
    position = Position(seed=1, epoch=0, readers=3)
    for number, worker, batches in [(0, 0, 1), (1, 1, 1), (4, 1, 2), (7, 1, 3)]:
        position.received(batch(number, ItemState(worker, batches, {"at": batches})))
    assert (position.batches, position.beyond, position.turn) == (4, set(), 2)
    state = position.to_json()
    assert state["workers"] == [[1, {"at": 1}], [3, {"at": 3}], [0, None]]
    again = read_state(state)
    assert again.workers[1] == ItemState(1, 3, {"at": 3})
    assert (again.readers, again.turn) == (3, 2)


def test_a_position_of_a_reader_with_a_state_of_its_own():
    position = Position(seed=None, epoch=2)
    position.received(batch(0, {"line": 7}))
    assert position.to_json() == {"version": 1, "epoch": 2, "batches": 1, "source": {"line": 7}}
    assert read_state(position.to_json()).own == {"line": 7}


@by_workers
def test_only_what_was_received_counts(workers):
    loader = make(prefetch_factor=4, **workers)
    epoch = iter(loader)
    for number in range(3):
        assert loader.state_dict()["batches"] == number
        next(epoch)
    assert loader.state_dict() == {"version": 1, "epoch": 0, "batches": 3, "seed": 5, "batch_size": 2}


def test_what_was_copied_ahead_does_not_count():
    loader = make(places=simulated_places(2), prefetch=2)
    epoch = iter(loader)
    for number in range(3):
        next(epoch)
        assert loader.state_dict()["batches"] == 2 * (number + 1)


def test_the_states_before_between_and_after():
    loader = make(shuffle=True)
    fresh = loader.state_dict()
    assert (fresh["epoch"], fresh["batches"]) == (0, 0)
    epochs = [values(loader) for _ in range(2)]
    ended = loader.state_dict()
    assert (ended["epoch"], ended["batches"]) == (2, 0)
    epochs.append(values(loader))
    for state, wanted in [(fresh, epochs[0]), (ended, epochs[2])]:
        other = make(shuffle=True, seed=77)
        other.load_state_dict(state)
        assert other.state_dict() == state  # loaded but not begun
        assert values(other) == wanted
    other.load_state_dict(fresh)
    assert [values(other) for _ in range(3)] == epochs  # later epochs follow


def test_all_received_is_not_the_end_yet():
    """If the loop stops at the last batch, the resumed epoch is empty and the next one is whole."""
    loader = make(shuffle=True)
    for number, _ in enumerate(loader, 1):
        if number == len(loader):
            break
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 6)
    following = values(loader)
    other = make(shuffle=True)
    other.load_state_dict(state)
    assert values(other) == []
    assert values(other) == following


def test_an_epoch_that_was_left_is_where_it_was():
    loader = make()
    for _ in loader:
        break
    assert loader.state_dict()["batches"] == 1
    next(iter(loader))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (1, 1)


@by_workers
def test_after_an_error_the_state_is_that_of_what_was_received(workers):
    def fail(index):
        if index == 7:
            raise OSError("gone")
        return index

    loader = load(Made(fail, 12), batch_size=2, **workers)
    with pytest.raises(SampleError, match="gone"):
        list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 3)
    other = make()
    other.load_state_dict(state)
    assert values(other) == [[6, 7], [8, 9], [10, 11]]


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


def test_a_state_brings_its_seed_along():
    loader = load(list(range(40)), batch_size=40, shuffle=True)
    state = json.loads(json.dumps(loader.state_dict()))
    other = load(list(range(40)), batch_size=40, shuffle=True)
    other.load_state_dict(state)
    assert values(other) == values(loader)
    big = make(seed=2**64 - 1).state_dict()
    assert json.loads(json.dumps(big))["seed"] == 2**64 - 1


@pytest.mark.parametrize("shard", [None, (0, 1)])
def test_a_state_stays_small_however_long_a_batch_takes(shard):
    """While one worker holds the oldest batch, the others deliver any number of later ones."""
    held = threading.Event()

    def read(index):
        if index == 1:
            held.wait()
        return index

    def make():
        options = {} if shard is None else {"shard": shard}
        return load(Made(read, 2000), batch_size=1, in_order=False, seed=1, **THREADS, **options)

    loader, got = make(), []
    try:
        epoch = iter(loader)
        for batch in epoch:
            got += batch.tolist()
            state = json.dumps(loader.state_dict())
            assert len(state) < 1024
            if len(got) == 1000:
                break
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
    loader = make(**ONE_THREAD)
    loader.load_state_dict(numbers)
    assert loader.state_dict() == {**numbers, "beyond": [[3, 5]]}
    assert values(loader) == [[2, 3], [4, 5]]


def test_a_state_stays_small():
    loader = load(list(range(1 << 20)), batch_size=1, seed=2**64 - 1, in_order=False, **THREADS)
    loader.set_epoch(2**63)
    for number, _ in enumerate(loader):
        assert len(json.dumps(loader.state_dict())) < 1024
        if number == 300:
            break
    uneven = load(Counting(301), batch_size=7, in_order=False, **THREADS)
    uneven.dataset.__class__ = type("Lopsided", (Counting,), {"__iter__": lopsided})
    for _ in uneven:
        assert len(json.dumps(uneven.state_dict())) < 1024
        assert "beyond" not in uneven.state_dict()


def lopsided(self):
    """Yield many items in the last worker and few in the others."""
    from gpuloader import get_worker_info

    return iter(range(1200 if get_worker_info().id == 2 else 3))


def test_a_loaded_state_is_not_written_to():
    loader = make(**ONE_THREAD)
    state = {"version": 1, "epoch": 0, "batches": 1, "seed": 5, "batch_size": 2, "beyond": [3]}
    before = json.dumps(state)
    loader.load_state_dict(state)
    assert values(loader) == [[2, 3], [4, 5], [8, 9], [10, 11]]
    assert json.dumps(state) == before


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
def test_an_iterable_data_sets_own_state(workers):
    """Nothing is read again, and the state follows what was received, not what was read ahead."""

    def make_loader():
        return load(Stateful(20), batch_size=2, seed=1, prefetch_factor=3, **workers)

    loader = make_loader()
    epoch = iter(loader)
    count = max(workers["num_workers"], 1)
    for _ in range(2 * count):
        next(epoch)
    state = json.loads(json.dumps(loader.state_dict()))
    assert [own["next"] for _, own in state["workers"]] == [4 * count + worker for worker in range(count)]
    rest = values(epoch)
    other = make_loader()
    other.load_state_dict(state)
    assert values(other) == rest
    if count == 1:
        assert other.dataset.given == list(range(4, 20))


def test_a_state_of_processes_goes_on_in_threads_that_share_one_data_set():
    loader = load(Stateful(20), batch_size=2, seed=1, **PROCESSES)
    epoch = iter(loader)
    for _ in range(3):
        next(epoch)
    state, rest = loader.state_dict(), values(epoch)
    # Counting has no state, so the loader reads and drops what was received.
    threads = load(Counting(20), batch_size=2, num_workers=2, worker_type="thread")
    threads.load_state_dict(state)
    assert values(threads) == rest


WRONG = {
    "nothing": (None, TypeError, "a state must be a dict, .* got NoneType"),
    "a list": ([1], TypeError, "got list"),
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


def test_the_order_of_an_iterable_data_set_depends_on_its_workers():
    loader = load(Counting(20), batch_size=2, **THREADS)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(
        ValueError, match="read by 3 workers, but this loader reads it with one worker or none"
    ):
        load(Counting(20), batch_size=2).load_state_dict(state)
    with pytest.raises(ValueError, match="belongs to a map-style dataset, but this loader reads an iterable"):
        load(Counting(20), batch_size=2).load_state_dict(make().state_dict())


def test_a_resumed_epoch_draws_what_it_would_have_drawn():
    def draw(index):
        return sample_rng().random()

    loader = load(Made(draw, 10), batch_size=3, seed=4)
    epoch = iter(loader)
    next(epoch)
    state, rest = loader.state_dict(), values(epoch)
    other = load(Made(draw, 10), batch_size=3, **THREADS)
    other.load_state_dict(state)
    assert values(other) == rest


def test_a_state_behind_the_end_of_the_data_set_is_refused():
    first = load(list(range(40)), batch_size=4, seed=1)
    epoch = iter(first)
    for _ in range(3):
        next(epoch)
    second = load(list(range(8)), batch_size=4)
    with pytest.raises(ValueError, match="3 batches into an epoch and this dataset has 2"):
        second.load_state_dict(first.state_dict())


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
    def load():
        return DataLoader(Self(restart), batch_size=5, places="cpu", num_workers=workers)

    loader = load()
    epoch = iter(loader)
    assert [next(epoch).tolist()[0] for _ in range(2)] == [0, 5]
    again = load()
    again.load_state_dict(loader.state_dict())
    assert [[batch.tolist()[0] for batch in again] for _ in range(2)] == [[10, 15], [0, 5, 10, 15]]
