"""Tunes 'auto' options while a loop runs: hill climbing on the measured rate, over workers and prefetch.

Tuning changes only the speed, never which samples a batch holds or the order of batches. The plan determines
these, and a batch is the same whichever worker fetches it.

    ┌─▶ skip the steps of the last setting ──▶ measure ──▶ keep the setting or not ──▶ settled
    └──────────────── apply a larger one ◀───────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gpuloader.watch.meter import Meter

if TYPE_CHECKING:
    from gpuloader.watch.stats import LoaderStats

ENOUGH = 0.02
"""A loop that waits for less than this fraction of its time needs no faster input."""
GAIN = 1.05
"""A larger setting is kept if it makes the loop faster by this factor."""
DEEPEST = 8
"""The most batches in progress per worker, and the most steps copied ahead."""
FEWEST_STEPS, SHORTEST = 8, 0.2
"""The fewest steps, and the fewest seconds, over which a rate is measured."""


class Setting(NamedTuple):
    """The tuned options."""

    workers: int
    depth: int  # batches in progress for each worker, the loader's ``prefetch_factor``
    prefetch: int  # steps copied to devices ahead of the consumer


class Autotuner:
    """Searches for a loader's best setting, from epoch to epoch: first workers, then depth and prefetch.

    Only the consumer calls the methods. If several epochs run at a time, only the latest tunes.

    >>> tuner = Autotuner(Setting(1, 2, 1), 8, Meter())
    >>> for rate in (100.0, 200.0, 390.0, 395.0):
    ...     tuner.measured(rate, waiting=0.5)
    >>> tuner.settled, tuner.setting.workers
    (True, 4)
    """

    def __init__(self, setting: Setting, most_workers: int, meter: Meter, *, deepens: bool = False) -> None:
        self.setting = setting  # the one to start with; later the current one
        self.most_workers = most_workers  # the current number if the user has chosen it
        self.deepens = deepens  # whether depth and prefetch are tuned
        self.settled = False  # whether the search is over and the setting stays
        self.settled_at: LoaderStats | None = None  # the statistics at that moment
        self.tried: list[tuple[Setting, float]] = []  # every setting measured, with its steps per second
        self._meter = meter
        self._in_force = setting
        self._flushing = 0
        self._latest = 0, 0, 0
        self._seen = [0, 0, 0]  # of the current setting: steps, nanoseconds of the loop, and of waiting
        self._best = setting, 0.0  # and its steps per second
        self._doublings = 1
        self._widened = self._deepened = False

    # Measuring a loop.

    def begin(self, apply: Callable[[Setting], int | None]) -> None:
        """Tune a new epoch from now on, and apply the setting that earlier epochs have found.

        `apply` returns how many steps still belong to the previous setting. If a setting exceeds the memory
        budget, `apply` changes nothing and returns None.
        """
        self._apply = apply  # that of the latest epoch
        self._latest = self._read()
        self._use_setting()

    def after_step(self, apply: Callable[[Setting], int | None]) -> bool:
        """Count a step of the epoch that began with `apply`; return False once its tuning is over."""
        is_over = self.settled or self._apply is not apply
        if is_over:
            return False
        before, self._latest = self._latest, self._read()
        if self._flushing > 0:  # these batches belong to the previous setting, or wait for new workers
            self._flushing -= 1
            return True
        # Summed over as many epochs as it takes, because a short epoch is too short to measure.
        seen = self._seen
        for kind, (then, now) in enumerate(zip(before, self._latest, strict=True)):
            seen[kind] += now - then
        steps, loop, wait = seen
        if steps < FEWEST_STEPS or loop < SHORTEST * 1e9:
            return True
        self.measured(steps / (loop * 1e-9), wait / loop)
        while self.setting != self._in_force and not self._use_setting():
            self._forgo()  # memory is too small for it
            self._choose()
        if self.settled:
            self.settled_at = self._meter.snapshot()
        return not self.settled

    def _use_setting(self) -> bool:
        flushing = self._apply(self.setting)
        if flushing is None:
            return False
        self._in_force, self._flushing = self.setting, flushing
        return True

    def _read(self) -> tuple[int, int, int]:
        meter = self._meter
        return meter.steps, meter.wait + meter.transfer + meter.compute, meter.wait

    # Choosing the next setting.

    def measured(self, rate: float, waiting: float) -> None:
        """Record the current setting's steps per second and its share of waiting; choose the next setting."""
        self.tried.append((self.setting, rate))
        self._seen = [0, 0, 0]
        gained = rate >= GAIN * self._best[1]
        if gained:
            self._best, self._doublings = (self.setting, rate), 1
        elif self._doublings == 1 and self._goes_further():
            # Try one setting beyond the first that gains nothing: if a sample takes long now and then, two
            # workers may be no faster than one, while four are.
            self._doublings = 2
        else:
            self._forgo()
        self._choose(holds=gained and waiting < ENOUGH)

    def _forgo(self) -> None:
        """Abandon the direction that led to the current setting."""
        self._doublings = 1
        if self.setting.workers != self._best[0].workers:
            self._widened = True
        else:
            self._deepened = True

    def _goes_further(self) -> bool:
        """Return whether a larger setting exists in the direction that led to the current one."""
        if self.setting.workers != self._best[0].workers:
            return self.setting.workers < self.most_workers
        return max(self.setting.depth, self.setting.prefetch) < DEEPEST

    def _choose(self, *, holds: bool = False) -> None:
        best, times = self._best[0], 2**self._doublings
        if not holds and not self._widened and best.workers < self.most_workers:
            self.setting = best._replace(workers=min(times * best.workers, self.most_workers))
        elif not holds and self.deepens and not self._deepened and max(best.depth, best.prefetch) < DEEPEST:
            depth, prefetch = (min(times * one, DEEPEST) for one in (best.depth, best.prefetch))
            self.setting = best._replace(depth=depth, prefetch=prefetch)
        else:
            self.setting, self.settled = best, True

    def describe(self) -> str:
        """Return a sentence about the setting and the rates that led to it."""
        state = "Chosen for 'auto'" if self.settled else "Still searching for 'auto', now"
        seen = "; ".join(f"{rate:,.0f} with {_name(one)}" for one, rate in self.tried)
        return f"{state}: {_name(self.setting)}." + (f" Steps per second: {seen}." if seen else "")


def _name(setting: Setting) -> str:
    workers = f"{setting.workers} worker{'s' if setting.workers > 1 else ''}"
    prefetch = f", prefetch {setting.prefetch}" if setting.prefetch else ""
    return f"{workers}, prefetch_factor {setting.depth}{prefetch}"
