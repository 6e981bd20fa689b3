"""The simulated device detects races: it must report all of them, and must not report false ones."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import DataLoader, LoaderError
from gpuloader.staging import Lease
from gpuloader.testing import RaceError, SimulatedDevice, simulated_places
from tests.devices.conformance import LAYOUT, make_slot


@pytest.fixture
def device():
    return SimulatedDevice()


@pytest.mark.parametrize("count", ["2", 0, -1, 1.5, True, None])
def test_a_number_of_places_is_1_or_more(count):
    with pytest.raises(ValueError, match="count must be an integer of 1 or more, got"):
        simulated_places(count)


def copy(device, memory, seed, stream):
    event = device.event()
    device.copy_async(memory, make_slot(seed), LAYOUT.nbytes, stream)
    device.record(event, stream)
    return event


def test_a_read_that_does_not_wait_for_the_copy_is_a_race(device):
    memory = device.alloc(LAYOUT.nbytes)
    assert (memory.bytes == 0xAB).all()  # poison, and not zeros, until it is written
    copy(device, memory, 0, device.stream())
    with pytest.raises(RaceError, match="read before the copy"):
        device.launch(lambda: None, [memory])
    with pytest.raises(RaceError, match="overwritten before the copy"):
        copy(device, memory, 1, device.stream())


def test_a_read_behind_the_copy_is_none(device):
    """Its stream waits for the copy, or the host has waited, or the order is handed on by a third stream."""
    memories = [device.alloc(LAYOUT.nbytes) for _ in range(3)]
    done = [copy(device, memory, 0, device.stream()) for memory in memories]
    device.wait(device.consumer_stream(), done[0])
    device.launch(lambda: None, memories[:1])
    messenger, passed_on = device.stream(), device.event()
    device.wait(messenger, done[1])
    device.record(passed_on, messenger)
    with pytest.raises(RaceError, match="read before the copy"):
        device.launch(lambda: None, memories[1:2])
    device.wait(device.consumer_stream(), passed_on)
    device.launch(lambda: None, memories[1:2])
    with pytest.raises(RaceError, match="read before the copy"):
        device.launch(lambda: None, memories[2:])
    device.synchronize(done[2])
    device.launch(lambda: None, memories[2:])


def test_overwriting_what_a_kernel_may_still_read_is_a_race(device):
    """An event of one reader does not speak for another."""
    memory, stream, released = device.alloc(LAYOUT.nbytes), device.stream(), device.event()
    readers = [device.consumer_stream(), device.stream()]
    ready = copy(device, memory, 0, stream)
    for reader in readers:
        device.wait(reader, ready)
        device.launch(lambda: None, [memory], reader)
    for reader in readers:
        with pytest.raises(RaceError, match="while a kernel may still read"):
            copy(device, memory, 1, stream)
        device.record(released, reader)
        device.wait(stream, released)
    copy(device, memory, 1, stream)


def test_an_event_recorded_before_the_copy_does_not_speak_for_it(device):
    memory, stream, early = device.alloc(LAYOUT.nbytes), device.stream(), device.event()
    device.record(early, stream)
    copy(device, memory, 0, stream)
    device.wait(device.consumer_stream(), early)
    with pytest.raises(RaceError, match="read before the copy"):
        device.launch(lambda: None, [memory])


def test_a_view_read_without_waiting_is_a_race(device):
    memory = device.alloc(LAYOUT.nbytes)
    copy(device, memory, 0, device.stream())
    [array, *_] = device.views(memory, LAYOUT, Lease(memory, deque()))
    for look in (np.asarray, lambda one: one[1:].launch_read()):
        with pytest.raises(RaceError, match="read before the copy"):
            look(array)


def test_nothing_on_a_stream_runs_before_it_is_forced(device):
    ran = []
    device.launch(lambda: ran.append(1), [])
    assert ran == []
    device.finish(device.consumer_stream())
    assert ran == [1]


def test_a_host_slot_rewritten_before_its_copy_is_a_race(device):
    stream, slot, event = device.stream(), make_slot(), device.event()
    for rewritten_early in (False, True):
        device.copy_async(device.alloc(LAYOUT.nbytes), slot, LAYOUT.nbytes, stream)
        device.record(event, stream)
        if not rewritten_early:
            device.synchronize(event)
        slot.bytes[:] = slot.bytes + 1
    with pytest.raises(RaceError, match="rewritten before the copy"):
        device.synchronize(event)


def test_waiting_for_a_mark_that_cannot_come_is_an_error_not_a_hang(device):
    stream, event = device.stream(), device.event()
    device.record(event, device.stream())
    lost = device.event()
    lost.mark = type(event.mark)()
    device.wait(stream, lost)
    device.record(event, stream)
    with pytest.raises(LoaderError, match="never be reached"):
        device.synchronize(event)


@given(
    seed=st.integers(0, 1000),
    program=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=25),
)
def test_an_ordered_program_gives_the_same_bytes_in_any_order_of_lots(seed, program):
    """Three streams copy into three memories; each copy waits for the last use of its memory."""
    device = SimulatedDevice(seed=seed)
    streams = [device.stream() for _ in range(3)]
    memories = [device.alloc(LAYOUT.nbytes) for _ in range(3)]
    last = [device.event() for _ in range(3)]
    expected, reads = [None] * 3, []
    for number, (where, who, reading) in enumerate(program):
        memory, stream = memories[where], streams[who]
        device.wait(stream, last[where])
        if reading and expected[where] is not None:
            seen = []
            device.launch(lambda seen=seen, memory=memory: seen.append(memory.bytes.copy()), [memory], stream)
            reads.append((seen, expected[where]))
        else:
            slot = make_slot(number)
            device.copy_async(memory, slot, LAYOUT.nbytes, stream)
            expected[where] = slot.bytes
        device.record(last[where], stream)
        device.query(last[where])
    for stream in streams:
        device.finish(stream)
    for seen, wanted in reads:
        np.testing.assert_array_equal(seen[0], wanted)


def test_an_event_on_an_idle_stream_is_reached_no_earlier_than_it_was_recorded():
    device = SimulatedDevice()
    busy, idle = device.stream(), device.stream()
    early, late = device.event(timed=True), device.event(timed=True)
    device.record(early, idle)
    device.launch(lambda: None, [], busy, duration=3.0)
    device.finish(busy)
    device.record(late, idle)
    device.synchronize(late)
    assert device.elapsed(early, late) == 3.0


def test_a_batch_is_shown_by_its_shape_dtype_and_device_without_reading_it():
    (place,) = simulated_places(1)
    batch = next(iter(DataLoader(np.arange(12, dtype="float32"), places=place, batch_size=4)))
    before = place.device.now
    assert repr([batch]) == "[<SimulatedArray (4,) float32 on simulated:0>]"
    assert place.device.now == before
