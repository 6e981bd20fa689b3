"""Fetching in the consumer's thread: each batch is read when it is asked for, and no slot is lost."""

from time import perf_counter_ns
from types import SimpleNamespace

import pytest

from gpuloader import LoaderError
from gpuloader.errors import QueueClosed
from gpuloader.fetch.base import EpochRequest
from gpuloader.fetch.read_ahead import InlineFetch, stage_inline
from gpuloader.order.randomness import current_draw
from gpuloader.staging.ring import Ring
from gpuloader.system.threads import this_thread
from gpuloader.watch.stats import Meter

NBYTES = 100


class Reading:
    """A plan of batches, how they are assembled, and what became of them."""

    def __init__(self, assemble=None, count=3):
        self.ring, self.meter = Ring(2, 1), Meter()
        self.ring.release(self.ring.acquire(NBYTES))
        self.assemble = assemble
        self.read, self.closed = [], []
        batches = stage_inline(
            EpochRequest(5, 2, ((number, (number,)) for number in range(count)), {}, owner=self),
            self._assemble,
            self.ring,
            self.meter,
            close=lambda: self.closed.append(1),
        )
        self.fetch = InlineFetch(batches)

    def _assemble(self, number, indices, reserve):
        self.read.append((number, indices))
        slot = reserve(NBYTES)
        if self.assemble is not None:
            self.assemble(number)
        return SimpleNamespace(slot=slot, layout=SimpleNamespace(nbytes=NBYTES), skipped=0, number=number)


def test_a_batch_is_read_when_it_is_asked_for():
    reading, begun = Reading(), perf_counter_ns()
    assert reading.fetch.get_nowait() is None
    assert reading.read == []
    for number in range(3):
        batch = reading.fetch.get()
        assert (batch.number, len(reading.read)) == (number, number + 1)
        reading.ring.release(batch.slot)
    for _ in range(2):
        with pytest.raises(QueueClosed):
            reading.fetch.get()
    assert reading.read == [(0, (0,)), (1, (1,)), (2, (2,))]
    assert (reading.closed, reading.ring.free) == ([1], 2)
    assert (reading.meter.batches, reading.meter.nbytes) == (3, 3 * NBYTES)
    assert 0 < reading.meter.fetch <= perf_counter_ns() - begun


def test_an_error_costs_no_slot_and_ends_the_data():
    def fail(number):
        if number == 1:
            raise OSError("gone")

    reading = Reading(fail)
    reading.ring.release(reading.fetch.get().slot)
    with pytest.raises(OSError, match="gone"):
        reading.fetch.get()
    assert (reading.closed, reading.ring.free) == ([1], 2)
    with pytest.raises(QueueClosed):
        reading.fetch.get()


def test_an_interrupt_costs_no_slot_and_is_no_end_of_the_data():
    def interrupt(number):
        raise KeyboardInterrupt

    reading = Reading(interrupt)
    with pytest.raises(KeyboardInterrupt):
        reading.fetch.get()
    assert (reading.closed, reading.ring.free) == ([1], 2)
    with pytest.raises(LoaderError, match="was interrupted in the middle of a batch") as caught:
        reading.fetch.get()
    assert not isinstance(caught.value, QueueClosed)


def test_data_that_end_before_the_plan_cost_no_slot():
    ring, closed = Ring(2, 1), []

    def assemble(number, indices, reserve):
        slot = reserve(NBYTES)
        return (
            None if number else SimpleNamespace(slot=slot, layout=SimpleNamespace(nbytes=NBYTES), skipped=0)
        )

    epoch = EpochRequest(0, 0, iter([(0, ()), (1, ()), (2, ())]), {})
    batches = stage_inline(epoch, assemble, ring, Meter(), close=lambda: closed.append(1))
    first = next(batches)
    assert list(batches) == []
    assert (closed, ring.free) == ([1], 1)
    ring.release(first.slot)


def test_closing_closes_the_reader_and_keeps_the_slots_of_batches():
    reading = Reading()
    batch = reading.fetch.get()
    assert reading.fetch.close() is True
    assert (reading.closed, reading.ring.free) == ([1], 1)
    with pytest.raises(QueueClosed):
        reading.fetch.get()
    reading.ring.release(batch.slot)
    assert InlineFetch(iter([])).close() is True  # not every iterator can be closed


def test_loops_over_several_loaders_draw_and_read_each_for_itself():
    """What the thread draws and reads for is the loader's while it reads, and the loop's in between."""
    seen = []

    def note(number):
        seen.append((number, current_draw().seed, current_draw().epoch, this_thread.reads_for))
        if number == 2:
            raise OSError("gone")

    outer = current_draw(), this_thread.reads_for
    reading = Reading(note)
    for number in range(2):
        reading.ring.release(reading.fetch.get().slot)
        assert (current_draw(), this_thread.reads_for) == outer
        assert seen[number] == (number, 5, 2, reading)
    with pytest.raises(OSError, match="gone"):
        reading.fetch.get()
    assert (current_draw(), this_thread.reads_for) == outer
