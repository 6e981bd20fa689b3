"""Steps: batches are grouped, copied ahead and delivered in order, and every slot comes back."""

import gc
import os
from collections import deque
from time import perf_counter_ns

import numpy as np
import pytest

from gpuloader import LoaderError
from gpuloader.batches.stream import StagedBatch
from gpuloader.devices.host import HostDevice
from gpuloader.epoch.epoch import Epoch, EpochBuffers
from gpuloader.epoch.lane import Lane, count_slots
from gpuloader.errors import QueueClosed
from gpuloader.staging.layout import arrange
from gpuloader.staging.ring import Ring
from gpuloader.testing import SimulatedDevice
from gpuloader.watch.stats import Meter

LAYOUT = arrange((((2, 3), np.dtype("int64")),))


class Staged:
    """A fetcher whose batches are ready at once: numbers to fill them with, or errors to raise instead.

    Before an entry that is None, it has to be waited for.
    """

    def __init__(self, ring, entries):
        self.ring = ring
        self.entries = deque(entries)
        self.is_closed = False
        self.waits = 0

    def get(self):
        if not self.entries:
            raise QueueClosed("no more")
        entry = self.entries.popleft()
        if entry is None:
            self.waits += 1
            return self.get()
        if isinstance(entry, BaseException):
            raise entry
        slot = self.ring.acquire(LAYOUT.nbytes)
        slot.views(LAYOUT)[0][...] = entry
        return StagedBatch(slot, LAYOUT, (0,), entry)

    def get_nowait(self):
        return None if self.entries and self.entries[0] is None else self.get()

    def close(self):
        self.is_closed = True
        return True


class Stepping:
    """An epoch over simulated devices, of which the last may be hosts."""

    def __init__(self, entries, *, places=2, drop_last=False, prefetch=1, masking=None, hosts=0):
        self.devices = [SimulatedDevice() for _ in range(places - hosts)]
        self.devices += [HostDevice() for _ in range(hosts)]
        prefetch = 0 if hosts == places else prefetch
        self.ring = Ring(*count_slots(8, self.devices, prefetch))
        self.meter = Meter()
        self.lanes = [Lane(device, self.ring, prefetch, self.meter) for device in self.devices]
        self.fetch = Staged(self.ring, entries)
        self.idle = deque()
        buffers = EpochBuffers(self.ring, tuple(self.lanes), prefetch, os.getpid())
        self.epoch = Epoch(
            buffers,
            self.fetch,
            lambda step: step,
            self.idle,
            drop_last=drop_last,
            meter=self.meter,
            masking=masking,
        )

    def step(self):
        """Return the numbers of the next step's batches, which are dropped."""
        if self.epoch.asks:
            assert self.epoch.begin_step() is None
        step = self.epoch.next_step(perf_counter_ns())
        return [int(np.asarray(arrays[0])[1, 2]) for _, arrays in step]

    def steps(self):
        found = []
        with pytest.raises(QueueClosed):
            while True:
                found.append(self.step())
        return found

    def is_whole(self):
        """Close the epoch, and return whether all slots are free, on the host and on the devices."""
        gc.collect()
        self.epoch.close()
        slots = [lane._slots for lane in self.lanes]
        return len(self.idle) == 1 and not self.ring.leased and not any(one._out for one in slots)


@pytest.mark.parametrize(
    ("devices", "hosts", "slots", "spare"),
    # Four wait in the queue and one is being filled; then the step, the copies of three steps, the user's.
    [
        (1, 0, 5 + 1 + 3, 0),
        (3, 0, 5 + 3 + 9, 0),
        (0, 1, 5 + 1 + 3, 3),
        (0, 2, 5 + 2 + 5, 5),
        (1, 1, 5 + 2 + 6 + 5, 5),
    ],
)
def test_there_is_a_slot_for_whatever_a_batch_waits_for(devices, hosts, slots, spare):
    places = [SimulatedDevice() for _ in range(devices)] + [HostDevice() for _ in range(hosts)]
    assert count_slots(4, places, prefetch=2) == (slots, spare)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize(("drop_last", "wanted"), [(False, [[0, 1], [2, 3], [4]]), (True, [[0, 1], [2, 3]])])
def test_a_last_step_that_has_no_batch_for_every_place(prefetch, drop_last, wanted):
    loop = Stepping(range(5), drop_last=drop_last, prefetch=prefetch)
    assert loop.steps() == wanted
    assert loop.is_whole()


@pytest.mark.parametrize(("places", "hosts"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_an_error_comes_behind_the_steps_before_it_and_then_the_end(places, hosts):
    loop = Stepping([*range(2 * places), OSError("gone")], places=places, hosts=hosts)
    assert [loop.step(), loop.step()] == [[*range(places)], [*range(places, 2 * places)]]
    with pytest.raises(OSError, match="gone") as caught:
        loop.step()
    assert "get" in [entry.name for entry in caught.traceback]  # where the reader failed
    del caught
    for _ in range(2):
        with pytest.raises(QueueClosed):
            loop.step()
    assert loop.is_whole()


def test_an_error_within_a_step_drops_what_there_is_of_it():
    loop = Stepping([0, 1, 2, OSError("gone")])
    assert loop.step() == [0, 1]
    with pytest.raises(OSError, match="gone"):
        loop.step()
    assert loop.is_whole()


@pytest.mark.parametrize(("places", "hosts"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_an_interrupt_while_waiting_does_not_end_the_epoch(places, hosts):
    loop = Stepping([KeyboardInterrupt(), *range(places)], places=places, hosts=hosts)
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    assert loop.steps() == [[*range(places)]]


def test_as_many_steps_are_copied_ahead_as_prefetch_says():
    for prefetch in (0, 1, 3):
        loop = Stepping(range(20), prefetch=prefetch)
        loop.step()
        assert 20 - len(loop.fetch.entries) == 2 * (1 + prefetch)


@pytest.mark.parametrize("call", ["wait", "keep", "views"])
@pytest.mark.parametrize(("place", "places", "hosts"), [(0, 1, 0), (0, 2, 0), (1, 2, 0), (0, 2, 1)])
def test_a_delivery_that_fails_costs_no_slot(monkeypatch, call, place, places, hosts):
    loop = Stepping(range(8), places=places, hosts=hosts)
    loop.step()

    def fail(*_):
        raise LoaderError("the device is lost")

    # Otherwise the host may know that the copy has run, and nothing has to be waited for.
    monkeypatch.setattr(loop.devices[place], "query", lambda event: False)
    monkeypatch.setattr(loop.devices[place], call, fail)
    with pytest.raises(LoaderError, match="lost"):
        loop.step()
    monkeypatch.undo()
    assert loop.is_whole()


@pytest.mark.parametrize("call", ["alloc", "copy_async", "event"])
@pytest.mark.parametrize(("place", "places"), [(0, 1), (0, 2), (1, 2)])
def test_a_copy_that_cannot_be_issued_costs_no_slot(monkeypatch, call, place, places):
    loop = Stepping(range(8), places=places)

    def fail(*_, **__):
        raise LoaderError("the device is lost")

    monkeypatch.setattr(loop.devices[place], call, fail)
    with pytest.raises(LoaderError, match="lost"):
        loop.step()
    monkeypatch.undo()
    assert loop.is_whole()


def test_a_step_that_is_ready_does_not_wait_for_the_next_one():
    loop = Stepping([0, 1, 2, None, 3, None, 4])
    assert loop.step() == [0, 1]
    assert loop.fetch.waits == 0
    assert loop.step() == [2, 3]
    assert loop.fetch.waits == 1
    assert loop.steps() == [[4]]
    assert loop.is_whole()


@pytest.mark.parametrize(("places", "hosts"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_closing_takes_back_what_was_fetched_and_copied_ahead(places, hosts):
    loop = Stepping(range(9), places=places, hosts=hosts)
    loop.step()
    assert loop.is_whole()
    assert loop.fetch.is_closed
    with pytest.raises(QueueClosed):
        loop.step()


@pytest.mark.parametrize(("places", "hosts"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_a_mask_that_cannot_be_made_costs_no_slot(places, hosts):
    def masking(staged):
        if staged.number == places:
            raise LoaderError("no memory for the mask")

    loop = Stepping(range(6), places=places, hosts=hosts, masking=masking)
    with pytest.raises(LoaderError, match="no memory"):
        loop.steps()
    assert loop.is_whole()


@pytest.mark.parametrize(("places", "hosts"), [(1, 0), (1, 1), (2, 0), (2, 2)])
def test_a_step_knows_how_long_it_waited_for_its_batches(places, hosts):
    loop, begun = Stepping(range(6), places=places, hosts=hosts), perf_counter_ns()
    loop.step()
    assert 0 < loop.meter.startup <= perf_counter_ns() - begun
