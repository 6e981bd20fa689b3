"""What is read from machines that are made of files, and what a trial says of CuPy."""

import pytest

from gpuloader.doctor import facts
from gpuloader.doctor.facts import installed_distributions, read_machine
from tests.doctor.machines import Trials, cuda, write_driver
from tests.fakes import limit_memory
from tests.system.test_cores import BUS, make_machine


def test_memory_and_open_files_are_read_below_the_root(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    folder = tmp_path / "proc/self/fd"
    folder.mkdir(parents=True)
    for number in range(7):
        (folder / str(number)).touch()
    found = read_machine(tmp_path, Trials(gpus=cuda()))
    assert (found.memory, found.files_open) == ((2 << 20, 1 << 20), 7)
    assert found.shared[0] >= found.shared[1] >= 0


def test_what_a_control_group_leaves_is_what_is_free_of_the_memory(tmp_path):
    limit_memory(tmp_path, "4096", 1024)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64 kB\nMemAvailable: 32 kB\n")
    assert read_machine(tmp_path, Trials(gpus=cuda())).memory == (64 << 10, 3072)


def test_nothing_below_the_root_is_unknown_and_this_process_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", " 4 ")
    found = read_machine(tmp_path, Trials(gpus=cuda()))
    assert (found.memory, found.shared, found.files_open, found.driver) == (None, None, 0, "")
    assert (found.threads, 1 <= found.allowed <= found.processors) == ("4", True)
    assert "normalize" in found.kernels


def test_the_driver_is_read_from_both_kinds_of_modules(tmp_path):
    assert read_machine(write_driver(tmp_path), Trials(gpus=cuda())).driver == "580.65.06"
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert read_machine(tmp_path, Trials(gpus=cuda())).driver == "535.104.05"


@pytest.mark.parametrize("has_driver", [False, True])
@pytest.mark.parametrize("installed", [{}, {"cupy-cuda13x": "14.2.0"}])
def test_cuda_is_asked_about_where_there_is_cupy_or_a_driver(tmp_path, monkeypatch, installed, has_driver):
    make_machine(tmp_path)
    if has_driver:
        write_driver(tmp_path)
    monkeypatch.setattr(facts, "installed_distributions", lambda: installed)
    trials = Trials(gpus=cuda(buses=[BUS] if installed else []))
    found = read_machine(tmp_path, trials)
    assert trials.tried == ([("gpus",)] if installed or has_driver else [])
    assert found.cupy == installed
    assert found.node_of_gpu == ((1,) if installed else ())


def test_distributions_are_known_by_their_names_in_lower_case(tmp_path, monkeypatch):
    folder = tmp_path / "Some_Name-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: Some_Name\nVersion: 1.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_distributions()["some_name"] == "1.5"
