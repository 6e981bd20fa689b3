"""One pass over a reader: the iterator a user loops over, and what it leaves for the next one."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuloader.collate.stream import StagedBatch
from gpuloader.devices.base import Device
from gpuloader.errors import QueueClosed
from gpuloader.fetch import Fetch
from gpuloader.fetch.inline import InlineFetch
from gpuloader.fetch.thread import ThreadFetch
from gpuloader.pipeline import DeliveredStep, Pipeline
from gpuloader.staging.ring import Ring
from gpuloader.stats import Meter
from gpuloader.transfer import Lane, count_slots


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
    """

    ring: Ring
    lanes: tuple[Lane, ...]
    prefetch: int


def build_road(devices: Sequence[Device], capacity: int, *, double_buffer: bool) -> Road:
    """Return slots and lanes for the given devices; memory is reserved when the first batch is known."""
    prefetch = 1 if double_buffer and not all(device.direct for device in devices) else 0
    count, spare = count_slots(capacity, devices, prefetch)
    locker = next((device.locker for device in devices if device.locker is not None), None)
    ring = Ring(count, spare, locker)
    return Road(ring, tuple(Lane(device, ring, prefetch) for device in devices), prefetch)


class Epoch:
    """The iterator over one epoch.

    Any thread may call `__next__`; calls take turns. Leaving the loop, an exception, garbage collection
    or interpreter exit close it: the reader's thread ends and every slot but the leased returns.

    Parameters
    ----------
    road : Road
        Used by this epoch alone until it is closed.
    stream : callable
        Takes the ring; gives the staged batches.
    present : callable
        Turns a delivered step into what the user sees.
    idle : deque of Road
        Where the road goes afterwards, if it can serve again.
    """

    def __init__(
        self,
        road: Road,
        stream: Callable[[Ring], Iterator[StagedBatch]],
        present: Callable[[DeliveredStep], Any],
        idle: deque[Road],
        *,
        capacity: int,
        threaded: bool,
        drop_last: bool,
        meter: Meter,
    ) -> None:
        self._road = road
        self._present = present
        self._idle = idle
        self._lock = threading.RLock()
        batches = stream(road.ring)
        fetch: Fetch = ThreadFetch(batches, road.ring, capacity) if threaded else InlineFetch(batches)
        self._pipeline: Pipeline | None = Pipeline(
            fetch, road.ring, road.lanes, prefetch=road.prefetch, drop_last=drop_last, meter=meter
        )
        _running.add(self)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._pipeline is None:
                raise StopIteration
            try:
                step = self._pipeline.next_step()
            except QueueClosed:
                self.close()
                raise StopIteration from None
            except Exception:
                self.close()
                raise
            return self._present(step)

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
                self._idle.append(self._road)

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
