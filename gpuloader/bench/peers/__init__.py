"""Who is measured: ourselves, the floor, and the libraries that may be installed, each in a file of its own.

The file ``NAME.py`` is imported where a library runs and has two functions, with the library's own imports
in them: ``open_loaders(case)`` returns the ways in which its users would load a case, and ``touch(batch)``
reads the first number of a batch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from gpuloader.bench.cases import CASES, Case

Loader = Iterable[Any]
"""Gives the batches of an epoch whenever it is iterated, or takes them out of an `Endless` iterator."""


class Loading(Protocol):
    """What the file of a library has."""

    def open_loaders(self, case: Case) -> dict[str, Loader]:
        """Return loaders by what is particular about them; persistent workers start when they are read."""

    def touch(self, batch: Any) -> object:
        """Read the first number of a batch's first field."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library, before it is imported.

    Attributes
    ----------
    name : str
        What the command line and the tables call it, and the name of its file here.
    module : str
        What its users import.
    distributions : tuple of str
        What its users install; the first is what is recommended.
    cases : frozenset of str
        Names of the cases it can do.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    cases: frozenset[str] = frozenset(CASES)

    def version(self) -> str | None:
        """Return the installed version, or None if there is none; imports nothing of the library."""
        if importlib.util.find_spec(self.module) is None:
            return None
        for distribution in self.distributions:
            try:
                return importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
        return "unknown"

    def load(self) -> Loading:
        """Import its file."""
        return cast("Loading", importlib.import_module(f"{__name__}.{self.name}"))


FLOOR = Peer("floor", "numpy", ("numpy",))
"""The bare loop that a careful person would write; its first way is what ratios refer to."""

OURS = Peer("gpuloader", "gpuloader", ("gpuloader",))

PEERS = {
    peer.name: peer
    for peer in (
        Peer("torch", "torch", ("torch",)),
        Peer("paddle", "paddle", ("paddlepaddle", "paddlepaddle-gpu")),
        Peer("grain", "grain", ("grain",)),
        Peer("spdl", "spdl", ("spdl",)),
        Peer("tensorflow", "tensorflow", ("tensorflow", "tensorflow-cpu")),
    )
}


def find_peer(name: str) -> Peer:
    """Return the floor, ourselves or a library by name."""
    return {FLOOR.name: FLOOR, OURS.name: OURS, **PEERS}[name]


def workers(count: int, word: str = "worker") -> str:
    """Return how loaders with so many workers are called.

    >>> workers(0), workers(1), workers(16, "thread")
    ('no worker', '1 worker', '16 threads')
    """
    return f"{count or 'no'} {word}{'s' if count > 1 else ''}"
