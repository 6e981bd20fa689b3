"""The conformance suite for devices.

A subclass provides a fixture `device`, and overrides `read` if the device's arrays are not NumPy's.
"""

import gc
from collections import deque

import numpy as np
import pytest

from gpuloader.staging import Lease, Slot, arrange
from gpuloader.transforms import Cast, OneHot
from gpuloader.transforms.program import Programmer
from tests.fakes import run_threads

LAYOUT = arrange((((3, 5), np.dtype("float32")), ((3,), np.dtype("int64")), ((0, 4), np.dtype("uint8"))))


def make_slot(seed=0, nbytes=LAYOUT.nbytes):
    region = np.random.default_rng(seed).integers(0, 99, nbytes, np.uint8)
    return Slot(region, region)


class DeviceTests:
    """Base class of the suite; subclasses provide the fixture `device`."""

    def read(self, device, array):
        return np.asarray(array)

    @pytest.fixture
    def stream(self, device):
        return device.stream()

    def send(self, device, stream, slot, nbytes=LAYOUT.nbytes):
        memory, done = device.alloc(nbytes), device.event()
        device.copy_async(memory, slot, nbytes, stream)
        device.record(done, stream)
        return memory, done

    def fields(self, device, memory, layout=LAYOUT):
        """Return the fields in a memory, as arrays of NumPy."""
        return [self.read(device, one) for one in device.views(memory, layout, Lease(memory, deque()))]

    def finish(self, device, stream):
        """Wait for what was given to a stream so far."""
        done = device.event()
        device.record(done, stream)
        device.synchronize(done)

    def test_a_second_block_of_a_thread_copies(self, device, stream):
        slot, done, memory = make_slot(), device.event(), device.alloc(LAYOUT.nbytes)
        with device.current() as calls:
            pass
        with device.again(calls) as again:
            again.copy_async(memory, slot, LAYOUT.nbytes, stream)
            again.record(done, stream)
            again.wait(stream, done)
            again.query(done)
        device.synchronize(done)
        np.testing.assert_array_equal(self.fields(device, memory)[0], slot.views(LAYOUT)[0])

    def test_an_event_is_reached_before_it_is_recorded_and_in_the_end(self, device, stream):
        event = device.event()
        device.wait(stream, event)
        device.synchronize(event)
        assert device.query(event)
        _, done = self.send(device, stream, make_slot())
        while not device.query(done):
            pass
        device.synchronize(done)
        assert device.query(done)

    def test_a_stream_goes_on_behind_an_event_of_another(self, device, stream):
        """Two copies into the same memory; the second waits for an event, so its bytes remain."""
        first, second = make_slot(1), make_slot(2)
        memory, written = self.send(device, stream, first)
        other = device.stream()
        device.wait(other, written)
        device.copy_async(memory, second, LAYOUT.nbytes, other)
        self.finish(device, other)
        np.testing.assert_array_equal(self.fields(device, memory)[0], second.views(LAYOUT)[0])

    def test_recording_again_does_not_move_a_wait_that_was_asked_for(self, device):
        """One stream waits for an event, which is then recorded again behind a wait for that same stream."""
        first, second = make_slot(1), make_slot(2)
        producer, consumer = device.stream(), device.stream()
        memory, event = self.send(device, producer, first)
        device.wait(consumer, event)
        copied, done = device.alloc(LAYOUT.nbytes), device.event()
        device.copy_async(copied, second, LAYOUT.nbytes, consumer)
        device.record(done, consumer)
        device.wait(producer, done)
        device.record(event, producer)  # if the wait moved here, the streams would deadlock
        device.synchronize(event)
        assert device.query(done)
        for region, slot in ((memory, first), (copied, second)):
            np.testing.assert_array_equal(self.fields(device, region)[0], slot.views(LAYOUT)[0])

    def test_a_synchronized_event_means_that_all_before_it_is_done(self, device, stream):
        """Several copies and marks on one stream: when the last mark is reached, all are."""
        slots = [make_slot(seed) for seed in range(4)]
        sent = [self.send(device, stream, slot) for slot in slots]
        device.synchronize(sent[-1][1])
        assert all(device.query(done) for _, done in sent)
        for slot in slots:
            slot.bytes[:] = slot.bytes + 1  # the host may reuse the slots
        for seed, (memory, _) in enumerate(sent):
            wanted = make_slot(seed).views(LAYOUT)[1]
            np.testing.assert_array_equal(self.fields(device, memory)[1], wanted)

    @pytest.mark.parametrize(
        ("start", "stop"),
        [(0, LAYOUT.fields[1].offset), (LAYOUT.fields[1].offset, LAYOUT.fields[1].offset + 16)],
    )
    @pytest.mark.parametrize("source", ["host", "device"])
    def test_a_copy_of_a_part_leaves_what_lies_around_it_alone(self, device, stream, source, start, stop):
        """Within the device, it comes behind the copy that it reads from."""
        first, second = make_slot(1), make_slot(2)
        memory, _ = self.send(device, stream, first)
        if source == "host":
            part = Slot(second.bytes[start:], second.bytes[start:])
            device.copy_async(memory, part, stop - start, stream, start)
        else:
            other, _ = self.send(device, stream, second)
            device.copy_between(memory, other, stop - start, stream, start, start)
            device.copy_between(memory, other, 0, stream, 0, 0)
        self.finish(device, stream)
        first.bytes[start:stop] = second.bytes[start:stop]
        for found, wanted in zip(self.fields(device, memory), first.views(LAYOUT), strict=True):
            np.testing.assert_array_equal(found, wanted)

    @pytest.mark.parametrize("part", ["view", "empty field"])
    def test_the_last_array_ends_the_lease(self, device, part):
        freed, memory = deque(), device.alloc(LAYOUT.nbytes)
        floats, numbers, empty = device.views(memory, LAYOUT, Lease(memory, freed))
        assert [len(floats), len(numbers), len(empty)] == [3, 3, 0]
        kept = [floats[1:].reshape(-1) if part == "view" else empty]
        del floats, numbers, empty
        gc.collect()
        assert not freed
        kept.clear()
        gc.collect()
        assert list(freed) == [memory]

    def test_memory_of_no_bytes(self, device, stream):
        memory, done = self.send(device, stream, make_slot(), nbytes=0)
        device.synchronize(done)
        [array] = self.fields(device, memory, arrange((((0, 3), np.dtype("float32")),)))
        assert array.shape == (0, 3)

    def test_every_thread_has_a_consumer_stream(self, device):
        seen = [device.consumer_stream()]
        run_threads(lambda: seen.append(device.consumer_stream()), 1)
        for stream in seen:
            event = device.event()
            device.record(event, stream)
            device.synchronize(event)
            assert device.query(event)

    @pytest.mark.parametrize("delivered", [True, False])
    def test_a_copy_arrives_whole_in_arrays_that_keep_the_memory(self, device, stream, delivered):
        slot = make_slot()
        memory, done = self.send(device, stream, slot)
        owner = [Lease(memory, deque())] if delivered else []
        arrays = (device.views if delivered else device.arrays)(memory, LAYOUT, *owner)
        del memory, owner
        gc.collect()
        device.synchronize(done)
        for array, wanted in zip(arrays, slot.views(LAYOUT), strict=True):
            assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_array_equal(self.read(device, array), wanted)

    def test_a_program_runs_behind_the_copy_and_before_the_mark(self, device, stream):
        programmer = Programmer([Cast("0", "int16", 2.0), OneHot("1", 50, "uint8"), Cast("0", "float32")])
        program = programmer.program(["0", "1", "2"], (0, 0, 0), LAYOUT, drawn=True)
        slot = make_slot()
        floats, numbers, _ = slot.views(LAYOUT)
        floats[...], numbers[...] = np.arange(15).reshape(3, 5) / 4, [49, 0, 50]
        memory = device.alloc(program.whole.nbytes)
        device.copy_async(memory, slot, LAYOUT.nbytes, stream)
        device.run(program, memory, stream)
        self.finish(device, stream)
        cast, labels, empty = self.fields(device, memory, program.delivered)
        np.testing.assert_array_equal(cast, (floats * 2).astype(np.int16).astype(np.float32))
        assert labels.argmax(1).tolist() == [49, 0, 0]
        assert labels.sum(1).tolist() == [1, 1, 0]
        assert empty.shape == (0, 4)

    def test_programs_run_one_after_the_other(self, device, stream):
        programmer = Programmer([Cast("0", "int16")])
        program = programmer.program(["0", "1", "2"], (0, 0, 0), LAYOUT, drawn=True)
        memories = [device.alloc(program.whole.nbytes) for _ in range(4)]
        slots = [make_slot(seed) for seed in range(4)]
        for number, (memory, slot) in enumerate(zip(memories, slots, strict=True)):
            slot.views(LAYOUT)[0][...] = number
            device.copy_async(memory, slot, LAYOUT.nbytes, stream)
            device.run(program, memory, stream)
        self.finish(device, stream)
        for number, memory in enumerate(memories):
            cast, *_ = self.fields(device, memory, program.delivered)
            np.testing.assert_array_equal(cast, np.full((3, 5), number, np.int16))
