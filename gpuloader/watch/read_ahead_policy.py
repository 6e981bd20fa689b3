"""Decides, while a loop runs, whether to read ahead in a thread, from the times of reading and stepping.

A thread that reads next to the consumer hides the shorter of reading and stepping, and costs two wake-ups per
batch and contention for the interpreter's lock::

                        enough to hide, after a rest
    the loop reads ◀────────────────────────────────────▶ a thread reads during the steps
          │      too little to hide, or the thread hides nothing     │
          └────────────── measure a few steps without it ◀── tried ──┘

Steps in which only one of the two ran show how long each takes without the other. Whole steps while both ran
show what the thread hides. Every decision rests on medians, or on means without the largest value, because on
a busy machine any single step may take long.

The numbers below were tuned with ``gpuloader bench --case overlap``, on pairs of reading and stepping from
0.05 to 8 ms that wait, compute without the lock, or run Python code. The default must take at most 1.05 times
as long as the better of reading in the loop and reading in a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

PAYS = 40_000
"""Nanoseconds of work to hide in each step that make a thread worth the hand-over of batches.

With less, two wake-ups and contention for the lock always cost more; from 40 to 150 µs they may.
"""
SURE = 150_000
"""Nanoseconds of work to hide in each step that make the loader try a thread immediately."""
LONG = 2_000_000
"""Nanoseconds of an early reading so long that not even one more step should wait for the next."""

# Nanoseconds of steps per decision, or a number of steps: short steps need many for a median, and long ones
# should not wait for that many. With fewer than three, nothing shows which step is the exception.
_ENOUGH = 2_000_000
_STEPS = 8
_LONG_STEPS = 3
# Decisions' worth of steps that show whether the thread hides anything. Threads that compete for the lock
# take turns of several steps each, and fewer decisions could all lie within one turn.
_WINDOWS = 6
_ALONE = 4  # and that show what both take without it
_ALIKE = 2.0  # a loop whose times differ by less than this factor has not changed
# Steps after which a loop with a thread is measured without it, four times as many each time. A try costs a
# few slower steps, so a long loop pays ever less for the ability to change its mind.
_FIRST_TRY, _LAST_TRY = 64, 1 << 15
# Decisions during which a thread that did not help is not tried again, twice as many each time.
_SHORTEST_REST, _LONGEST_REST = 32, 1 << 10
# A fraction of the shorter part. A thread that hides less, as with Python code on both sides, slows the loop.
_LEAST_HIDDEN = 1 / 4


# NumPy's takes 20 us for a handful of times, which a short step cannot afford, and `statistics` imports
# decimals and fractions into every program.
def _median(times: Collection[float]) -> float:
    ordered = sorted(times)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(slots=True, eq=False, repr=False)
class ReadAheadPolicy:
    """Measures a loop and decides how to read; kept from epoch to epoch."""

    fixed: bool = False  # whether the user has chosen the thread, so that nothing is decided here
    # Whether a decision lasts for at least an epoch: a reader or an iterable dataset may hold a connection or
    # a thread-local, so it stays in the thread that opens it. An uncertain gain is then tried later.
    bound: bool = False
    beside: bool = False  # whether a thread reads while the consumer steps, not only while it waits
    read: float = 0.0  # the latest nanoseconds per batch; 0 before the first
    step: float = 0.0  # and per step
    changes: int = 0  # number of times that the decision has changed
    # Whether the thread has lately read during a step although it should not; it sets this.
    mixed: bool = False
    trying: bool = False  # whether the thread must not do so, because both are being measured alone
    _reads: list[int] = field(default_factory=list)
    # Several threads may loop over one loader, each in an epoch of its own.
    _deciding: threading.Lock = field(default_factory=threading.Lock)
    _steps: list[int] = field(default_factory=list)
    _waits: list[int] = field(default_factory=list)
    _total: int = 0
    _handed: int = 0
    _cycles: deque[float] = field(default_factory=partial(deque, maxlen=_WINDOWS))
    _alone: deque[float] = field(default_factory=partial(deque, maxlen=_ALONE))  # steps without the thread
    _both: float = 0.0  # a step with the thread, when last observed for long enough
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
        """Count a batch that a thread has read, begun after that many changes; the thread calls this."""
        # A batch that was begun before the latest change was read under the earlier conditions.
        if changes == self.changes:
            self._reads.append(nanoseconds)
            del self._reads[: -2 * _STEPS]
            self.see_early(nanoseconds)

    def see_early(self, nanoseconds: int) -> None:
        """Decide from the latest batch alone, before there are enough steps to decide from."""
        # Not even one step should wait for a long read. But often only the first batch takes long, because
        # the source opens its files or shuffles, so a later short one reverses this.
        if not self.read and not self.fixed:
            self.beside = nanoseconds >= LONG

    def note_step(self, step: int, wait: int, handed: bool) -> bool:
        """Count one step and how its batch was waited for or read; return `beside`.

        Called by the consumer, before it reads or waits for the next batch. `step` is the time between
        getting this batch and asking for the next, `wait` the time between asking for this batch and getting
        it, both in nanoseconds. `handed` says whether a thread has read the batch.
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
            # The thread may append meanwhile. Copying a list is safe without the GIL, copying a deque is not.
            times = self._reads[:] if by_thread else waits
            if not steps or not times:  # another loop over the same loader has just decided
                return self.beside
            self.read, self.step = _median(times), _median(steps)
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
        changed = not self._alone or not 1 / _ALIKE < total / _median(self._alone) < _ALIKE
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
            # How the thread did before the loop changed says nothing now, so the rest is over.
            self._rest = 0 if changed and shorter >= SURE else self._rest - 1
            missed = self._both and len(self._alone) == _ALONE and self._hides(shorter)
            if self._rest <= 0 or missed:
                self._change()

    def _hides(self, shorter: float) -> bool:
        """Return whether a step with the thread takes clearly less than one without."""
        return _median(self._alone) - self._both >= shorter * _LEAST_HIDDEN

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
            # With both in a step, waiting for the other may make each look longer. So never expect to hide
            # more than half of the step.
            if not self._hides(min(shorter, self._both / 2)):
                self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
                self._change()
            elif self._until_try <= 0:
                self._try()

    def _both_is_known(self, shorter: float) -> bool:
        """Learn how long a step with the thread takes; return False if that needs more steps."""
        # Threads that compete for the lock take turns of several steps each. Most groups of steps then look
        # fast, and their median would say that the thread hides something, so this is a mean. It leaves out
        # the largest time, which may be an accident. No more steps are needed if even free ones could not
        # help.
        others, count = sum(self._cycles) - max(self._cycles), len(self._cycles)
        least = others / (_WINDOWS - 1)
        self._both = others / max(count - 1, 1)
        return count == _WINDOWS or _median(self._alone) - least < shorter * _LEAST_HIDDEN

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
