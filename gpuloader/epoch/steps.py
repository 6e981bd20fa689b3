"""The pipeline: a state machine that moves batches from the fetcher to the user, for one place or many.

A step is one batch for each place. The pipeline groups the batches of a step, issues their copies to all
places, and keeps the step in flight until it is delivered. `next_step` keeps `prefetch` steps in flight
behind the one it delivers, so their copies run while the user computes.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from gpuloader.batches.stream import StagedBatch
from gpuloader.devices.base import Device
from gpuloader.epoch.lane import InFlightBatch, Lane, Mask
from gpuloader.errors import LoaderError, QueueClosed, SampleError
from gpuloader.fetch.inline import Fetch
from gpuloader.staging.ring import Ring
from gpuloader.system.processes import StartedThread, start_thread
from gpuloader.transforms.program import Program
from gpuloader.watch.tracing import is_tracing, mark

# Compiling what the first batches of a loader will launch, while they are still being fetched.


class KernelsAhead:
    """Compiles the kernels of a loader's first program, in a thread that ends with the first step.

    Later programs launch the same kernels, with few exceptions. Launching waits for a kernel that is being
    compiled, and compiles any other. So it raises the errors, and whatever goes wrong here is dropped.

    Parameters
    ----------
    devices : sequence of Device
        The devices on which the program will run.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = list({id(device): device for device in devices if not device.direct}.values())
        self._process = os.getpid()
        self._beginning = threading.Lock()
        self._has_begun = False
        self._stop = threading.Event()
        self._thread: StartedThread | None = None

    def begin(self, program: Program) -> None:
        """Begin to compile what a program launches; only the first call does. Any thread may call it."""
        with self._beginning:
            if self._has_begun or not self._devices or os.getpid() != self._process:
                return
            self._has_begun = True
            with suppress(LoaderError):  # the system starts no more threads
                arguments = program, self._devices, self._stop
                self._thread = start_thread("gpuloader-compiler", _compile, *arguments)

    def finish(self) -> None:
        """Compile nothing more ahead; wait for the kernel that is being compiled."""
        with self._beginning:
            self._has_begun = True
            thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:
            self._stop.set()
            if not thread.is_current:  # which may have collected an epoch as garbage
                thread.join()


def _compile(program: Program, devices: Sequence[Device], stop: threading.Event) -> None:
    for device in devices:
        with suppress(Exception):  # launching raises it
            device.compile(program, stop.is_set)


DeliveredStep = list[tuple[StagedBatch, list[Any]]]
"""One entry per place: the staged batch, and its arrays in layout order, with its mask last if it has one."""

Masking = Callable[[StagedBatch], Mask]
"""Returns the mask of a batch that may end in repeated samples; called once per batch, in order."""


class Pipeline:
    """Moves batches from a fetcher over lanes to the consumer, for one epoch.

    One thread calls it at a time. `next_step` waits for the fetcher, never for the user to release a batch.
    After the last step, or an error, every later `next_step` raises `QueueClosed`.

    Parameters
    ----------
    fetch : Fetch
        The source of staged batches.
    ring : Ring
        The ring to which their slots return.
    lanes : sequence of Lane
        One per place; consecutive batches go to consecutive lanes.
    prefetch : int
        Steps whose copies are issued ahead of the consumer.
    drop_last : bool
        Whether to leave out a last step that has no batch for every place.
    masking : callable or None
        Returns the mask to deliver with each batch; None delivers none.
    kernels : KernelsAhead or None
        Compiles ahead what the first batch launches.

    Attributes
    ----------
    waited : int
        Nanoseconds that the latest `next_step` waited for the fetcher.
    prefetch : int
        As given; may be changed between steps.
    asks : bool
        Whether `begin_step` is to be called before each step: some batches are copied to a device, or all
        are delivered in the same memory.
    """

    def __init__(
        self,
        fetch: Fetch,
        ring: Ring,
        lanes: Sequence[Lane],
        *,
        prefetch: int,
        drop_last: bool,
        masking: Masking | None = None,
        kernels: KernelsAhead | None = None,
    ) -> None:
        self.waited = 0
        self._kernels = kernels
        self._masking = masking
        self._fetch = fetch
        self._ring = ring
        self._lanes = lanes
        self.asks = not all(lane.device.direct and lane.static is None for lane in lanes)
        self._copying_lanes = [lane for lane in lanes if not lane.device.direct]
        self._only_lane = only = lanes[0] if len(lanes) == 1 else None
        self._direct_lane = only if only is not None and only.device.direct else None
        self._only_direct_lane = self._direct_lane  # None while a prepared step waits
        self._only_copying_lane = only if self._direct_lane is None else None
        self._statics = [lane.static for lane in lanes if lane.static is not None]
        self.prefetch = prefetch
        self._drop_last = drop_last
        self._group: list[StagedBatch] = []
        self._flying: deque[list[InFlightBatch]] = deque()
        self._begun: InFlightBatch | None = None  # the step that `begin_step` has delivered
        self._ending: BaseException | None = None

    def next_step(self) -> DeliveredStep:
        """Return the next step, with one entry per place.

        Raises
        ------
        QueueClosed
            The epoch is over.
        BaseException
            The fetcher's exception, once every step before it has been delivered.
        """
        flying, early = self._flying, self._begun
        if self._only_copying_lane is None:
            self._drain()
        if self._only_direct_lane is not None:
            return self._next_direct(self._only_direct_lane)
        self.waited = 0
        self._fill(delivered=early is not None)
        if early is not None:
            self._begun = None
            return [(early.staged, _take_arrays(early))]
        if not flying:
            raise self._end()
        self._only_direct_lane = self._direct_lane
        begun = perf_counter_ns()
        step = self._deliver(flying.popleft())
        if is_tracing():
            mark("deliver", begun, perf_counter_ns())
        return step

    def prepare(self) -> None:
        """Fetch the first step and copy it to its places; return once it is there and could be delivered."""
        self._only_direct_lane = None
        self._fill(delivered=False)
        for landings in itertools.islice(self._flying, 1):
            for lane, landing in zip(self._lanes, landings):  # noqa: B905 - the last step may have fewer batches
                lane.settle(landing)
        self.finish_kernels()

    def finish_kernels(self) -> None:
        """Compile nothing more ahead; called when the first step has been delivered, or at the end."""
        kernels, self._kernels = self._kernels, None
        if kernels is not None:
            kernels.finish()

    def _fill(self, *, delivered: bool) -> None:
        """Issue the copies of the next steps; unless one is `delivered` already, wait if there is none."""
        flying, count = self._flying, self.prefetch + (not delivered)
        while len(flying) < count and self._ending is None:
            if not self._advance(wait=not delivered and not flying):
                break

    def _deliver(self, landings: list[InFlightBatch]) -> DeliveredStep:
        step: DeliveredStep = []
        try:
            for lane, landing in zip(self._lanes, landings):  # noqa: B905 - the last step may have fewer batches
                step.append((landing.staged, lane.deliver(landing)))
        except BaseException:
            self._discard(landings, len(step) + 1)  # the lane that failed has its slot back already
            raise
        return step

    def _next_direct(self, lane: Lane) -> DeliveredStep:
        """Deliver a fetched batch directly: a shortcut for one place that needs neither copies nor groups.

        For a batch of a few kilobytes, the general path would take longer than everything else.
        """
        if self._ending is not None:
            raise self._end()
        begun = perf_counter_ns()
        try:
            staged = self._fetch.get()
        except Exception:
            # Only for an Exception: as in `_advance`, an interrupt does not end the epoch.
            self._ending = QueueClosed("the epoch is over")
            raise
        fetched = perf_counter_ns()
        self.waited = fetched - begun
        arrays = lane.lease(staged, self._mask(staged))
        if is_tracing():
            mark("wait", begun, fetched)
            mark("deliver", fetched, perf_counter_ns())
        return [(staged, arrays)]

    def _advance(self, *, wait: bool) -> bool:
        """Take one more batch, and issue its step's copies if that is whole; False if none is ready."""
        try:
            staged = self._get() if wait else self._fetch.get_nowait()
        except Exception as error:
            # Only for an Exception: after an interrupt of this thread, the user may continue the epoch.
            # The end of the epoch is kept without its traceback, whose frames refer to this object.
            is_end = isinstance(error, QueueClosed)
            self._ending = error.with_traceback(None) if is_end else error
            complete = is_end and not self._drop_last
            self._issue() if complete and self._group else self._drop_group()
            return False
        if staged is None:
            return False
        if self._only_lane is not None:
            mask = None if self._masking is None else self._mask(staged)
            try:
                self._flying.append([self._only_lane.issue(staged, mask)])
            except SampleError as error:  # a picture that the device cannot decode
                self._ending = error  # for the user, it is the fetcher's
                return False
            return True
        self._group.append(staged)
        if len(self._group) == len(self._lanes):
            self._issue()
        return True

    def _get(self) -> StagedBatch | None:
        """Wait for the fetcher's next batch, and meanwhile free the host slots it may need."""
        begun = perf_counter_ns()
        try:
            while (staged := self._fetch.get_nowait()) is None:
                # The fetcher may wait for a slot that returns only after its copy.
                if self._ring.free or not any(lane.finish_oldest_copy() for lane in self._copying_lanes):
                    return self._fetch.get()
            return staged
        finally:
            now = perf_counter_ns()
            self.waited += now - begun
            mark("wait", begun, now)

    def _issue(self) -> None:
        group, self._group = self._group, []
        landings: list[InFlightBatch] = []
        try:
            for lane, staged in zip(self._lanes, group):  # noqa: B905
                landings.append(lane.issue(staged, self._mask(staged)))
        except BaseException as error:
            self._discard(landings)
            for staged in group[len(landings) + 1 :]:
                self._ring.release(staged.slot)
            if not isinstance(error, SampleError):
                raise
            self._ending = error  # for the user, it is the fetcher's
            return
        self._flying.append(landings)

    def _discard(self, landings: Sequence[InFlightBatch], start: int = 0) -> None:
        """Take back the batches of a step, from place `start` on."""
        for lane, landing in list(zip(self._lanes, landings, strict=False))[start:]:
            lane.discard(landing)

    def _mask(self, staged: StagedBatch) -> Mask | None:
        """Return a batch's mask, if it has one; if that fails, the batch's slot returns to the ring."""
        if self._masking is None:
            return None
        try:
            return self._masking(staged)
        except BaseException:
            self._ring.release(staged.slot)
            raise

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

    def begin_step(self) -> LoaderError | None:
        """Begin the next step; return the error if it must not be delivered, and change nothing then.

        That is so while the calling thread captures a graph, or if the user holds a batch whose memory the
        loader has used again.

        If there is only one place, whatever can be done before the next batch is read is done here, with one
        look at the device: the batch to deliver, which is in flight already, is delivered. What follows is a
        copy, which needs no second look, or transforms, which do: the reader may be any code in this thread.
        """
        if self._statics and self._begun is None:
            for static in self._statics:
                if (error := static.find_held()) is not None:
                    return error
        lane = self._only_copying_lane
        if lane is None:
            return self.find_capture()
        is_early = self._begun is not None  # the thread was interrupted when it read the next batch
        if self._ring.freed:
            self._ring.drain()
        begun = perf_counter_ns()
        error, landing = lane.begin(self._take_oldest)
        if landing is not None:
            self._begun = landing
            if is_tracing():
                mark("deliver", begun, perf_counter_ns())
        elif is_early and error is None and self._begun is not None:
            lane.follow(self._begun)
        return error

    def _take_oldest(self) -> InFlightBatch | None:
        return self._flying.popleft()[0] if self._flying and self._begun is None else None

    def find_capture(self) -> LoaderError | None:
        """Return the error for a step that is requested while this thread captures a graph, or None."""
        for lane in self._copying_lanes:
            if (error := lane.find_capture()) is not None:
                return error
        return None

    def stop(self) -> bool:
        """Stop fetching, which calls no device.

        Returns
        -------
        bool
            Whether the ring can be used for another epoch; False if the fetcher did not stop.
        """
        self._ending = QueueClosed("the epoch was closed")
        if self._begun is not None:
            _take_arrays(self._begun)
            self._begun = None
        stopped = self._fetch.close()
        self._drop_group()
        return stopped

    def finish(self) -> None:
        """Wait for copies in progress, and take every slot back; called once, after `stop`."""
        while self._flying:
            self._discard(self._flying.popleft())
        self.finish_kernels()
        for lane in self._lanes:
            lane.close()
        self._drain()


def _take_arrays(landing: InFlightBatch) -> list[Any]:
    """Return a batch's arrays, and forget them: the lane may hold a landing for longer than the user them."""
    arrays, landing.arrays = landing.arrays, None
    assert arrays is not None
    return arrays
