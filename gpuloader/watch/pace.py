"""Whether to read ahead in a thread, decided while a loop runs, from how long reading and stepping take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

PAYS = 60_000
"""Nanoseconds of work to hide in each step from which a thread pays for the hand-over of batches."""
LONG = 2_000_000
"""Nanoseconds after which a decision need not wait for more steps."""
_STEPS = 8
_LONGEST_TRUST = 1 << 10


@dataclass(slots=True)
class Pace:
    """Measures a loop and decides how to read; kept from epoch to epoch.

    A thread hides the shorter of reading and stepping, and costs a hand-over. Times that were measured while
    both ran in one thread are exact. With two threads, each may contain waits for the interpreter's lock, so
    they only suggest a change, which is then tried; a try that the exact times do not confirm is not
    repeated soon.

    Attributes
    ----------
    threaded : bool
        Whether to read in a thread now.
    fixed : bool
        Whether the user has chosen, so that nothing is decided here.
    read, step : float
        The latest times per batch and per step, in nanoseconds; 0 before the first.
    changes : int
        How often the decision has changed.
    """

    threaded: bool = True
    fixed: bool = False
    read: float = 0.0
    step: float = 0.0
    changes: int = 0
    _reads: deque[int] = field(default_factory=lambda: deque(maxlen=2 * _STEPS))
    _read_sum: int = 0
    _step_sum: int = 0
    _count: int = 0
    _trust: int = 1  # windows to stay with a thread that a try without one has confirmed
    _trusted: int = 0

    def note_read(self, nanoseconds: int) -> None:
        """Count one batch that a thread has read while the consumer was stepping; called by that thread."""
        self._reads.append(nanoseconds)

    def note_step(self, nanoseconds: int, read: int = 0) -> bool:
        """Count one step, and the time to read its batch if the consumer did so; return `threaded`.

        Called by the consumer, before it reads or waits for the next batch.
        """
        self._count += 1
        self._step_sum += nanoseconds
        self._read_sum += read
        if self._count >= _STEPS or self._step_sum + self._read_sum >= LONG:
            self._decide()
        return self.threaded

    def _decide(self) -> None:
        count, self._count = self._count, 0
        self.step, self._step_sum = self._step_sum / count, 0
        read, self._read_sum = self._read_sum / count, 0
        if self.threaded and self._reads:
            read = median(self._reads.copy())  # to which the thread may append meanwhile
        if not read:
            return
        self.read = read
        if self.fixed:
            return
        pays = min(self.read, self.step) >= PAYS
        if self.threaded:
            if self._trusted:
                self._trusted -= 1
            elif not pays:
                self._change()
        elif pays:
            self._change()
            self._trusted, self._trust = self._trust, min(2 * self._trust, _LONGEST_TRUST)

    def _change(self) -> None:
        self.threaded = not self.threaded
        self.changes += 1
        self._reads.clear()
