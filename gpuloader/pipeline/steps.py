"""The road of a batch as one state machine, for one place or many.

A step is one batch for each place. It is gathered from the fetcher, its copies are issued to all places,
and it waits in flight until it is delivered. `next_step` keeps `prefetch` steps in flight behind the one
it delivers, so the copies of the next steps run while the user computes on this one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from gpuloader.base.errors import QueueClosed
from gpuloader.collate.stream import StagedBatch
from gpuloader.fetch.base import Fetch
from gpuloader.pipeline.lane import Landing, Lane
from gpuloader.staging.ring import Ring
from gpuloader.watch.tracing import is_tracing, mark

DeliveredStep = list[tuple[StagedBatch, list[Any]]]
"""One entry a place: the batch as it was staged, and its arrays there in layout order."""


class Pipeline:
    """Moves batches from a fetcher over lanes to the consumer, for one epoch.

    All calls come from one thread at a time. `next_step` waits for the fetcher alone, never for the user.
    After the last step, or an error, every later `next_step` raises `QueueClosed`.

    Parameters
    ----------
    fetch : Fetch
        Where staged batches come from.
    ring : Ring
        Where their slots return to.
    lanes : sequence of Lane
        One a place; consecutive batches go to consecutive lanes.
    prefetch : int
        Steps whose copies are issued ahead of the consumer.
    drop_last : bool
        Whether a last step without a batch for every place is dropped.

    Attributes
    ----------
    waited : int
        Nanoseconds that the latest `next_step` waited for the fetcher.
    prefetch : int
        As given; may be changed between two steps.
    """

    def __init__(
        self,
        fetch: Fetch,
        ring: Ring,
        lanes: Sequence[Lane],
        *,
        prefetch: int,
        drop_last: bool,
    ) -> None:
        self.waited = 0
        self._fetch = fetch
        self._ring = ring
        self._lanes = lanes
        self._copying_lanes = [lane for lane in lanes if not lane.device.direct]
        self._only_direct_lane = lanes[0] if len(lanes) == 1 and lanes[0].device.direct else None
        self.prefetch = prefetch
        self._drop_last = drop_last
        self._group: list[StagedBatch] = []
        self._flying: deque[list[Landing]] = deque()
        self._ending: BaseException | None = None

    def next_step(self) -> DeliveredStep:
        """Return the next step, one entry a place.

        Raises
        ------
        QueueClosed
            The epoch is over.
        BaseException
            What the reader raised, once every step before it has been delivered.
        """
        self._drain()
        if self._only_direct_lane is not None:
            return self._next_direct(self._only_direct_lane)
        self.waited = 0
        flying = self._flying
        while len(flying) <= self.prefetch and self._ending is None:
            if not self._advance(wait=not flying):
                break
        if not flying:
            raise self._end()
        landings = flying.popleft()
        begun = perf_counter_ns()
        # No strict=True: the last step may have fewer batches than there are places.
        step = [(landing.staged, lane.deliver(landing)) for lane, landing in zip(self._lanes, landings)]  # noqa: B905
        if is_tracing():
            mark("deliver", begun, perf_counter_ns())
        return step

    def _next_direct(self, lane: Lane) -> DeliveredStep:
        """Do the same where nothing is copied and nothing grouped: deliver what is fetched.

        For a batch of some kilobytes the way through group, landing and flight would take longer than all
        the rest.
        """
        if self._ending is not None:
            raise self._end()
        begun = perf_counter_ns()
        try:
            staged = self._fetch.get()
        except Exception:
            # As in `_advance`: an interrupt of this thread ends nothing.
            self._ending = QueueClosed("the epoch is over")
            raise
        fetched = perf_counter_ns()
        self.waited = fetched - begun
        arrays = lane.lease(staged)
        if is_tracing():
            mark("wait", begun, fetched)
            mark("deliver", fetched, perf_counter_ns())
        return [(staged, arrays)]

    def _advance(self, *, wait: bool) -> bool:
        """Get one more batch, and issue a step's copies when it is whole; False if none is there."""
        try:
            staged = self._get() if wait else self._fetch.get_nowait()
        except Exception as error:
            # Not an interrupt of this very thread: after that the epoch goes on, if the user wants.
            self._ending = error
            complete = isinstance(error, QueueClosed) and not self._drop_last
            self._issue() if complete and self._group else self._drop_group()
            return False
        if staged is None:
            return False
        self._group.append(staged)
        if len(self._group) == len(self._lanes):
            self._issue()
        return True

    def _get(self) -> StagedBatch | None:
        """Wait for the fetcher, with host slots for it to go on with."""
        begun = perf_counter_ns()
        try:
            while (staged := self._fetch.get_nowait()) is None:
                # The fetcher may be waiting for a slot that only a finished copy gives back.
                if self._ring.free or not any(lane.finish_oldest_copy() for lane in self._copying_lanes):
                    return self._fetch.get()
            return staged
        finally:
            now = perf_counter_ns()
            self.waited += now - begun
            mark("wait", begun, now)

    def _issue(self) -> None:
        group, self._group = self._group, []
        landings: list[Landing] = []
        try:
            for lane, staged in zip(self._lanes, group):  # noqa: B905
                landings.append(lane.issue(staged))
        except BaseException:
            for lane, landing in zip(self._lanes, landings, strict=False):
                lane.discard(landing)
            for staged in group[len(landings) + 1 :]:
                self._ring.release(staged.slot)
            raise
        self._flying.append(landings)

    def _drain(self) -> None:
        if self._ring.freed:
            self._ring.drain()
        for lane in self._copying_lanes:
            lane.drain()

    def _end(self) -> BaseException:
        ending = self._ending or QueueClosed("the epoch is over")
        self._ending = QueueClosed("the epoch is over")
        return ending

    def _drop_group(self) -> None:
        for staged in self._group:
            self._ring.release(staged.slot)
        self._group = []

    def close(self) -> bool:
        """End the epoch: stop fetching, wait for copies under way, take every slot back.

        Returns
        -------
        bool
            Whether the ring can serve another epoch: False if the reader's thread did not come back.
        """
        self._ending = QueueClosed("the epoch was closed")
        stopped = self._fetch.close()
        self._drop_group()
        while self._flying:
            for lane, landing in zip(self._lanes, self._flying.popleft(), strict=False):
                lane.discard(landing)
        for lane in self._lanes:
            lane.close()
        self._drain()
        return stopped
