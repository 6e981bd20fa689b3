"""Text files of slots: lines, errors that name them, and pipe commands that end with the reading."""

import gzip
import os

import numpy as np
import pytest

from gpuloader import DataFileError, data
from gpuloader.fluid import dataset as slots
from gpuloader.fluid.dataset import read_slots
from gpuloader.system import platforms
from tests.fakes import is_running, nothing_left_behind, wait_until

FEEDS = [data("x", [None, 2]), data("y", [None, 1], "int64")]


@pytest.fixture
def write(tmp_path):
    def write(text, name="part"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_samples_of_several_files_in_order(write):
    paths = [write("2 0.5 -1e3 1 7\n\n2 1 2 1 -8\n", "a"), write(f"2 3 4 1 {2**53 + 1}", "b")]
    samples = list(read_slots(paths, FEEDS))
    assert [x.tolist() for x, _ in samples] == [[0.5, -1000.0], [1.0, 2.0], [3.0, 4.0]]
    assert [y.tolist() for _, y in samples] == [[7], [-8], [2**53 + 1]]  # exactly
    assert [array.dtype for array in samples[0]] == [np.float64, np.int64]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 1 2", "slot 'y': expected a count"),
        ("2 1 2 1 7.5", "slot 'y': expected a count and as many numbers"),
        ("2 1 cat 1 7", "slot 'x': expected a count and as many numbers"),
        ("two 1 2 1 7", "slot 'x': expected a count"),
        ("3 1 2", "slot 'x': expected 3 values, got 2 before the end of the line"),
        ("-1 1 2 1 7", "slot 'x': expected -1 values"),
        ("2 1 2 1 7 1", "expected 2 slots, got 1 more words"),
    ],
)
def test_a_bad_line_is_named(write, line, message):
    samples = read_slots([write(f"2 1 2 1 7\n{line}\n")], FEEDS)
    next(samples)
    with pytest.raises(DataFileError, match=f"part, line 2.*{message}"):
        next(samples)


def test_files_pass_through_a_command(tmp_path):
    path = tmp_path / "part.gz"
    path.write_bytes(gzip.compress(b"1 7\n1 8\n1 9\n"))
    with nothing_left_behind():
        numbers = [y.item() for (y,) in read_slots([path], FEEDS[1:], "zcat | tail -n 2")]
    assert numbers == [8, 9]
    with pytest.raises(FileNotFoundError):
        list(read_slots([tmp_path / "none"], FEEDS))


def test_a_command_that_fails_is_an_error(write):
    samples = read_slots([write("1 7\n")], FEEDS[1:], "cat; exit 3")
    assert next(samples)[0].item() == 7
    with pytest.raises(DataFileError, match=r"part: the pipe command 'cat; exit 3' exited with code 3"):
        next(samples)


def test_a_command_that_closes_its_output_and_goes_on_is_an_error(write, monkeypatch):
    monkeypatch.setattr(slots, "_EXIT_S", 0.1)
    with nothing_left_behind():
        samples = read_slots([write("")], FEEDS[1:], "echo 1 $$; exec >&-; sleep 1000")
        (pid,) = next(samples)
        with pytest.raises(DataFileError, match=r"part: the pipe .* closed its output, but did not exit"):
            next(samples)
        wait_until(lambda: not is_running(int(pid[0])))


@pytest.mark.parametrize("sessions", [True, False])
def test_leaving_early_ends_the_command(write, monkeypatch, sessions):
    if not sessions:
        monkeypatch.delattr(platforms.os, "killpg")
    with nothing_left_behind():
        samples = read_slots([write("")], FEEDS[1:], 'while echo "1 $$"; do :; done')
        (pid,) = next(samples)
        samples.close()
        wait_until(lambda: not is_running(int(pid[0])))
    assert hasattr(os, "killpg") == sessions
