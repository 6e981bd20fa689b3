"""Try something that may hang or crash, in a separate process and for a limited time."""

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
    """The outcome of a trial.

    Attributes
    ----------
    answer : dict
        The trial's answer; empty if it failed.
    problem : str
        Why the trial failed, in one line; empty if it did not.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


Attempt = Callable[..., Outcome]
"""The type of `attempt` and its stand-ins: (trial, *arguments, seconds=...) -> Outcome."""


def attempt(trial: str, *arguments: str, seconds: float, module: str = TRIALS) -> Outcome:
    """Run a trial in a new process and return within about `seconds`, whatever the trial does.

    Parameters
    ----------
    trial : str
        The trial's name in `gpuloader.doctor.trials`.
    *arguments : str
        The trial's arguments.
    seconds : float
        Seconds to wait before killing the trial, with every process it started.
    module : str
        The module to run, which prints its answer as JSON.
    """
    command = [sys.executable, "-P", "-m", module, trial, *arguments]
    # Pass on this process's search path: it may find the checkout only through the working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Files, not pipes: a surviving grandchild would keep a pipe open.
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
    """Kill a process and its children; wait two seconds at most, since the kernel may not release it."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)


def _read(status: int, output: str, errors: str) -> Outcome:
    if status < 0:
        return Outcome(problem=f"killed by {signal.Signals(-status).name}")
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
