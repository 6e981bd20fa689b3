"""``gpuloader mnist``: training one or both ways, its files, its failures, and interrupting it."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gpuloader.demo.linear import LinearModel
from gpuloader.errors import install_command
from tests.cli import running


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.delenv("GPULOADER_MNIST", raising=False)

    def run(*arguments):
        return running.invoke("mnist", "--place", "cpu", "--epochs", "1", *arguments)

    return run


def test_both_ways_are_compared_and_their_results_written(invoke, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    shown = invoke("--wait", "0.1", "--output", str(tmp_path / "new" / "folder"))
    assert shown.exit_code == 0, shown.stderr
    for word in ("4,000 digits", "synchronous", "asynchronous", "equal, bit for bit", "with waits, 0.1 ms"):
        assert word in shown.stdout
    assert "NO" not in shown.stdout
    assert shown.stderr == ""
    lines = [line for line in shown.stdout.splitlines() if not line.startswith("Wrote")]
    assert max(map(len, lines)) <= 80
    with np.load(tmp_path / "new" / "folder" / "losses.npz") as losses:
        np.testing.assert_array_equal(losses["synchronous"], losses["asynchronous"])
    assert (tmp_path / "new" / "folder" / "timeline.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_narrow_screen_loses_no_number(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    shown = invoke("--wait", "0.1").stdout
    assert "…" not in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("  ")]
    times = [row[1:] for row in rows if row[0] in ("synchronous", "asynchronous")]
    assert [len(row) for row in times] == [7, 7, 7, 7]


def test_without_a_wait_the_pair_with_waits_is_left_out(invoke):
    shown = invoke("--both", "--wait", "0")
    assert shown.exit_code == 0
    assert "waits" not in shown.stdout
    assert "ratio" in shown.stdout


@pytest.mark.parametrize("way", ["--sync", "--async"])
def test_one_way_trains_once_and_stores_what_it_learned(invoke, way, tmp_path):
    shown = invoke(way, "--save", str(tmp_path / "digits.npz"))
    assert shown.exit_code == 0
    assert "ratio" not in shown.stdout
    assert "Where a step's time went" in shown.stdout
    assert ("asynchronous" in shown.stdout) == (way == "--async")
    assert LinearModel.load(tmp_path / "digits.npz").weight.any()


def test_ways_that_differ_are_a_failure(invoke, monkeypatch):
    from gpuloader.demo import training

    monkeypatch.setattr(training, "are_equal", lambda one, other: False)
    shown = invoke("--wait", "0")
    assert shown.exit_code == 1
    assert "Losses and parameters differ." in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/nowhere/mnist.json.gz"], "/nowhere/mnist.json.gz: No such file"),
        (["--place", "abacus"], "not a place: 'abacus'"),
        (["--wait", "-1"], "--wait: must be from 0 to 10000 milliseconds, got -1"),
        (["--wait", "nan"], "got nan"),
        (["--wait", "long"], "got long"),
        (["--wait", "inf"], "got inf"),
        (["--sync", "--async"], "not allowed with argument --sync"),
        (["--save", "/nowhere/digits.npz"], "/nowhere/digits.npz: No such file"),
        (["--output", "/dev/null/folder"], "/dev/null"),
        (["--output", "/proc"], "/proc/parameters.npz"),  # nobody can create a file there
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(invoke, arguments, message):
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert shown.stdout == ""


def test_what_fails_leaves_nothing_behind(invoke, tmp_path):
    targets = ["--save", str(tmp_path / "digits.npz"), "--output", str(tmp_path / "folder")]
    assert invoke("--data", "/nowhere/mnist.json.gz", *targets).exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert invoke(*targets[:2], "--output", "/dev/null/folder").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_name_in_brackets_is_a_name(invoke, tmp_path, mnist_file):
    (tmp_path / "[red]digits.json.gz").symlink_to(mnist_file)
    shown = invoke("--data", str(tmp_path / "[red]digits.json.gz"), "--sync")
    assert shown.exit_code == 0
    assert "50,000 digits from [red]digits.json.gz" in shown.stdout


def test_a_foreign_file_is_told_in_one_line(invoke, tmp_path):
    path = tmp_path / "digits.json.gz"
    path.write_bytes(b"no digits at all")
    shown = invoke("--data", str(path))
    assert shown.exit_code == 2
    assert str(path) in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_the_variable_names_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("GPULOADER_MNIST", str(tmp_path / "missing.json.gz"))
    shown = running.invoke("mnist")
    assert shown.exit_code == 2
    assert "missing.json.gz" in shown.stderr


def test_an_empty_variable_names_nothing(monkeypatch):
    monkeypatch.setenv("GPULOADER_MNIST", "")
    shown = running.invoke("mnist", "--place", "cpu", "--sync", "--epochs", "1")
    assert shown.exit_code == 0
    assert "the packaged sample" in shown.stdout


def test_a_missing_picture_is_explained(invoke, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shown = invoke("--sync", "--output", str(tmp_path))
    assert shown.exit_code == 0
    assert install_command("demo") in " ".join(shown.stdout.split())


def test_a_terminal_sees_what_runs(invoke, monkeypatch):
    told = []
    monkeypatch.setattr("gpuloader.cli.demonstration.show_status", told.append)
    assert invoke("--sync").exit_code == 0
    assert told == ["warming up", "as it is, turn 1", ""]


def test_ctrl_c_ends_it_with_one_line():
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuloader", "mnist", "--place", "cpu", "--async", "--epochs", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert "digits" in process.stdout.readline()  # training starts after this line
            time.sleep(1)  # Python loses a Ctrl-C that arrives while it imports a module
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors == "Interrupted.\n"
    assert output == ""
