"""A side in a process of its own, which runs a turn when it is asked to.

``python -m gpuloader.bench.hosts MODULE FUNCTION ARGUMENT...`` is what runs there; it says a line of JSON a
turn.
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

from gpuloader.base.errors import LoaderError
from gpuloader.base.platforms import open_process
from gpuloader.bench import sides
from gpuloader.bench.cases import Case
from gpuloader.bench.peers import Peer
from gpuloader.bench.sides import Side, TurnFailed

LIMIT = 90.0
"""Seconds that an answer may take, imports and data of the first one included."""
_FAREWELL = 10.0


class Host:
    """The process of a side; it starts at once, and imports while others do.

    Parameters
    ----------
    module, function : str
        What returns the side when it is called there.
    arguments : str
        What it is called with.
    limit : float
        Seconds an answer may take. A host that fails to answer is ended, with every process it started.

    Raises
    ------
    LoaderError
        This system has no groups of processes to be ended together.
    """

    def __init__(self, module: str, function: str, *arguments: str, limit: float = LIMIT) -> None:
        if not hasattr(os, "killpg"):
            raise LoaderError("the benchmark runs each library in a process of its own, which needs POSIX")
        self._limit = limit
        # What the library writes, of which the last line is told if its process ends.
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
        """Return the names of the loaders once they are open."""
        return [str(way) for way in self._answer()]

    def turn(self, way: str) -> float:
        """Return the microseconds a batch took."""
        if self._process is None:
            raise TurnFailed("its process has ended")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer tells
            self._process.stdin.write(f"{way}\n".encode())
        return float(self._answer())

    def finish(self) -> None:
        """Let the process end when its turn is over."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
        """Wait for the process, ten seconds at most if it was asked to finish, and end what is left of it."""
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
            self._await_readable(None, 1.0)  # its pipe may close a moment before it is gone
            raise TurnFailed(self._last_words(self._end()))
        answer = json.loads(line)
        if "failure" in answer:
            raise TurnFailed(answer["failure"])
        return answer["value"]

    def _await_readable(self, descriptor: int | None, seconds: float) -> list[int]:
        """Wait for a descriptor to be readable or the process to end; empty if neither comes in time.

        The process itself is watched, as one that it forked may outlive it and hold its pipes open.
        """
        assert self._process is not None
        watch = open_process(self._process.pid)
        try:
            return select.select([one for one in (descriptor, watch) if one is not None], [], [], seconds)[0]
        finally:
            if watch is not None:
                os.close(watch)

    def _end(self) -> int:
        """End the process and return its exit code, or minus a signal."""
        assert self._process is not None
        process, self._process = self._process, None
        # It leads a group, so that workers which would be left behind end with it; before it is waited for,
        # while its number is surely its own. macOS refuses where only the dead are left.
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
    """Let the process find this very package, in a checkout that is not installed too."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def open_host(peer: Peer, case: Case) -> Host:
    """Return the process of one library for one case."""
    return Host(sides.__name__, sides.open_here.__name__, peer.name, case.name, str(case.length))


def serve(module: str, function: str, *arguments: str) -> None:
    """Open the side, say the names of its ways, and run one for every line on stdin."""
    # What libraries print must not get between the answers.
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
