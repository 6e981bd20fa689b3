"""Run a library's candidates, in this process or in a separate one.

Importing torch or Paddle starts threads that slow every loop in the process. Workers forked from one
library's process inherit the other's threads. A loader that hangs or crashes takes down everything else in
its process. So each library is measured in a process that imports no other, one turn per request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from gpuloader.bench.cases import CASES, Case
from gpuloader.bench.consumer import LEAST, turn
from gpuloader.bench.measure import Candidate
from gpuloader.bench.peers import Peer, find_peer
from gpuloader.errors import describe_error


class TurnFailed(Exception):
    """A library raised an error, took too long, or its process ended; the message is one line."""


class Side(Protocol):
    """One library's candidates, used by one thread."""

    def ways(self) -> list[str]:
        """Open the candidates and return their names.

        Raises
        ------
        TurnFailed
            The library cannot open them.
        """

    def turn(self, way: str) -> float:
        """Run one turn of a candidate and return its measurement.

        Raises
        ------
        TurnFailed
            The candidate failed; the side's others may still work.
        """

    def finish(self) -> None:
        """Ask the side to end, without waiting."""

    def close(self) -> None:
        """End the side, with every process that it started."""


class Here:
    """A side that runs in this process.

    Parameters
    ----------
    open_candidates : callable
        A function that returns the candidates by name.
    """

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


def open_peer(peer: Peer, case: Case, least: float = LEAST) -> Here:
    """Return a library's side for a case in this process; turns take at least `least` seconds."""

    def open_candidates() -> dict[str, Candidate]:
        loading = peer.load()
        loaders = loading.open_loaders(case)
        return {way: partial(turn, loader, loading.touch, least) for way, loader in loaders.items()}

    return Here(open_candidates)


def open_here(peer: str, case: str, length: str) -> Here:
    """Return the side of a library for a case of `length` samples, all given as strings."""
    return open_peer(find_peer(peer), replace(CASES[case], length=int(length)))


def _one_line(error: Exception) -> str:
    """Return an error's type and the first line of its message, cut to 200 characters."""
    return next(iter(describe_error(error).splitlines()), "")[:200]
