"""Ratios, where a peer is better, and the report as JSON."""

import json
import platform

from benchmarks.hosts import Row
from benchmarks.measure import Spread, describe_machine, interleave, spread
from benchmarks.peers.report import Measured, Report, format_number, format_ratio, ratio


def row(peer, way, *runs, error=None):
    return Row(peer, way, spread(runs) if runs else None, len(runs), error)


CASE = Measured(
    "small",
    "Small batches",
    (
        row("floor", "bare loop", 10.0, 8.0, 12.0),
        row("floor", "other loop", 5.0),
        row("gpuloader", "1 worker", 40.0),
        row("gpuloader", "no worker", 20.0),
        row("torch", "no worker", 15.0),
        row("torch", "1 worker", 400.0),
        row("grain", "no thread", 5.0),
        row("paddle", "no worker", error="OSError: gone"),
    ),
)


def test_ratios_are_of_medians_to_the_first_floor_and_to_our_fastest():
    assert CASE.floor.spread == Spread(10.0, 8.0, 12.0)
    assert CASE.ours.way == "no worker"
    assert [ratio(one, CASE.floor) for one in CASE.rows] == [1.0, 0.5, 4.0, 2.0, 1.5, 40.0, 0.5, None]
    assert [ratio(one, CASE.ours) for one in CASE.rows] == [0.5, 0.25, 2.0, 1.0, 0.75, 20.0, 0.25, None]
    assert ratio(CASE.rows[0], None) is None


def test_better_are_all_ways_of_peers_that_are_faster_than_our_fastest_if_there_is_a_figure_of_ours():
    better = [(one.label, share) for one, share in CASE.better()]
    assert better == [("grain, no thread", 0.25), ("torch, no worker", 0.75)]
    failed = Measured("small", "Small", (row("gpuloader", "", error="no"), row("torch", "", 1.0)))
    assert failed.ours is None
    assert failed.floor is None
    assert failed.better() == []


def test_json_says_all_and_gives_the_same_report_back():
    report = Report({"cores": "2"}, {"torch": "2.13.0", "spdl": None}, 3, [CASE])
    written = json.loads(json.dumps(report.to_json()))
    assert written["machine"] == {"cores": "2"}
    assert written["peers"] == {"torch": "2.13.0", "spdl": None}
    (case,) = written["cases"]
    assert (case["case"], case["unit"], case["floor"]) == ("small", "µs per batch", "floor, bare loop")
    spread = {"median": 10.0, "low": 8.0, "high": 12.0}
    assert case["rows"][0] == {"peer": "floor", "way": "bare loop", **spread, "runs": 3, "error": None}
    assert case["rows"][-1] == {"peer": "paddle", "way": "no worker", "runs": 0, "error": "OSError: gone"}
    assert Report.from_json(written) == report
    assert report.failures() == [(CASE, CASE.rows[-1])]


def test_the_machine_is_described_and_not_named():
    machine = describe_machine()
    told = "processor cores memory system python numpy gpuloader commit package"
    assert set(machine) == {*told.split()}
    assert machine["python"] == platform.python_version()
    assert not any("/" in value for value in machine.values())
    assert platform.node() not in machine.values()


def test_numbers_and_ratios_have_the_digits_they_deserve():
    numbers = [*map(format_number, (0.4912, 8.0, 99.94, 99.96, 1234.5))]
    assert numbers == ["0.491", "8", "99.9", "100", "1,234"]
    assert [*map(format_ratio, (0.034, 1.0, 13.69, 457))] == ["0.03", "1.00", "13.7", "457"]


def test_candidates_take_turns_after_one_to_warm_up():
    seen = []

    def candidate(name, values):
        def run():
            seen.append(name)
            return values.pop(0)

        return run

    spreads = interleave({"a": candidate("a", [9.0, 1.0, 3.0]), "b": candidate("b", [9.0, 2.0, 2.0])}, 2)
    assert seen == ["a", "b"] * 3
    assert spreads == {"a": Spread(2.0, 1.0, 3.0), "b": Spread(2.0, 2.0, 2.0)}
