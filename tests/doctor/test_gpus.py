"""Findings about missing, working and unusable GPUs, each with its verdict."""

import pytest

from gpuloader import CPUPlace, CUDAPinnedPlace, CUDAPlace
from gpuloader.doctor.gpus import gpu_findings, read_gpus
from gpuloader.errors import install_command
from tests.doctor.machines import COPIES, GPU, NO_DEVICES, Trials, cuda, named, verdicts, write_driver

CUPY = {"numpy": "2.4.6", "cupy-cuda13x": "14.2.0"}


def examine(root, installed, place=None, **answers):
    trials = Trials(**answers)
    findings, refused = gpu_findings(read_gpus(installed, trials, root), place, trials)
    return findings, refused, trials.tried


def test_a_gpu_that_works(tmp_path):
    findings, refused, tried = examine(write_driver(tmp_path), CUPY, gpus=cuda())
    assert set(verdicts(findings).values()) == {"good"}
    assert named(findings, "driver").value == "580.65.06, CUDA 13.0"
    assert named(findings, "CuPy").value == "cupy-cuda13x 14.2.0, built for CUDA 13.2"
    assert named(findings, "gpu:0").value == "NVIDIA H100, 80.0 GiB, compute capability 9.0"
    assert named(findings, "page-locked copy").value == "50.0 GB/s to gpu:0"
    assert named(findings, "pageable copy").value == "9.0 GB/s to gpu:0"
    assert not refused
    assert tried == [("gpus",), ("copies", "gpu:0")]


def test_without_gpu_and_cupy_the_cpu_does(tmp_path):
    findings, _, tried = examine(tmp_path, {"numpy": "2.4.6"})
    assert verdicts(findings) == {"driver": "note", "CuPy": "good"}
    assert tried == []


def test_without_gpu_cupy_does_no_harm(tmp_path):
    findings, _, _ = examine(tmp_path, CUPY, gpus=cuda(driver=0, devices=(), failure="no driver"))
    assert verdicts(findings) == {"driver": "note", "CuPy": "good"}


@pytest.mark.parametrize("place", [CUDAPlace(0), CUDAPinnedPlace()])
def test_a_gpu_that_is_asked_for_and_not_there_is_bad(tmp_path, place):
    findings, _, _ = examine(tmp_path, {}, place)
    assert verdicts(findings) == {"driver": "bad", "CuPy": "bad"}
    assert "[cuda13]" in named(findings, "CuPy").advice


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("550.54.15", "cuda12")])
@pytest.mark.parametrize(("place", "verdict"), [(None, "note"), (CPUPlace(), "note"), (CUDAPlace(0), "bad")])
def test_a_gpu_without_cupy(tmp_path, driver, extra, place, verdict):
    findings, _, _ = examine(write_driver(tmp_path, driver), {}, place)
    cupy = named(findings, "CuPy")
    assert (cupy.value, cupy.verdict) == ("not installed", verdict)
    assert install_command(extra) in cupy.advice


OTHER = cuda(driver=12040, devices=(), failure="CUDARuntimeError: cudaErrorInsufficientDriver")


@pytest.mark.parametrize(("place", "verdict"), [(None, "bad"), (CUDAPlace(0), "bad"), (CPUPlace(), "note")])
def test_cupy_for_a_newer_cuda_than_the_driver_knows(tmp_path, place, verdict):
    findings, _, tried = examine(write_driver(tmp_path, "550.54.15"), CUPY, place, gpus=OTHER)
    cupy = named(findings, "CuPy")
    assert cupy.verdict == verdict
    assert "supports only CUDA 12.4" in cupy.advice
    assert f"pip uninstall cupy-cuda13x, then {install_command('cuda12')}" in cupy.advice
    assert tried == [("gpus",)]


def test_cupy_for_an_older_cuda_than_the_driver_knows_is_all_right(tmp_path):
    older = {"cupy-cuda12x": "14.2.0"}
    findings, _, _ = examine(write_driver(tmp_path), older, gpus=cuda(runtime=12090))
    assert set(verdicts(findings).values()) == {"good"}


def test_two_installations_of_cupy(tmp_path):
    both = {"cupy-cuda12x": "14.0.0", "cupy-cuda13x": "14.2.0"}
    findings, _, _ = examine(write_driver(tmp_path), both, gpus=cuda())
    assert named(findings, "CuPy").verdict == "bad"
    assert "uninstall all of them" in named(findings, "CuPy").advice
    (tmp_path / "bare").mkdir()
    findings, _, _ = examine(tmp_path / "bare", both, gpus=cuda(driver=0, devices=(), failure="no driver"))
    assert named(findings, "CuPy").verdict == "note"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("no answer within 60 s", "no answer within 60 s"),
        (cuda(cupy=None, devices=(), failure="libcudart is not there"), "libcudart is not there"),
    ],
)
def test_cupy_that_does_not_start(tmp_path, answer, reason):
    findings, _, tried = examine(write_driver(tmp_path), CUPY, gpus=answer)
    assert named(findings, "CuPy").verdict == "bad"
    assert reason in named(findings, "CuPy").advice
    assert tried == [("gpus",)]


def test_a_driver_that_shows_no_device(tmp_path):
    hidden = cuda(devices=(), failure=NO_DEVICES)
    findings, _, _ = examine(write_driver(tmp_path), CUPY, gpus=hidden)
    assert named(findings, "CuPy").verdict == "bad"
    assert "cudaErrorNoDevice" in named(findings, "CuPy").advice
    assert "CUDA_VISIBLE_DEVICES" in named(findings, "CuPy").advice


def test_page_locking_that_is_refused_is_a_note(tmp_path):
    refused = {**COPIES, "pinned": 0.0, "refusal": "cudaHostRegister: out of memory"}
    findings, was_refused, _ = examine(write_driver(tmp_path), CUPY, gpus=cuda(), copies=refused)
    assert named(findings, "page-locking").verdict == "note"
    assert "cudaHostRegister: out of memory" in named(findings, "page-locking").value
    assert was_refused
    assert "page-locked copy" not in verdicts(findings)
    assert named(findings, "pageable copy").verdict == "good"


def test_a_slow_link_is_a_note(tmp_path):
    slow = {**COPIES, "pinned": 1.2e9}
    findings, _, _ = examine(write_driver(tmp_path), CUPY, gpus=cuda(), copies=slow)
    assert named(findings, "page-locked copy").verdict == "note"


@pytest.mark.parametrize(("place", "verdict"), [(None, "bad"), (CUDAPinnedPlace(), "bad")])
def test_copies_that_hang_or_fail_are_bad(tmp_path, place, verdict):
    failing = {"gpus": cuda(), "copies": "no answer within 60 s"}
    findings, _, _ = examine(write_driver(tmp_path), CUPY, place, **failing)
    assert named(findings, "copies to gpu:0").verdict == verdict


def test_the_gpu_that_was_asked_for_is_tried(tmp_path):
    findings, _, tried = examine(write_driver(tmp_path), CUPY, CUDAPlace(1), gpus=cuda(devices=(GPU, GPU)))
    assert tried[-1] == ("copies", "gpu:1")
    assert named(findings, "pageable copy").value == "9.0 GB/s to gpu:1"


def test_a_gpu_beyond_the_last_is_bad(tmp_path):
    findings, _, tried = examine(write_driver(tmp_path), CUPY, CUDAPlace(2), gpus=cuda(devices=(GPU, GPU)))
    assert named(findings, "gpu:2").verdict == "bad"
    assert "gpu:0 to gpu:1" in named(findings, "gpu:2").advice
    assert tried == [("gpus",)]


def test_asked_for_the_cpu_nothing_is_copied(tmp_path):
    findings, _, tried = examine(write_driver(tmp_path), CUPY, CPUPlace(), gpus=cuda())
    assert set(verdicts(findings).values()) == {"good"}
    assert tried == [("gpus",)]


def test_without_a_compiler_there_is_a_note(tmp_path):
    findings, _, _ = examine(write_driver(tmp_path), CUPY, gpus=cuda(nvrtc=False))
    assert named(findings, "NVRTC").verdict == "note"
    assert "[cuda13]" in named(findings, "NVRTC").advice


def test_the_driver_of_a_proprietary_module_is_read(tmp_path):
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    (folder / "version").write_text(text)
    assert read_gpus({}, Trials(), tmp_path).driver == "535.104.05"
