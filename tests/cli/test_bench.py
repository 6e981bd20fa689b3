"""``gpuloader bench``: its tables, its figures, its failures, and interrupting it."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpuloader.cli import bench
from gpuloader.cli.bench import CASES, LIBRARIES, time_batches
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


def test_figures_as_json_are_all_that_is_printed():
    shown = invoke("bench", "--case", "small", "--case", "arrays", "--repeats", "2", "--json")
    assert (shown.exit_code, shown.stderr) == (0, "")
    report = json.loads(shown.stdout)
    assert (report["repeats"], report["unit"]) == (2, "µs per batch")
    assert list(report["cases"]) == ["small", "arrays"]
    for found in report["cases"].values():
        assert {"bare loop", "gpuloader"} <= set(found)
        assert all(0 < one["min"] <= one["median"] <= one["max"] for one in found.values())


@pytest.mark.parametrize("library", ["gpuloader", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_every_library_yields_as_much_as_the_bare_loop(library, name):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    seen = []
    for opened in ("bare loop", library):
        loader = LIBRARIES[opened](CASES[name])
        first = next(iter(loader))
        fields = first if isinstance(first, list | tuple) else [first]
        seen.append([tuple(field.shape) for field in fields])
        getattr(loader, "close", lambda: None)()
        del loader, first, fields
    assert seen[0] == seen[1]


def test_a_turn_is_as_many_epochs_as_fill_its_time(monkeypatch):
    monkeypatch.setattr(bench, "LEAST", 0.01)
    epochs = []

    class Loader:
        def __iter__(self):
            epochs.append(1)
            return iter(range(10))

    assert time_batches(Loader()) > 0
    assert len(epochs) > 1


class Library:
    """A library that answers as it is told: both ends of its pipe, and its process."""

    def __init__(self, answers):
        self.answers = iter(answers)

    def poll(self, limit):
        self.answer = next(self.answers)
        return self.answer is not None

    def recv(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ignore(self, *arguments):
        pass

    send = close = start = join = kill = ignore


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("ValueError: it broke", "ValueError: it broke"),
        (None, "no answer within 90 s"),
        (EOFError(), "its process ended"),
    ],
)
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_failure_of_ours_is_the_exit_code_and_the_others_go_on(monkeypatch, answer, error, arguments):
    libraries = map(Library, ([9.0, 1.0, 3.0], [2.0, answer], [5.0, 5.0, 5.0]))
    context = SimpleNamespace(
        Pipe=lambda: (next(libraries), Library([])), Process=lambda target, args: Library([])
    )
    monkeypatch.setattr(bench.multiprocessing, "get_context", lambda method: context)
    shown = invoke("bench", "--case", "small", "--repeats", "2", *arguments)
    assert (shown.exit_code, shown.stderr) == (1, "")
    if arguments:
        found = json.loads(shown.stdout)["cases"]["small"]
        assert found["gpuloader"] == {"error": error}
        assert found["bare loop"] == {"median": 2.0, "min": 1.0, "max": 3.0}
        return
    assert f"gpuloader: {error}" in shown.stdout
    (bare,) = [line.split()[2:] for line in shown.stdout.splitlines() if line.startswith("bare loop")]
    assert bare == ["2", "1", "3", "1.00"]  # without the warm-up turn


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--case", "nothing"], ["nothing", *CASES]),
        (["--repeats", "0"], ["--repeats"]),
        (["--peer", "x"], ["x"]),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_measured(arguments, words):
    shown = invoke("bench", *arguments)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.count("\n") == 1
    for word in words:
        assert word in shown.stderr


@pytest.mark.parametrize("turns", [0, 3], ids=["while libraries are imported", "in a turn"])
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_ends_it_and_its_processes_with_one_line(turns):
    wrapper = (
        "import os, signal, sys\n"
        "from gpuloader import cli\n"
        "from gpuloader.cli import bench\n"
        "def interrupt(status, told=[]):\n"
        "    told.append(status)\n"
        f"    if len(told) == {turns} + 1: os.killpg(0, signal.SIGINT)\n"
        "bench.show_status = interrupt\n"
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
            # The end of the pipes shows that all processes have ended.
            _, errors = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, errors) == (130, "Interrupted.\n")
