"""Epochs: how they end, by themselves or by an error, and what they leave for the next one."""

import gc
import sys
import threading
from collections import deque

import numpy as np
import pytest

from gpuloader import CPUPlace, DataLoader, LoaderError
from gpuloader.devices.places import Place
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import open_epoch, take_buffers
from gpuloader.system import interrupts as exiting
from gpuloader.testing import simulated_places
from gpuloader.watch.stats import Meter
from tests.epoch.test_steps import Staged
from tests.fakes import loader_threads

PLACES = {"cpu": lambda: [CPUPlace()], "one": lambda: simulated_places(1), "two": lambda: simulated_places(2)}


class Loop:
    """An epoch over ready batches, and what it left."""

    def __init__(self, entries, places: list[Place], present=list, **options):
        meter = Meter()
        delivery = Delivery.of(places, None, None, prefetch=1, drop_last=False, **options)
        self.buffers = take_buffers(deque(), delivery, 4, meter)
        self.fetch = Staged(self.buffers.ring, entries)
        self.idle, self.ended = deque(), []
        self.epoch = open_epoch(
            self.buffers,
            self.fetch,
            present,
            self.idle,
            drop_last=False,
            meter=meter,
            ended=lambda: self.ended.append(1),
        )


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def places(request):
    return request.param()


class TestTheEnd:
    def test_leaves_the_buffers_for_the_next_epoch(self, places):
        loop = Loop(range(6), places)
        assert loop.epoch.is_running
        assert len(list(loop.epoch)) == 6 // len(places)
        assert not loop.epoch.is_running
        assert (list(loop.idle), loop.ended, loop.fetch.is_closed) == ([loop.buffers], [1], True)
        assert list(loop.epoch) == []
        assert loop.ended == [1]

    def test_by_an_error_of_the_fetcher_closes_the_epoch(self, places):
        loop = Loop([*range(2), OSError("gone"), *range(2)], places)
        with pytest.raises(OSError, match="gone"):
            list(loop.epoch)
        assert (list(loop.idle), loop.ended, loop.fetch.is_closed) == ([loop.buffers], [], True)
        assert list(loop.epoch) == []
        assert loop.ended == []

    def test_by_an_error_while_presenting_closes_the_epoch(self, places):
        def present(step):
            raise ValueError("cannot be presented")

        loop = Loop(range(6), places, present)
        with pytest.raises(ValueError, match="cannot be presented"):
            next(loop.epoch)
        assert (list(loop.idle), loop.ended, loop.fetch.is_closed) == ([loop.buffers], [], True)
        assert list(loop.epoch) == []

    def test_by_an_error_of_the_first_steps_copy_closes_the_epoch(self, monkeypatch, places):
        def fail(*_):
            raise LoaderError("the device is lost")

        loop = Loop(range(6), places)
        monkeypatch.setattr(loop.buffers.lanes[-1], "issue", fail)
        with pytest.raises(LoaderError, match="lost"):
            loop.epoch.prepare()
        assert not loop.epoch.is_running
        assert (loop.ended, loop.fetch.is_closed) == ([], True)
        assert list(loop.epoch) == []
        loop.epoch.prepare()  # nothing is left to prepare

    def test_by_close_is_no_end_of_the_data(self, places):
        loop = Loop(range(6), places)
        next(loop.epoch)
        loop.epoch.close()
        loop.epoch.close()
        assert (list(loop.idle), loop.ended, loop.fetch.is_closed) == ([loop.buffers], [], True)
        assert list(loop.epoch) == []

    def test_does_not_come_with_an_interrupt(self, places):
        """A Ctrl-C belongs to the program, which may handle it and go on."""
        loop = Loop([KeyboardInterrupt(), *range(2)], places)
        with pytest.raises(KeyboardInterrupt):
            next(loop.epoch)
        assert not loop.fetch.is_closed
        assert len(list(loop.epoch)) == 2 // len(places)


@pytest.mark.parametrize(("places", "question"), [(1, "begin"), (2, "find_capture")])
def test_a_device_that_fails_when_it_is_asked_for_a_capture_ends_the_epoch(monkeypatch, places, question):
    loop = Loop(range(6), simulated_places(places))
    next(loop.epoch)

    def fail(*_):
        raise LoaderError("the device is lost")

    monkeypatch.setattr(loop.buffers.lanes[0], question, fail)
    with pytest.raises(LoaderError, match="lost"):
        next(loop.epoch)
    assert (loop.ended, loop.fetch.is_closed) == ([], True)
    assert list(loop.epoch) == []


@pytest.mark.parametrize("question", ["begin", "find_capture", "issue"])
def test_a_daemon_thread_whose_device_goes_at_exit_ends_in_silence(monkeypatch, question):
    """The program is over, so what follows the loop must not run. Threads do not print a SystemExit."""
    loop = Loop(range(6), simulated_places(2 if question == "find_capture" else 1))
    next(loop.epoch)
    seen = []

    def fail(*_):
        raise LoaderError("the device is lost")

    def go_on():
        seen.append("begun")
        for _ in loop.epoch:
            seen.append("delivered")
        seen.append("saved")

    monkeypatch.setattr(loop.buffers.lanes[0], question, fail)
    monkeypatch.setattr(exiting, "_exiting", True)
    monkeypatch.setattr(threading, "excepthook", lambda raised: seen.append(raised.exc_type))
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    thread.join(30)
    assert (seen, loop.fetch.is_closed) == (["begun", SystemExit], True)


def test_a_dropped_epoch_that_cannot_be_closed_is_silent(monkeypatch):
    """Python prints what a finalizer raises, which nobody could handle."""
    loop, printed = Loop(range(6), [CPUPlace()]), []
    next(loop.epoch)

    def fail():
        raise LoaderError("the device is lost")

    monkeypatch.setattr(loop.fetch, "close", fail)
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    loop.epoch = None
    gc.collect()
    assert (printed, list(loop.idle)) == ([], [])


def test_a_dropped_epoch_leaves_the_buffers_for_the_next_one():
    loop = Loop(range(6), [CPUPlace()])
    next(loop.epoch)
    loop.epoch = None
    gc.collect()
    assert (list(loop.idle), loop.ended, loop.fetch.is_closed) == ([loop.buffers], [], True)


def test_an_epoch_whose_slots_are_not_all_back_leaves_nothing():
    loop = Loop(range(3), [CPUPlace()])
    loop.buffers.ring.acquire(1)  # as of a thread that hangs in the user's dataset
    list(loop.epoch)
    assert not loop.idle


def test_a_held_batch_keeps_its_slot_and_not_the_buffers():
    loop = Loop(range(4), [CPUPlace()])
    kept = next(loop.epoch)
    list(loop.epoch)
    assert list(loop.idle) == [loop.buffers]
    assert loop.buffers.ring.leased >= 1
    [(_, [array])] = kept
    assert (array == 0).all()


def test_after_an_error_a_loader_has_nothing_running_and_begins_again():
    class Faulty:
        def __len__(self):
            return 12

        def __getitem__(self, index):
            if index == 5:
                raise KeyError(index)
            return np.int64(index)

    for options in ({"use_buffer_reader": "thread"}, {"num_workers": 2, "worker_type": "thread"}):
        loader = DataLoader(Faulty(), places="cpu", batch_size=2, **options)
        for _ in range(2):
            epoch = iter(loader)
            assert [next(epoch).tolist(), next(epoch).tolist()] == [[0, 1], [2, 3]]
            with pytest.raises(ValueError, match="index 5"):
                next(epoch)
            assert loader_threads() == []
            assert list(epoch) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_that_an_interrupt_kept_back_is_ordered_before_the_stream_of_whoever_gets_it(seed):
    """It was delivered to another stream, before the next batch was read."""
    [place] = simulated_places(1, seed)
    device = place.device
    streams = [device.stream(), device.stream()]
    loop, seen = Loop([0, 1, KeyboardInterrupt(), 2, 3], [place]), []
    with device.use(streams[0]):
        [(_, [batch])] = next(loop.epoch)
        seen.append(batch.launch_read(duration=3.0))
        with pytest.raises(KeyboardInterrupt):
            next(loop.epoch)
    for stream in (streams[1], streams[0], streams[1]):
        with device.use(stream):
            [(_, [batch])] = next(loop.epoch)
            seen.append(batch.launch_read(duration=1.0))
    for stream in streams:
        device.finish(stream)
    assert [values[0].ravel()[0] for values in seen] == [0, 1, 2, 3]
    del batch
    assert list(loop.epoch) == []
