"""An epoch: its steps, how it ends or is dropped, and what it compiles ahead and leaves for the next."""

import _thread
import gc
import operator
import os
import signal
import sys
import threading
import time
from collections import deque
from functools import partial
from time import perf_counter_ns

import numpy as np
import pytest

from gpuloader import CPUPlace, DataLoader, IterableDataset, LoaderError
from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.host import HostDevice
from gpuloader.devices.outputs import SharedOutput
from gpuloader.devices.places import CustomPlace, Place
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import Epoch, EpochBuffers, Iteration, KernelsAhead, open_epoch, take_buffers
from gpuloader.epoch.lane import Lane, count_slots
from gpuloader.errors import QueueClosed
from gpuloader.staging import Ring, arrange
from gpuloader.system import threads as exiting
from gpuloader.system.finalizers import Finalizer
from gpuloader.testing import SimulatedDevice, simulated_places
from gpuloader.transforms import Cast
from gpuloader.watch.meter import Meter
from tests.fakes import loader_threads, no_other_collection, wait_until
from tests.loading import load
from tests.sample_sets import Made

LAYOUT = arrange((((2, 3), np.dtype("int64")),))


class Staged:
    """A fetcher whose batches are ready at once: numbers to fill them with, or errors to raise instead.

    Before an entry that is None, it has to be waited for.
    """

    def __init__(self, ring, entries):
        self.ring, self.entries = ring, deque(entries)
        self.is_closed, self.waits = False, 0

    def get(self):
        if not self.entries:
            raise QueueClosed("no more")
        entry = self.entries.popleft()
        if entry is None:
            self.waits += 1
            return self.get()
        if isinstance(entry, BaseException):
            try:
                raise entry
            finally:
                del entry  # this frame would keep the error, and so the frames of the loop
        slot = self.ring.acquire(LAYOUT.nbytes)
        slot.views(LAYOUT)[0][...] = entry
        return StagedBatch(slot, LAYOUT, (0,), entry)

    def get_nowait(self):
        return None if self.entries and self.entries[0] is None else self.get()

    def close(self):
        self.is_closed = True
        return True


def lose(*_, **__):
    raise LoaderError("the device is lost")


def interrupt(*_, **__):
    raise KeyboardInterrupt


class Stepping:
    """An epoch over simulated devices, of which the last may be hosts."""

    def __init__(self, entries, *, places=2, drop_last=False, prefetch=1, masking=None, hosts=0):
        self.devices = [SimulatedDevice() for _ in range(places - hosts)]
        self.devices += [HostDevice() for _ in range(hosts)]
        prefetch = 0 if hosts == places else prefetch
        self.ring = Ring(*count_slots(8, self.devices, prefetch))
        self.meter, self.idle = Meter(), deque()
        self.lanes = [
            Lane(device, self.ring, prefetch, self.meter, SharedOutput(device.consumer_stream))
            for device in self.devices
        ]
        self.fetch = Staged(self.ring, entries)
        buffers = EpochBuffers(self.ring, tuple(self.lanes), os.getpid())
        where = buffers, self.fetch, lambda step: step, self.idle, self.meter
        self.epoch = Epoch(*where, drop_last=drop_last, masking=masking)

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
        slots = [lane._slots for lane in self.lanes if not lane.device.direct]
        return len(self.idle) == 1 and not self.ring.leased and not any(one._out for one in slots)


DEVICES = pytest.mark.parametrize(("places", "hosts"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])


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


@DEVICES
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


@pytest.mark.parametrize(
    ("call", "steps"),
    [
        *[(call, 1) for call in ("wait", "keep", "views")],
        *[(call, 0) for call in ("alloc", "copy_async", "event")],
    ],
)
@pytest.mark.parametrize(("place", "places", "hosts"), [(0, 1, 0), (0, 2, 0), (1, 2, 0), (0, 2, 1)])
def test_a_copy_or_delivery_that_fails_costs_no_slot(monkeypatch, call, steps, place, places, hosts):
    loop = Stepping(range(8), places=places, hosts=hosts)
    for _ in range(steps):
        loop.step()
    # Otherwise the host may know that the copy has run, and nothing has to be waited for.
    monkeypatch.setattr(loop.devices[place], "query", lambda event: False)
    monkeypatch.setattr(loop.devices[place], call, lose)
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


@pytest.mark.parametrize("ending", [None, OSError, QueueClosed])
@pytest.mark.parametrize("hosts", [0, 1, 2])
def test_a_step_that_is_never_completed_costs_no_slot(ending, hosts):
    loop = Stepping([0, 1, 2, ending and ending("gone"), 3], hosts=hosts, drop_last=True)
    assert loop.step() == [0, 1]
    assert loop.is_whole()


@pytest.mark.parametrize("failing", [0, 1])
def test_after_an_interrupted_copy_no_batch_reaches_the_wrong_place(monkeypatch, failing):
    loop = Stepping(range(8))
    loop.step()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.devices[failing], "copy_async", interrupt)
        loop.step()
    assert loop.step() == [2, 3]
    with pytest.raises(LoaderError, match="in the middle of a batch"):
        loop.step()
    assert loop.is_whole()


class InterruptedOnce(deque):
    """A Ctrl-C is delivered right behind the call that adds to it."""

    interrupts = True

    def append(self, entry):
        super().append(entry)
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt


@DEVICES
def test_an_interrupt_behind_an_issued_step_lends_no_slot_twice(places, hosts):
    loop = Stepping(range(9), places=places, hosts=hosts)
    loop.epoch._shortcut, loop.epoch._flying = None, InterruptedOnce()
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    assert loop.step() == [*range(places)]
    with pytest.raises(LoaderError, match="in the middle of a batch"):
        loop.step()
    assert loop.is_whole()


@DEVICES
def test_closing_takes_back_what_was_fetched_and_copied_ahead(places, hosts):
    loop, begun = Stepping(range(9), places=places, hosts=hosts), perf_counter_ns()
    loop.step()
    assert 0 < loop.meter.startup <= perf_counter_ns() - begun  # how long the step waited for its batches
    assert loop.is_whole()
    assert loop.fetch.is_closed
    with pytest.raises(QueueClosed):
        loop.step()


@DEVICES
def test_a_mask_that_cannot_be_made_costs_no_slot(places, hosts):
    def masking(staged):
        return lose() if staged.number == places else None

    loop = Stepping(range(6), places=places, hosts=hosts, masking=masking)
    with pytest.raises(LoaderError, match="lost"):
        loop.steps()
    assert loop.is_whole()


# Epochs: how they end, by themselves or by an error, and what they leave for the next one.


PLACES = {"cpu": lambda: [CPUPlace()], "one": lambda: simulated_places(1), "two": lambda: simulated_places(2)}


class Loop:
    """An epoch over ready batches, and what it left."""

    def __init__(self, entries, places: list[Place], present=list, **options):
        meter = Meter()
        delivery = Delivery.of(places, None, None, prefetch=1, drop_last=False, **options)
        self.buffers = take_buffers(deque(), delivery, 4, meter)
        self.fetch = Staged(self.buffers.ring, entries)
        self.idle, self.ended = deque(), []
        where = self.buffers, self.fetch, present, self.idle, meter
        self.epoch = open_epoch(
            Epoch(*where, drop_last=False, ended=lambda: self.ended.append(1)), Finalizer()
        )

    def check_over(self, *, by_itself=False, leaves=True):
        """Fail unless the epoch is over, and closed what it had to."""
        assert (self.ended, self.fetch.is_closed) == ([1] * by_itself, True)
        assert not leaves or list(self.idle) == [self.buffers]
        if self.epoch is not None:
            assert not self.epoch.is_running
            self.epoch.prepare()  # nothing is left to prepare
            assert list(self.epoch) == []
            assert len(self.ended) == by_itself


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def places(request):
    return request.param()


class TestTheEnd:
    @pytest.mark.parametrize("failing", ["get", "present", "issue", "deliver"])
    def test_by_an_error_closes_the_epoch(self, monkeypatch, places, failing):
        loop = Loop(range(6), places, lose if failing == "present" else list)
        lane, request = loop.buffers.lanes[-1], partial(next, loop.epoch)
        if failing == "get":
            monkeypatch.setattr(loop.fetch, "get", lose)
        elif failing == "issue":
            monkeypatch.setattr(lane, "issue", lose)
            request = loop.epoch.prepare
        elif failing == "deliver":  # a device is asked for a capture first
            monkeypatch.setattr(lane, "lease" if lane.device.direct else "begin", lose)
        with pytest.raises(LoaderError, match="lost"):
            request()
        loop.check_over(leaves=failing in ("get", "present"))

    def test_does_not_come_with_an_interrupt(self, places):
        """A Ctrl-C belongs to the program, which may handle it and go on."""
        loop = Loop([KeyboardInterrupt(), *range(2)], places)
        with pytest.raises(KeyboardInterrupt):
            next(loop.epoch)
        assert not loop.fetch.is_closed
        assert len(list(loop.epoch)) == 2 // len(places)


@pytest.mark.parametrize(("places", "question"), [(1, "begin"), (2, "begin"), (1, "issue")])
def test_a_daemon_thread_whose_device_goes_at_exit_ends_in_silence(monkeypatch, places, question):
    """The program is over, so what follows the loop must not run. Threads do not print a SystemExit."""
    loop = Loop(range(6), simulated_places(places))
    next(loop.epoch)
    seen = []

    def go_on():
        seen.append("begun")
        for _ in loop.epoch:
            seen.append("delivered")
        seen.append("saved")

    monkeypatch.setattr(loop.buffers.lanes[0], question, lose)
    monkeypatch.setattr(exiting, "_exiting", True)
    monkeypatch.setattr(threading, "excepthook", lambda raised: seen.append(raised.exc_type))
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    thread.join(60)
    assert (seen, loop.fetch.is_closed) == (["begun", SystemExit], True)


@pytest.mark.parametrize("fails", [False, True])
def test_a_dropped_epoch_leaves_the_buffers_for_the_next_one_or_fails_in_silence(monkeypatch, fails):
    """Python prints what a finalizer raises, which nobody could handle."""
    loop, printed = Loop(range(6), [CPUPlace()]), []
    next(loop.epoch)
    if fails:
        monkeypatch.setattr(loop.fetch, "close", lose)
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    loop.epoch = None
    gc.collect()
    assert (printed, list(loop.idle)) == ([], [loop.buffers] * (not fails))
    assert (loop.ended, loop.fetch.is_closed) == ([], not fails)


def test_an_epoch_whose_slots_are_not_all_back_leaves_nothing():
    loop = Loop(range(3), [CPUPlace()])
    loop.buffers.ring.acquire(1)  # as of a thread that hangs in the user's dataset
    list(loop.epoch)
    assert not loop.idle


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_that_an_interrupt_kept_back_is_ordered_before_the_stream_of_whoever_gets_it(seed, static):
    """It was delivered to another stream, and perhaps moved there, before the next batch was read."""
    [place] = simulated_places(1, seed)
    device = place.device
    streams = [device.stream(), device.stream()]
    loop, seen = Loop([0, 1, KeyboardInterrupt(), 2, 3], [place], static=static), []
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


# Epochs that are dropped rather than closed: nothing waits, nothing is lost, nothing stays.


class Stuck(Made):
    """Samples, of which one takes until it is let go."""

    def __init__(self):
        super().__init__(self.wait, 50)
        self.reached, self.release = threading.Event(), threading.Event()

    def wait(self, index):
        if index == 5:
            self.reached.set()
            self.release.wait(60)
        time.sleep(0.003)
        return np.int64(index)


WAYS = [{"use_buffer_reader": "thread"}, {"num_workers": 2, "worker_type": "thread"}]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("options", WAYS)
def test_an_interrupt_is_not_lost_while_a_reader_is_stuck(options):
    dataset = Stuck()
    with pytest.raises(KeyboardInterrupt):
        for _ in load(dataset, batch_size=1, prefetch_factor=8, **options):
            dataset.reached.wait(60)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            break  # leaves the loop while a sample is being read
        time.sleep(30)
    dataset.release.set()
    wait_until(lambda: not loader_threads())


class Interrupting(IterableDataset):
    """Items whose iterator is interrupted while it is closed."""

    def __iter__(self):
        try:
            yield from range(9)
        finally:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_an_interrupt_is_not_lost_while_an_epoch_is_freed(in_a_cycle):
    epoch = iter(load(Interrupting(), use_buffer_reader=False))
    next(epoch)
    cycle = [epoch]
    if in_a_cycle:
        cycle.append(cycle)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        del epoch, cycle
        gc.collect()
        time.sleep(30)
    assert time.monotonic() - begun < 20  # it wakes the program


@pytest.mark.parametrize("options", [*WAYS, {"num_workers": 2, "worker_type": "process"}])
def test_the_next_epoch_waits_for_the_last_one_and_reuses_its_memory(options):
    loader = load(list(range(40)), batch_size=2, **options)
    addresses = set()
    for _ in range(6):
        for batch in loader:
            addresses.add(batch.__array_interface__["data"][0])
            break
        del batch
    assert len(addresses) <= 3  # the first slots of one reservation
    assert [batch.tolist() for batch in loader] == [[n, n + 1] for n in range(0, 40, 2)]


@pytest.mark.parametrize("read_ahead", [True, False, "thread"])
def test_an_interrupt_while_an_epoch_is_collected_is_delivered(read_ahead, monkeypatch):
    """Its memory is that of an earlier epoch, and so older than what closes the epoch."""
    # Python would swallow a Ctrl-C that arrives in its own code there.
    assert not any(hasattr(one, "__del__") for one in (Epoch, Iteration))
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    loader = load(list(range(40)), places=simulated_places(1), batch_size=2, use_buffer_reader=read_ahead)
    assert len(list(loader)) == 20
    cycle = [iter(loader)]
    next(cycle[0])
    cycle.append(cycle)
    with no_other_collection():
        del cycle
        with pytest.raises(KeyboardInterrupt):
            list(map(operator.call, [_thread.interrupt_main, gc.collect]))
            threading.Event().wait(60)
    wait_until(lambda: not loader_threads())
    assert not printed
    assert len(list(loader)) == 20


# Compiling kernels ahead: on which devices, how often, in which process, and when it ends.


PROGRAM = object()


class Compiling:
    """A device that notes what it compiles, and goes on once it may."""

    def __init__(self):
        self.compiled = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def compile(self, program, stop):
        self.compiled.append(program)
        assert self.goes_on.wait(60)


def compilers():
    return [thread for thread in threading.enumerate() if thread.name == "gpuloader-compiler"]


def test_each_device_compiles_the_first_program_once_and_whatever_another_does():
    failing, *devices = Compiling(), Compiling(), Compiling()
    failing.compile = None
    ahead = KernelsAhead([failing, devices[0], devices[1], devices[0]])
    for program in (PROGRAM, object()):
        ahead.begin(program)
        wait_until(lambda: not compilers())
    ahead.finish()
    assert [device.compiled for device in devices] == [[PROGRAM]] * 2


def test_nothing_begins_after_an_end():
    device = Compiling()
    ahead = KernelsAhead([device])
    ahead.finish()
    ahead.begin(PROGRAM)
    ahead.finish()
    assert device.compiled == []


@pytest.mark.parametrize("compiles", [True, False])
def test_a_loader_compiles_ahead_on_devices_that_have_to_compile(compiles):
    compiled = []

    class Device(SimulatedDevice):
        def compile(self, program, stop):
            compiled.append(program)

    Device.compiles = compiles
    options = {"places": CustomPlace(Device()), "batch_size": 2, "transforms": [Cast(None, "float32")]}
    assert len([*DataLoader(np.arange(6), **options)]) == 3
    assert len(compiled) == compiles


def test_the_end_tells_the_device_and_waits_for_it():
    device, ended = Compiling(), []

    def compile_until_told(program, stop):
        wait_until(stop)
        ended.append(program)

    device.compile = compile_until_told
    ahead = KernelsAhead([device])
    ahead.begin(PROGRAM)
    ahead.finish()
    assert ended == [PROGRAM]


def test_a_compiler_that_hangs_is_not_waited_for_forever(monkeypatch):
    device = Compiling()
    device.goes_on.clear()
    monkeypatch.setattr("gpuloader.epoch.epoch._LONGEST_COMPILATION", 0.05)
    ahead = KernelsAhead([device])
    ahead.begin(PROGRAM)
    ahead.finish()
    assert compilers()
    device.goes_on.set()
    wait_until(lambda: not compilers())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_compiles_nothing_and_waits_for_no_thread():
    device = Compiling()
    device.goes_on.clear()
    busy, idle = KernelsAhead([device]), KernelsAhead([device])
    busy.begin(PROGRAM)
    wait_until(lambda: device.compiled)
    if (child := os.fork()) == 0:
        idle.begin(PROGRAM)
        busy.finish()
        os._exit(len(compilers()) + len(device.compiled))
    device.goes_on.set()
    _, status = os.waitpid(child, 0)
    busy.finish()
    assert os.waitstatus_to_exitcode(status) == 1
