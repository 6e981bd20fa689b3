"""Any order of operations on one loader, by a state machine: iterators, held batches, states, closing."""

import gc
from types import SimpleNamespace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpuloader import DataLoader
from gpuloader.order.order import Shuffled
from gpuloader.testing import simulated_places
from tests.fakes import loader_threads, wait_until

SEED = 5


class Operations(RuleBasedStateMachine):
    """One loader, driven by operations in any order, next to a model that needs two lists and two numbers."""

    readings = Bundle("readings")
    states = Bundle("states")

    @initialize(
        count=st.integers(0, 13),
        size=st.integers(1, 4),
        shuffle=st.booleans(),
        read_ahead=st.sampled_from([True, False, "thread"]),
        workers=st.sampled_from([0, 0, 2]),
        simulated=st.booleans(),
    )
    def make(self, count, size, shuffle, read_ahead, workers, simulated):
        shuffle = shuffle and count > 0  # there is nothing to shuffle otherwise, and the loader says so
        self.count, self.size, self.shuffle = count, size, shuffle
        self.places = simulated_places(1, count) if simulated else "cpu"
        self.loader = DataLoader(
            [np.full(3, number) for number in range(count)],
            places=self.places,
            batch_size=size,
            shuffle=shuffle,
            seed=SEED,
            use_buffer_reader=read_ahead,
            num_workers=workers,
            worker_type="thread",
        )
        self.next_epoch, self.resumes_at = 0, None
        self.latest = None
        self.held = []
        self.begun = []

    def batches(self, epoch):
        order = Shuffled(self.count, SEED, epoch).slice(0, self.count) if self.shuffle else range(self.count)
        return [order[start : start + self.size] for start in range(0, self.count, self.size)]

    @rule(target=readings)
    def iterate(self):
        """Return an iterator, with the epoch and the position that it must have."""
        self.begun.append(SimpleNamespace(iterator=iter(self.loader), epoch=None, taken=0, is_over=False))
        return self.begun[-1]

    @rule(reading=readings, keep=st.booleans(), steps=st.integers(1, 6))
    def take(self, reading, keep, steps):
        for _ in range(steps):
            if reading.iterator is None:
                return
            if reading.epoch is None and not reading.is_over:
                reading.epoch, reading.taken = self.resumes_at or (self.next_epoch, 0)
                self.next_epoch, self.resumes_at, self.latest = reading.epoch + 1, None, reading
            expected = [] if reading.is_over else self.batches(reading.epoch)[reading.taken :]
            batch = next(reading.iterator, None)
            if not expected:
                assert batch is None
                reading.is_over = reading.is_over or True
                return
            assert batch is not None
            self.look(batch, expected[0])
            reading.taken += 1
            if keep:
                self.held.append((batch, expected[0]))

    def look(self, batch, numbers):
        np.testing.assert_array_equal(np.asarray(batch), np.repeat(numbers, 3).reshape(-1, 3))

    @rule(reading=readings)
    def close(self, reading):
        if reading.iterator is not None:
            reading.iterator.close()
            self.end(reading)

    @rule(reading=consumes(readings), in_a_cycle=st.booleans())
    def drop(self, reading, in_a_cycle):
        if in_a_cycle:
            cycle = [reading.iterator]
            cycle.append(cycle)
        reading.iterator = None
        self.end(reading)

    def end(self, reading):
        """After its end, an epoch that began is left where it was, and one that did not never begins."""
        reading.is_over = reading.is_over or "left"

    @rule()
    def collect(self):
        gc.collect()

    @rule()
    def close_the_loader(self):
        self.loader.close()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        self.look(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule(target=states)
    def save(self):
        state = self.loader.state_dict()
        at = self.resumes_at
        if at is None and self.latest is not None and self.latest.is_over is not True:
            at = self.latest.epoch, self.latest.taken
        if at is None:
            at = self.next_epoch, 0
        assert (state["epoch"], state["batches"], state["seed"]) == (*at, SEED)
        return state, at

    @rule(saved=states)
    def load(self, saved):
        state, at = saved
        self.loader.load_state_dict(state)
        self.resumes_at = at

    @rule(epoch=st.integers(0, 3))
    def resume_at_an_epoch(self, epoch):
        state = {"version": 1, "epoch": epoch, "batches": 0, "seed": SEED, "batch_size": self.size}
        self.loader.load_state_dict(state)
        self.resumes_at = epoch, 0

    @invariant()
    def held_batches_are_whole(self):
        for batch, numbers in getattr(self, "held", ()):
            self.look(batch, numbers)

    def teardown(self):
        # Hypothesis keeps some machines, with all that is in bundles.
        for reading in getattr(self, "begun", ()):
            reading.iterator = None
        self.held = self.latest = self.loader = None
        gc.collect()


def test_any_order_of_operations():
    run_state_machine_as_test(Operations, settings=settings(max_examples=40, stateful_step_count=30))
    wait_until(lambda: not loader_threads())
