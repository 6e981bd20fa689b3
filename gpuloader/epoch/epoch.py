"""One epoch: the iterator that a user loops over."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any, Protocol

from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.lane import Lane, count_slots
from gpuloader.epoch.steps import DeliveredStep, KernelsAhead, Masking, Pipeline
from gpuloader.errors import LoaderError, QueueClosed
from gpuloader.fetch.base import Fetch
from gpuloader.fetch.fetching import Fetching
from gpuloader.staging.ring import Ring
from gpuloader.system.finalizers import Finalizer, Living
from gpuloader.system.interrupts import at_exit, end_if_exiting
from gpuloader.transforms.programmer import Programmer
from gpuloader.watch.autotuner import HillClimb
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import is_tracing, mark, pop_range, push_range

# What an epoch leaves: slots and lanes for the next one, once nothing is fetched or copied any more.


@dataclass(frozen=True, slots=True)
class EpochBuffers:
    """Slots and lanes, reused from epoch to epoch so that their memory stays page-locked and warm.

    Attributes
    ----------
    ring : Ring
        The host slots.
    lanes : tuple of Lane
        One per place.
    prefetch : int
        Steps copied ahead of the consumer.
    process : int
        The id of the process that owns them; a forked child shares the memory and must not write to it.
    """

    ring: Ring
    lanes: tuple[Lane, ...]
    prefetch: int
    process: int


@dataclass(slots=True, eq=False)
class Remains:
    """What has to be closed at the end of an epoch; does not refer to the epoch, which may be dropped.

    Attributes
    ----------
    pipeline : Pipeline
        Fetches and copies.
    road : Road
        The slots and lanes.
    idle : deque of Road
        Where to leave the road, if it can be reused.
    is_closed : bool
        Whether the epoch closes it.
    is_whole : bool
        Whether fetching has ended in time, so that the road can be reused.
    """

    pipeline: Pipeline
    road: EpochBuffers
    idle: deque[EpochBuffers]
    is_closed: bool = False
    is_whole: bool = False


postponed: deque[Remains] = deque()
"""Epochs whose copies in progress are to be waited for by the next epoch of any loader."""


def take_buffers(idle: deque[EpochBuffers]) -> EpochBuffers | None:
    """Return a road left idle by an earlier epoch of this process, or None."""
    finish_postponed()
    while idle:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            road = idle.pop()
            if road.process == os.getpid() and not road.ring.is_finalized:
                return road
    return None


def close_dropped(remains: Remains) -> None:
    """Close what is left of an epoch that was dropped before it was closed."""
    if not remains.is_closed:
        close(remains)


def close(remains: Remains) -> None:
    """Stop fetching, wait for copies, and leave the road; if this thread captures a graph, postpone that."""
    remains.is_whole = remains.pipeline.stop()
    if _is_captured(remains.pipeline):
        postponed.append(remains)
    else:
        _finish(remains)


def finish_postponed() -> None:
    """Wait for the copies of epochs that were closed where waiting would have ended a capture."""
    for _ in range(len(postponed)):
        with contextlib.suppress(IndexError, LoaderError):  # taken by another thread; the device has failed
            remains = postponed.popleft()
            if _is_captured(remains.pipeline):
                postponed.append(remains)
            else:
                _finish(remains)


def _is_captured(pipeline: Pipeline) -> bool:
    try:
        return pipeline.find_capture() is not None
    except LoaderError:
        return False  # the device has failed, as closing the epoch will say


def _finish(remains: Remains) -> None:
    if remains.road.process != os.getpid():
        return  # its copies run in the parent
    remains.pipeline.finish()
    if remains.is_whole and remains.road.ring.rearm():
        remains.idle.append(remains.road)


# Tuning 'auto' options during an epoch: measure after each step, and apply each new setting.

FEWEST_STEPS, SHORTEST = 8, 0.2
"""The fewest steps, and the fewest seconds, over which a rate is measured."""


class Resizable(Protocol):
    """A fetch whose number of workers can change while it runs."""

    def resize(self, workers: int, ahead: int) -> None:
        """Use `workers` workers from now on, and keep up to `ahead` batches in progress."""


class Autotuner:
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
        climb: HillClimb,
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


_OVER: Any = object()
_EXIT_TIME = 1.0  # seconds to wait at exit for threads that are waiting for a batch


def build_buffers(
    delivery: Delivery,
    capacity: int,
    meter: Meter,
    *,
    shared: bool = False,
    stretch: int = 0,
    programmer: Programmer | None = None,
) -> EpochBuffers:
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
    return EpochBuffers(ring, tuple(lanes), prefetch, os.getpid())


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
        road: EpochBuffers,
        fetch: Fetch,
        present: Callable[[DeliveredStep], Any],
        idle: deque[EpochBuffers],
        *,
        drop_last: bool,
        meter: Meter,
        ended: Callable[[], None] | None = None,
        steering: Autotuner | None = None,
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


# What a loop over a `DataLoader` holds: an epoch that begins with the first batch that is requested.


class Iteration(Iterator[Any]):
    """The iterator over one epoch of a loader.

    The epoch begins when its first step is requested, not when the iterator is made. So an iterator that is
    never used takes no epoch and starts no worker, and rank, epoch and state are those of the first request.
    Trainers that make an iterator to find out whether they can, or long before they use it, rely on that.

    Any thread may call the methods.

    Parameters
    ----------
    begin : callable
        Begins the loader's next epoch.
    length : callable
        Returns the number of steps in a whole epoch, or raises TypeError.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(4), places="cpu", batch_size=2)
    >>> unused, used = iter(loader), iter(loader)
    >>> next(used), loader.state_dict()["epoch"], len(used)
    (array([0, 1]), 0, 2)
    """

    def __init__(self, begin: Callable[[], Epoch], length: Callable[[], int]) -> None:
        self._length = length
        self._begin: Callable[[], Epoch] | None = begin
        self._epoch: Epoch | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch, however many of them have been delivered.

        Raises
        ------
        TypeError
            The number is unknown.
        """
        return self._length()

    def __bool__(self) -> bool:
        return True  # not the length, which may be unknown

    def __next__(self) -> Any:
        epoch = self._epoch
        return next(self._open() if epoch is None else epoch)

    def _open(self) -> Epoch:
        with self._lock:
            if self._epoch is None:
                if self._begin is None:
                    raise StopIteration
                end_if_exiting()
                try:
                    self._epoch = self._begin()
                except Exception:
                    end_if_exiting()
                    raise
                self._begin = None
            return self._epoch

    def close(self) -> None:
        """End the epoch early, or make sure that it never begins; may be called again."""
        with self._lock:
            self._begin = None
            epoch = self._epoch
        if epoch is not None:
            epoch.close()
