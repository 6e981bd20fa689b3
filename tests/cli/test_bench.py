"""``gpuloader bench``: its tables, its figures, its failures, and interrupting it."""

import os
import signal
import subprocess
import sys

import pytest

from gpuloader.cli import bench
from gpuloader.cli.bench import CASES, LIBRARIES, time_batches
from gpuloader.doctor import trials
from gpuloader.doctor.trials import Outcome
from tests.cli.running import invoke


def test_a_case_is_a_table_with_the_bare_loop_and_ours():
    shown = invoke("bench", "--case", "small", "--repeats", "1")
    assert (shown.exit_code, shown.stderr) == (0, "")
    for words in (
        "numpy ",
        "Batches of 8 rows of 784 float32, µs per batch",
        "median",
        "bare loop",
        "gpuloader",
    ):
        assert words in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def shapes_of(library, name):
    """Return the shapes of the first batch of a case."""
    loader = LIBRARIES[library](CASES[name])
    first = next(iter(loader))
    getattr(loader, "close", lambda: None)()
    return [tuple(field.shape) for field in (first if isinstance(first, list | tuple) else [first])]


@pytest.mark.parametrize("name", CASES)
def test_our_loader_yields_as_much_as_the_bare_loop(name):
    assert shapes_of("gpuloader", name) == shapes_of("bare loop", name)


def test_a_turn_is_as_many_epochs_as_fill_its_time(monkeypatch):
    monkeypatch.setattr(bench, "LEAST", 0.01)
    epochs = []

    class Loader:
        def __iter__(self):
            epochs.append(1)
            return iter(range(10))

    assert time_batches(Loader()) > 0
    assert len(epochs) > 1


def test_a_failure_of_ours_is_the_exit_code_and_the_others_go_on(monkeypatch):
    def attempt(library, case, repeats, *, seconds, module):
        assert (case, repeats) == ("small", "2")
        if library == "gpuloader":
            return Outcome(problem="ValueError: it broke")
        return Outcome({"times": [9.0, 1.0, 2.0]})

    monkeypatch.setattr(trials, "attempt", attempt)
    shown = invoke("bench", "--case", "small", "--repeats", "2")
    assert (shown.exit_code, shown.stderr) == (1, "")
    assert "gpuloader: ValueError: it broke" in shown.stdout
    (bare,) = [line.split()[2:] for line in shown.stdout.splitlines() if line.startswith("bare loop")]
    assert bare == ["2", "1", "9", "1.00"]


def test_a_library_that_breaks_says_so_from_its_process():
    outcome = trials.attempt("no such library", "small", "1", seconds=240, module=bench.__name__)
    assert "KeyError" in outcome.problem


def test_ctrl_c_ends_it_and_its_processes_with_one_line():
    wrapper = (
        "import os, signal, threading\n"
        "from gpuloader import cli\n"
        "from gpuloader.cli import bench\n"
        "interrupt = threading.Timer(0.3, os.killpg, (0, signal.SIGINT))\n"
        "bench.show_status = lambda status: status and interrupt.start()\n"
        "if __name__ == '__main__': cli.main(['bench', '--case', 'small', '--repeats', '100000'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", wrapper],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group, to which Ctrl-C goes as from a terminal
    )
    with process:
        try:
            _, errors = process.communicate(timeout=240)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, errors) == (130, "Interrupted.\n")
