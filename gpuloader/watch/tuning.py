"""Finding how many workers and how much reading ahead a loop needs: hill climbing on its measured rate.

Only how fast batches come is changed, never which samples they hold nor their order: those are decided by the
plan, and whoever fetches a batch number gives the same batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuloader.watch.stats import LoaderStats

ENOUGH = 0.02
"""A loop that waits for less than this part of its time needs no faster input."""
GAIN = 1.05
"""How much faster a loop must become for a larger setting to be kept."""
DEEPEST = 8
"""Batches a worker, or steps on a device, are never read further ahead than this."""
BUDGET = 1 << 30
"""Bytes of host memory that the slots may grow to where the user gave no ``memory_budget``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tuned.

    Attributes
    ----------
    workers : int
        Threads or processes.
    depth : int
        Batches under way for each worker.
    prefetch : int
        Steps copied to devices ahead of the consumer.
    """

    workers: int
    depth: int
    prefetch: int


@dataclass(slots=True)
class Climb:
    """The search for a setting: twice the workers, then twice the depth, as long as the loop gains by it.

    A setting that gains nothing is looked past once: where now and then a sample takes long, two workers may
    do no better than one, and four do.

    Parameters
    ----------
    setting : Setting
        Where it begins, and what is in force later on.
    most_workers : int
        What `workers` may become; the present number where the user chose it.
    deepens : bool
        Whether depth and prefetch are tuned.

    Attributes
    ----------
    settled : bool
        Whether the search is over; the setting then holds.
    tried : list of (Setting, float)
        Every setting measured, with its steps a second.
    seen : list of int
        Of the present setting so far: steps, nanoseconds of loop, and of waiting.
    steered_by : object
        Whoever carries it through the latest epoch.
    settled_at : LoaderStats or None
        What the loader had done by then, once it is settled.

    Examples
    --------
    >>> climb = Climb(Setting(1, 2, 1), most_workers=8)
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
        """Take the present setting's steps a second, and the part of its time spent waiting; choose anew."""
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
        """Do without the present setting: there is no room for it."""
        self._forgo()
        self._go_on()

    def _forgo(self) -> None:
        """Give up on the direction that led here."""
        assert self._best is not None
        self._doublings = 1
        if self.setting.workers != self._best[0].workers:
            self._widened = True
        else:
            self._deepened = True

    def _goes_further(self) -> bool:
        """Return whether there is a larger setting in the direction that led here."""
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
        """Return in a sentence what was chosen, and why."""
        state = "Chosen for 'auto'" if self.settled else "Still trying for 'auto', now"
        seen = "; ".join(f"{_name(one)} gave {rate:,.0f}" for one, rate in self.tried)
        return f"{state}: {_name(self.setting)}." + (f" Steps a second: {seen}." if seen else "")


def _name(setting: Setting) -> str:
    workers = f"{setting.workers} worker{'s' if setting.workers > 1 else ''}"
    return f"{workers}, {setting.depth} deep" + (f", prefetch {setting.prefetch}" if setting.prefetch else "")
