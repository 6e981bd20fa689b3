"""Faults that strike while a sample is read, each once in a program's life, whatever process reads it."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tests.chaos.failing import arm_as_told

if "GPULOADER_CHAOS" in os.environ:  # the attack asks every process that hangs where it is
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)
    arm_as_told()


class Trouble(Exception):
    """The error that a sample raises."""


class Unpicklable(Exception):
    """An error that cannot be pickled, nor made again from its arguments."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.lock = partial(print, (n for n in ()))


@dataclass(frozen=True)
class Troubles:
    """What strikes at which samples.

    A folder of the case holds the facts that all processes share. Making a directory takes no descriptor, so
    it works under every limit.

    Attributes
    ----------
    folder : str
        The folder.
    strikes : tuple of tuple
        For each fault its number in the case, its kind, the sample at which it strikes, and its seconds.
    pause : float
        Seconds that every sample takes.
    muted : bool
        Whether nothing strikes.
    """

    folder: str
    strikes: tuple[tuple[int, str, int, float], ...] = ()
    pause: float = 0.0
    muted: bool = False

    def mute(self) -> None:
        """Make no fault strike in this process, which has been forked, and in those that it starts."""
        object.__setattr__(self, "muted", True)

    def arm(self, fault: int) -> None:
        """Make a fault strike from now on."""
        os.makedirs(f"{self.folder}/armed-{fault}", exist_ok=True)

    def disarm(self) -> None:
        """Make no fault strike any more."""
        for fault, *_ in self.strikes:
            with suppress(FileNotFoundError):
                os.rmdir(f"{self.folder}/armed-{fault}")

    def visit(self, sample: int) -> None:
        """Call this whenever a sample is read."""
        if self.pause:
            time.sleep(self.pause)
        for fault, kind, at, seconds in self.strikes:
            if at == sample and not self.muted and os.path.isdir(f"{self.folder}/armed-{fault}"):
                try:
                    os.mkdir(f"{self.folder}/struck-{fault}")
                except FileExistsError:
                    continue
                self._strike(kind, seconds)

    def _strike(self, kind: str, seconds: float) -> None:
        if kind == "sleep":
            time.sleep(seconds)
        elif kind == "stall":
            with open(f"{self.folder}/stalled", "rb", buffering=0) as fifo:  # until the attack writes
                fifo.read(1)
        elif kind == "raise unpicklable":
            raise Unpicklable(7, "in a sample")
        elif kind == "leave":
            sys.exit(5)
        elif is_child() and kind == "exit":
            os._exit(3)
        elif is_child() and kind == "crash":
            faulthandler.disable()
            ctypes.string_at(0)
        else:
            raise Trouble("in a sample")


def is_child() -> bool:
    """Return whether a worker process or a reader process runs this."""
    return multiprocessing.parent_process() is not None
