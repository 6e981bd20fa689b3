"""A worker process that dies: an error at once that says so, or a replacement and no batch lost."""

import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest

from gpuloader import Ragged, WorkerError
from gpuloader.fetch.processes import workers
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, Growing, indices, loader, once, plain

STARTED = pytest.mark.parametrize("method", ["forkserver", "fork"])
KEPT = pytest.mark.parametrize(("method", "persistent"), [("forkserver", True), ("fork", False)])


pytestmark = pytest.mark.usefixtures("shared_server", "nothing_left")


DEATHS = {
    "SIGKILL": (faulty.kill, signal.SIGKILL, r"ended by signal 9 \(SIGKILL\).*out of memory"),
    "fault": (faulty.fall, signal.SIGSEGV, r"ended by signal 11 \(SIGSEGV\)"),
    "os._exit": (faulty.exit_at_once, None, "exited with code 3"),
    "sys.exit": (faulty.exit_politely, None, "exited with code 5"),
}


@pytest.mark.parametrize(
    ("method", "persistent", "death"),
    [
        *(("forkserver", True, death) for death in DEATHS),
        *(("fork", False, death) for death in DEATHS),
        ("forkserver", False, "SIGKILL"),
        ("spawn", False, "SIGKILL"),
    ],
)
def test_a_death_is_an_error_at_once(method, persistent, death, tmp_path):
    action, number, words = DEATHS[death]
    options = {"start_method": method, "persistent_workers": persistent}
    if method == "spawn":
        options["num_workers"] = 1  # each imports everything
    one = loader(Faulty(actions={13: once(tmp_path, action)}), **options)
    with pytest.raises(WorkerError, match=words) as caught:
        list(one)
    assert time.time() - os.stat(tmp_path / "once").st_mtime < 5  # which the worker wrote before it died
    assert caught.value.pid not in faulty.offspring()
    assert caught.value.signal == number
    assert set(range(12, 16)) <= set(caught.value.indices)
    held = "batches 3, " if len(caught.value.indices) > 4 else "batch 3 "
    assert f"was fetching {held}" in str(caught.value)
    assert indices(one) == plain()
    one.close()


def test_a_worker_that_only_closes_its_link_is_dead_too(monkeypatch):
    """Its process stays, because the user's code started a thread that is not a daemon."""
    monkeypatch.setattr(workers, "GRACE", 0.2)  # no time is enough for it to end
    one = loader(Faulty(actions={13: leave_a_thread}), start_method="forkserver")
    with pytest.raises(WorkerError, match=r"closed its pipe while it was fetching batch(es)? 3"):
        list(one)


def leave_a_thread():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    faulty.exit_politely()


@STARTED
@pytest.mark.parametrize("moment", ["between steps", "between epochs"])
@pytest.mark.parametrize("reaction", ["raise", "respawn"])
def test_an_idle_worker_is_killed(method, moment, reaction):
    others = faulty.offspring()
    one = loader(Faulty(80), start_method=method, persistent_workers=True, on_worker_death=reaction)
    epoch = iter(one)
    got = [next(epoch)]
    if moment == "between epochs":
        got += epoch
        assert indices(got) == plain(80)
        epoch, got = iter(one), []
    victim = max(faulty.offspring() - others)
    time.sleep(0.02)  # the worker is idle after it has filled as many batches as it may ahead
    faulty.end(victim)
    if reaction == "respawn":
        assert indices([*got, *epoch]) == plain(80)
    else:
        with pytest.raises(WorkerError) as caught:
            list(epoch)
        assert caught.value.pid == victim
        if moment == "between epochs":
            assert "while it was idle" in str(caught.value)
            assert caught.value.indices == ()
    assert indices(one) == plain(80)
    one.close()


@KEPT
@pytest.mark.parametrize("death", ["SIGKILL", "sys.exit"])
@pytest.mark.parametrize("kind", [Faulty, FaultyStream])
def test_another_worker_continues_where_one_died(method, persistent, death, kind, tmp_path):
    options = {"start_method": method, "persistent_workers": persistent}
    expected = indices(loader(kind(), **options))
    deaths = {at: partial(faulty.at_first, str(tmp_path / str(at)), DEATHS[death][0]) for at in (0, 9, 23)}
    one = loader(kind(actions=deaths), on_worker_death="respawn", **options)
    for _ in range(2):
        assert indices(one) == expected
    assert len(os.listdir(tmp_path)) == 3
    one.close()


@STARTED
@pytest.mark.parametrize("kind", [Faulty, FaultyStream])
def test_a_sample_that_always_kills_is_an_error(method, kind):
    one = loader(kind(actions={13: faulty.exit_at_once}), on_worker_death="respawn", start_method=method)
    with pytest.raises(WorkerError, match=r"the 4th worker to die at batch 3") as caught:
        list(one)
    if kind is Faulty:
        assert set(range(12, 16)) <= set(caught.value.indices)


def begin_and_die(number):
    if number == 1:
        os._exit(4)


def test_a_worker_that_dies_before_it_has_anything_to_do_is_not_replaced_for_ever(monkeypatch):
    """There is only one batch, so the second worker has no task."""
    monkeypatch.setattr(workers, "GRACE", 0.2)  # the first one sleeps for longer in any case
    options = {"on_worker_death": "respawn", "start_method": "forkserver"}
    one = loader(Faulty(4, actions={0: partial(time.sleep, 2)}), worker_init_fn=begin_and_die, **options)
    with pytest.raises(WorkerError, match=r"exited with code 4.*the 4th in a row to die before it delivered"):
        list(one)


def kill_in_collate(path, samples):
    if samples[0][0] == 8:
        faulty.at_first(path, faulty.kill)
    return {"x": np.concatenate([np.repeat(sample, 50 * (1 + int(sample[0]))) for sample in samples])}


@KEPT
@pytest.mark.parametrize("way", ["ragged", "pad", "collate_fn"])
def test_batches_grow_and_workers_die(method, persistent, way, tmp_path):
    """Every batch needs a larger slot; the worker that settles the form and two later ones die."""
    options = {"start_method": method, "persistent_workers": persistent}
    if way == "collate_fn":
        options["collate_fn"] = partial(kill_in_collate, str(tmp_path / "collate"))
    else:
        options[way] = ["x"] if way == "ragged" else {"x": -1}
    deaths = {at: partial(faulty.at_first, str(tmp_path / str(at)), faulty.kill) for at in (1, 11, 22)}
    kind = Faulty if way == "collate_fn" else Growing
    one = loader(kind(actions=deaths), on_worker_death="respawn", **options)
    for _ in range(2):
        kept = list(one)
        assert len(kept) == 6
        for number, batch in enumerate(kept):
            check_grown(way, batch["x"], range(4 * number, 4 * number + 4))
    one.close()


def check_grown(way, x, expected):
    if way == "collate_fn":
        np.testing.assert_array_equal(x, np.concatenate([[at] * 150 * (1 + at) for at in expected]))
        return
    rows = [np.full(1 + 40 * at, at) for at in expected]
    if way == "ragged":
        assert isinstance(x, Ragged)
        x = np.split(x.values, x.row_splits[0][1:-1])
    for got, row in zip(x, rows, strict=True):
        assert (got[: len(row)] == row).all()
        assert (got[len(row) :] == -1).all()


def test_batches_come_out_of_order_and_none_is_missing(tmp_path):
    action = once(tmp_path, faulty.kill)
    one = loader(Faulty(actions={9: action}), in_order=False, on_worker_death="respawn", num_workers=3)
    assert sorted(indices(one)) == plain()
