"""The workloads that compare the ways to read ahead."""

import json
from functools import partial

import pytest

from benchmarks import overlap
from benchmarks.overlap import DEFAULT, SYNCHRONOUS, THREAD, Overlapped, Workload, measure_overlap, wait
from benchmarks.peers.__main__ import main
from benchmarks.peers.report import Report
from tests.fakes import loader_threads


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(overlap, "_TURN", 0.001)
    monkeypatch.setattr(overlap, "TIMES", (0.05e-3, 0.1e-3, 0.2e-3, 0.4e-3))


def test_every_workload_runs_in_every_way():
    names = []
    for measured in measure_overlap(1):
        names.append(measured.name)
        assert set(measured.rows) == {DEFAULT, SYNCHRONOUS, THREAD}
        assert all(0 < row.low <= row.median <= row.high for row in measured.rows.values())
    assert len(names) == len(set(names)) == 2 + 2 * 16 + 3 + 2
    assert not loader_threads()


def test_the_ratio_is_to_the_faster_way():
    took = {DEFAULT: 3.0, SYNCHRONOUS: 2.0, THREAD: 4.0}
    workload = Workload("w", 1.05, lambda way: lambda: took[way])
    (measured,) = measure_overlap(3, [workload])
    assert measured.ratio == pytest.approx(1.5)
    assert Overlapped.from_json(json.loads(json.dumps(measured.to_json()))) == measured
    report = Report({}, {}, 3, overlap=[measured])
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_command_prints_one_table_and_writes_the_figures(monkeypatch, tmp_path, capsys):
    workload = Workload("a loop", 1.05, partial(overlap._pairs, wait, 0.0001, [0.0001]))
    monkeypatch.setattr(overlap, "make_workloads", lambda: [workload])
    path = tmp_path / "figures.json"
    assert main(["--case", "overlap", "--repeats", "2", "--output", str(path)]) == 0
    shown = capsys.readouterr().out
    for words in ("Reading ahead", "a loop", "default", "synchronous", "thread", "ratio", "≤ 1.05"):
        assert words in shown
    assert "peer" not in shown.split("Reading ahead")[1]
    assert json.loads(path.read_text())["overlap"][0]["name"] == "a loop"
