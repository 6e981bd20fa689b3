"""Work of a given length, for readers and steps whose times are known."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from time import perf_counter, sleep

Work = Callable[[float], object]
"""Works for about the given number of seconds."""


def wait(seconds: float) -> None:
    """Sleep, as code does that waits for a disk, a network or a device."""
    if seconds:
        sleep(seconds)


def make_hashing() -> Work:
    """Return a function that computes on one core without the interpreter's lock, as NumPy does."""
    block = bytes(1 << 20)
    rate = _rate(lambda count: hashlib.sha256(memoryview(block)[:count]), len(block))

    def compute(seconds: float) -> None:
        left = int(rate * seconds)
        while left > 0:
            hashlib.sha256(memoryview(block)[: min(left, len(block))])
            left -= len(block)

    return compute


def make_counting() -> Work:
    """Return a function that runs Python code, which holds the interpreter's lock."""
    rate = _rate(_count, 20_000)
    return lambda seconds: _count(int(rate * seconds))


def _count(rounds: int) -> None:
    for _ in itertools.repeat(None, rounds):
        pass


def _rate(work: Callable[[int], object], units: int) -> float:
    """Return the units per second of the fastest of several runs."""
    fastest = 1e9
    for _ in range(20):
        begun = perf_counter()
        work(units)
        fastest = min(fastest, perf_counter() - begun)
    return units / fastest
