"""The search behind 'auto': hill climbing on the measured rate, for the number of workers and the prefetch.

The search changes only the speed, never which samples a batch holds nor the order of batches. The plan
determines these, and a batch is the same whichever worker fetches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuloader.watch.stats import LoaderStats

ENOUGH = 0.02
"""A loop that waits for less than this fraction of its time needs no faster input."""
GAIN = 1.05
"""A larger setting is kept if it makes the loop faster by this factor."""
DEEPEST = 8
"""The most batches per worker in progress, and the most steps copied ahead."""
BUDGET = 1 << 30
"""Bytes of host memory that the slots may grow to without a ``memory_budget``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The tuned options.

    Attributes
    ----------
    workers : int
        The number of worker threads or processes.
    depth : int
        Batches in progress for each worker, the loader's ``prefetch_factor``.
    prefetch : int
        Steps copied to devices ahead of the consumer.
    """

    workers: int
    depth: int
    prefetch: int


@dataclass(slots=True)
class HillClimb:
    """The search for a setting: it doubles the workers, then the depth, while that makes the loop faster.

    It tries one setting beyond the first that gains nothing. If a sample takes long now and then, two workers
    may be no faster than one, while four are.

    Parameters
    ----------
    setting : Setting
        The setting to start with; later the current one.
    most_workers : int
        The most workers to try; equal to the current number if the user chose that.
    deepens : bool
        Whether depth and prefetch are tuned.

    Attributes
    ----------
    settled : bool
        Whether the search is over, so that the setting stays.
    tried : list of (Setting, float)
        Every setting measured, with its steps per second.
    seen : list of int
        The measurements of the current setting so far: steps, nanoseconds of the loop, and of waiting.
    steered_by : object
        The `Steering` of the latest epoch.
    settled_at : LoaderStats or None
        The loader's statistics when the search ended; None before that.

    Examples
    --------
    >>> climb = HillClimb(Setting(1, 2, 1), most_workers=8)
    >>> for rate in (100.0, 200.0, 390.0, 395.0):
    ...     climb.measured(rate, waiting=0.5)
    >>> climb.settled, climb.setting.workers
    (True, 4)
    """

    setting: Setting
    most_workers: int
    deepens: bool = False
    settled: bool = False
    tried: list[tuple[Setting, float]] = field(default_factory=list)
    seen: list[int] = field(default_factory=lambda: [0, 0, 0])
    steered_by: object = None
    settled_at: LoaderStats | None = None
    _best: tuple[Setting, float] | None = None
    _doublings: int = 1
    _widened: bool = False
    _deepened: bool = False

    def measured(self, rate: float, waiting: float) -> None:
        """Record the current setting's steps per second and its fraction of waiting; choose the next one."""
        self.tried.append((self.setting, rate))
        self.seen = [0, 0, 0]
        gained = self._best is None or rate >= GAIN * self._best[1]
        if gained:
            self._best, self._doublings = (self.setting, rate), 1
        elif self._doublings == 1 and self._goes_further():
            self._doublings = 2
        else:
            self._forgo()
        if gained and waiting < ENOUGH:
            self._hold()
        else:
            self._go_on()

    def refuse(self) -> None:
        """Reject the current setting, because it exceeds the memory budget, and choose another."""
        self._forgo()
        self._go_on()

    def _forgo(self) -> None:
        """Give up the direction that led to the current setting."""
        assert self._best is not None
        self._doublings = 1
        if self.setting.workers != self._best[0].workers:
            self._widened = True
        else:
            self._deepened = True

    def _goes_further(self) -> bool:
        """Return whether the direction that led to the current setting has a larger one."""
        assert self._best is not None
        if self.setting.workers != self._best[0].workers:
            return self.setting.workers < self.most_workers
        return max(self.setting.depth, self.setting.prefetch) < DEEPEST

    def _go_on(self) -> None:
        assert self._best is not None
        best, times = self._best[0], 2**self._doublings
        if not self._widened and best.workers < self.most_workers:
            self.setting = replace(best, workers=min(times * best.workers, self.most_workers))
        elif self.deepens and not self._deepened and max(best.depth, best.prefetch) < DEEPEST:
            self.setting = replace(
                best, depth=min(times * best.depth, DEEPEST), prefetch=min(times * best.prefetch, DEEPEST)
            )
        else:
            self._hold()

    def _hold(self) -> None:
        assert self._best is not None
        self.setting, self.settled = self._best[0], True

    def describe(self) -> str:
        """Return a sentence about the setting and the rates that led to it."""
        state = "Chosen for 'auto'" if self.settled else "Still searching for 'auto', now"
        seen = "; ".join(f"{rate:,.0f} with {_name(one)}" for one, rate in self.tried)
        return f"{state}: {_name(self.setting)}." + (f" Steps per second: {seen}." if seen else "")


def _name(setting: Setting) -> str:
    workers = f"{setting.workers} worker{'s' if setting.workers > 1 else ''}"
    prefetch = f", prefetch {setting.prefetch}" if setting.prefetch else ""
    return f"{workers}, prefetch_factor {setting.depth}{prefetch}"
