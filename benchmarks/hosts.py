"""Candidates that take turns while each library has a process of its own.

Importing torch or Paddle starts threads that slow every loop in the process, workers forked from one
library's process inherit the other's, and a loader that hangs takes down whatever runs beside it. So a
host is made for each library: it imports that library alone and runs a turn when it is asked to.

    python -m benchmarks.hosts MODULE FUNCTION     what runs in a host; speaks a line of JSON a turn
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.measure import Candidate, Spread

Factory = Callable[[], dict[str, Candidate]]
"""A function of an importable module that makes one library's candidates; called in the host."""


class HostFailed(Exception):
    """A host took too long, died, or raised; what it wrote to stderr says more."""


class Host:
    """The process of one library, started when its first turn is asked for.

    Used by one thread. A host that fails is ended together with every process it started; the next turn
    starts another.

    Parameters
    ----------
    factory : callable
        Makes the candidates, in the host.
    limit : float
        Seconds a turn may take, imports and data of the first one included.
    """

    def __init__(self, factory: Factory, limit: float) -> None:
        self._factory = factory
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._warm: set[str] = set()

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def names(self) -> list[str]:
        """Return the candidates' names; starts the process.

        Raises
        ------
        HostFailed
            The candidates could not be made.
        """
        if self._process is not None:
            raise RuntimeError("the host is running already")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hosts", self._factory.__module__, self._factory.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
        names: list[str] = self._answer()
        return names

    def turn(self, name: str) -> float:
        """Return what a turn of this candidate measured, after one more to warm up if it is the first.

        Raises
        ------
        HostFailed
            It took longer than the limit, or the process died.
        """
        if self._process is None:
            self.names()
        while name not in self._warm:
            self._ask(name)
            self._warm.add(name)
        return self._ask(name)

    def _ask(self, name: str) -> float:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{name}\n".encode())
        except BrokenPipeError:
            self._end()
            raise HostFailed("its process is gone") from None
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        answers = self._process.stdout.fileno()
        ready = self._await(answers, seconds=self._limit)
        line = os.read(answers, 1 << 16) if answers in ready else b""
        if line:
            return json.loads(line)
        self._end()
        raise HostFailed("its process ended" if ready else f"no answer within {self._limit:.0f} s")

    def _await(self, *descriptors: int, seconds: float) -> list[int]:
        """Wait for a descriptor to be readable or the process to end; empty if neither comes in time.

        The process itself is watched, as one that it forked may outlive it and hold its pipes open.
        """
        assert self._process is not None
        watch = os.pidfd_open(self._process.pid)
        try:
            return select.select([*descriptors, watch], [], [], seconds)[0]
        finally:
            os.close(watch)

    def _end(self) -> None:
        process, self._process = self._process, None
        self._warm.clear()
        if process is not None:
            # Before it is waited for, while its number is surely its own. It leads a session, so that
            # workers which would be left behind end with it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """Let the process finish, ten seconds at most."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._await(seconds=10)
            self._end()


def take_turns(factories: Sequence[Factory], repeats: int, limit: float = 60) -> dict[str, Spread]:
    """Run all candidates of all libraries in turn, `repeats` times after a turn to warm up.

    A candidate that fails or does not answer within the limit is left out, and a line on stderr says so.
    """
    with contextlib.ExitStack() as stack:
        candidates: dict[str, Host] = {}
        for factory in factories:
            host = stack.enter_context(Host(factory, limit))
            try:
                candidates |= dict.fromkeys(host.names(), host)
            except HostFailed as failure:
                print(f"left out: all of {factory.__name__}: {failure}", file=sys.stderr)
        runs: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(repeats):
            for name, host in candidates.items():
                if name not in runs:
                    continue
                try:
                    runs[name].append(host.turn(name))
                except HostFailed as failure:
                    print(f"left out: {name}: {failure}", file=sys.stderr)
                    del runs[name]
    return {name: Spread(statistics.median(seen), min(seen), max(seen)) for name, seen in runs.items()}


def serve(module: str, function: str) -> None:
    """Make the candidates, say their names, and run one for every line on stdin."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    candidates: dict[str, Candidate] = getattr(importlib.import_module(module), function)()
    print(json.dumps(list(candidates)), file=answers)
    for line in sys.stdin:
        print(json.dumps(candidates[line.strip()]()), file=answers)


if __name__ == "__main__":
    serve(*sys.argv[1:])
