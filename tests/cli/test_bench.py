"""``gpuloader bench``: its output, its files, its failures, and interrupting it."""

import io
import json
import sys
import time
from functools import partial

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gpuloader.bench import peers, running
from gpuloader.bench.cases import CASES
from gpuloader.cli import bench as command
from gpuloader.cli.app import app
from gpuloader.errors import install_command
from tests.bench.fake_peer import Failing, FakePeer, open_briefly

BATCHES = [[1.0]] * 4


@pytest.fixture
def invoke(monkeypatch):
    """Run the command with fake libraries and short datasets, all in this process."""

    def run(*arguments, libraries=(), repeats="2"):
        known = {library.name: library for library in libraries}
        lengths = {"small": 16, "waits": 2, "ready": 3}
        monkeypatch.setattr(peers, "PEERS", known)
        monkeypatch.setattr("gpuloader.cli.bench_tables.PEERS", known)
        for name, length in lengths.items():
            monkeypatch.setitem(CASES, name, _shorten(CASES[name], length))
        monkeypatch.setattr(running, "run_cases", partial(running.run_cases, open_side=open_briefly))
        return CliRunner().invoke(app, ["bench", "--repeats", repeats, *arguments])

    return run


def _shorten(case, length):
    from dataclasses import replace

    return replace(case, length=length)


def test_tables_say_who_takes_how_long_and_where_a_peer_is_better(invoke):
    fast, gone = FakePeer("fast", {"a way": BATCHES}), FakePeer("gone", {}, version=None)
    bad = FakePeer("bad", {"worse": Failing(ValueError("it broke"))})
    shown = invoke("--case", "waits", libraries=(fast, gone, bad))
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == ""
    for words in (
        "Samples that wait 2 ms",
        "floor, bare loop",
        "gpuloader, 16 threads",
        "fast, a way",
        "× ours",
        "× floor",
        "Not installed: gone (pip install gone)",
        "bad, worse: ValueError: it broke",
    ):
        assert words in shown.stdout
    closing = " ".join(shown.stdout.partition("Where a peer is better")[2].split())
    assert "fast, a way takes 0." in closing
    assert "of the time of gpuloader, 16 threads" in closing
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize("measured", [True, False])
def test_where_no_peer_is_better_it_says_so(invoke, measured):
    slow = FakePeer("slow", {"a way": _Slow()}, version="1.0" if measured else None)
    shown = invoke("--case", "small", libraries=(slow,))
    assert shown.exit_code == 0
    said = "In none of these cases." if measured else "No peer was measured."
    assert shown.stdout.rstrip().endswith(said)


class _Slow:
    def __iter__(self):
        time.sleep(0.5)
        return iter([[1.0]])


def test_figures_are_written_as_json_and_drawn(invoke, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    output, plot = tmp_path / "new" / "figures.json", tmp_path / "plot.png"
    fake = FakePeer("fake", {"a way": BATCHES})
    targets = ("--output", str(output), "--plot", str(plot))
    shown = invoke("--case", "small", "--case", "ready", *targets, libraries=(fake,))
    assert shown.exit_code == 0, shown.output
    written = json.loads(output.read_text("utf-8"))
    assert written["peers"] == {"fake": "1.0"}
    assert written["repeats"] == 2
    assert [case["case"] for case in written["cases"]] == ["small", "ready"]
    assert {row["peer"] for row in written["cases"][0]["rows"]} == {"floor", "gpuloader", "fake"}
    assert str(tmp_path) not in output.read_text("utf-8")
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_only_the_peers_asked_for_are_measured(invoke):
    libraries = (FakePeer("first", {"a way": BATCHES}), FakePeer("second", {"a way": BATCHES}))
    shown = invoke("--case", "small", "--peer", "second", libraries=libraries)
    assert "second, a way" in shown.stdout
    assert "first" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peer", "abacus"], ["'abacus'", "fake"]),
        (["--case", "nothing"], ["'nothing'", *CASES]),
        (["--repeats", "0"], ["--repeats"]),
        (["--output", "/dev/null/there"], ["/dev/null"]),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_measured(invoke, arguments, words):
    shown = invoke(*arguments, libraries=(FakePeer("fake", {}),))
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    for word in words:
        assert word in shown.stderr


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(invoke, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = invoke("--plot", str(tmp_path / "plot.png"))
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert install_command("bench") in shown.stderr


def test_ctrl_c_prints_what_was_measured_and_writes_nothing(invoke, tmp_path):
    fake = FakePeer("fake", {"a way": BATCHES, "interrupted": Failing(KeyboardInterrupt(), good=2)})
    output = tmp_path / "figures.json"
    shown = invoke("--case", "small", "--output", str(output), libraries=(fake,), repeats="5")
    assert shown.exit_code == 130
    assert "fake, a way" in shown.stdout
    assert "Where a peer is better" in shown.stdout
    assert shown.stderr == "Interrupted.\n"
    assert not output.exists()


def test_a_failure_of_ours_is_the_exit_code(invoke, monkeypatch):
    broken = FakePeer("gpuloader", {"a way": Failing(ValueError("ours"))})
    monkeypatch.setattr(running, "OURS", broken)
    shown = invoke("--case", "small")
    assert shown.exit_code == 1
    assert "ValueError: ours" in shown.stdout


def test_progress_is_shown_where_somebody_sees_it_move():
    report = command_report()
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with command._show_progress(console, 3, report) as tell:
        tell("torch, no worker", 5, 10)
    written = console.file.getvalue()
    for words in ("case 1 of 3", "50 %", "torch, no worker"):
        assert words in written
    with command._show_progress(Console(file=io.StringIO()), 3, report) as tell:
        assert tell is None


def command_report():
    from gpuloader.bench.report import Report

    return Report({}, {}, 1)
