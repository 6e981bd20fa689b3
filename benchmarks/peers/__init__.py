"""Compare gpuloader with the floor and with other installed loaders: ``python -m benchmarks.peers``.

Each library is one file, uses its loader as its users would write it, and feeds the same consumer.

The process that runs a library imports its file ``NAME.py``. The file has two functions, which import the
library themselves: ``open_loaders(case)`` returns the loaders that the library's users would write for a
case, and ``touch(batch)`` reads the first number of a batch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from benchmarks.peers.cases import CASES, Case

Loader = Iterable[Any]
"""Yields one epoch's batches each time it is iterated, anew or from an `Endless` iterator."""


class Loading(Protocol):
    """The functions of a library's file."""

    def open_loaders(self, case: Case) -> dict[str, Loader]:
        """Return the loaders by the name of their way; persistent workers start with the first epoch."""

    def touch(self, batch: Any) -> object:
        """Read the first number of a batch's first field."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library, before it is imported.

    Attributes
    ----------
    name : str
        The library's name on the command line, in tables, and of its file in this folder.
    module : str
        The module that users import.
    distributions : tuple of str
        The packages that users install; the first is the recommended one.
    cases : frozenset of str
        The names of the cases that the library can load.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    cases: frozenset[str] = frozenset(CASES)

    def version(self) -> str | None:
        """Return the installed version, or None if there is none, without importing the library."""
        try:
            if importlib.util.find_spec(self.module) is None:
                return None
        except ModuleNotFoundError:  # the package that it is a part of
            return None
        for distribution in self.distributions:
            try:
                return importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
        return "unknown"

    def load(self) -> Loading:
        """Import the library's file and return it."""
        return cast("Loading", importlib.import_module(f"{__name__}.{self.name}"))


FLOOR = Peer("floor", "numpy", ("numpy",))
"""The bare loop that a careful engineer would write; ratios refer to its first way."""

OURS = Peer("gpuloader", "gpuloader", ("gpuloader",))

PEERS = {
    peer.name: peer
    for peer in (
        Peer("torch", "torch", ("torch",)),
        Peer("paddle", "paddle", ("paddlepaddle", "paddlepaddle-gpu")),
        Peer("grain", "grain", ("grain",)),
        Peer("spdl", "spdl", ("spdl",)),
        Peer("tensorflow", "tensorflow", ("tensorflow", "tensorflow-cpu")),
        Peer(
            "dali",
            "nvidia.dali",
            ("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
            frozenset({"pictures"}),
        ),
    )
}


def find_peer(name: str) -> Peer:
    """Return the floor, gpuloader or a library by name."""
    return {FLOOR.name: FLOOR, OURS.name: OURS, **PEERS}[name]


def workers(count: int, word: str = "worker") -> str:
    """Return the name of a way with `count` workers.

    >>> workers(0), workers(1), workers(16, "thread")
    ('no worker', '1 worker', '16 threads')
    """
    return f"{count or 'no'} {word}{'s' if count > 1 else ''}"
