"""``python -m benchmarks.peers``: its output, its files, its failures, and interrupting it."""

import json
import sys
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks import peers
from benchmarks.peers import __main__ as command
from benchmarks.peers import report, running
from benchmarks.peers.cases import CASES
from gpuloader.errors import install_command
from tests.benchmarks.fake_peer import Failing, FakePeer, open_briefly

BATCHES = [[1.0]] * 4


@pytest.fixture
def invoke(monkeypatch, capsys):
    """Run the command with fake libraries and short datasets, all in this process."""

    def run(*arguments, libraries=(), repeats="2"):
        known = {library.name: library for library in libraries}
        for module in (peers, command, report):
            monkeypatch.setattr(module, "PEERS", known)
        for name, length in {"small": 16, "waits": 2, "ready": 3}.items():
            monkeypatch.setitem(CASES, name, replace(CASES[name], length=length))
        monkeypatch.setattr(running, "run_cases", partial(running.run_cases, open_side=open_briefly))
        try:
            code = command.main(["--repeats", repeats, *arguments])
        except SystemExit as ended:
            code = ended.code
        output, errors = capsys.readouterr()
        return SimpleNamespace(exit_code=code, stdout=output, stderr=errors)

    return run


def test_tables_say_who_takes_how_long_and_where_a_peer_is_better(invoke):
    fast, gone = FakePeer("fast", {"a way": BATCHES}), FakePeer("gone", {}, version=None)
    bad = FakePeer("bad", {"worse": Failing(ValueError("it broke"))})
    shown = invoke("--case", "waits", libraries=(fast, gone, bad))
    assert shown.exit_code == 0, shown.stderr
    assert shown.stderr == ""
    for words in ("Samples that wait 2 ms", "floor, bare loop", "gpuloader, 16 threads", "× ours", "× floor"):
        assert words in shown.stdout
    assert "Not installed: gone (pip install gone)" in shown.stdout
    assert "bad, worse: ValueError: it broke" in shown.stdout
    closing = shown.stdout.partition("Where a peer is better")[2]
    assert "fast, a way takes 0." in closing
    assert "of the time of gpuloader, 16 threads" in closing


@pytest.mark.parametrize("measured", [True, False])
def test_where_no_peer_is_better_it_says_so(invoke, measured):
    class Slow:
        def __iter__(self):
            time.sleep(0.5)
            return iter([[1.0]])

    slow = FakePeer("slow", {"a way": Slow()}, version="1.0" if measured else None)
    shown = invoke("--case", "small", libraries=(slow,))
    assert shown.exit_code == 0
    said = "In none of these cases." if measured else "No peer was measured."
    assert shown.stdout.rstrip().endswith(said)


def test_figures_are_written_as_json_and_drawn(invoke, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    output, plot = tmp_path / "new" / "figures.json", tmp_path / "plot.png"
    fake = FakePeer("fake", {"a way": BATCHES})
    targets = ("--output", str(output), "--plot", str(plot))
    shown = invoke("--case", "small", "--case", "ready", *targets, libraries=(fake,))
    assert shown.exit_code == 0, shown.stderr
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
        (["--plot", "plot.png"], [install_command("bench")]),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_measured(invoke, monkeypatch, arguments, words):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = invoke(*arguments, libraries=(FakePeer("fake", {}),))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.count("\n") == 1
    assert [word for word in words if word not in shown.stderr] == []


def test_ctrl_c_prints_what_was_measured_and_writes_nothing(invoke, tmp_path):
    fake = FakePeer("fake", {"a way": BATCHES, "interrupted": Failing(KeyboardInterrupt(), good=2)})
    output = tmp_path / "figures.json"
    shown = invoke("--case", "small", "--output", str(output), libraries=(fake,), repeats="5")
    assert (shown.exit_code, shown.stderr) == (130, "Interrupted.\n")
    assert "fake, a way" in shown.stdout
    assert "Where a peer is better" in shown.stdout
    assert not output.exists()


def test_a_failure_of_ours_is_the_exit_code(invoke, monkeypatch):
    broken = FakePeer("gpuloader", {"a way": Failing(ValueError("ours"))})
    monkeypatch.setattr(running, "OURS", broken)
    shown = invoke("--case", "small")
    assert shown.exit_code == 1
    assert "ValueError: ours" in shown.stdout
