"""One epoch: the iterator that a user loops over."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any

from gpuloader.base.errors import QueueClosed
from gpuloader.base.exiting import at_exit, end_if_exiting
from gpuloader.base.finalizers import Finalizer
from gpuloader.base.living import Living
from gpuloader.fetch.base import Fetch
from gpuloader.pipeline.closing import Remains, Road, close, close_dropped, finish_postponed, postponed
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.kernels_ahead import KernelsAhead
from gpuloader.pipeline.lane import Lane, count_slots
from gpuloader.pipeline.steering import Steering
from gpuloader.pipeline.steps import DeliveredStep, Masking, Pipeline
from gpuloader.staging.ring import Ring
from gpuloader.transforms.programmer import Programmer
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import is_tracing, mark, pop_range, push_range

_OVER: Any = object()
_EXIT_TIME = 1.0  # seconds to wait at exit for threads that are waiting for a batch


def build_road(
    delivery: Delivery,
    capacity: int,
    meter: Meter,
    *,
    shared: bool = False,
    stretch: int = 0,
    programmer: Programmer | None = None,
) -> Road:
    """Create slots and lanes for a loader's places; the first batch reserves their memory.

    Parameters
    ----------
    delivery : Delivery
        The places, and how many steps to copy ahead to them.
    capacity : int
        The most batches that may wait for the consumer.
    meter : Meter
        Counts how long copies take.
    shared : bool
        Whether slots lie in memory that worker processes can map.
    stretch : int
        Bytes within which there are more slots than needed if batches are small.
    programmer : Programmer or None
        Builds the programs that transform batches on devices.
    """
    devices, prefetch = delivery.devices, delivery.prefetch
    count, spare = count_slots(capacity, devices, prefetch)
    ring = Ring(count, spare, delivery.locker, shared=shared, stretch=stretch, near=delivery.near)
    lanes = [
        Lane(device, ring, prefetch, meter, output, programmer, static, delivery.urgent)
        for device, output, static in zip(devices, delivery.outputs, delivery.slots, strict=True)
    ]
    return Road(ring, tuple(lanes), prefetch, os.getpid())


class Epoch:
    """The iterator over one epoch.

    Any thread may call `__next__`; calls take turns. Leaving the loop, an exception, garbage collection or
    interpreter exit closes it: fetching stops, and all slots return except those that the user leases.

    Parameters
    ----------
    road : Road
        The slots and lanes, used by this epoch alone until it closes.
    fetch : Fetch
        Fills the road's slots.
    present : callable
        Converts a delivered step to the form that the user gets.
    idle : deque of Road
        Where to leave the road after the epoch, if it can be reused.
    drop_last : bool
        Whether to leave out a last step that has no batch for every place.
    meter : Meter
        Counts where the time goes.
    ended : callable or None
        Called when the last step has been delivered.
    steering : Steering or None
        Tunes the epoch while it runs.
    masking : callable or None
        Returns the mask to deliver with each batch; None delivers none.
    guard : Finalizer or None
        A finalizer that is older than `fetch`; it ends the epoch if the user drops it.
    kernels : KernelsAhead or None
        Compiles ahead what the first batch launches.
    """

    def __init__(
        self,
        road: Road,
        fetch: Fetch,
        present: Callable[[DeliveredStep], Any],
        idle: deque[Road],
        *,
        drop_last: bool,
        meter: Meter,
        ended: Callable[[], None] | None = None,
        steering: Steering | None = None,
        masking: Masking | None = None,
        guard: Finalizer | None = None,
        kernels: KernelsAhead | None = None,
    ) -> None:
        self._present = present
        self._ended = ended
        self._lock = threading.RLock()
        self._pipeline: Pipeline | None = Pipeline(
            fetch,
            road.ring,
            road.lanes,
            prefetch=road.prefetch,
            drop_last=drop_last,
            masking=masking,
            kernels=kernels,
        )
        self._remains = Remains(self._pipeline, road, idle)
        self._guard = guard or Finalizer()
        self._guard.watch(partial(close_dropped, self._remains))
        for lane in road.lanes:
            if lane.static is not None:
                lane.static.epoch = weakref.ref(self)
        self._steering = steering
        if steering is not None:
            steering.begin(self._pipeline)
        self._meter = meter
        self._handed = 0
        meter.watch(road.ring)
        _running.add(self)

    def __iter__(self) -> Epoch:
        return self

    @property
    def is_running(self) -> bool:
        """Whether there may be further steps."""
        return self._pipeline is not None

    def __next__(self) -> Any:
        with self._lock:
            pipeline = self._pipeline
            if pipeline is None:
                end_if_exiting()
                raise StopIteration
            asked = perf_counter_ns()
            if pipeline.asks:
                self._begin_step(pipeline)
            if self._handed:
                self._meter.compute += asked - self._handed
            nvtx = None
            if is_tracing():
                if self._handed:
                    mark("step", self._handed, asked)
                nvtx = push_range("next")
            try:
                presented = self._present(pipeline.next_step())
            except QueueClosed:
                presented = _OVER  # closed below: a Ctrl-C would show this exception, too
            except Exception:
                self.close()
                end_if_exiting()
                raise
            finally:
                if nvtx is not None:
                    pop_range(nvtx)
            if presented is _OVER:
                self.close()
                end_if_exiting()
                if self._ended is not None:
                    self._ended()
                raise StopIteration
            first = not self._handed
            if first:
                pipeline.finish_kernels()
            self._handed = perf_counter_ns()
            self._meter.delivered(asked, pipeline.waited, self._handed, first=first)
            if self._steering is not None and not self._steering.after_step(pipeline):
                self._steering = None
            return presented

    def prepare(self) -> None:
        """Fetch the first step and copy it to its places, so that the first `__next__` only delivers it."""
        with self._lock:
            if self._pipeline is not None:
                try:
                    self._pipeline.prepare()
                except Exception:
                    self.close()
                    raise

    def _begin_step(self, pipeline: Pipeline) -> None:
        """Raise `LoaderError` if no step must be delivered now, and leave the epoch as it is."""
        try:
            error = pipeline.begin_step()
        except Exception:
            self.close()
            end_if_exiting()
            raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame: the epoch would not end when the user drops it
        if postponed:
            finish_postponed()

    def close(self) -> None:
        """End the epoch early; may be called again.

        Waits up to a second for the reader or the workers to finish what they are fetching. If the calling
        thread captures a graph, the copies in progress are waited for by the next epoch of any loader.
        """
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
            if pipeline is None:
                return
            _running.discard(self)
            self._remains.is_closed = True
            self._guard.end()
            close(self._remains)


_running: Living[Epoch] = Living()


def _close_running() -> None:
    deadline = monotonic() + _EXIT_TIME
    for epoch in list(_running):
        # A daemon thread may be waiting for a batch; whatever ends the workers ends its epoch.
        if epoch._lock.acquire(timeout=max(deadline - monotonic(), 0)):
            try:
                epoch.close()
            finally:
                epoch._lock.release()
    finish_postponed()


at_exit(_close_running)
