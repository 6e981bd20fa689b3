"""Tuning: the search over invented rates, when a loop is measured, and real loops with 'auto'."""

import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import TensorDataset, get_worker_info
from gpuloader.epoch.epoch import apply_setting
from gpuloader.testing import simulated_places
from gpuloader.watch.autotuner import DEEPEST, FEWEST_STEPS, GAIN, Autotuner, Setting
from gpuloader.watch.meter import Meter
from tests.loading import load
from tests.sample_sets import values
from tests.watch.loops import Waiting

SECOND = 10**9


def search(rate_of, waiting=0.5, **options):
    """Run a search to its end, with the rate of each setting from a function; return the tuner."""
    tuner = Autotuner(**{"setting": Setting(1, 2, 1), "most_workers": 16, "meter": Meter(), **options})
    for _ in range(20):
        if tuner.settled:
            return tuner
        tuner.measured(rate_of(tuner.setting), waiting)
    raise AssertionError("the search goes on for ever")


def test_workers_double_as_long_as_the_loop_gains():
    tuner = search(lambda setting: min(setting.workers, 4) * 100.0)
    assert tuner.setting.workers == 4
    assert [setting.workers for setting, _ in tuner.tried] == [1, 2, 4, 8, 16]
    few = search(lambda setting: float(setting.workers), most_workers=6)
    assert few.setting.workers == max(setting.workers for setting, _ in few.tried) == 6


def test_a_setting_that_gains_nothing_is_looked_past_once():
    """If one sample in forty takes long, two threads wait for it as long as one."""
    rates = {1: 100.0, 2: 102.0, 4: 120.0, 8: 123.0, 16: 160.0}
    assert search(lambda setting: rates[setting.workers]).setting.workers == 16
    level = search(lambda setting: 100.0, most_workers=32)
    assert level.setting.workers == 1
    assert [setting.workers for setting, _ in level.tried] == [1, 2, 4]
    deep = search(lambda setting: 100.0 + 50.0 * (setting.depth == 8), most_workers=1, deepens=True)
    assert deep.setting.depth == 8


def test_depth_is_tried_where_more_workers_do_not_help_and_has_an_end():
    tuner = search(lambda setting: 100.0 * min(setting.depth, 4), deepens=True, most_workers=4)
    assert tuner.setting == Setting(1, 4, 2)
    deepest = search(lambda setting: 100.0 * setting.depth, deepens=True, most_workers=1)
    assert deepest.setting.depth == DEEPEST


def test_it_says_what_it_chose_and_why():
    tuner = search(lambda setting: min(setting.workers, 2) * 100.0)
    said = tuner.describe()
    assert said.startswith("Chosen for 'auto': 2 workers")
    assert "100 with 1 worker, prefetch_factor 2, prefetch 1" in said
    assert Autotuner(Setting(1, 2, 0), 4, Meter()).describe() == (
        "Still searching for 'auto', now: 1 worker, prefetch_factor 2."
    )


@given(
    rates=st.lists(st.floats(1.0, 1000.0), min_size=16, max_size=16),
    most=st.integers(1, 16),
    deepens=st.booleans(),
    waiting=st.floats(0.0, 1.0),
)
def test_any_climb_ends_soon_with_a_setting_no_measured_one_beats_by_much(rates, most, deepens, waiting):
    tuner = search(
        lambda setting: rates[(setting.workers * 3 + setting.depth) % 16],
        most_workers=most,
        deepens=deepens,
        waiting=waiting,
    )
    assert len(tuner.tried) <= 10
    chosen = dict(tuner.tried)[tuner.setting]
    assert all(rate < GAIN * chosen or rate <= chosen for _, rate in tuner.tried)


class Loop:
    """A loop on one simulated device, whose steps take as long as the test says."""

    def __init__(self, tuner=None, setting=None, prefetch=1, budget=1 << 20):
        self.meter = Meter() if tuner is None else tuner._meter
        self.tuner = tuner or Autotuner(setting or Setting(1, 2, 1), 8, self.meter)
        self.resized = []
        ring = SimpleNamespace(count=4, slot_nbytes=1000, grow=self.grow)
        lanes = [SimpleNamespace(device=place.device, prefetch=prefetch) for place in simulated_places(1)]
        self.buffers = SimpleNamespace(ring=ring, lanes=lanes, prefetch=prefetch)
        capacity = SimpleNamespace(ahead_of=lambda workers, depth: workers * depth, budget=budget)
        fetch = SimpleNamespace(resize=lambda *sizes: self.resized.append(sizes))
        self.apply = partial(apply_setting, self.buffers, fetch, capacity)
        self.tuner.begin(self.apply)

    def grow(self, count):
        self.buffers.ring.count += count

    def step(self, seconds=0.1, waiting=0.5):
        time = int(seconds * SECOND)
        self.meter.steps += 1
        self.meter.wait += int(time * waiting)
        self.meter.compute += int(time * (1 - waiting) / 2)
        self.meter.transfer += int(time * (1 - waiting) / 2)
        return self.tuner.after_step(self.apply)

    def flush(self):
        """Take the steps that belong to the setting before, or wait for new workers; return this loop."""
        for _ in range(self.tuner._flushing):
            assert self.step(5.0)
        assert self.tuner.tried == []
        return self


def test_a_rate_is_measured_over_enough_steps_and_time():
    loop = Loop().flush()
    assert [loop.step() for _ in range(FEWEST_STEPS)] == [True] * FEWEST_STEPS
    assert loop.tuner.tried == [(Setting(1, 2, 1), pytest.approx(10.0))]
    assert loop.tuner.setting.workers == 2
    brief = Loop().flush()
    assert all(brief.step(0.01) for _ in range(19))
    assert brief.tuner.tried == []
    brief.step(0.011)
    assert brief.tuner.tried == [(Setting(1, 2, 1), pytest.approx(100.0, rel=0.01))]


def test_a_setting_has_workers_slots_and_steps_ahead_which_are_not_measured():
    loop = Loop(setting=Setting(2, 3, 2))
    assert loop.resized == [(2, 6)]
    assert loop.buffers.ring.count == 6 + 1 + 1 + 3  # waiting, being filled, being grouped, being copied
    assert loop.buffers.lanes[0].prefetch == 2
    for _ in range(6 + 2 + 2):  # waiting, copied ahead, in progress
        loop.step(5.0)
    for _ in range(FEWEST_STEPS):
        assert loop.tuner.tried == []
        loop.step()
    assert loop.tuner.tried == [(Setting(2, 3, 2), pytest.approx(10.0))]
    unhurried = Loop(setting=Setting(2, 3, 2), prefetch=0)
    assert unhurried.buffers.ring.count == 6 + 1 + 1 + 1
    assert unhurried.buffers.lanes[0].prefetch == 0


def test_a_setting_beyond_the_memory_budget_changes_nothing():
    loop = Loop(budget=7000)  # of 2 + 1 + 1 + 2 slots of 1000 bytes; 2 workers need two more
    assert loop.buffers.ring.count == 6
    while loop.step():
        assert loop.meter.steps < 100
    assert loop.tuner.setting == Setting(1, 2, 1)
    assert loop.tuner.settled_at.steps == loop.meter.steps
    assert loop.resized == [(1, 2)]
    assert not loop.step()
    enough = Loop(budget=8000).flush()
    for _ in range(FEWEST_STEPS):
        enough.step()
    assert (enough.tuner.setting.workers, enough.buffers.ring.count) == (2, 8)


def test_a_loop_that_hardly_waits_keeps_its_setting():
    loop = Loop().flush()
    assert [loop.step(waiting=0.01) for _ in range(FEWEST_STEPS)] == [True] * (FEWEST_STEPS - 1) + [False]
    assert loop.tuner.setting == Setting(1, 2, 1)
    assert loop.resized == [(1, 2)]


def test_only_the_latest_epoch_of_a_loader_is_tuned():
    earlier = Loop()
    later = Loop(earlier.tuner)
    assert not earlier.step()
    assert later.step()


def loader(dataset, **options):
    return load(dataset, **{"batch_size": 4, "shuffle": True, "seed": 5, **options})


def auto(dataset, **options):
    return loader(dataset, **{"num_workers": "auto", "worker_type": "thread", **options})


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_auto_finds_more_workers_for_a_loop_that_waits_and_keeps_the_order(worker_type):
    tuned, plain = auto(Waiting(), worker_type=worker_type), loader(Waiting(wait=0.0))
    assert values(tuned) == values(plain)
    said = str(tuned.explain())
    assert "'auto'" in said
    assert int(said.split("'auto'")[1].split(": ")[1].split()[0]) > 1
    assert values(tuned) == values(plain)


def test_what_was_found_holds_in_later_epochs():
    tuned = auto(Waiting(600), prefetch_factor=None)
    assert "now: 1 worker, prefetch_factor 2" in tuned.explain().notes[-1]
    while not tuned.explain().notes[-1].startswith("Chosen"):
        list(tuned)
    chosen = tuned.explain().notes[-1]
    list(tuned)
    assert tuned.explain().notes[-1] == chosen
    names = {thread.name for thread in threading.enumerate()}
    epoch = iter(tuned)
    next(epoch)
    begun = {thread.name for thread in threading.enumerate()} - names
    assert len(begun) == int(chosen.split(": ")[1].split()[0])
    epoch.close()


def test_a_loop_that_is_slower_than_one_worker_gets_one():
    for _ in range(3):  # other programs that end while one rate is measured make the next look better
        tuned = auto(Waiting(count=240, wait=0.0))
        for _ in tuned:
            time.sleep(0.012)  # long beside one batch even while other programs compute
        chosen = tuned.explain().notes[-1]
        if chosen.startswith("Chosen for 'auto': 1 worker,"):
            return
    pytest.fail(chosen)


def test_persistent_workers_stay_and_change_their_number():
    tuned, plain = auto(Waiting(400), worker_type=None, persistent_workers=True), loader(Waiting(400, 0.0))
    for _ in range(2):
        assert values(tuned) == values(plain)
    tuned.close()


def test_slots_stay_within_the_budget(monkeypatch):
    slot = 1 << 16
    wide = auto(Waiting(make=lambda index: np.full(slot, index % 251, np.uint8)), batch_size=1)
    monkeypatch.setattr("gpuloader.api.loading.available_memory", lambda: 18 * slot)  # half is for slots
    narrow = auto(wide.dataset, batch_size=1)
    for one in (narrow, wide):
        for _ in one:
            pass
    assert narrow.stats().slots * slot <= 9 * slot
    assert wide.stats().slots > narrow.stats().slots


def test_a_simulated_device_is_tuned_without_a_race():
    where = {"places": simulated_places(2, seed=3), "batch_size": 2, "shuffle": False}
    tuned = auto(Waiting(count=400, wait=0.0005), prefetch="auto", **where)
    seen = [np.asarray(batch).tolist() for step in tuned for batch in step]
    assert np.concatenate(seen).tolist() == list(range(400))
    assert "prefetch" in tuned.explain().notes[-1]


def test_an_error_and_an_early_end_leave_nothing_behind():
    before = threading.active_count()
    with pytest.raises(ValueError, match="index 400"):
        list(auto(Waiting(make=lambda index: {}[index] if index == 400 else index), shuffle=False))
    epoch = iter(auto(Waiting()))
    for _ in range(50):
        next(epoch)
    epoch.close()
    assert threading.active_count() == before


def test_arrays_need_no_search():
    arrays = TensorDataset(np.arange(400, dtype=np.float32))
    tuned = loader(arrays, num_workers="auto", prefetch="auto")
    assert [batch.tolist() for (batch,) in tuned] == [batch.tolist() for (batch,) in loader(arrays)]
    assert "'auto'" not in str(tuned.explain()).split("→")[0]


def test_the_number_of_workers_a_sample_is_told_covers_its_own():
    def tell(index):
        info = get_worker_info()
        return np.array([info.id, info.num_workers])

    seen = np.concatenate(list(auto(Waiting(make=tell))))
    assert (seen[:, 0] < seen[:, 1]).all()
    assert len(np.unique(seen[:, 1])) == 1
