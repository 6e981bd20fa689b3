"""Loaders take turns, failures keep their error, and an interrupted run keeps its figures so far."""

from dataclasses import replace
from itertools import count

import pytest

from benchmarks.measure import Endless, turn
from benchmarks.peers.cases import CASES
from benchmarks.peers.running import run_cases
from gpuloader.errors import install_command
from tests.benchmarks.fake_peer import Failing, FakePeer, open_briefly

SMALL = replace(CASES["small"], length=16)
BATCHES = [[1.0]] * 4


def run(*peers, cases=(SMALL,), repeats=2, **options):
    return list(run_cases(cases, peers, repeats, open_side=open_briefly, **options))


def test_floor_ours_and_the_peer_take_turns_after_one_to_warm_up():
    turns = []
    (measured,) = run(FakePeer("fake", {"fast": BATCHES}), tell=lambda *what: turns.append(what))
    labels = [row.label for row in measured.rows]
    assert labels[0] == "floor, bare loop"
    assert labels[1].startswith("gpuloader, ")
    assert labels[-1] == "fake, fast"
    total = 3 * len(labels)
    told = [(label, number, total) for number, label in enumerate(labels * 3)]
    assert [turn for turn in turns if turn[2]] == told
    for row in measured.rows:
        assert row.runs == 2
        assert row.error is None
        assert 0 < row.spread.low <= row.spread.median <= row.spread.high


@pytest.mark.parametrize(
    ("loaders", "label", "error", "runs"),
    [
        ({"good": BATCHES, "bad": Failing(ValueError("one\ntwo"))}, "fake, bad", "ValueError: one", 0),
        ({"good": BATCHES, "bad": Failing(OSError("gone"), good=2)}, "fake, bad", "OSError: gone", 1),
        ({"good": BATCHES, "bad": []}, "fake, bad", "ValueError: the loader yielded no batches", 0),
        (ImportError("libthing.so: no such file"), "fake", "ImportError: libthing.so: no such file", 0),
    ],
)
def test_who_fails_has_an_error_in_place_of_a_figure_and_the_others_go_on(loaders, label, error, runs):
    (measured,) = run(FakePeer("fake", loaders))
    *others, bad = measured.rows
    assert (bad.label, bad.error, bad.spread, bad.runs) == (label, error, None, runs)
    assert {(row.error, row.runs) for row in others} == {(None, 2)}


def test_a_library_is_not_asked_for_cases_that_it_cannot_do():
    fake = FakePeer("fake", {"fast": BATCHES}, cases=frozenset({"small"}))
    small, waits = run(fake, cases=(SMALL, replace(CASES["waits"], length=2)))
    assert [row.peer for row in small.rows].count("fake") == 1
    assert [row.peer for row in waits.rows].count("fake") == 0


def test_a_dataset_that_lacks_a_package_says_which():
    (measured,) = run(cases=(replace(CASES["jpeg"], needs="no_such_package"),))
    (row,) = measured.rows
    assert f"needs no_such_package, which is not installed: {install_command('bench')}" in row.error


@pytest.mark.parametrize("good", [0, 3])
def test_ctrl_c_leaves_what_was_measured_until_then(good):
    fake = FakePeer("fake", {"interrupted": Failing(KeyboardInterrupt(), good=good)})
    rows = []
    with pytest.raises(KeyboardInterrupt):
        for measured in run_cases((SMALL, SMALL), (fake,), 5, open_side=open_briefly):
            rows += measured.rows
    assert all(row.spread is not None for row in rows)
    assert [row.runs for row in rows] == ([3] * (len(rows) - 1) + [2] if good else [])


def test_epochs_of_an_endless_iterator_leave_out_what_was_made_ahead():
    numbers = iter(range(100))
    seen = []
    turn(Endless(numbers, epoch=4, ahead=3), seen.append, least=0.0)
    assert seen == [3, 4, 5, 6]


def test_a_turn_is_as_many_epochs_as_fill_its_time(monkeypatch):
    monkeypatch.setattr("benchmarks.measure.perf_counter", count(0.0, 0.25).__next__)
    seen = []
    assert turn(BATCHES, seen.append, least=0.9) == 1e6 / 16
    assert len(seen) == 4 * len(BATCHES)
