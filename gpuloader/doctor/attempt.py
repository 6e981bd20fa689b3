"""Try something that may hang or crash: in a process of its own, for a limited time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

TRIALS = "gpuloader.doctor.trials"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial went.

    Attributes
    ----------
    answer : dict
        What it found; empty where it failed.
    problem : str
        Why it failed, in a line; empty where it did not.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


Attempt = Callable[..., Outcome]
"""`attempt`, or what stands in for it: (trial, *arguments, seconds=...) -> Outcome."""


def attempt(trial: str, *arguments: str, seconds: float, module: str = TRIALS) -> Outcome:
    """Run one of the trials in a new process; whatever it does, return within about `seconds`.

    Parameters
    ----------
    trial : str
        Its name in `gpuloader.doctor.trials`.
    *arguments : str
        For it.
    seconds : float
        How long it may take; then it is killed, with whatever it started.
    module : str
        What is run: it prints its answer as JSON.
    """
    command = [sys.executable, "-P", "-m", module, trial, *arguments]
    # Where this process looks for packages: the checkout may be found by the working directory alone.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Files and not pipes: a grandchild that lives on would keep a pipe from ending.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            return Outcome(problem=f"no answer within {seconds:g} s")
        except BaseException:
            _kill(process)
            raise
        return _read(status, _text(output), _text(errors))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started; do not wait long for one that the kernel does not let go of."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)


def _read(status: int, output: str, errors: str) -> Outcome:
    if status < 0:
        return Outcome(problem=f"ended by {signal.Signals(-status).name}")
    try:
        answer = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        said = [line.strip() for line in errors.splitlines() if line.strip()]
        return Outcome(problem=said[-1] if said else f"exit status {status} without an answer")
    if "problem" in answer:
        return Outcome(problem=" ".join(answer["problem"].split()))
    return Outcome(answer)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
