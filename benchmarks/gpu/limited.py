"""Run a command for a limited time; imports nothing but the standard library."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any


def run_limited(
    command: Sequence[str],
    limit: float,
    *,
    cwd: Path,
    stdout: IO[Any],
    stderr: IO[Any] | int | None = None,
    env: Mapping[str, str] | None = None,
) -> int | None:
    """Run a command and return its exit code, or None if it took longer than `limit` seconds.

    It leads a session of its own. If it takes too long, or this function is interrupted, it is killed with
    everything it has started there.

    Raises
    ------
    OSError
        The command cannot be started.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdout=stdout,
        stderr=stderr,
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
