"""Handles on child processes: the exit code, killing, and descriptors that are closed once."""

import os
import signal
import threading
import time
from contextlib import suppress

import pytest

from gpuloader.fetch.processes.fork_server import STATUS, ServedChild
from gpuloader.system.processes import wait_for
from tests.fakes import is_running

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(params=[True, False], ids=["descriptor", "none"])
def child(request):
    """A process that waits to be killed; the test is its server, and writes its status to a pipe."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        while True:
            time.sleep(60)
    handle = ServedChild(pid, read, os.pidfd_open(pid) if request.param else None)
    handle.write = write
    yield handle
    handle.release(is_ours=False)
    if is_running(pid):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    if handle.write is not None:
        os.close(handle.write)


def close(child):
    os.close(child.write)
    child.write = None


def test_an_exit_code_is_there_once_the_server_has_told_it(child):
    assert child.exit_code(0) is None
    os.write(child.write, STATUS.pack(-9))
    assert child.exit_code(10) == -9
    close(child)
    assert child.exit_code(10) == -9


@pytest.mark.parametrize("told", [b"", b"\0"], ids=["nothing", "half"])
def test_there_is_none_if_the_server_died_first(child, told):
    os.write(child.write, told)
    close(child)
    assert child.exit_code(10) is None
    assert child.exit_code(10) is None


def test_a_process_is_killed(child):
    child.kill()
    _, status = os.waitpid(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_descriptors_are_closed_once(child):
    assert not child.released
    descriptors = {child.sentinel, child._status}
    for _ in range(2):
        child.release(is_ours=False)
        assert child.released
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_one_of_ours_is_waited_for(child):
    def end():
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        with suppress(BrokenPipeError):  # with a process descriptor, nobody waits for the status
            os.write(child.write, STATUS.pack(-9))

    ending = threading.Timer(0.05, end)
    ending.start()
    child.release(is_ours=True)
    assert not is_running(child.pid)
    assert child.released
    ending.join()


def test_waiting_for_a_descriptor():
    read, write = os.pipe()
    assert not wait_for(read, 0)
    assert not wait_for(read, -1)
    assert not wait_for(read, 0.002)
    os.write(write, b"x")
    assert wait_for(read, 0)
    assert wait_for(read, None)
    os.close(read)
    os.close(write)
