"""Carrying a climb through an epoch: measure after each step, and put each new setting into force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuloader.fetch.fetching import Fetching
from gpuloader.pipeline.lane import Lane, count_slots
from gpuloader.pipeline.steps import Pipeline
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter
from gpuloader.watch.tuning import Climb

FEWEST_STEPS, SHORTEST = 8, 0.2
"""A rate is measured over so many steps, and so many seconds, at least."""


class Resizable(Protocol):
    """A fetch whose workers can change their number while it runs."""

    def resize(self, workers: int, ahead: int) -> None:
        """Fetch with so many workers from now on, and have so many batches under way."""


class Steering:
    """Steers one epoch by a loader's climb; of several epochs at a time the latest steers.

    All calls are the consumer's.

    Parameters
    ----------
    climb : Climb
        The loader's; goes on from epoch to epoch.
    fetch : Resizable
        The epoch's workers.
    ring : Ring
        Whose slots grow in number.
    lanes : sequence of Lane
        One a place.
    meter : Meter
        Has the times.
    fetching : Fetching
        Knows how far ahead a setting lets workers read, and the bytes that slots may come to.
    """

    def __init__(
        self,
        climb: Climb,
        fetch: Resizable,
        ring: Ring,
        lanes: Sequence[Lane],
        meter: Meter,
        fetching: Fetching,
    ) -> None:
        self._climb = climb
        self._fetch = fetch
        self._ring = ring
        self._lanes = lanes
        self._meter = meter
        self._fetching = fetching
        self._in_force = climb.setting
        self._flushing = 0
        self._latest = self._read()
        climb.steered_by = self

    def begin(self, pipeline: Pipeline) -> None:
        """Put the setting into force that earlier epochs have found."""
        self._apply(pipeline)

    def after_step(self, pipeline: Pipeline) -> bool:
        """Count a step, and perhaps change the setting; return whether there is more to be found."""
        climb = self._climb
        if climb.settled or climb.steered_by is not self:
            return False
        before, self._latest = self._latest, self._read()
        if self._flushing > 0:  # these batches were fetched with an earlier setting, or wait for new workers
            self._flushing -= 1
            return True
        # Over as many epochs as it takes: short ones say something together.
        seen = climb.seen
        for kind, (then, now) in enumerate(zip(before, self._latest, strict=True)):
            seen[kind] += now - then
        steps, loop, wait = seen
        if steps < FEWEST_STEPS or loop < SHORTEST * 1e9:
            return True
        climb.measured(steps / (loop * 1e-9), wait / loop)
        return self._follow(pipeline)

    def _follow(self, pipeline: Pipeline) -> bool:
        """Put into force what the climb has chosen, or what else it chooses where memory forbids that."""
        climb = self._climb
        while climb.setting != self._in_force and not self._apply(pipeline):
            climb.refuse()
        if climb.settled:
            climb.settled_at = self._meter.snapshot()
        return not climb.settled

    def _read(self) -> tuple[int, int, int]:
        meter = self._meter
        return meter.steps, meter.wait + meter.transfer + meter.compute, meter.wait

    def _apply(self, pipeline: Pipeline) -> bool:
        """Put the climb's setting into force; return False, and change nothing, where memory forbids."""
        setting, ring = self._climb.setting, self._ring
        ahead = self._fetching.ahead_of(setting.workers, setting.depth)
        prefetch = setting.prefetch if pipeline.prefetch else 0
        slots, _ = count_slots(ahead, [lane.device for lane in self._lanes], prefetch)
        if slots > ring.count:
            if slots * ring.slot_nbytes > self._fetching.budget:
                return False
            ring.grow(slots - ring.count)
        self._fetch.resize(setting.workers, ahead)
        if prefetch:
            pipeline.prefetch = prefetch
            for lane in self._lanes:
                lane.prefetch = prefetch
        self._in_force = setting
        self._flushing = ahead + prefetch + setting.workers
        return True
