"""Reading ahead without workers: in order, without loss, and without anything left behind."""

import gc
import itertools
import os
import signal
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from gpuloader import DataLoader, IterableDataset, LoaderError, SampleError
from gpuloader.errors import QueueClosed
from gpuloader.fetch import read_ahead
from gpuloader.fetch.contract import EpochRequest
from gpuloader.fetch.read_ahead import InlineFetch, stage_inline
from gpuloader.order.randomness import current_draw
from gpuloader.staging import Ring
from gpuloader.system.threads import this_thread
from gpuloader.testing import CustomPlace, SimulatedDevice
from gpuloader.watch import read_ahead_policy as policy
from gpuloader.watch.stats import Meter
from tests import loading
from tests.fakes import loader_threads, no_other_collection, wait_until
from tests.processes import run_in_fork
from tests.sample_sets import Made

LONG = 0.004  # seconds; far more than a thread costs


class Numbers:
    """Numbers, each read in some time, that notes which threads read them."""

    def __init__(self, count=40, seconds=0.0, fails=None):
        self.count, self.seconds, self.fails = count, seconds, fails
        self.readers, self.read = set(), []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.fails:
            raise KeyError(index)
        self.readers.add(threading.current_thread().name)
        time.sleep(self.seconds)
        self.read.append(index)
        return np.int64(index)


class Stream(IterableDataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        return (self.numbers[index] for index in range(len(self.numbers)))


load = partial(loading.load, batch_size=1)


def loop(loader, seconds=0.0):
    found = []
    for batch in loader:
        found += batch.tolist()
        time.sleep(seconds)
    return found


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    gc.collect()
    wait_until(lambda: not loader_threads())


@pytest.fixture
def threads_never_pay(monkeypatch):
    """Nothing takes longer than what a hand-over is said to cost."""
    for module, name in ((policy, "PAYS"), (read_ahead, "PAYS"), (policy, "LONG")):
        monkeypatch.setattr(module, name, 10**12)


@pytest.mark.parametrize("kind", [lambda numbers: numbers, Stream])
@pytest.mark.parametrize("way", [True, False, "thread"])
def test_every_way_reads_the_same(kind, way):
    for seconds in (0.0, 0.001):
        assert loop(load(kind(Numbers(seconds=seconds)), use_buffer_reader=way), seconds) == list(range(40))


def test_the_next_batches_are_read_while_the_loop_computes():
    numbers = Numbers(seconds=LONG)
    epoch = iter(load(numbers))
    assert next(epoch).tolist() == [0]
    wait_until(lambda: 1 in numbers.read)  # nobody has asked for it
    assert len(numbers.readers) == 2  # the first was read by whoever waited for it


def test_nothing_is_read_ahead_without_a_buffer_reader_and_no_thread_reads_what_is_short(threads_never_pay):
    numbers = Numbers(seconds=LONG)
    next(iter(load(numbers, use_buffer_reader=False)))
    assert not loader_threads()
    assert numbers.read == [0]
    numbers = Numbers(400)
    assert loop(load(numbers)) == list(range(400))
    assert numbers.readers == {"MainThread"}


def test_an_iterable_dataset_stays_in_the_thread_that_opened_it():
    """Within an epoch: readers hold connections and thread-locals."""
    numbers = Numbers(60, LONG)
    loader = load(Stream(numbers))
    for step in (LONG, 0.0, LONG):
        numbers.readers.clear()
        loop(loader, step)
        assert len(numbers.readers) == 1


@pytest.mark.parametrize("way", [True, "thread", False])
def test_an_error_is_raised_at_its_own_batch(way):
    found = []
    with pytest.raises(SampleError, match=r"batch 7.*dataset index 7"):
        for batch in load(Numbers(fails=7), use_buffer_reader=way):
            found.append(batch.item())
            time.sleep(0.001)
    assert found == list(range(7))


def test_a_state_counts_only_what_was_delivered():
    numbers = Numbers(20, 0.001)
    loader, again = load(numbers, use_buffer_reader="thread"), load(Numbers(20))
    epoch = iter(loader)
    for _ in range(3):
        next(epoch)
    wait_until(lambda: len(numbers.read) > 3)
    again.load_state_dict(loader.state_dict())
    assert loop(again) == list(range(3, 20))


def test_leaving_the_loop_stops_reading():
    numbers = Numbers(10_000, 0.0005)
    for batch in load(numbers):
        time.sleep(0.001)
        if batch.item() == 5:
            break
    del batch
    gc.collect()
    wait_until(lambda: not loader_threads())
    assert len(numbers.read) < 100


@pytest.mark.parametrize("way", [True, "thread", False])
@pytest.mark.parametrize("ending", ["at the last batch", "ended", "failed"])
def test_an_epoch_that_is_over_waits_for_no_garbage_collection(way, ending):
    """The exception that ends it knows the frames of the loop, and so the epoch."""
    numbers, place = Numbers(5, fails=3 if ending == "failed" else None), CustomPlace(SimulatedDevice())
    with no_other_collection():
        epoch = iter(DataLoader(numbers, places=place, batch_size=1, use_buffer_reader=way))
        with suppress(SampleError):
            for _ in itertools.islice(epoch, 5) if ending == "at the last batch" else epoch:
                pass
        left = weakref.ref(epoch)
        del epoch
        assert left() is None


@pytest.mark.parametrize(("place", "read"), [("cpu", [0]), (CustomPlace(SimulatedDevice()), [0, 1])])
def test_without_a_thread_the_next_batch_is_read_early_if_it_has_to_be_copied(threads_never_pay, place, read):
    """Its copy then runs while the loop computes; in host memory, reading it early would gain nothing."""
    numbers = Numbers(6)
    loader = DataLoader(numbers, places=place, batch_size=1)
    epoch = iter(loader)
    for number in range(3):
        assert np.asarray(next(epoch)).tolist() == [number]
        assert numbers.read == [*range(number), *(number + ahead for ahead in read)]
    assert len(list(epoch)) == 3


def test_a_thread_that_takes_turns_with_the_loop_reads_beside_a_long_step(threads_never_pay):
    numbers = Numbers(30, 0.002)
    epoch = iter(load(Stream(numbers)))
    for number in range(10):
        assert next(epoch).item() == number
        wait_until(lambda number=number: len(numbers.read) > number + 1)  # nobody has asked for it
    assert loop(epoch) == list(range(10, 30))
    assert numbers.readers == {"gpuloader-reader"}


def test_an_interrupt_while_the_thread_starts_loses_no_batch(monkeypatch):
    epoch, found = iter(load(Numbers(12, LONG))), []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(read_ahead, "start_thread", Mock(side_effect=KeyboardInterrupt))
        found.extend(batch.item() for batch in epoch)
    found += (batch.item() for batch in epoch)
    assert found == list(range(12))


def test_a_batch_is_delivered_although_the_next_takes_long():
    """A short batch is not kept back to be handed over with the next one."""
    release = threading.Event()

    class Live(IterableDataset):
        def __iter__(self):
            yield 1
            release.wait(30)
            yield 2

    epoch = iter(load(Live(), use_buffer_reader="thread"))
    assert next(epoch).item() == 1
    release.set()
    assert next(epoch).item() == 2


def test_more_is_held_than_there_are_slots_and_nothing_waits_forever():
    for way in (True, "thread"):
        held = list(load(Numbers(500), use_buffer_reader=way, prefetch_factor=1))
        assert [batch.item() for batch in held] == list(range(500))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_epoch_cannot_continue_in_a_forked_process_but_a_new_one_can():
    epoch = iter(load(Numbers(30, LONG)))
    next(epoch)
    wait_until(lambda: loader_threads())

    def child():
        with pytest.raises(LoaderError):
            list(epoch)
        assert loop(load(Numbers(5))) == list(range(5))

    run_in_fork(child)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_an_interrupt_in_the_middle_of_a_batch_ends_the_epoch_and_says_so():
    def interrupt(index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return np.int64(index)

    epoch, found = iter(load(Made(interrupt, 10))), []
    for error in (pytest.raises(KeyboardInterrupt), suppress(LoaderError)):
        with error:
            found.extend(batch.item() for batch in epoch)
    assert found == list(range(len(found)))
    assert loop(load(Numbers(5))) == list(range(5))


def test_the_last_batch_is_not_lost_if_it_arrives_with_the_end():
    fetch = read_ahead.ReadAhead(iter([]), Ring(2, 0), 2, policy.ReadAheadPolicy())

    class Late(deque):
        """Batches of a thread that brings the last one, and ends, just after the consumer has found none."""

        def __bool__(self):
            found = len(self) > 0
            if fetch._shared.ending is None:
                self.append("last")
                fetch._shared.ending = QueueClosed("the reader has no more batches")
            return found

    fetch._shared.items = Late()
    assert fetch.get() == "last"
    with pytest.raises(QueueClosed):
        fetch.get()


# Fetching in the consumer's thread: each batch is read when it is asked for, and no slot is lost.


NBYTES = 100


class Reading:
    """A plan of batches, how they are assembled, and what became of them."""

    def __init__(self, assemble=None, count=3):
        self.ring, self.meter = Ring(2, 1), Meter()
        self.ring.release(self.ring.acquire(NBYTES))
        self.assemble = assemble
        self.read, self.closed = [], []
        epoch = EpochRequest(5, 2, ((number, (number,)) for number in range(count)), {}, owner=self)
        close = partial(self.closed.append, 1)
        self.fetch = InlineFetch(stage_inline(epoch, self._assemble, self.ring, self.meter, close))

    def get(self):
        """Read a batch, and give its slot back."""
        self.ring.release(self.fetch.get().slot)

    def has_ended(self, free=2):
        with pytest.raises(QueueClosed):
            self.fetch.get()
        return (self.closed, self.ring.free) == ([1], free)

    def _assemble(self, number, indices, reserve):
        self.read.append((number, indices))
        slot = reserve(NBYTES)
        if self.assemble is not None and self.assemble(number) is False:
            return None
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
        assert reading.has_ended()
    assert reading.read == [(0, (0,)), (1, (1,)), (2, (2,))]
    assert (reading.meter.batches, reading.meter.nbytes) == (3, 3 * NBYTES)
    assert 0 < reading.meter.fetch <= perf_counter_ns() - begun


def test_an_error_costs_no_slot_and_ends_the_data():
    def fail(number):
        if number == 1:
            raise OSError("gone")

    reading = Reading(fail)
    reading.get()
    with pytest.raises(OSError, match="gone"):
        reading.get()
    assert reading.has_ended()


def test_an_interrupt_costs_no_slot_and_is_no_end_of_the_data():
    reading = Reading(Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        reading.get()
    assert (reading.closed, reading.ring.free) == ([1], 2)
    with pytest.raises(LoaderError, match="was interrupted in the middle of a batch") as caught:
        reading.get()
    assert not isinstance(caught.value, QueueClosed)


def test_data_that_end_before_the_plan_cost_no_slot():
    reading = Reading(lambda number: number == 0)
    reading.get()
    assert reading.has_ended()


def test_closing_closes_the_reader_and_keeps_the_slots_of_batches():
    reading = Reading()
    batch = reading.fetch.get()
    assert reading.fetch.close() is True
    assert reading.has_ended(free=1)
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
        reading.get()
        assert (current_draw(), this_thread.reads_for) == outer
        assert seen[number] == (number, 5, 2, reading)
    with pytest.raises(OSError, match="gone"):
        reading.fetch.get()
    assert (current_draw(), this_thread.reads_for) == outer
