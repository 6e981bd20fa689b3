"""Libraries take turns, each in its own process.

Importing torch or Paddle starts threads that slow every loop in the process. Workers forked from one
library's process inherit the other's threads. A loader that hangs or crashes takes down everything else in
its process. So each library is a `Side`, measured in a process that imports no other, one turn per request:
``python -m benchmarks.hosts MODULE FUNCTION ARGUMENT...`` writes one line of JSON per turn.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.measure import Candidate, Spread, spread
from gpuloader.errors import LoaderError, describe_error
from gpuloader.system.platforms import open_process

LIMIT = 90.0
"""Seconds to wait for an answer; the first one includes imports and making the data."""
_FAREWELL = 10.0
"""Seconds to wait for a process to exit after it was asked to finish."""

Tell = Callable[[str, int, int], None]
"""Called before each turn with what runs next, the finished turns, and all turns, 0 if unknown."""


class TurnFailed(Exception):
    """A library raised an error, took too long, or its process ended; the message is one line."""


class Side(Protocol):
    """One library's candidates, used by one thread; `ways` and `turn` raise `TurnFailed`."""

    def ways(self) -> list[str]:
        """Open the candidates and return their names."""

    def turn(self, way: str) -> float:
        """Run one turn of a candidate and return its measurement; after a failure, others may still work."""

    def finish(self) -> None:
        """Ask the side to end, without waiting."""

    def close(self) -> None:
        """End the side, with every process that it started."""


class Here:
    """A side that runs in this process; `open_candidates` returns the candidates by name."""

    def __init__(self, open_candidates: Callable[[], dict[str, Candidate]]) -> None:
        self._open = open_candidates
        self._candidates: dict[str, Candidate] = {}

    def ways(self) -> list[str]:
        """Open the candidates and return their names."""
        try:
            self._candidates = self._open()
        except Exception as error:
            raise TurnFailed(_one_line(error)) from error
        return list(self._candidates)

    def turn(self, way: str) -> float:
        """Run one turn of a candidate and return its measurement."""
        try:
            return self._candidates[way]()
        except Exception as error:
            raise TurnFailed(_one_line(error)) from error

    def finish(self) -> None:
        """Drop the candidates, which ends their workers."""
        self._candidates = {}

    def close(self) -> None:
        """Drop the candidates."""
        self.finish()


def _one_line(error: Exception) -> str:
    return next(iter(describe_error(error).splitlines()), "")[:200]


class Host:
    """The process of one side. It starts at once, so that all hosts import at the same time.

    It calls a function of a module, which makes the side. A host that does not answer within `limit` seconds
    is killed, with every process it started; that needs process groups, so `LoaderError` without them.
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
            [sys.executable, "-P", "-m", "benchmarks.hosts", module, function, *arguments],
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
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@dataclass(frozen=True, slots=True)
class Row:
    """One way of loading: the library, the name of this loader among its loaders, and the figures.

    `way` is empty if the library failed to open any; `spread` is None if the loader failed in any turn or had
    no measured one; `error` says why, in one line.
    """

    peer: str
    way: str
    spread: Spread | None
    runs: int = 0
    error: str | None = None

    @property
    def label(self) -> str:
        """The row's name in tables: the peer and its way."""
        return ", ".join(filter(None, (self.peer, self.way)))


@dataclass(slots=True)
class _Entry:
    """A loader, or a library that could not open any, while a case runs."""

    peer: str
    way: str
    side: Side | None
    runs: list[float] = field(default_factory=list)
    error: str | None = None

    def to_row(self) -> Row:
        figure = spread(self.runs) if self.runs and self.error is None else None
        return Row(self.peer, self.way, figure, len(self.runs), self.error)


def run_sides(
    sides: Mapping[str, Side], repeats: int, tell: Tell | None = None
) -> tuple[tuple[Row, ...], bool]:
    """Run all ways of all sides in turn, `repeats` times after a warm-up turn, so that noise hits all alike.

    A way that fails gets no further turns and keeps its error. Return the figures, and whether Ctrl-C ended
    the run; if it did, rows have fewer turns or are missing.
    """
    entries: list[_Entry] = []
    try:
        for name, side in sides.items():
            if tell is not None:
                tell(f"{name} opens", 0, 0)
            try:
                entries.extend(_Entry(name, way, side) for way in side.ways())
            except TurnFailed as failure:
                entries.append(_Entry(name, "", None, error=str(failure)))
        turns = len(entries) * (repeats + 1)
        for number in range(turns):
            entry = entries[number % len(entries)]
            if tell is not None:
                tell(entry.to_row().label, number, turns)
            if entry.side is None or entry.error is not None:
                continue
            try:
                took = entry.side.turn(entry.way)
            except TurnFailed as failure:
                entry.error = str(failure)
            else:
                if number >= len(entries):
                    entry.runs.append(took)
    except KeyboardInterrupt:
        return tuple(entry.to_row() for entry in entries if entry.runs or entry.error is not None), True
    return tuple(entry.to_row() for entry in entries), False


Factory = Callable[[], dict[str, Candidate]]
"""A function of an importable module that returns one library's candidates; called in its process."""


def make(module: str, factory: str) -> Here:
    """Return the side of a factory's candidates; called in the factory's process."""
    return Here(getattr(importlib.import_module(module), factory))


def take_turns(factories: Sequence[Factory], repeats: int) -> dict[str, Spread]:
    """Run all candidates of all libraries in turn, each library in a process.

    Leave out a candidate that fails or does not answer, and print a line about it to stderr.
    """
    with contextlib.ExitStack() as stack:
        sides = {}
        for factory in factories:
            name = factory.__name__
            sides[name] = Host("benchmarks.hosts", make.__name__, factory.__module__, name)
            stack.callback(sides[name].close)
        rows, interrupted = run_sides(sides, repeats)
        if interrupted:
            raise KeyboardInterrupt
        for side in sides.values():
            side.finish()
    report_errors(rows)
    return {row.way: row.spread for row in rows if row.spread is not None}


def report_errors(rows: Sequence[Row]) -> None:
    """Print a line to stderr for each row that has an error instead of a figure."""
    for row in rows:
        if row.error is not None:
            print(f"left out: {row.label}: {row.error}", file=sys.stderr)


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
    # Under its own name, so that the module that makes the side raises the `TurnFailed` that is caught here.
    from benchmarks import hosts

    hosts.serve(*sys.argv[1:])
