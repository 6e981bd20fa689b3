"""A trial in another process may answer, fail, crash or hang, but never blocks the doctor; and the trials."""

import _thread
import os
import signal
import subprocess
import textwrap
import threading

import pytest

from gpuloader.devices import cuda
from gpuloader.devices.host import HostDevice
from gpuloader.doctor.trials import (
    Outcome,
    attempt,
    copy_to_device,
    describe_gpus,
    fetch_by_worker,
    time_copies,
)
from tests.fakes_cuda import FakeRuntime, make_cupy, use_cupy


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module to run instead of the trials, and return its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code):
        (tmp_path / "try_it.py").write_text(textwrap.dedent(code))
        return "try_it"

    return write


def test_the_last_line_is_the_answer(module):
    name = module(
        """
        import json, sys
        print("a library says hello")
        print(json.dumps({"arguments": sys.argv[1:]}))
        """
    )
    outcome = attempt("copies", "gpu:1", seconds=240, module=name)
    assert outcome == Outcome({"arguments": ["copies", "gpu:1"]})


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ('print(\'{"problem": "no\\\\n  memory"}\')', "no memory"),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("import sys; sys.exit(3)", "exit status 3 without an answer"),
        ("print('[1]')", "exit status 0 without an answer"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    ],
)
def test_a_failure_is_a_line(module, code, problem):
    assert attempt("worker", seconds=240, module=module(code)) == Outcome(problem=problem)


@pytest.fixture
def hanging(module, tmp_path):
    """A module that starts a process and hangs, and both ends of a pipe that both processes hold open."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    name = module(
        f"""
        import os, time
        alive = os.open({str(pipe)!r}, os.O_WRONLY)
        if os.fork():
            os.write(alive, b"x")
        time.sleep(1000)
        """
    )
    keeper = os.open(pipe, os.O_WRONLY)  # makes the read wait for the first byte
    yield name, reader, keeper
    os.close(reader)


def test_what_hangs_is_ended_with_what_it_started(hanging):
    name, reader, keeper = hanging
    outcome = attempt("worker", seconds=2, module=name)
    os.close(keeper)
    assert outcome.problem == "no answer within 2 s"
    assert os.read(reader, 8) == b"x"
    assert os.read(reader, 8) == b""  # end of file: both processes are gone


def test_ctrl_c_ends_what_is_tried(hanging):
    name, reader, keeper = hanging

    def interrupt():
        assert os.read(reader, 8) == b"x"
        _thread.interrupt_main()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        attempt("worker", seconds=240, module=name)
    interrupter.join()
    os.close(keeper)
    assert os.read(reader, 8) == b""


def test_ctrl_c_while_a_trial_starts_ends_it(hanging, monkeypatch):
    name, reader, keeper = hanging

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            assert os.read(reader, 8) == b"x"
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        attempt("worker", seconds=240, module=name)
    os.close(keeper)
    assert os.read(reader, 8) == b""


@pytest.fixture
def runtime(monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    fake = FakeRuntime(devices=2)
    fake.runtimeGetVersion = lambda: 13020
    card = {"name": b"Fake GPU", "totalGlobalMem": 80 << 30, "major": 9}
    fake.getDeviceProperties = lambda index: {**card, "minor": index}
    monkeypatch.setattr(cuda, "find_cuda_version", fake.driverGetVersion)
    with use_cupy(monkeypatch, make_cupy(cupy, fake)):
        yield fake


def test_gpus_and_a_driver_that_fails_are_described(runtime, monkeypatch):
    def refuse():
        raise runtime.CUDARuntimeError(35, "cudaErrorInsufficientDriver")

    found = describe_gpus()
    assert (found["runtime"], found["driver"], found["failure"]) == (13020, 13000, "")
    assert found["devices"] == (("Fake GPU", 80 << 30, "9.0"), ("Fake GPU", 80 << 30, "9.1"))
    monkeypatch.setattr(runtime, "getDeviceCount", refuse)
    found = describe_gpus()
    assert found["devices"] == ()
    assert (found["runtime"], found["driver"]) == (13020, 13000)
    assert "cudaErrorInsufficientDriver" in found["failure"]


def test_without_cupy_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(cuda, "cupy", None)
    monkeypatch.setattr(cuda, "_import_error", "No module named 'cupy'")
    monkeypatch.setattr(cuda, "find_cuda_version", lambda: 12040)
    found = cuda.describe_machine()
    assert (found["cupy"], found["driver"], found["failure"]) == (None, 12040, "No module named 'cupy'")


def test_copies_are_timed_from_both_kinds_of_memory_unless_the_driver_refuses_to_lock(runtime):
    found = copy_to_device("gpu:1", "4096")
    assert min(found["pageable"], found["pinned"]) > 0
    assert found["refusal"] == ""
    assert (runtime.calls["hostRegister"], runtime.calls["memcpyAsync"]) == (1, 8)
    runtime.refuse_registering = True
    found = copy_to_device("gpu:0", "4096")
    assert found["pageable"] > 0
    assert found["pinned"] == 0
    assert "cudaErrorMemoryAllocation" in found["refusal"]


def test_a_device_that_locks_nothing_has_no_locked_copy():
    found = time_copies(HostDevice(), 4096)
    assert (found["pinned"], found["refusal"]) == (0, "")


def test_a_worker_process_fetches_and_the_trials_run_in_a_process_of_their_own():
    assert fetch_by_worker()["seconds"] > 0
    assert attempt("worker", seconds=240).answer["seconds"] > 0
    assert "not a place" in attempt("copies", "abacus", seconds=240).problem
