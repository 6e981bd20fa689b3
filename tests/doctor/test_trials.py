"""The trials, called in this process."""

import pytest

from gpuloader.devices import cuda
from gpuloader.devices.host import HostDevice
from gpuloader.doctor.attempt import attempt
from gpuloader.doctor.trials import copy_to_device, describe_gpus, fetch_by_worker, time_copies
from tests.fakes_cuda import FakeRuntime, make_cupy, use_cupy


@pytest.fixture
def runtime(monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    fake = FakeRuntime(devices=2)
    fake.runtimeGetVersion = lambda: 13020
    fake.getDeviceProperties = {
        index: {"name": b"Fake GPU", "totalGlobalMem": 80 << 30, "major": 9, "minor": index}
        for index in range(2)
    }.__getitem__
    with use_cupy(monkeypatch, make_cupy(cupy, fake)):
        yield fake


def test_gpus_are_described(runtime):
    found = describe_gpus()
    assert (found["runtime"], found["driver"], found["failure"]) == (13020, 13000, "")
    assert found["devices"] == (("Fake GPU", 80 << 30, "9.0"), ("Fake GPU", 80 << 30, "9.1"))


def test_a_driver_that_fails_is_described(runtime, monkeypatch):
    def refuse():
        raise runtime.CUDARuntimeError(35, "cudaErrorInsufficientDriver")

    monkeypatch.setattr(runtime, "getDeviceCount", refuse)
    found = describe_gpus()
    assert found["devices"] == ()
    assert (found["runtime"], found["driver"]) == (13020, 13000)
    assert "cudaErrorInsufficientDriver" in found["failure"]


def test_without_cupy_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(cuda, "cupy", None)
    monkeypatch.setattr(cuda, "_import_error", "No module named 'cupy'")
    found = cuda.describe_machine()
    assert (found.cupy, found.failure) == (None, "No module named 'cupy'")


def test_copies_are_timed_from_both_kinds_of_memory(runtime):
    found = copy_to_device("gpu:1", "4096")
    assert found["pageable"] > 0
    assert found["pinned"] > 0
    assert found["refusal"] == ""
    assert runtime.calls["hostRegister"] == 1
    assert runtime.calls["memcpyAsync"] == 8


def test_a_driver_that_refuses_to_lock_is_told_and_copies_go_on(runtime):
    runtime.refuse_registering = True
    found = copy_to_device("gpu:0", "4096")
    assert found["pageable"] > 0
    assert found["pinned"] == 0
    assert "cudaErrorMemoryAllocation" in found["refusal"]


def test_a_device_that_locks_nothing_has_no_locked_copy():
    found = time_copies(HostDevice(), 4096)
    assert found["pinned"] == 0
    assert found["refusal"] == ""


def test_a_worker_process_fetches():
    assert fetch_by_worker()["seconds"] > 0


def test_the_trials_run_in_a_process_of_their_own():
    assert attempt("worker", seconds=100).answer["seconds"] > 0
    assert "not a place" in attempt("copies", "abacus", seconds=100).problem
