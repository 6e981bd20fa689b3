"""Reading ahead without workers: in order, without loss, and without anything left behind."""

import gc
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from unittest.mock import Mock

import numpy as np
import pytest

from gpuloader import DataLoader, LoaderError, SampleError
from gpuloader.errors import QueueClosed
from gpuloader.fetch import read_ahead
from gpuloader.staging import Ring
from gpuloader.testing import CustomPlace, SimulatedDevice
from gpuloader.watch import read_ahead_policy as policy
from tests import loading
from tests.api.streams import Items
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


def stream(numbers):
    return Items(partial(map, numbers.__getitem__, range(len(numbers))))


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


@pytest.mark.parametrize("kind", [lambda numbers: numbers, stream])
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
    loader = load(stream(numbers))
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
        loader = DataLoader(numbers, places=place, batch_size=1, use_buffer_reader=way)
        epoch = iter(loader)
        with suppress(SampleError):
            for _ in itertools.islice(epoch, 5) if ending == "at the last batch" else epoch:
                pass
        left = weakref.ref(epoch)
        del epoch
        assert left() is None
    [buffers] = loader._epochs._idle
    assert buffers.ring.free == buffers.ring.count  # and costs no slot


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
    epoch = iter(load(stream(numbers)))
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

    def live():
        yield 1
        release.wait(60)
        yield 2

    epoch = iter(load(Items(live), use_buffer_reader="thread"))
    assert next(epoch).item() == 1
    release.set()
    assert next(epoch).item() == 2


def test_more_is_held_than_there_are_slots_and_nothing_waits_forever():
    for way in (True, "thread"):
        held = list(load(Numbers(500), use_buffer_reader=way, prefetch_factor=1))
        assert [batch.item() for batch in held] == list(range(500))


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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_the_thread_is_in_the_middle_of_a_batch():
    begun, go = threading.Semaphore(0), threading.Semaphore(0)

    def reader():
        while True:
            begun.release()
            go.acquire()
            yield [np.zeros(1)]

    def child():
        with pytest.raises(LoaderError, match="start a new epoch here"):
            list(epoch)

    ahead = DataLoader.from_generator(capacity=2, return_list=True, use_double_buffer="thread")
    epoch = iter(ahead.set_batch_generator(reader, places="cpu"))
    # CPython 3.11 crashed in some of these, depending on how often the interrupted code had run.
    for batch in range(220):
        begun.acquire()  # the thread is in the reader
        if batch > 150:
            run_in_fork(child)
        go.release()
        next(epoch)
    go.release()


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


@pytest.mark.parametrize(
    ("function", "way", "count"),
    [(read_ahead.InlineFetch.get, False, 2), (read_ahead.ReadAhead._read_here, True, 0)],
)
def test_a_ctrl_c_in_any_line_of_a_read_shows_nothing_else(function, way, count):
    def trace(frame, event, _):
        if frame.f_code is not function.__code__:
            return None
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) == stop:
                os.kill(os.getpid(), signal.SIGINT)
        return trace

    before, shown = sys.gettrace(), []
    for stop in itertools.count(1):
        seen = []
        sys.settrace(trace)
        try:
            list(load(Numbers(count), use_buffer_reader=way))
        except KeyboardInterrupt as error:
            shown.append(error.__context__)
        finally:
            sys.settrace(before)
        if len(seen) < stop:
            break
    assert shown == [None] * (stop - 1)


def test_a_ctrl_c_behind_taking_the_turn_gives_it_back():
    """In `acquire`, Python looks for signals when the lock is taken already."""
    fetch = read_ahead.ReadAhead(iter(["batch"]), Ring(2, 0), 2, policy.ReadAheadPolicy())

    class Interrupted:
        def __init__(self, turn):
            self.release, self.turn = turn.release, turn

        def acquire(self, **options):
            fetch._shared.turn = self.turn
            self.turn.acquire(**options)
            raise KeyboardInterrupt

    turn, fetch._shared.turn = fetch._shared.turn, Interrupted(fetch._shared.turn)
    with pytest.raises(KeyboardInterrupt):
        fetch.get()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(turn.acquire, blocking=False).result()
    with pytest.raises(LoaderError, match="in the middle of a batch"):
        fetch.get()


@pytest.mark.parametrize("kind", [lambda numbers: numbers, stream])
def test_a_batch_that_a_ctrl_c_loses_is_reported_at_the_end(monkeypatch, kind):
    real, taken = read_ahead.ReadAhead.get, []

    def get(fetch):
        taken.append(real(fetch))
        if len(taken) == 3:
            raise KeyboardInterrupt
        return taken[-1]

    monkeypatch.setattr(read_ahead.ReadAhead, "get", get)
    loader = load(kind(Numbers(6)))
    epoch, found = iter(loader), []
    for error in (pytest.raises(KeyboardInterrupt), pytest.raises(LoaderError, match="was interrupted")):
        with error:
            found.extend(batch.item() for batch in epoch)
    assert found == [0, 1, 3, 4, 5]
    if isinstance(loader.dataset, Numbers):
        again = load(Numbers(6))
        again.load_state_dict(loader.state_dict())
        assert loop(again) == [2]


@pytest.mark.parametrize("side", ["reader", "consumer"])
def test_a_ctrl_c_behind_giving_a_permit_loses_none(side):
    shared = read_ahead.ReadAhead(iter([]), Ring(2, 0), 2, policy.ReadAheadPolicy())._shared

    class Interrupted(SimpleQueue):
        def put(self, permit):
            super().put(permit)
            raise KeyboardInterrupt

    setattr(shared, f"{side}_sleeps", True)
    setattr(shared, f"for_{side}", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        getattr(shared, f"wake_{side}")()
    assert getattr(shared, f"for_{side}").qsize() == 1
    assert shared.mutex.acquire(blocking=False)


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


@pytest.mark.parametrize("way", [True, "thread", False])
def test_a_batch_that_cannot_be_written_costs_no_slot(way):
    loader = load([np.zeros(2)] * 5 + [np.zeros(3)], batch_size=2, use_buffer_reader=way)
    with pytest.raises(SampleError, match="expected shape"):
        list(loader)
    [buffers] = loader._epochs._idle
    buffers.ring.drain()
    assert buffers.ring.free == buffers.ring.count


def test_closing_closes_the_reader_if_it_can_be_closed():
    closed = []

    def read():
        try:
            yield from range(3)
        finally:
            closed.append(True)

    reader = read()
    fetch = read_ahead.InlineFetch(reader)
    assert fetch.get() == 0
    assert fetch.close() is True
    assert closed == [True]
    with pytest.raises(QueueClosed):
        fetch.get()
    assert read_ahead.InlineFetch(iter([])).close() is True


def test_a_bound_source_that_the_consumer_reads_has_no_thread_and_is_measured():
    how = policy.ReadAheadPolicy(bound=True)
    assert how.threaded  # as long as nothing is known
    how.read = 1.0
    fetch = read_ahead.open_fetch(iter(range(20)), Ring(2, 0), 2, how)
    assert isinstance(fetch, read_ahead.InlineFetch)
    before = loader_threads()
    assert [fetch.get() for _ in range(20)] == [*range(20)]
    assert loader_threads() == before
    assert how.read > 1  # several decisions have been made since
    with pytest.raises(QueueClosed):
        fetch.get()


def test_without_a_thread_a_batch_is_read_early_only_into_a_free_slot():
    ring = Ring(1, 0)
    fetch = read_ahead.InlineFetch(iter(range(2)), ring, policy.ReadAheadPolicy(bound=True, read=1.0))
    assert fetch.get_nowait() == 0  # no slot was needed yet
    slot = ring.acquire(8)
    assert fetch.get_nowait() is None
    ring.release(slot)
    assert fetch.get_nowait() == 1
    assert read_ahead.InlineFetch(iter([0])).get_nowait() is None  # nothing is read ahead
