"""Waiting for processes: how often they are looked at, and what the system may refuse for a moment."""

import errno
import os
import signal
import time
from multiprocessing import resource_tracker
from unittest.mock import Mock

import pytest

from gpuloader.system import processes
from gpuloader.system.processes import start_child, starting, wait_for
from tests.fakes import is_running, nothing_left_behind
from tests.fetch.faulty import run_program


@pytest.mark.parametrize(
    ("method", "starter"), [("fork", "os.fork"), ("spawn", "multiprocessing.util.spawnv_passfds")]
)
def test_ctrl_c_while_a_process_starts_ends_it(method, starter, monkeypatch):
    resource_tracker.ensure_running()  # stays
    module, _, name = starter.rpartition(".")
    start = getattr(processes.os if module == "os" else processes.multiprocessing.util, name)

    def start_and_interrupt(*arguments):
        if pid := start(*arguments):
            signal.raise_signal(signal.SIGINT)
        return pid

    monkeypatch.setattr(starter, start_and_interrupt)
    with nothing_left_behind(), starting(), pytest.raises(KeyboardInterrupt):
        start_child(method, "interrupted", time.sleep, 100)


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_an_exit_code_is_waited_for_and_looked_up_only_where_a_pipe_tells_of_a_death(
    has_descriptors, monkeypatch
):
    """The pipe stays open in what the process has started, so its closing alone is not enough."""
    reading, writing = os.pipe()

    def end_before_a_child():
        if os.fork():
            time.sleep(0.3)
            os._exit(3)
        os.close(writing)
        os.read(reading, 1)  # until the test is over
        os._exit(0)

    if not has_descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    waits = Mock(side_effect=wait_for)
    monkeypatch.setattr(processes, "wait_for", waits)
    try:
        with starting():
            child = start_child("fork", "ends-first", end_before_a_child)
        begun = time.monotonic()
        assert child.exit_code(60) == 3
        assert time.monotonic() - begun < 30
        assert (waits.call_count == 1) == has_descriptors
        child.end()
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_wait_that_the_system_refuses_for_a_moment_goes_on(number, monkeypatch):
    refused = OSError(number, os.strerror(number))
    monkeypatch.setattr(processes, "wait", Mock(side_effect=[refused, refused, [5]]))
    assert wait_for(5, None)
    monkeypatch.setattr(processes, "_PATIENCE", 0.0)
    monkeypatch.setattr(processes, "wait", Mock(side_effect=refused))
    assert not wait_for(5, 0.01)  # which is not forever
    monkeypatch.setattr(processes, "wait", Mock(side_effect=OSError(errno.EBADF, "bad")))
    with pytest.raises(OSError, match="bad"):
        wait_for(5, None)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_handle_that_was_closed_holds_no_descriptor(method):
    resource_tracker.ensure_running()  # stays
    before = len(os.listdir("/proc/self/fd"))
    with starting():
        child = start_child(method, "ends", time.sleep, 100)
    child.end()
    assert child.released
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_printed_before_a_fork_is_printed_once_and_who_hangs_in_c_code_ends_at_exit(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = """
        import ctypes
        from gpuloader.system.processes import start_child, starting

        print("once")
        with starting():
            assert start_child("fork", "short", int).exit_code(60) == 0
            hanging = start_child("fork", "hangs", ctypes.PyDLL(None).sleep, 1000)  # and holds the GIL
        print(hanging.pid)
    """
    done = run_program(program)
    word, pid = done.stdout.split()
    assert (word, done.stderr, done.returncode) == ("once", "", 0)
    assert not is_running(int(pid))
