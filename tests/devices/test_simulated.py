"""The simulated device is a witness: it must see races, and must not see any that are not there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader import LoaderError
from gpuloader.testing import RaceError, SimulatedDevice
from tests.devices.conformance import LAYOUT, make_slot


@pytest.fixture
def device():
    return SimulatedDevice()


def copy(device, memory, seed, stream):
    event = device.event()
    device.copy_async(memory, make_slot(seed), LAYOUT.nbytes, stream)
    device.record(event, stream)
    return event


def test_a_read_that_does_not_wait_for_the_copy_is_a_race(device):
    memory = device.alloc(LAYOUT.nbytes)
    copy(device, memory, 0, device.stream())
    with pytest.raises(RaceError, match="read before the copy"):
        device.launch(lambda: None, [memory])


def test_a_read_that_waits_is_none(device):
    memory = device.alloc(LAYOUT.nbytes)
    done = copy(device, memory, 0, device.stream())
    device.wait(device.consumer_stream(), done)
    device.launch(lambda: None, [memory])


def test_a_host_that_has_waited_orders_everything_after_it(device):
    memory = device.alloc(LAYOUT.nbytes)
    device.synchronize(copy(device, memory, 0, device.stream()))
    device.launch(lambda: None, [memory])


def test_overwriting_what_a_kernel_may_still_read_is_a_race(device):
    memory, stream = device.alloc(LAYOUT.nbytes), device.stream()
    device.wait(device.consumer_stream(), copy(device, memory, 0, stream))
    device.launch(lambda: None, [memory])
    with pytest.raises(RaceError, match="while a kernel may still read"):
        copy(device, memory, 1, stream)


def test_overwriting_after_released_is_none(device):
    memory, stream, released = device.alloc(LAYOUT.nbytes), device.stream(), device.event()
    device.wait(device.consumer_stream(), copy(device, memory, 0, stream))
    device.launch(lambda: None, [memory])
    device.record(released, device.consumer_stream())
    device.wait(stream, released)
    copy(device, memory, 1, stream)


def test_a_host_slot_rewritten_too_early_is_a_race(device):
    stream, slot, event = device.stream(), make_slot(), device.event()
    device.copy_async(device.alloc(LAYOUT.nbytes), slot, LAYOUT.nbytes, stream)
    device.record(event, stream)
    slot.bytes[3] += 1
    with pytest.raises(RaceError, match="rewritten before the copy"):
        device.synchronize(event)


def test_waiting_for_a_mark_that_cannot_come_is_an_error_not_a_hang(device):
    stream, event = device.stream(), device.event()
    device.record(event, device.stream())
    lost = device.event()
    lost.mark = type(event.mark)({})
    device.wait(stream, lost)
    device.record(event, stream)
    with pytest.raises(LoaderError, match="nothing will reach"):
        device.synchronize(event)


def test_streams_take_time_side_by_side_and_waits_join_them(device):
    one, other, event = device.stream(), device.stream(), device.event()
    device.launch(lambda: None, [], one, duration=3.0)
    device.launch(lambda: None, [], other, duration=2.0)
    device.record(event, one)
    device.wait(other, event)
    device.launch(lambda: None, [], other, duration=1.0)
    device.finish(other)
    assert device.now == 4.0


@given(
    seed=st.integers(0, 1000),
    program=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=25),
)
@settings(deadline=None, max_examples=80)
def test_an_ordered_program_gives_the_same_bytes_in_any_order_of_lots(seed, program):
    """Copies into three memories from three streams, each behind the last use of its memory."""
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
