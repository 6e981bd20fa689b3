"""Run a side in its own process, one turn per request.

The process runs ``python -m gpuloader.bench.hosts MODULE FUNCTION ARGUMENT...`` and writes one line of JSON
per turn.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpuloader.bench import sides
from gpuloader.bench.cases import Case
from gpuloader.bench.peers import Peer
from gpuloader.bench.sides import Side, TurnFailed
from gpuloader.errors import LoaderError
from gpuloader.system.platforms import open_process

LIMIT = 90.0
"""Seconds to wait for an answer; the first one includes imports and making the data."""
_FAREWELL = 10.0
"""Seconds to wait for a process to exit after it was asked to finish."""


class Host:
    """The process of one side. It starts at once, so that all hosts import at the same time.

    Parameters
    ----------
    module, function : str
        The function that makes the side, and its module; the host process calls it.
    arguments : str
        The function's arguments.
    limit : float
        Seconds to wait for an answer. A host that does not answer is killed, with every process it started.

    Raises
    ------
    LoaderError
        This system has no process groups, so the host could not kill its children.
    """

    def __init__(self, module: str, function: str, *arguments: str, limit: float = LIMIT) -> None:
        if not hasattr(os, "killpg"):
            raise LoaderError(
                "the benchmark runs each library in its own process group, which needs a POSIX system"
            )
        self._limit = limit
        # Everything the library prints; an error for a process that ended quotes the last line.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the side
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, module, function, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            env=_environment(),
            start_new_session=True,
        )

    def ways(self) -> list[str]:
        """Return the names of the side's ways, once they are open."""
        return [str(way) for way in self._answer()]

    def turn(self, way: str) -> float:
        """Run one turn of a way and return its measurement."""
        if self._process is None:
            raise TurnFailed("its process has ended")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer raises below
            self._process.stdin.write(f"{way}\n".encode())
        return float(self._answer())

    def finish(self) -> None:
        """Ask the process to exit after its current turn."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
        """Kill the process and its children; if it was asked to finish, wait up to ten seconds first."""
        if self._process is not None:
            assert self._process.stdin is not None
            if self._process.stdin.closed:
                self._await_readable(None, _FAREWELL)
            self._end()
        self._said.close()

    def _answer(self) -> Any:
        if self._process is None:
            raise TurnFailed("its process has ended")
        assert self._process.stdout is not None
        answers = self._process.stdout.fileno()
        ready = self._await_readable(answers, self._limit)
        if not ready:
            self._end()
            raise TurnFailed(f"no answer within {self._limit:.0f} s")
        line = os.read(answers, 1 << 16) if answers in ready else b""
        if not line:
            self._await_readable(None, 1.0)  # the pipe may close a moment before the process exits
            raise TurnFailed(self._last_words(self._end()))
        answer = json.loads(line)
        if "failure" in answer:
            raise TurnFailed(answer["failure"])
        return answer["value"]

    def _await_readable(self, descriptor: int | None, seconds: float) -> list[int]:
        """Wait until a descriptor is readable or the process ends; return an empty list on timeout.

        Watching the pipes alone is not enough: a process that the host forked may outlive it and keep them
        open.
        """
        assert self._process is not None
        watch = open_process(self._process.pid)
        try:
            return select.select([one for one in (descriptor, watch) if one is not None], [], [], seconds)[0]
        finally:
            if watch is not None:
                os.close(watch)

    def _end(self) -> int:
        """Kill the process group; return the process's exit code, or minus the signal that ended it."""
        assert self._process is not None
        process, self._process = self._process, None
        # Killing the group takes orphaned workers along. It must come before the wait, while the process ID
        # cannot have been reused. macOS refuses if the group holds only dead processes.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.returncode

    def _last_words(self, code: int) -> str:
        self._said.seek(0)
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"its process ended ({how}){f': {lines[-1].strip()[:200]}' if lines else ''}"


def _environment() -> dict[str, str]:
    """Return an environment that makes the process import this very package, even if it is not installed."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def open_host(peer: Peer, case: Case) -> Host:
    """Start the process of one library for one case."""
    return Host(sides.__name__, sides.open_here.__name__, peer.name, case.name, str(case.length))


def serve(module: str, function: str, *arguments: str) -> None:
    """Open the side, write the names of its ways, then run the way named by each line on stdin."""
    # Keep the libraries' own output out of the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    side: Side = getattr(importlib.import_module(module), function)(*arguments)

    def say(ask: Any) -> None:
        try:
            answer = {"value": ask()}
        except TurnFailed as failure:
            answer = {"failure": str(failure)}
        print(json.dumps(answer), file=answers)

    say(side.ways)
    for line in sys.stdin:
        way = line.rstrip("\n")
        say(lambda: side.turn(way))  # noqa: B023 - called at once
    side.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
