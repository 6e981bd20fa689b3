"""``gpuloader mnist``: training one or both ways, its files, its failures, and interrupting it."""

import gzip
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gpuloader.demo import training
from gpuloader.errors import install_command
from tests.cli import running


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.delenv("GPULOADER_MNIST", raising=False)

    def run(*arguments):
        return running.invoke("mnist", "--place", "cpu", "--epochs", "1", *map(str, arguments))

    return run


def test_both_ways_are_compared_and_their_results_written(invoke, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    folder = tmp_path / "new" / "folder"
    shown = invoke("--wait", "0.1", "--output", folder)
    assert (shown.exit_code, shown.stderr) == (0, "")
    for word in ("4,000 digits", "synchronous", "asynchronous", "equal, bit for bit", "with waits, 0.1 ms"):
        assert word in shown.stdout
    assert "NO" not in shown.stdout
    lines = [line for line in shown.stdout.splitlines() if not line.startswith("Wrote")]
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.startswith("  ")]
    assert [len(row) for row in rows if row[0] in ("synchronous", "asynchronous")] == [8] * 4
    with np.load(folder / "losses.npz") as losses:
        np.testing.assert_array_equal(losses["synchronous"], losses["asynchronous"])
    assert (folder / "timeline.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_a_wait_the_pair_with_waits_is_left_out_and_ways_that_differ_are_a_failure(
    invoke, monkeypatch
):
    shown = invoke("--both", "--wait", "0")
    assert shown.exit_code == 0
    assert "waits" not in shown.stdout
    assert "ratio" in shown.stdout
    monkeypatch.setattr(training, "are_equal", lambda one, other: False)
    shown = invoke("--wait", "0")
    assert shown.exit_code == 1
    assert "Losses and parameters differ." in shown.stdout


@pytest.mark.parametrize("way", ["--sync", "--async"])
def test_one_way_trains_once_and_stores_what_it_learned(invoke, way, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("gpuloader.cli.demonstration.show_status", told.append)
    shown = invoke(way, "--save", tmp_path / "digits.npz")
    assert shown.exit_code == 0
    assert told == ["warming up", "as it is, turn 1", ""]  # seen on a terminal
    assert "ratio" not in shown.stdout
    assert "Where a step's time went" in shown.stdout
    assert ("asynchronous" in shown.stdout) == (way == "--async")
    with np.load(tmp_path / "digits.npz") as saved:
        assert saved["weight"].any()


def test_what_fails_leaves_nothing_behind(invoke, tmp_path):
    save = "--save", tmp_path / "digits.npz"
    assert invoke("--data", "/nowhere/mnist.json.gz", *save, "--output", tmp_path / "folder").exit_code == 2
    assert invoke(*save, "--output", "/dev/null/folder").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_name_in_brackets_is_a_name(invoke, tmp_path):
    parts = json.dumps([[[[0.5] * 784] * 200, [7] * 200]] * 3)
    (tmp_path / "[red]digits.json.gz").write_bytes(gzip.compress(parts.encode()))
    shown = invoke("--data", tmp_path / "[red]digits.json.gz", "--sync")
    assert shown.exit_code == 0
    assert "200 digits from [red]digits.json.gz" in shown.stdout


def test_the_variable_names_the_data_unless_it_is_empty(monkeypatch, tmp_path):
    monkeypatch.setenv("GPULOADER_MNIST", str(tmp_path / "missing.json.gz"))
    shown = running.invoke("mnist")
    assert shown.exit_code == 2
    assert "missing.json.gz" in shown.stderr
    monkeypatch.setenv("GPULOADER_MNIST", "")
    shown = running.invoke("mnist", "--place", "cpu", "--sync", "--epochs", "1")
    assert shown.exit_code == 0
    assert "the packaged sample" in shown.stdout


def test_a_missing_picture_is_explained(invoke, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shown = invoke("--sync", "--output", tmp_path)
    assert shown.exit_code == 0
    assert install_command("demo") in " ".join(shown.stdout.split())
    assert f"Wrote parameters.npz, losses.npz to {tmp_path}/" in shown.stdout


def test_ctrl_c_ends_it_with_one_line():
    command = [sys.executable, "-m", "gpuloader", "mnist", "--place", "cpu", "--async", "--epochs", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "digits" in process.stdout.readline()  # training starts after this line
            time.sleep(1)  # Python loses a Ctrl-C that arrives while it imports a module
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=240)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (130, "", "Interrupted.\n")
