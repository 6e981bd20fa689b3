"""Make candidates take turns, with each library in its own process (see `gpuloader.bench.sides`)."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence

from benchmarks.measure import Candidate, Spread
from gpuloader.bench.hosts import Host
from gpuloader.bench.running import take_turns as take_turns_of_sides
from gpuloader.bench.sides import Here

Factory = Callable[[], dict[str, Candidate]]
"""A function of an importable module that returns one library's candidates; called in its process."""


def make(module: str, factory: str) -> Here:
    """Return the side of a factory's candidates; called in the factory's process."""
    return Here(getattr(importlib.import_module(module), factory))


def take_turns(factories: Sequence[Factory], repeats: int) -> dict[str, Spread]:
    """Run all candidates of all libraries in turn, `repeats` times after a warm-up turn.

    Leave out a candidate that fails or does not answer, and print a line about it to stderr.
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
