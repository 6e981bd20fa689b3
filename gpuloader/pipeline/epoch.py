"""One pass over a reader: the iterator a user loops over, and what it leaves for the next one."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from gpuloader.base.errors import QueueClosed
from gpuloader.fetch.base import Fetch
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.lane import Lane, count_slots
from gpuloader.pipeline.steering import Steering
from gpuloader.pipeline.steps import DeliveredStep, Pipeline
from gpuloader.staging.ring import Ring
from gpuloader.transforms.program import Programmer
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import is_tracing, mark, pop_range, push_range


@dataclass(frozen=True, slots=True)
class Road:
    """Slots and lanes; they outlast an epoch, so that the next one finds its memory warm and locked.

    Attributes
    ----------
    ring : Ring
        The host slots.
    lanes : tuple of Lane
        One a place.
    prefetch : int
        Steps copied ahead of the consumer.
    process : int
        Whose they are: memory that is shared with a forked child is not the child's to write to.
    """

    ring: Ring
    lanes: tuple[Lane, ...]
    prefetch: int
    process: int


def take_road(idle: deque[Road]) -> Road | None:
    """Take a road of this process that an earlier epoch has left, if there is one."""
    while idle:
        with contextlib.suppress(IndexError):  # another thread was faster
            road = idle.pop()
            if road.process == os.getpid():
                return road
    return None


def build_road(
    delivery: Delivery,
    capacity: int,
    meter: Meter,
    *,
    shared: bool = False,
    programmer: Programmer | None = None,
) -> Road:
    """Return slots and lanes for a loader's places; memory is reserved when the first batch is known.

    Parameters
    ----------
    delivery : Delivery
        The places, and how many steps to copy ahead to them.
    capacity : int
        Batches that may wait for the consumer.
    meter : Meter
        Counts how long copies take.
    shared : bool
        Whether slots lie in memory that worker processes can map.
    programmer : Programmer or None
        What is done to batches on devices.
    """
    devices, prefetch = delivery.devices, delivery.prefetch
    count, spare = count_slots(capacity, devices, prefetch)
    locker = next((device.locker for device in devices if device.locker is not None), None)
    ring = Ring(count, spare, locker, shared=shared)
    lanes = [
        Lane(device, ring, prefetch, meter, output, programmer)
        for device, output in zip(devices, delivery.outputs, strict=True)
    ]
    return Road(ring, tuple(lanes), prefetch, os.getpid())


class Epoch:
    """The iterator over one epoch.

    Any thread may call `__next__`; calls take turns. Leaving the loop, an exception, garbage collection
    or interpreter exit close it: the reader's thread ends and every slot but the leased returns.

    Parameters
    ----------
    road : Road
        Used by this epoch alone until it is closed.
    fetch : Fetch
        Fills the road's slots.
    present : callable
        Turns a delivered step into what the user sees.
    recycle : callable
        Takes the road afterwards, if it can serve again.
    drop_last : bool
        Whether a last step without a batch for every place is dropped.
    meter : Meter
        Counts where the time goes.
    ended : callable or None
        Told when the last step has been delivered.
    steering : Steering or None
        Tunes the epoch while it runs.
    """

    def __init__(
        self,
        road: Road,
        fetch: Fetch,
        present: Callable[[DeliveredStep], Any],
        recycle: Callable[[Road], None],
        *,
        drop_last: bool,
        meter: Meter,
        ended: Callable[[], None] | None = None,
        steering: Steering | None = None,
    ) -> None:
        self._road = road
        self._present = present
        self._recycle = recycle
        self._ended = ended
        self._lock = threading.RLock()
        self._pipeline: Pipeline | None = Pipeline(
            fetch, road.ring, road.lanes, prefetch=road.prefetch, drop_last=drop_last
        )
        self._steering = steering
        if steering is not None:
            steering.begin(self._pipeline)
        self._meter = meter
        self._handed = 0
        meter.watch(road.ring)
        _running.add(self)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        with self._lock:
            pipeline = self._pipeline
            if pipeline is None:
                raise StopIteration
            asked = perf_counter_ns()
            if self._handed:
                self._count_compute(asked)
            nvtx = push_range("next")
            try:
                step = pipeline.next_step()
            except QueueClosed:
                self.close()
                if self._ended is not None:
                    self._ended()
                raise StopIteration from None
            except Exception:
                self.close()
                raise
            finally:
                pop_range(nvtx)
            presented = self._present(step)
            first, self._handed = not self._handed, perf_counter_ns()
            self._meter.delivered(asked, pipeline.waited, self._handed, first=first)
            if self._steering is not None and not self._steering.after_step(pipeline):
                self._steering = None
            return presented

    def _count_compute(self, asked: int) -> None:
        self._meter.compute += asked - self._handed
        if is_tracing():
            mark("step", self._handed, asked)

    def close(self) -> None:
        """End the epoch early; may be repeated.

        Waits for the reader to come back from producing its present item, a second at most.
        """
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
            if pipeline is None:
                return
            _running.discard(self)
            if pipeline.close() and self._road.ring.rearm():
                self._recycle(self._road)

    def __del__(self) -> None:
        # Exceptions have nowhere to go from here; `close` is the way to see them.
        if getattr(self, "_pipeline", None) is not None:
            with contextlib.suppress(Exception):
                self.close()


_running: weakref.WeakSet[Epoch] = weakref.WeakSet()


@atexit.register
def _close_running() -> None:
    for epoch in list(_running):
        epoch.close()
