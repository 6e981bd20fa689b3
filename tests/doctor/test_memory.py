"""Findings about host memory, its limits and its speed, each with its verdict."""

from dataclasses import replace

import pytest

from gpuloader.doctor import memory as memory_module
from gpuloader.doctor.memory import (
    Memory,
    available_finding,
    copy_finding,
    group_finding,
    lock_finding,
    memory_file_finding,
    memory_findings,
    read_memory,
    shared_finding,
)
from gpuloader.errors import StagingMemoryError
from gpuloader.system.cores import ControlGroup
from tests.doctor.machines import verdicts

GIB, MIB = 1 << 30, 1 << 20
LARGE = Memory(64 * GIB, 32 * GIB, 32 * GIB, 32 * GIB, None)


def test_a_machine_with_enough(monkeypatch):
    monkeypatch.setattr(memory_module, "host_bandwidth", lambda: 9e9)
    findings = memory_findings(LARGE, ControlGroup(2), lock_refused=False)
    assert set(verdicts(findings).values()) == {"good"}


@pytest.mark.parametrize(
    ("available", "group", "verdict"),
    [
        (32 * GIB, ControlGroup(2), "good"),
        (GIB // 2, ControlGroup(2), "note"),
        (32 * MIB, ControlGroup(2), "bad"),
        (32 * GIB, ControlGroup(2, 4 * GIB, GIB), "good"),
        (32 * GIB, ControlGroup(2, 4 * GIB, 4 * GIB - 500 * MIB), "note"),
        (32 * GIB, ControlGroup(1, 4 * GIB, 4 * GIB - 5 * MIB), "bad"),
        (None, ControlGroup(), "good"),
    ],
)
def test_what_is_available(available, group, verdict):
    assert available_finding(replace(LARGE, available=available), group).verdict == verdict


@pytest.mark.parametrize(
    ("group", "value", "verdict"),
    [
        (ControlGroup(), "none", "good"),
        (ControlGroup(1), "version 1, no memory limit", "good"),
        (ControlGroup(2, 4 * GIB, GIB), "version 2, 1.0 GiB of 4.0 GiB", "good"),
        (ControlGroup(2, 4 * GIB, 4 * GIB - 1), "version 2, 4.0 GiB of 4.0 GiB", "note"),
    ],
)
def test_control_groups(group, value, verdict):
    finding = group_finding(group)
    assert (finding.value, finding.verdict) == (value, verdict)


def test_a_memory_file_is_tried():
    assert memory_file_finding().verdict == "good"


def test_a_memory_file_that_is_refused_is_bad(monkeypatch):
    def refuse(nbytes, shared):
        raise StagingMemoryError("1,048,576 bytes could not be reserved: [Errno 1] Operation not permitted")

    monkeypatch.setattr(memory_module, "Arena", refuse)
    finding = memory_file_finding()
    assert finding.verdict == "bad"
    assert "Operation not permitted" in finding.value
    assert "memfd_create" in finding.advice


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [
        (None, None, "good"),
        (64 * MIB, 64 * MIB, "note"),
        (8 * GIB, 9 * MIB, "note"),
        (8 * GIB, 8 * GIB, "good"),
    ],
)
def test_dev_shm(size, free, verdict):
    assert shared_finding(replace(LARGE, shared=size, shared_free=free)).verdict == verdict


@pytest.mark.parametrize(
    ("limit", "refused", "verdict"),
    [(None, False, "good"), (8 * MIB, False, "good"), (8 * MIB, True, "note"), (None, True, "good")],
)
def test_a_limit_on_locked_memory_matters_where_locking_was_refused(limit, refused, verdict):
    finding = lock_finding(limit, refused)
    assert finding.verdict == verdict
    assert bool(finding.advice) == (verdict == "note")


@pytest.mark.parametrize(("bandwidth", "verdict"), [(9e9, "good"), (1e9, "note")])
def test_the_speed_of_copies(bandwidth, verdict):
    assert copy_finding(bandwidth).verdict == verdict


def test_memory_is_read_below_the_root(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    read = read_memory(tmp_path)
    assert (read.total, read.available) == (2 * MIB, MIB)
    assert read.shared is not None
    assert read.shared >= read.shared_free >= 0
