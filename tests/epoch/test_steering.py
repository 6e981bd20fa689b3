"""Steering: when a loop is measured, and what a new setting changes, with times that the test makes up."""

from types import SimpleNamespace

import pytest

from gpuloader.epoch.epoch import FEWEST_STEPS, Autotuner
from gpuloader.testing import simulated_places
from gpuloader.watch.autotuner import HillClimb, Setting

SECOND = 10**9


class Loop:
    """A loop on one simulated device, whose steps take as long as the test says."""

    def __init__(self, climb=None, prefetch=1, budget=1 << 20):
        self.climb = climb or HillClimb(Setting(1, 2, 1), most_workers=8)
        self.resized = []
        self.ring = SimpleNamespace(count=4, slot_nbytes=1000, grow=self.grow)
        self.lanes = [
            SimpleNamespace(device=place.device, prefetch=prefetch) for place in simulated_places(1)
        ]
        self.pipeline = SimpleNamespace(prefetch=prefetch)
        self.meter = SimpleNamespace(
            steps=0, wait=0, transfer=0, compute=0, snapshot=lambda: self.meter.steps
        )
        fetching = SimpleNamespace(ahead_of=lambda workers, depth: workers * depth, budget=budget)
        fetch = SimpleNamespace(resize=lambda *sizes: self.resized.append(sizes))
        self.steering = Autotuner(self.climb, fetch, self.ring, self.lanes, self.meter, fetching)

    def grow(self, count):
        self.ring.count += count

    def step(self, seconds=0.1, waiting=0.5):
        self.meter.steps += 1
        self.meter.wait += int(seconds * SECOND * waiting)
        self.meter.compute += int(seconds * SECOND * (1 - waiting) / 2)
        self.meter.transfer += int(seconds * SECOND * (1 - waiting) / 2)
        return self.steering.after_step(self.pipeline)


def test_a_rate_is_measured_over_enough_steps_and_time():
    loop = Loop()
    assert [loop.step() for _ in range(FEWEST_STEPS)] == [True] * FEWEST_STEPS
    assert loop.climb.tried == [(Setting(1, 2, 1), pytest.approx(10.0))]
    assert loop.climb.setting.workers == 2
    brief = Loop()
    assert all(brief.step(0.01) for _ in range(19))
    assert brief.climb.tried == []
    brief.step(0.011)
    assert brief.climb.tried == [(Setting(1, 2, 1), pytest.approx(100.0, rel=0.01))]


def test_a_setting_has_workers_slots_and_steps_ahead():
    loop = Loop(HillClimb(Setting(2, 3, 2), most_workers=8))
    loop.steering.begin(loop.pipeline)
    assert loop.resized == [(2, 6)]
    assert loop.ring.count == 6 + 1 + 1 + 3  # waiting, being filled, being grouped, being copied
    assert (loop.pipeline.prefetch, loop.lanes[0].prefetch) == (2, 2)
    unhurried = Loop(HillClimb(Setting(2, 3, 2), most_workers=8), prefetch=0)
    unhurried.steering.begin(unhurried.pipeline)
    assert unhurried.ring.count == 6 + 1 + 1 + 1
    assert (unhurried.pipeline.prefetch, unhurried.lanes[0].prefetch) == (0, 0)


def test_steps_of_the_last_setting_are_not_measured():
    loop = Loop(HillClimb(Setting(2, 3, 2), most_workers=8))
    loop.steering.begin(loop.pipeline)
    for _ in range(6 + 2 + 2):  # waiting, copied ahead, in progress
        loop.step(5.0)
    for _ in range(FEWEST_STEPS):
        assert loop.climb.tried == []
        loop.step()
    assert loop.climb.tried == [(Setting(2, 3, 2), pytest.approx(10.0))]


def test_a_setting_beyond_the_memory_budget_changes_nothing():
    loop = Loop(budget=7000)  # of 2 + 1 + 1 + 2 slots of 1000 bytes; 2 workers need two more
    loop.steering.begin(loop.pipeline)
    assert loop.ring.count == 6
    while loop.step():
        assert loop.meter.steps < 100
    assert loop.climb.setting == Setting(1, 2, 1)
    assert loop.climb.settled_at == loop.meter.steps
    assert loop.resized == [(1, 2)]
    assert not loop.step()
    enough = Loop(budget=8000)
    for _ in range(FEWEST_STEPS):
        enough.step()
    assert (enough.climb.setting.workers, enough.ring.count) == (2, 8)


def test_a_loop_that_hardly_waits_keeps_its_setting():
    loop = Loop()
    assert [loop.step(waiting=0.01) for _ in range(FEWEST_STEPS)] == [True] * (FEWEST_STEPS - 1) + [False]
    assert loop.climb.setting == Setting(1, 2, 1)
    assert loop.resized == []


def test_only_the_latest_epoch_of_a_loader_steers():
    earlier = Loop()
    later = Loop(earlier.climb)
    assert not earlier.step()
    assert later.step()
