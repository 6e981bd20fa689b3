"""The search for the number of workers: the climb over invented rates, and real loops with 'auto'."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import DataLoader, IterableDataset, TensorDataset
from gpuloader.testing import simulated_places
from gpuloader.watch.autotuner import DEEPEST, GAIN, HillClimb, Setting


def climb_on(rate_of, waiting=0.5, **options):
    """Run a climb to its end, with the rate of each setting from a function; return the climb."""
    climb = HillClimb(**{"setting": Setting(1, 2, 1), "most_workers": 16, **options})
    for _ in range(20):
        if climb.settled:
            return climb
        climb.measured(rate_of(climb.setting), waiting)
    raise AssertionError("the climb goes on for ever")


def test_workers_double_as_long_as_the_loop_gains():
    climb = climb_on(lambda setting: min(setting.workers, 4) * 100.0)
    assert climb.setting.workers == 4
    assert [setting.workers for setting, _ in climb.tried] == [1, 2, 4, 8, 16]


def test_a_setting_that_gains_nothing_is_looked_past_once():
    """If one sample in forty takes long, two threads wait for it as long as one."""
    rates = {1: 100.0, 2: 102.0, 4: 120.0, 8: 123.0, 16: 160.0}
    assert climb_on(lambda setting: rates[setting.workers]).setting.workers == 16
    level = climb_on(lambda setting: 100.0, most_workers=32)
    assert level.setting.workers == 1
    assert [setting.workers for setting, _ in level.tried] == [1, 2, 4]
    deep = climb_on(lambda setting: 100.0 + 50.0 * (setting.depth == 8), most_workers=1, deepens=True)
    assert deep.setting.depth == 8


def test_a_loop_that_does_not_wait_is_left_alone():
    climb = climb_on(lambda setting: setting.workers * 100.0, waiting=0.01)
    assert climb.setting == Setting(1, 2, 1)
    assert len(climb.tried) == 1


def test_there_are_never_more_workers_than_may_be():
    climb = climb_on(lambda setting: float(setting.workers), most_workers=6)
    assert climb.setting.workers == 6
    assert max(setting.workers for setting, _ in climb.tried) == 6


def test_depth_is_tried_where_more_workers_do_not_help():
    climb = climb_on(lambda setting: 100.0 * min(setting.depth, 4), deepens=True, most_workers=4)
    assert climb.setting == Setting(1, 4, 2)


def test_depth_has_an_end():
    climb = climb_on(lambda setting: 100.0 * setting.depth, deepens=True, most_workers=1)
    assert climb.setting.depth == DEEPEST


def test_what_there_is_no_room_for_is_not_kept():
    climb = HillClimb(Setting(1, 2, 1), most_workers=8)
    climb.measured(100.0, 0.5)
    assert climb.setting.workers == 2
    climb.refuse()
    assert climb.settled
    assert climb.setting.workers == 1


def test_it_says_what_it_chose_and_why():
    climb = climb_on(lambda setting: min(setting.workers, 2) * 100.0)
    said = climb.describe()
    assert said.startswith("Chosen for 'auto': 2 workers")
    assert "100 with 1 worker, prefetch_factor 2, prefetch 1" in said
    assert HillClimb(Setting(1, 2, 0), 4).describe() == (
        "Still searching for 'auto', now: 1 worker, prefetch_factor 2."
    )


@given(
    rates=st.lists(st.floats(1.0, 1000.0), min_size=16, max_size=16),
    most=st.integers(1, 16),
    deepens=st.booleans(),
    waiting=st.floats(0.0, 1.0),
)
def test_any_climb_ends_soon_with_a_setting_no_measured_one_beats_by_much(rates, most, deepens, waiting):
    climb = climb_on(
        lambda setting: rates[(setting.workers * 3 + setting.depth) % 16],
        most_workers=most,
        deepens=deepens,
        waiting=waiting,
    )
    assert len(climb.tried) <= 10
    chosen = dict(climb.tried)[climb.setting]
    assert all(rate < GAIN * chosen or rate <= chosen for _, rate in climb.tried)


class Waiting:
    """Samples that take time without computing, like reads from a disk."""

    def __init__(self, count=800, wait=0.001):
        self.count, self.wait = count, wait

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.wait)
        return np.float32(index)


def loader(dataset, **options):
    return DataLoader(dataset, places="cpu", **{"batch_size": 4, "shuffle": True, "seed": 5, **options})


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_auto_finds_more_workers_for_a_loop_that_waits_and_keeps_the_order(worker_type):
    expected = [batch.tolist() for batch in loader(Waiting(wait=0.0))]
    tuned = loader(Waiting(), num_workers="auto", worker_type=worker_type)
    seen = [batch.tolist() for batch in tuned]
    assert seen == expected
    said = str(tuned.explain())
    assert "'auto'" in said
    assert int(said.split("'auto'")[1].split(": ")[1].split()[0]) > 1
    second = loader(Waiting(wait=0.0))
    list(second)
    assert [batch.tolist() for batch in tuned] == [batch.tolist() for batch in second]


def test_the_search_begins_with_one_worker_and_two_batches_for_it():
    begun = loader(Waiting(), num_workers="auto", worker_type="thread", prefetch_factor=None)
    assert "now: 1 worker, prefetch_factor 2" in begun.explain().notes[-1]


def test_what_was_found_holds_in_later_epochs():
    tuned = loader(Waiting(count=600), num_workers="auto", worker_type="thread")
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
    tuned = loader(Waiting(count=240, wait=0.0), num_workers="auto", worker_type="thread")
    for _ in tuned:
        time.sleep(0.012)  # long beside one batch even while other programs compute
    assert tuned.explain().notes[-1].startswith("Chosen for 'auto': 1 worker,")


def test_persistent_workers_stay_and_change_their_number():
    tuned = loader(Waiting(count=400), num_workers="auto", persistent_workers=True)
    first, second = [batch.tolist() for batch in tuned], [batch.tolist() for batch in tuned]
    plain = loader(Waiting(count=400, wait=0.0))
    assert first == [batch.tolist() for batch in plain]
    assert second == [batch.tolist() for batch in plain]
    tuned.close()


def test_slots_stay_within_the_budget():
    class Large(Waiting):
        def __getitem__(self, index):
            time.sleep(self.wait)
            return np.full(1 << 16, index % 251, np.uint8)

    slot = 1 << 16
    options = {"num_workers": "auto", "worker_type": "thread", "batch_size": 1}
    narrow = loader(Large(), memory_budget=9 * slot, **options)
    wide = loader(Large(), **options)
    for one in (narrow, wide):
        for _ in one:
            pass
    assert narrow.stats().slots * slot <= 9 * slot
    assert wide.stats().slots > narrow.stats().slots


def test_a_simulated_device_is_tuned_without_a_race():
    tuned = DataLoader(
        Waiting(count=400, wait=0.0005),
        places=simulated_places(2, seed=3),
        batch_size=2,
        num_workers="auto",
        worker_type="thread",
        prefetch="auto",
    )
    seen = [np.asarray(batch).tolist() for step in tuned for batch in step]
    assert np.concatenate(seen).tolist() == list(range(400))
    assert "prefetch" in tuned.explain().notes[-1]


def test_an_error_and_an_early_end_leave_nothing_behind():
    class Faulty(Waiting):
        def __getitem__(self, index):
            if index == 400:
                raise KeyError(index)
            return super().__getitem__(index)

    before = threading.active_count()
    tuned = loader(Faulty(), num_workers="auto", worker_type="thread", shuffle=False)
    with pytest.raises(ValueError, match="index 400"):
        list(tuned)
    epoch = iter(loader(Waiting(), num_workers="auto", worker_type="thread"))
    for _ in range(50):
        next(epoch)
    epoch.close()
    assert threading.active_count() == before


def test_resuming_in_the_middle_of_the_search_keeps_the_order():
    tuned = loader(Waiting(count=400), num_workers="auto", worker_type="thread")
    epoch = iter(tuned)
    first = [next(epoch).tolist() for _ in range(40)]
    state = tuned.state_dict()
    epoch.close()
    again = loader(Waiting(count=400), num_workers="auto", worker_type="thread")
    again.load_state_dict(state)
    rest = [batch.tolist() for batch in again]
    assert first + rest == [batch.tolist() for batch in loader(Waiting(count=400, wait=0.0))]


def test_arrays_need_no_search():
    arrays = TensorDataset(np.arange(400, dtype=np.float32))
    tuned = loader(arrays, num_workers="auto", prefetch="auto")
    assert [batch.tolist() for (batch,) in tuned] == [batch.tolist() for (batch,) in loader(arrays)]
    assert "'auto'" not in str(tuned.explain()).split("→")[0]


def test_the_number_of_workers_a_sample_is_told_covers_its_own():
    from gpuloader import get_worker_info

    class Told(Waiting):
        def __getitem__(self, index):
            info = get_worker_info()
            time.sleep(self.wait)
            return np.array([info.id, info.num_workers])

    seen = np.concatenate(list(loader(Told(), num_workers="auto", worker_type="thread")))
    assert (seen[:, 0] < seen[:, 1]).all()
    assert len(np.unique(seen[:, 1])) == 1


class Items(IterableDataset):
    def __iter__(self):
        return iter(range(8))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"dataset": Items(), "num_workers": "auto", "shuffle": False, "seed": None},
            "a map-style dataset",
        ),
        ({"num_workers": "many"}, "'auto' or an integer"),
        ({"prefetch": "deep"}, "prefetch"),
        ({"num_workers": 2, "memory_budget": 1 << 20}, "memory_budget limits"),
        ({"num_workers": "auto", "memory_budget": 0}, "memory_budget"),
    ],
)
def test_what_makes_no_sense_is_refused(options, problem):
    options = {"dataset": Waiting(8), **options}
    with pytest.raises(ValueError, match=problem):
        loader(**options)
