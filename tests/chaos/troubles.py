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

from tests.chaos.case import Fault
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
    """What strikes at which samples."""

    # Holds the facts that all processes share. Making a directory takes no descriptor, so it works under
    # every limit.
    folder: str
    faults: tuple[Fault, ...] = ()
    pause: float = 0.0  # seconds that every sample takes
    muted: bool = False  # whether nothing strikes

    def mute(self) -> None:
        """Make no fault strike in this process, which has been forked, nor in those that it starts."""
        object.__setattr__(self, "muted", True)

    def arm(self, fault: int) -> None:
        os.makedirs(f"{self.folder}/armed-{fault}", exist_ok=True)

    def disarm(self) -> None:
        for number in range(len(self.faults)):
            with suppress(FileNotFoundError):
                os.rmdir(f"{self.folder}/armed-{number}")

    def visit(self, sample: int) -> None:
        """Call this whenever a sample is read."""
        if self.pause:
            time.sleep(self.pause)
        for number, fault in enumerate(self.faults):
            is_due = fault.at == sample and not self.muted
            if is_due and os.path.isdir(f"{self.folder}/armed-{number}"):
                try:
                    os.mkdir(f"{self.folder}/struck-{number}")
                except FileExistsError:
                    continue
                self._strike(fault.kind, fault.delay)

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
