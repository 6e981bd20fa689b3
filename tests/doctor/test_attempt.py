"""What is tried in another process: it answers, fails, crashes or hangs, and never keeps us."""

import os
import textwrap

import pytest

from gpuloader.doctor.attempt import attempt


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Put a module in the place of the trials; return its name."""
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
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
    ],
)
def test_a_failure_is_a_line(module, code, problem):
    outcome = attempt("worker", seconds=60, module=module(code))
    assert outcome.answer == {}
    assert outcome.problem == problem


def test_what_hangs_is_ended_with_what_it_started(module, tmp_path):
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    name = module(
        f"""
        import os, time
        alive = os.open({str(pipe)!r}, os.O_WRONLY)
        os.fork()
        os.write(alive, b"x")
        time.sleep(1000)
        """
    )
    try:
        outcome = attempt("worker", seconds=5, module=name)
        assert outcome.problem == "no answer within 5 s"
        os.set_blocking(reader, True)
        assert os.read(reader, 8) == b"xx"
        assert os.read(reader, 8) == b""  # the last of both is gone: nobody could write any more
    finally:
        os.close(reader)
