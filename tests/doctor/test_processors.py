"""Findings about cores, threads, open files and worker processes, each with its verdict."""

from dataclasses import replace

import pytest

from gpuloader.doctor.processors import (
    Processors,
    cores_finding,
    files_finding,
    processor_findings,
    read_processors,
    threads_finding,
)
from gpuloader.system.cores import ControlGroup
from tests.doctor.machines import Trials, named, verdicts

LINUX = Processors(16, 16, ("fork", "spawn", "forkserver"), 1024, 10)


def test_a_machine_without_limits():
    trials = Trials()
    findings = processor_findings(LINUX, ControlGroup(2), {}, trials)
    assert set(verdicts(findings).values()) == {"good"}
    assert named(findings, "cores").value == "16 of 16 usable"
    assert named(findings, "worker process").value == "started and fetched samples in 0.50 s"
    assert trials.tried == [("worker",)]


@pytest.mark.parametrize(
    ("allowed", "quota", "value", "most"),
    [
        (4, None, "4 of 16 usable (affinity)", "num_workers at 4"),
        (16, 3.5, "3.5 of 16 usable (control group)", "num_workers at 3"),
        (4, 8.0, "4 of 16 usable (affinity)", "num_workers at 4"),
        (16, 0.5, "0.5 of 16 usable (control group)", "num_workers at 1"),
    ],
)
def test_fewer_cores_than_the_machine_has_are_a_note(allowed, quota, value, most):
    finding = cores_finding(replace(LINUX, allowed=allowed), ControlGroup(2, processors=quota))
    assert (finding.value, finding.verdict) == (value, "note")
    assert most in finding.advice
    assert "16" in finding.advice


def test_a_quota_beyond_the_cores_limits_nothing():
    assert cores_finding(LINUX, ControlGroup(2, processors=99.0)).verdict == "good"


@pytest.mark.parametrize(
    ("value", "verdict"), [("4", "good"), ("4,2", "good"), ("many", "note"), ("0", "note"), (" ", "good")]
)
def test_numbers_of_threads(value, verdict):
    assert threads_finding({"OMP_NUM_THREADS": value}).verdict == verdict


@pytest.mark.parametrize(
    ("limit", "opened", "verdict"),
    [(None, 9, "good"), (1024, 10, "good"), (256, 10, "note"), (64, 40, "bad"), (1024, 1000, "bad")],
)
def test_open_files(limit, opened, verdict):
    assert files_finding(replace(LINUX, files=limit, files_open=opened)).verdict == verdict


@pytest.mark.parametrize("problem", ["no answer within 60 s", "OSError: Operation not permitted"])
def test_a_worker_that_does_not_start_is_bad(problem):
    findings = processor_findings(LINUX, ControlGroup(2), {}, Trials(worker=problem))
    worker = named(findings, "worker process")
    assert (worker.value, worker.verdict) == (problem, "bad")
    assert "worker_type='thread'" in worker.advice


def test_where_there_is_no_fork_server_none_is_tried():
    trials = Trials()
    windows = replace(LINUX, start_methods=("spawn",), files=None)
    findings = processor_findings(windows, ControlGroup(), {}, trials)
    assert verdicts(findings) == {
        "cores": "good",
        "OMP_NUM_THREADS": "good",
        "open files": "good",
        "start method": "note",
    }
    assert trials.tried == []


def test_open_files_are_counted_below_the_root(tmp_path):
    folder = tmp_path / "proc/self/fd"
    folder.mkdir(parents=True)
    for number in range(7):
        (folder / str(number)).touch()
    assert read_processors(tmp_path).files_open == 7
    assert read_processors(tmp_path / "nowhere").files_open == 0
