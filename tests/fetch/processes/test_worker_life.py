"""The environment of a worker: its number, its seeds, its init function, and no GPU."""

import gc
import multiprocessing
import os
import random
import signal
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import get_worker_info
from gpuloader.fetch.processes.worker import limit_threads, seed_globals
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, loader
from tests.sample_sets import Made

FORKED = pytest.mark.parametrize("method", ["forkserver", "fork"])

pytestmark = pytest.mark.usefixtures("shared_server", "nothing_left")


class Witness(Faulty):
    """Samples that identify the worker that fetched them."""

    def __getitem__(self, index):
        info = get_worker_info()
        return index, info.id, info.num_workers, info.seed, info.dataset is self, os.getpid()


class WitnessStream(FaultyStream):
    def __iter__(self):
        info = get_worker_info()
        return (Witness.__getitem__(self, index) for index in range(info.id, 24, info.num_workers))


def table(epoch):
    return np.concatenate([np.stack(batch, 1) for batch in epoch])


def note_call(path, number):
    with open(path, "a") as file:
        file.write(f"{number} {os.getpid()}\n")


class Drawing(Faulty):
    """Samples drawn from the global random generators."""

    def __getitem__(self, index):
        return np.array([index, np.random.random(), random.random(), np.random.randint(1 << 30)])


def test_draws_are_the_same_for_any_number_of_workers_and_differ_between_epochs():
    def draw(**options):
        return np.concatenate(list(loader(Drawing(), shuffle=True, **options)))

    expected = draw(num_workers=1)
    assert len(np.unique(expected[:, 1])) == 24
    np.testing.assert_array_equal(draw(num_workers=3), expected)
    np.testing.assert_array_equal(draw(start_method="fork"), expected)
    assert not (draw(seed=8)[:, 1] == expected[:, 1]).any()
    one = loader(Drawing(), persistent_workers=True)
    first, second = (np.concatenate(list(one)) for _ in range(2))
    np.testing.assert_array_equal(first[:, 0], second[:, 0])
    assert not (first[:, 1:] == second[:, 1:]).any()
    one.close()


class DrawingStream(FaultyStream):
    def __iter__(self):
        for sample in super().__iter__():
            yield np.array([sample[0], np.random.random(), random.random()])


def test_no_gpu_no_cupy_and_no_lost_output_in_a_worker(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done = faulty.run_program(  # other tests in this process, and so its fork server, have imported CuPy
        """
import os
from tests.fetch.faulty import loader
from tests.fetch.telling import print_surroundings
from tests.sample_sets import Made

for method in ("fork", "forkserver", "spawn"):
    found = list(loader(Made(print_surroundings, 4), start_method=method, num_workers=1))
    assert all(hidden.all() and not cupy.any() for hidden, cupy in found), method
assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
"""
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert sorted(done.stdout.splitlines()) == [f"sample {index}" for index in range(4) for _ in range(3)]


def describe_process(_):
    """Return what the process that reads a sample would tell its dataset's code of itself."""
    is_default = signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    return signal.set_wakeup_fd(-1), is_default, gc.isenabled(), multiprocessing.current_process().daemon


def slow(index):
    """Return the id of the process that reads a sample, which takes a while but for the first."""
    time.sleep(0.15 * (index > 0))
    return os.getpid()


def count_mappings(index):
    """Return a sample that grows, and how many regions of slots the process that reads it has mapped."""
    with open("/proc/self/maps") as maps:
        count = sum("gpuloader-arena" in line for line in maps)
    return {"x": np.zeros(1 + 5000 * index), "count": count}


@FORKED
class TestOfForkedWorkers:
    @pytest.mark.parametrize("kind", [Witness, WitnessStream])
    def test_worker_info(self, method, kind):
        one = loader(kind(), start_method=method, persistent_workers=True)
        first, second = table(one), table(one)
        one.close()
        for rows in (first, second):
            assert sorted(rows[:, 0].tolist()) == list(range(24))
            assert set(rows[:, 1].tolist()) == {0, 1}
            assert set(rows[:, 2].tolist()) == {2}
            assert rows[:, 4].all()
            assert len({tuple(row) for row in rows[:, [1, 3, 5]].tolist()}) == 2  # one seed per worker
        seeds = [set(rows[:, 3].tolist()) for rows in (first, second)]
        assert len(seeds[0] | seeds[1]) == 4  # and per epoch
        assert set(first[:, 5].tolist()) == set(second[:, 5].tolist())
        assert os.getpid() not in first[:, 5]
        again = loader(kind(), start_method=method)
        assert {(row[1], row[3]) for row in table(again).tolist()} == {
            (row[1], row[3]) for row in first.tolist()
        }
        other = loader(kind(), start_method=method, seed=8)
        assert not {row[3] for row in table(other).tolist()} & (seeds[0] | seeds[1])

    @pytest.mark.parametrize("persistent", [True, False])
    def test_the_init_function_is_called_once_a_worker(self, method, persistent, tmp_path):
        path = tmp_path / "calls"
        options = {"start_method": method, "persistent_workers": persistent}
        one = loader(Faulty(), worker_init_fn=partial(note_call, str(path)), **options)
        for _ in range(3):
            list(one)
        one.close()
        calls = [line.split() for line in path.read_text().splitlines()]
        processes = 1 if persistent else 3
        assert sorted(number for number, _ in calls) == sorted(["0", "1"] * processes)
        assert len({pid for _, pid in calls}) == 2 * processes

    def test_draws_of_an_iterable_dataset_differ_between_workers_epochs_and_seeds(self, method):
        def draw(epochs, **options):
            one = loader(DrawingStream(), start_method=method, **options)
            return np.concatenate([batch for _ in range(epochs) for batch in one])

        found = draw(2)
        np.testing.assert_array_equal(draw(2), found)
        assert all(len(np.unique(np.r_[found, draw(1, seed=8)][:, column])) == 3 * 24 for column in (1, 2))

    def test_a_worker_is_a_process_like_any_other(self, method):
        """It keeps nothing of how its fork server hears signals and collects garbage."""
        found = table(loader(Made(describe_process, 4), start_method=method))
        assert found.tolist() == [[-1, True, True, True]] * 4

    def test_a_persistent_worker_skips_what_an_epoch_that_is_left_had_given_it(self, method):
        """With all of it, it would need longer than it is waited for, and would be replaced."""
        options = {"num_workers": 1, "batch_size": 1, "prefetch_factor": 16, "persistent_workers": True}
        one = loader(Made(slow, 24), start_method=method, **options)
        found = []
        for _ in range(2):
            epoch = iter(one)
            found.append(next(epoch).item())
            epoch.close()
        assert found[0] == found[1]
        one.close()

    def test_a_worker_unmaps_the_slots_that_have_been_replaced(self, method):
        options = {"num_workers": 1, "batch_size": 1, "ragged": ["x"], "start_method": method}
        counts = [batch["count"].item() for batch in loader(Made(count_mappings, 60), **options)]
        assert max(counts) < 20  # of some 60 that there have been


def test_libraries_that_are_imported_already_get_one_thread_and_a_seed(monkeypatch):
    told = []
    torch = SimpleNamespace(
        set_num_threads=lambda count: told.append(("torch", count)),
        default_generator=SimpleNamespace(manual_seed=lambda seed: told.append(("seed", seed))),
    )
    cv2 = SimpleNamespace(setNumThreads=lambda count: told.append(("cv2", count)))
    pools = SimpleNamespace(threadpool_limits=lambda count: told.append(("pools", count)))
    for name, module in (("torch", torch), ("cv2", cv2), ("threadpoolctl", pools)):
        monkeypatch.setitem(sys.modules, name, module)
    limit_threads()
    assert told == [("torch", 1), ("cv2", 1), ("pools", 1)]
    before, drawn = (random.getstate(), np.random.get_state()), []
    try:
        for seed in (7, 7, 8):
            seed_globals(seed)
            drawn.append((random.random(), np.random.random()))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])
    assert told[3:] == [("seed", 7), ("seed", 7), ("seed", 8)]
