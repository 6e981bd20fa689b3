"""A trial in another process may answer, fail, crash or hang, but never blocks the doctor."""

import _thread
import os
import textwrap
import threading

import pytest

from gpuloader.doctor.attempt import attempt


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
    outcome = attempt("copies", "gpu:1", seconds=60, module=name)
    assert outcome.answer == {"arguments": ["copies", "gpu:1"]}
    assert outcome.problem == ""


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
    outcome = attempt("worker", seconds=60, module=module(code))
    assert outcome.answer == {}
    assert outcome.problem == problem


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
        attempt("worker", seconds=100, module=name)
    interrupter.join()
    os.close(keeper)
    assert os.read(reader, 8) == b""
