"""Whether to read ahead in a thread, decided while a loop runs, from how long reading and stepping take.

A thread that reads beside the consumer hides the shorter of reading and stepping, and costs two wake-ups per
batch and a fight for the interpreter's lock::

                        enough to hide, after a rest
    the loop reads ◀────────────────────────────────────▶ a thread reads beside the steps
          │      too little to hide, or the thread hides nothing     │
          └────────────── measure a few steps without it ◀── tried ──┘

What each of the two takes without the other is known from steps in which only one of them ran. What the
thread hides is known from whole steps while both ran. Every decision rests on medians, or on means without
the largest value, because on a busy machine a single step may take any time.

The numbers below were tuned with ``gpuloader bench --case overlap``, on pairs of reading and stepping from
0.05 to 8 ms that wait, compute without the lock, or run Python code. The default is to take at most 1.05
times as long as the better of reading in the loop and reading in a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

PAYS = 40_000
"""Nanoseconds of work to hide in each step from which a thread can pay for the hand-over of batches.

Two wake-ups and the fight for the lock cost more than the gain below it; from 40 to 150 µs they may.
"""
SURE = 150_000
"""Nanoseconds of work to hide in each step from which a thread is tried at once, not after a while."""
LONG = 2_000_000
"""Nanoseconds of an early reading from which not even one step should wait for the next."""

# Nanoseconds of steps per decision, or as many steps: short steps need many for a median, and long ones
# should not wait for so many. With fewer than three one cannot see which of them is the exception.
_ENOUGH = 2_000_000
_STEPS = 8
_LONG_STEPS = 3
# Decisions' worth of steps from which one sees whether the thread hides anything. Threads that fight for the
# lock take turns of several steps each, and fewer decisions could all lie within one turn.
_WINDOWS = 6
_ALONE = 4  # and from which one knows what both take without it
_ALIKE = 2.0  # a loop whose times differ by less has not changed
# Steps after which a loop with a thread is measured without it, four times as many each time. A try costs
# a few slower steps, so a long loop pays ever less for being able to change its mind.
_FIRST_TRY, _LAST_TRY = 64, 1 << 15
# Decisions for which a thread that did not help is not tried again, twice as many each time.
_SHORTEST_REST, _LONGEST_REST = 32, 1 << 10
# Of the shorter part. A thread that hides less, as with Python code on both sides, fights for the lock.
_LEAST_HIDDEN = 1 / 4


@dataclass(slots=True)
class ReadAheadPolicy:
    """Measures a loop and decides how to read; kept from epoch to epoch."""

    fixed: bool = False  # whether the user has chosen the thread, so that nothing is decided here
    # Whether a decision lasts at least for an epoch, because a reader or an iterable dataset may hold a
    # connection or a thread-local, and so stays in the thread that opens it. What may not pay is tried later.
    bound: bool = False
    beside: bool = False  # whether a thread reads while the consumer steps, and not only while it waits
    read: float = 0.0  # the latest nanoseconds per batch; 0 before the first
    step: float = 0.0  # and per step
    changes: int = 0  # of the decision
    mixed: bool = False  # whether the thread has lately read beside a step although it should not; set by it
    trying: bool = False  # whether the thread must not do so, because both are being measured alone
    _reads: list[int] = field(default_factory=list)
    # Several threads may loop over one loader, each in an epoch of its own.
    _deciding: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _steps: list[int] = field(default_factory=list)
    _waits: list[int] = field(default_factory=list)
    _total: int = 0
    _handed: int = 0
    _cycles: deque[float] = field(default_factory=partial(deque, maxlen=_WINDOWS))
    _alone: deque[float] = field(default_factory=partial(deque, maxlen=_ALONE))  # steps without the thread
    _both: float = 0.0  # a step with the thread, when last seen long enough
    _rest: int = _SHORTEST_REST
    _next_rest: int = _SHORTEST_REST
    _until_try: int = _FIRST_TRY
    _next_try: int = _FIRST_TRY

    def __post_init__(self) -> None:
        self.beside = self.fixed
        if self.bound:
            self._rest = self._next_rest = _LONGEST_REST

    @property
    def threaded(self) -> bool:
        """Whether to open a source in a thread, if it stays in the thread that opens it."""
        return self.beside or not self.read

    def note_read(self, nanoseconds: int, changes: int) -> None:
        """Count one batch that a thread has read, and that it began after so many changes; called by it."""
        # A batch that was begun before the latest change was read under the conditions before it.
        if changes == self.changes:
            self._reads.append(nanoseconds)
            del self._reads[: -2 * _STEPS]
            self.see_early(nanoseconds)

    def see_early(self, nanoseconds: int) -> None:
        """Decide from the latest batch alone, before enough steps are known to decide from them."""
        # Not even one step should wait for a long reading. But often only the first batch takes long, because
        # the source opens its files or shuffles; so a later short one takes this back.
        if not self.read and not self.fixed:
            self.beside = nanoseconds >= LONG

    def note_step(self, step: int, wait: int, handed: bool) -> bool:
        """Count one step and how its batch was waited for or read; return `beside`.

        Called by the consumer, before it reads or waits for the next batch. `step` are the nanoseconds
        between this batch and the request for the next, `wait` those between the request for this batch and
        the batch, and `handed` says whether a thread has read it.
        """
        self._steps.append(step)
        self._waits.append(wait)
        self._handed += handed
        self._total += step + wait
        count = len(self._steps)
        if count < _STEPS and (count < _LONG_STEPS or self._total < _ENOUGH):
            return self.beside
        with self._deciding:
            steps, waits, by_thread, cycle = self._steps, self._waits, self._handed, self._total / count
            self._steps, self._waits, self._handed, self._total = [], [], 0, 0
            # The thread may append meanwhile: copying a list is safe without the GIL, copying a deque is not.
            times = self._reads[:] if by_thread else waits
            if not steps or not times:  # another loop over the same loader has just decided
                return self.beside
            self.read, self.step = median(times), median(steps)
            if self.fixed:
                return self.beside
            if by_thread and self.beside:
                self._judge(cycle, count)
            else:
                self._weigh()
        return self.beside

    def _weigh(self) -> None:
        """Decide from times in which only one of the two ran."""
        total, shorter = self.read + self.step, min(self.read, self.step)
        changed = not self._alone or not 1 / _ALIKE < total / median(self._alone) < _ALIKE
        if changed or self.mixed:
            self._alone.clear()
            self._both = 0.0
        if not self.mixed:
            self._alone.append(total)
        self.mixed = self.trying = False
        if shorter < PAYS:
            if self.beside:
                self._change()
        elif not self.beside:
            # A loop that has changed says nothing about how the thread did before, so the rest is over.
            self._rest = 0 if changed and shorter >= SURE else self._rest - 1
            missed = self._both and len(self._alone) == _ALONE and self._hides(shorter)
            if self._rest <= 0 or missed:
                self._change()

    def _hides(self, shorter: float) -> bool:
        """Return whether a step with the thread takes clearly less than one without."""
        return bool(median(self._alone) - self._both >= shorter * _LEAST_HIDDEN)

    def _judge(self, cycle: float, count: int) -> None:
        """Decide from times in which both ran, so that each may contain waits for the other."""
        self._until_try -= count
        self._cycles.append(cycle)
        shorter = min(self.read, self.step)
        if shorter < PAYS:
            self._change()
        elif not self._alone:
            if self._until_try <= 0:
                self._try()
        elif self._both_is_known(shorter):
            # With both in a step, each may look longer than it is by waiting for the other: never expect more
            # to hide than half of the step.
            if not self._hides(min(shorter, self._both / 2)):
                self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
                self._change()
            elif self._until_try <= 0:
                self._try()

    def _both_is_known(self, shorter: float) -> bool:
        """Learn how long a step with the thread takes; return False if that needs further steps."""
        # Threads that fight for the lock take turns of several steps each. Most groups of steps then look
        # fast, and their median says that the thread hides something; so this is a mean. The largest time is
        # left out: it may be an accident. No further steps are needed if even free ones could not help.
        others, count = sum(self._cycles) - max(self._cycles), len(self._cycles)
        least = others / (_WINDOWS - 1)
        self._both = others / max(count - 1, 1)
        return bool(count == _WINDOWS or median(self._alone) - least < shorter * _LEAST_HIDDEN)

    def _try(self) -> None:
        """Measure a few steps without the thread, to learn what it hides."""
        self._next_try = min(4 * self._next_try, _LAST_TRY)
        self._next_rest = _LONGEST_REST if self.bound else _SHORTEST_REST
        self._change()
        self.trying = True

    def _change(self) -> None:
        self.beside = not self.beside
        self._until_try = self._next_try
        self.changes += 1
        self.mixed = self.trying = False
        self._reads.clear()
        self._cycles.clear()


def median(values: Collection[float]) -> float:
    """Return the median of a few numbers, in a tenth of NumPy's time.

    >>> median([3, 1, 2]), median([4, 1, 2, 3])
    (2.0, 2.5)
    """
    # Not the standard library's, which imports decimals and fractions into every program.
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2
