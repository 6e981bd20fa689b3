"""The counters of a loader: where the time went."""

import time

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.devices.simulated import SimulatedDevice
from gpuloader.epoch.lane import EVERY
from gpuloader.testing import CustomPlace, simulated_places
from tests.fakes import run_threads
from tests.loading import load, read_batches
from tests.watch.loops import Waiting, read_zeros


@pytest.mark.parametrize("double_buffer", [True, False])
def test_batches_and_bytes_are_counted_over_epochs(double_buffer):
    loader = read_zeros(use_double_buffer=double_buffer)
    before = loader.stats()
    for epochs in (1, 2):
        assert len(list(loader)) == 5
        stats = loader.stats()
        assert (stats.batches, stats.nbytes) == (5 * epochs, 5 * epochs * 256)
    assert min(stats.stage, stats.stall, stats.transfer) >= 0 < min(stats.fetch, stats.wait)
    assert before.batches == 0
    with pytest.raises(AttributeError):
        before.batches = 3


def test_samples_and_sample_lists_are_counted_as_batches_of_the_slots_bytes():
    loader = DataLoader.from_generator(capacity=2, return_list=True)
    loader.set_sample_generator(lambda: ((np.zeros(8),) for _ in range(7)), 3, drop_last=False, places="cpu")
    list(loader)
    assert (loader.stats().batches, loader.stats().nbytes) == (3, 7 * 64)
    loader.set_sample_list_generator(lambda: [[(np.zeros(8),)] * 2] * 4, places="cpu")
    list(loader)
    assert (loader.stats().batches, loader.stats().nbytes) == (7, 15 * 64)
    aligned = read_batches(lambda: [[np.zeros((3, 5), np.float32), np.zeros((3,), np.int64)]] * 2)
    list(aligned)
    assert aligned.stats().nbytes == 2 * (256 + 24)


def test_the_time_of_a_loop_is_the_sum_of_its_parts():
    loader, uncounted = read_zeros(6), []
    for _ in range(5):  # other programs may take the processor where nothing is counted
        before, begun = loader.stats(), time.perf_counter()
        for _ in loader:
            time.sleep(0.002)
        seconds, stats = time.perf_counter() - begun, loader.stats() - before
        assert stats.steps == 6
        assert stats.compute >= 6 * 0.002
        assert stats.seconds == pytest.approx(stats.startup + stats.wait + stats.transfer + stats.compute)
        assert stats.steps_per_second == pytest.approx(6 / stats.seconds)
        uncounted.append((seconds - stats.seconds) / seconds)
    assert 0 <= min(uncounted) < 0.5


def test_slow_reading_shows_as_startup_and_then_as_wait():
    # a thread may read before the loop has come to ask
    loader = load(Waiting(4, 0.01), batch_size=1, use_buffer_reader=False)
    list(loader)
    stats = loader.stats()
    assert stats.startup >= 0.01
    assert stats.wait >= 0.03
    assert stats.fetch >= 0.04


def test_the_difference_of_two_snapshots_is_what_lies_between_them():
    loader = read_zeros(5)
    list(loader)
    first = loader.stats()
    list(loader)
    second = loader.stats() - first
    assert (second.steps, second.batches, second.nbytes) == (5, 5, 5 * 256)
    assert second.seconds == pytest.approx(loader.stats().seconds - first.seconds)
    assert second.slots == first.slots
    with pytest.raises(TypeError):
        first - 1


def test_slots_are_counted_while_they_are_in_use():
    loader = load(list(range(40)), batch_size=4, use_buffer_reader=False)
    assert (loader.stats().slots, loader.stats().slots_in_use) == (0, 0)
    epoch = iter(loader)
    kept = [next(epoch), next(epoch)]
    assert loader.stats().slots >= loader.stats().slots_in_use == 2
    del kept
    next(epoch)
    assert loader.stats().slots_in_use == 1
    epoch.close()


def test_two_consumers_of_one_epoch_are_both_counted():
    loader = read_zeros(30)
    epoch = iter(loader)
    run_threads(lambda: list(epoch), 2)
    assert loader.stats().steps == 30


def test_the_work_of_thread_workers_is_summed():
    loader = load(Waiting(8, 0.01), batch_size=4, num_workers=4, worker_type="thread")
    list(loader)
    assert loader.stats().fetch >= 8 * 0.01


def test_copies_are_timed_where_there_are_any():
    """On the simulated device a copy takes a virtual second; the timed ones count for those before them."""
    loader = read_zeros(3 * EVERY - 1)
    list(loader)
    assert loader.stats().copy == 0
    places = simulated_places(1)
    copied = read_zeros(3 * EVERY - 1, places)
    for (batch,) in copied:
        np.asarray(batch)
    assert copied.stats().copy == pytest.approx((3 * EVERY - 1) * 1.0)


class CountingDevice(SimulatedDevice):
    def __init__(self):
        super().__init__()
        self.timed_events = self.timed_copies = 0

    def event(self, *, timed=False):
        self.timed_events += timed
        return super().event(timed=timed)

    def elapsed(self, start, end):
        self.timed_copies += 1
        return super().elapsed(start, end)


def test_few_copies_are_timed_and_their_events_are_used_again():
    place = CustomPlace(CountingDevice())
    loader = read_zeros(20 * EVERY, place)
    for (batch,) in loader:
        np.asarray(batch)
    assert 2 <= place.device.timed_events <= 6
    assert 20 <= place.device.timed_copies <= 26
