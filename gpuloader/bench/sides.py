"""Where a library's loaders run: in this process, or in one of its own.

Importing torch or Paddle starts threads that slow every loop in the process, workers forked from one
library's process inherit the other's, and a loader that hangs or crashes takes down whatever runs beside
it. So a library is measured in a process that has imported it alone, and runs a turn when it is asked to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from gpuloader.base.errors import describe_error
from gpuloader.bench.cases import CASES, Case
from gpuloader.bench.consumer import LEAST, turn
from gpuloader.bench.peers import Loader, Loading, Peer, find_peer


class TurnFailed(Exception):
    """A library raised, took too long, or its process ended; the message is a line."""


class Side(Protocol):
    """One library and one case. Used by one thread."""

    def ways(self) -> list[str]:
        """Open the loaders and return their names.

        Raises
        ------
        TurnFailed
            The library cannot do it.
        """

    def turn(self, way: str) -> float:
        """Return the microseconds a batch took.

        Raises
        ------
        TurnFailed
            This loader cannot do it; others may.
        """

    def finish(self) -> None:
        """Ask it to end, and do not wait."""

    def close(self) -> None:
        """End it, with every process that it started."""


class Here:
    """A library in this process.

    Parameters
    ----------
    peer : Peer
        Which.
    case : Case
        What it loads.
    least : float
        Seconds that a turn takes at least.
    """

    def __init__(self, peer: Peer, case: Case, least: float = LEAST) -> None:
        self._peer = peer
        self._case = case
        self._least = least
        self._loading: Loading | None = None
        self._loaders: dict[str, Loader] = {}

    def ways(self) -> list[str]:
        """Open the loaders and return their names."""
        try:
            self._loading = self._peer.load()
            self._loaders = self._loading.open_loaders(self._case)
        except Exception as error:
            raise TurnFailed(one_line(error)) from error
        return list(self._loaders)

    def turn(self, way: str) -> float:
        """Return the microseconds a batch took."""
        assert self._loading is not None
        try:
            return turn(self._loaders[way], self._loading.touch, self._least)
        except Exception as error:
            raise TurnFailed(one_line(error)) from error

    def finish(self) -> None:
        """Let go of the loaders, which ends their workers."""
        self._loaders = {}

    def close(self) -> None:
        """Let go of the loaders."""
        self.finish()


def open_here(peer: str, case: str, length: str) -> Here:
    """Return a side by the names of its library and its case, which has so many samples."""
    return Here(find_peer(peer), replace(CASES[case], length=int(length)))


def one_line(error: Exception) -> str:
    """Return an error's type and the first line of what it says, 200 characters at most."""
    return next(iter(describe_error(error).splitlines()), "")[:200]
