"""The promises, tested by hypothesis on simulated devices: kept batches stay valid, nothing deadlocks."""

import gc
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import CPUPlace, DataLoader, StagingMemoryError, record_stream
from gpuloader.api.generator_loader import GeneratorLoader
from gpuloader.devices.simulated import SimulatedArray
from gpuloader.epoch.device_slots import SPARE
from gpuloader.testing import CustomPlace, RaceError, SimulatedDevice, simulated_places
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from tests.fakes import loader_threads, wait_until
from tests.loading import read_batches

keeping = st.lists(st.sampled_from(["drop", "keep", "slice", "corner", "read late"]), min_size=1, max_size=8)
ways_to_read = st.sampled_from([True, False, "thread"])
batch_counts = st.lists(st.integers(0, 12), min_size=1, max_size=3)


def numbered_batches(count):
    """Return a reader whose batches contain numbers that identify batch and row."""

    def read():
        buffer = np.empty((3, 5), np.int64)
        for number in range(count):
            buffer[...] = number * 1000 + np.arange(15).reshape(3, 5)
            yield [buffer, np.full((3,), number, np.int32)]

    return read


def expected(number):
    return number * 1000 + np.arange(15).reshape(3, 5)


def assert_whole_again(loader: GeneratorLoader, held: int = 0):
    """Assert that every slot is free again after a last drain, and no more are kept than were in use."""
    gc.collect()
    [buffers] = loader._epochs._idle
    buffers.ring.drain()
    assert buffers.ring.leased == 0
    assert buffers.ring.free in (0, buffers.ring.count)  # 0 if no batch was ever staged
    for lane in buffers.lanes:
        if lane.device.direct:
            continue
        lane.drain(lane.device)
        assert not lane._slots.freed
        assert not lane._copying
        # The loop's variables hold one batch more.
        assert len(lane._slots.free) <= lane.prefetch + 1 + max(SPARE, held + 1)


def drive(places, counts, pattern, *, capacity, double_buffer):
    """Loop over epochs like a user who keeps batches by `pattern`; return the loader and the kept batches."""
    kept = []
    loader = DataLoader.from_generator(capacity=capacity, return_list=True, use_double_buffer=double_buffer)
    for count in counts:
        loader.set_batch_generator(numbered_batches(count), places=places)
        number = 0
        for step in loader:
            for images, labels in [step] if len(places) == 1 else step:
                match pattern[number % len(pattern)]:
                    case "keep":
                        kept.append((images, expected(number)))
                    case "slice":
                        kept.append((images[1:], expected(number)[1:]))
                    case "corner":
                        kept.append((images[:2].reshape(-1)[::3], expected(number)[:2].reshape(-1)[::3]))
                    case "read late" if isinstance(images, SimulatedArray):
                        kept.append((images.launch_read(), expected(number)))
                    case _:
                        assert np.asarray(labels).tolist() == [number] * 3
                number += 1
        assert number == (count if len(places) == 1 else count - count % len(places))
    return loader, kept


def check(kept):
    for array, wanted in kept:
        # A kernel launched earlier must have read its batch, although the batch was dropped immediately.
        seen = array[0] if isinstance(array, list) else np.asarray(array)
        np.testing.assert_array_equal(seen, wanted)


driving = {
    "counts": batch_counts,
    "pattern": keeping,
    "places": st.integers(1, 3),
    "capacity": st.integers(1, 3),
    "double_buffer": ways_to_read,
}


@given(**driving, seed=st.integers(0, 99))
def test_held_batches_survive_on_simulated_devices(counts, pattern, places, seed, **options):
    where = simulated_places(places, seed)
    loader, kept = drive(where, counts, pattern, **options)
    for place in where:
        place.device.finish(place.device.consumer_stream())
    check(kept)
    held = len(kept)
    kept.clear()
    assert_whole_again(loader, held)


@given(**driving, outlives=st.booleans())
def test_held_batches_survive_on_the_cpu_and_every_host_slot_returns(
    counts, pattern, places, outlives, **options
):
    loader, kept = drive([CPUPlace()] * places, counts, pattern, **options)
    if outlives:
        del loader  # kept batches outlive the loader
        gc.collect()
        check(kept)
    else:
        check(kept)
        kept.clear()
        assert_whole_again(loader)


class Erratic(ReadAheadPolicy):
    """Decides at every step whether to read in a thread, as the test has drawn."""

    def decide_by(self, drawn):
        self.drawn = itertools.cycle(drawn)
        self.beside = next(self.drawn)
        return self

    def note_step(self, step, wait, handed):
        self.beside = next(self.drawn)
        return self.beside


@given(
    count=st.integers(0, 60),
    pattern=keeping,
    places=st.integers(1, 2),
    seed=st.integers(0, 99),
    drawn=st.lists(st.booleans(), min_size=1, max_size=12),
    leaves=st.none() | st.integers(1, 20),
    on_cpu=st.booleans(),
    bound=st.booleans(),
)
def test_batches_are_the_same_whoever_reads_them(count, pattern, places, seed, drawn, leaves, on_cpu, bound):
    """The loader may switch between its thread and the consumer's at any step, in any order."""
    where = [CPUPlace()] * places if on_cpu else simulated_places(places, seed)
    kept = []
    if bound:
        loader = read_batches(lambda: ([expected(n)[None]] for n in range(count)), where, drop_last=False)
        loader._epochs.policy = Erratic().decide_by(drawn)
    else:
        loader = DataLoader([expected(n) for n in range(count)], places=where, batch_size=1)
        loader._epochs._fetching.policy = Erratic().decide_by(drawn)
    for _ in range(2):
        number = 0
        for step in loader:
            for part in [step] if places == 1 else step:
                images = part[0] if bound else part
                if pattern[number % len(pattern)] != "drop":
                    kept.append((images, expected(number)[None]))
                number += 1
            if leaves is not None and number >= leaves:
                break
        else:
            assert number == count
    for place in [] if on_cpu else where:
        place.device.finish(place.device.consumer_stream())
    check(kept)
    images = part = step = None
    kept.clear()
    assert_whole_again(loader, held=2 * count)
    assert not loader_threads()


@given(streams=st.lists(st.integers(0, 2), min_size=4, max_size=12), seed=st.integers(0, 50))
def test_a_consumer_may_change_streams(streams, seed):
    device = SimulatedDevice(seed=seed)
    choices = [device.consumer_stream(), device.stream(), device.stream()]
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    place = CustomPlace(device)
    epoch = iter(loader.set_batch_generator(numbered_batches(len(streams)), places=place))
    reads = []
    for number, chosen in enumerate(streams):
        with device.use(choices[chosen]):
            images, _ = next(epoch)
            reads.append((images.launch_read(), expected(number)))
            del images
    for stream in choices:
        device.finish(stream)
    check(reads)


@given(
    uses=st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=4, max_size=14), seed=st.integers(0, 50)
)
def test_a_batch_may_be_used_on_further_streams(uses, seed):
    """Each batch is read on its own stream, and on any others that the loader is told of, and dropped."""
    device = SimulatedDevice(seed=seed)
    main, streams = device.consumer_stream(), [device.stream() for _ in range(3)]
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    reads = []
    loader.set_batch_generator(numbered_batches(len(uses)), places=CustomPlace(device))
    for number, (images, labels) in enumerate(loader):
        ready = device.event()
        device.record(ready, main)
        reads.append((images.launch_read(), expected(number)))
        for chosen in uses[number]:
            device.wait(streams[chosen], ready)
            reads.append((images[1:].launch_read(streams[chosen]), expected(number)[1:]))
            record_stream((labels, {"rows": images}), streams[chosen])
        del images, labels
    for stream in (main, *streams):
        device.finish(stream)
    check(reads)


def test_a_pipeline_without_waits_is_caught(monkeypatch):
    """The witness works: without the waits it reports a race for every seed."""
    for seed in range(5):
        device = SimulatedDevice(seed=seed)
        monkeypatch.setattr(device, "wait", lambda stream, event: None)
        place = CustomPlace(device)
        loader = read_batches(numbered_batches(8), place)
        with pytest.raises(RaceError):
            for images, _ in loader:
                images.launch_read()


@pytest.mark.parametrize(("copy", "compute"), [(1.0, 2.0), (1.0, 1.0), (2.0, 1.0)])
def test_double_buffering_hides_the_shorter_of_copy_and_compute(threads_never_pay, copy, compute):
    """On the virtual clock, a step takes as long as the longer of the two, not their sum."""
    steps = 50

    def epoch_time(double_buffer):
        device = SimulatedDevice(copy_time=lambda nbytes: copy)
        place = CustomPlace(device)
        loader = read_batches(numbered_batches(steps), place, capacity=4, use_double_buffer=double_buffer)
        for number, (images, _) in enumerate(loader):
            if double_buffer == "thread":  # the clock counts copies and kernels: the reader must not be late
                wait_until(lambda: loader.stats().batches >= min(number + 4, steps))  # noqa: B023
            images.launch_read(duration=compute)
            device.finish(device.consumer_stream())
        return device.now

    assert epoch_time(True) <= 1.1 * max(copy, compute) * steps
    assert epoch_time("thread") <= 1.1 * max(copy, compute) * steps
    assert epoch_time(False) >= 0.95 * (copy + compute) * steps


def test_full_device_memory_is_one_typed_error():
    device = SimulatedDevice(memory_limit=1500)
    place = CustomPlace(device)
    loader = read_batches(numbered_batches(20), place)
    kept = []
    with pytest.raises(StagingMemoryError, match="bytes on simulated:0"):
        kept.extend(loader)  # every kept batch needs its own memory
    assert not loader_threads()
