"""Candidates that take turns while each library has a process of its own (see `gpuloader.bench.sides`)."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence

from benchmarks.measure import Candidate, Spread
from gpuloader.bench.hosts import Host
from gpuloader.bench.running import take_turns as take_turns_of_sides
from gpuloader.bench.sides import TurnFailed, one_line

Factory = Callable[[], dict[str, Candidate]]
"""A function of an importable module that makes one library's candidates; called in its process."""


class Candidates:
    """The side of candidates that a factory made."""

    def __init__(self, candidates: dict[str, Candidate]) -> None:
        self._candidates = candidates

    def ways(self) -> list[str]:
        """Return the candidates' names."""
        return list(self._candidates)

    def turn(self, way: str) -> float:
        """Return what a candidate measured."""
        try:
            return self._candidates[way]()
        except Exception as error:
            raise TurnFailed(one_line(error)) from error

    def finish(self) -> None:
        """Let go of the candidates."""
        self._candidates = {}

    def close(self) -> None:
        """Let go of the candidates."""
        self.finish()


def make(module: str, factory: str) -> Candidates:
    """Make the candidates of a factory, in its process."""
    return Candidates(getattr(importlib.import_module(module), factory)())


def take_turns(factories: Sequence[Factory], repeats: int) -> dict[str, Spread]:
    """Run all candidates of all libraries in turn, `repeats` times after a turn to warm up.

    A candidate that fails or does not answer is left out, and a line on stderr says so.
    """
    with contextlib.ExitStack() as stack:
        sides = {}
        for factory in factories:
            name = factory.__name__
            sides[name] = Host(make.__module__, make.__name__, factory.__module__, name)
            stack.callback(sides[name].close)
        rows, interrupted = take_turns_of_sides(sides, repeats)
        if interrupted:
            raise KeyboardInterrupt
        for side in sides.values():
            side.finish()
    for row in rows:
        if row.error is not None:
            print(f"left out: {row.label}: {row.error}", file=sys.stderr)
    return {row.way: row.spread for row in rows if row.spread is not None}
