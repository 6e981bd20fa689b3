"""Tuning 'auto' options during an epoch: measure after each step, and apply each new setting."""

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
"""The fewest steps, and the fewest seconds, over which a rate is measured."""


class Resizable(Protocol):
    """A fetch whose number of workers can change while it runs."""

    def resize(self, workers: int, ahead: int) -> None:
        """Use `workers` workers from now on, and keep up to `ahead` batches in progress."""


class Steering:
    """Tunes one epoch with its loader's climb; if several epochs run at a time, only the latest tunes.

    Only the consumer calls the methods.

    Parameters
    ----------
    climb : Climb
        The loader's search, which continues from epoch to epoch.
    fetch : Resizable
        The epoch's workers.
    ring : Ring
        The slots, which may grow in number.
    lanes : sequence of Lane
        One per place.
    meter : Meter
        The times that are measured.
    fetching : Fetching
        Determines how far ahead workers read with a setting, and how many bytes the slots may grow to.
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
        """Apply the setting that earlier epochs have reached."""
        self._apply(pipeline)

    def after_step(self, pipeline: Pipeline) -> bool:
        """Count a step, and perhaps change the setting; return False once the search is over."""
        climb = self._climb
        if climb.settled or climb.steered_by is not self:
            return False
        before, self._latest = self._latest, self._read()
        if self._flushing > 0:  # these batches belong to the last setting, or wait for new workers
            self._flushing -= 1
            return True
        # Add up over as many epochs as it takes, because short epochs are too short by themselves.
        seen = climb.seen
        for kind, (then, now) in enumerate(zip(before, self._latest, strict=True)):
            seen[kind] += now - then
        steps, loop, wait = seen
        if steps < FEWEST_STEPS or loop < SHORTEST * 1e9:
            return True
        climb.measured(steps / (loop * 1e-9), wait / loop)
        return self._follow(pipeline)

    def _follow(self, pipeline: Pipeline) -> bool:
        """Apply the climb's setting; as long as memory is too small for one, let the climb choose another."""
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
        """Apply the climb's setting; return False and change nothing if it exceeds the memory budget."""
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
