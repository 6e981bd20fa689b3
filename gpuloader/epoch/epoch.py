"""One epoch: from the batches that a fetch stages to the steps that a loop receives, for one place or many.

An `Iteration` is what the user loops over, and an `Epoch` is what runs behind it::

    Iteration   not begun ──first next()──▶ running ──last step, error, close(), drop──▶ over
                                              │ ▲
                                              └─┘ next(), an interrupt, an error that is `missed`

A step is one batch for each place. `Lane.prefetch` steps are in flight behind the one that is delivered,
so their copies run while the user computes::

    fetch ──issue──▶ incomplete ──one for each place──▶ in flight ──begin_step or next_step──▶ delivered
                         │                                  │                                      │
                         └─ end with drop_last, error ──────┴─ close ──▶ slot back ◀── lease ends ─┘
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from operator import attrgetter
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.base import Device
from gpuloader.epoch.delivery import Delivery, SampleMask
from gpuloader.epoch.device_slots import StaticSlot
from gpuloader.epoch.lane import InFlightBatch, Lane, count_slots
from gpuloader.errors import LoaderError, Misuse, QueueClosed, SampleError, find_raised
from gpuloader.fetch.contract import Fetch, interrupted
from gpuloader.fetch.fetching import Fetching
from gpuloader.staging import Ring
from gpuloader.system.finalizers import Finalizer, Living
from gpuloader.system.threads import StartedThread, at_exit, end_if_exiting, start_thread
from gpuloader.watch.meter import Meter, is_tracing, mark, pop_range, push_range

if TYPE_CHECKING:
    from gpuloader.transforms.program import BatchProgram, Programmer
    from gpuloader.watch.autotuner import Autotuner, Setting

# The iterator of a loop.

_OVER: Any = object()


class Iteration(Iterator[Any]):
    """The iterator over one epoch of a loader, which begins when its first step is requested.

    An iterator that is never used takes no epoch and starts no worker. Rank, epoch and state are those at the
    first request. Trainers rely on that: some create an iterator only to see whether they can, or long before
    they use it.

    Any thread may call the methods; calls take turns. Leaving the loop, an exception, garbage collection or
    interpreter exit closes the epoch: fetching stops, and all slots return except those that the user leases.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(4), places="cpu", batch_size=2)
    >>> unused, used = iter(loader), iter(loader)
    >>> next(used), loader.state_dict()["epoch"], len(used)
    (array([0, 1]), 0, 2)
    """

    def __init__(
        self,
        begin: Callable[[], Iteration] | None = None,
        length: Callable[[], int] | None = None,
        epoch: Epoch | None = None,
        guard: Finalizer | None = None,
    ) -> None:
        self._begin = begin  # None once the epoch has begun, or was closed before that
        self._length = length
        self._epoch = epoch
        self._guard = guard
        # Reentrant: closing the fetch runs the user's code, which may close this iterator again.
        self._lock = threading.RLock()
        if epoch is not None:
            _running.add(self)

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch; raise `TypeError` if it is unknown."""
        if self._length is None:
            raise TypeError("the number of steps is unknown: the loader reads until its source ends")
        return self._length()

    def __bool__(self) -> bool:
        return True  # not the length, which may be unknown

    @property
    def is_running(self) -> bool:
        """Whether the epoch has begun and there may be further steps."""
        return self._epoch is not None and self._epoch.is_running

    def __next__(self) -> Any:
        with self._lock:
            epoch = self._epoch
            if epoch is None or not epoch.is_running:
                epoch = self._open()
            asked, step = perf_counter_ns(), None
            refusal: Exception | None
            try:
                refusal = epoch.begin_step() if epoch.asks else None
                if refusal is None:
                    step = epoch.next_step(asked)
            except QueueClosed:
                step = _OVER  # closed below, because here a Ctrl-C would show this exception as well
            except Exception as error:
                if epoch.missed is None or not isinstance(error, SampleError):
                    self.close()
                end_if_exiting()
                refusal = find_raised(error) if epoch.reveals else None
                if refusal is None:
                    raise
            if step is _OVER:
                self.close()
                end_if_exiting()
                if epoch.ended is not None:
                    epoch.ended()
                raise StopIteration
            if refusal is not None:
                try:
                    # The epoch may continue. Not raised above: what was caught there shows in the notes.
                    raise refusal
                finally:
                    del refusal  # it refers to this frame, which would keep the epoch alive
            return step

    def _open(self) -> Epoch:
        """Begin the epoch; raise `StopIteration` if it is over."""
        end_if_exiting()
        if self._begin is None:
            raise StopIteration
        begin, self._begin = self._begin, _refuse_to_begin
        try:
            begun = begin()
        except BaseException as error:
            if self._begin is _refuse_to_begin:
                self._begin = begin
            if isinstance(error, Exception):
                end_if_exiting()
            raise
        self._begin = None
        # `warm_up` may have opened it long ago, and the end of the program may have closed it.
        epoch = begun._epoch
        if epoch is None or not epoch.is_running:
            raise StopIteration
        self._epoch, self._guard = epoch, begun._guard
        _running.add(self)
        return epoch

    def prepare(self) -> None:
        """Fetch the first step and copy it to its places, so that the first `__next__` only delivers it."""
        with self._lock:
            epoch = self._epoch
            if epoch is not None and epoch.is_running:
                try:
                    epoch.prepare()
                except Exception:
                    self.close()
                    raise

    def close(self) -> None:
        """End the epoch early, or make sure that it never begins; may be called again.

        Waits up to a second for the reader or the workers to finish what they are fetching. If the calling
        thread captures a graph, the next epoch of any loader waits for the copies in progress.
        """
        with self._lock:
            self._begin = None
            # It keeps the epoch, and so the memory, until it is dropped: pinned memory cannot be unpinned
            # while the device fails.
            epoch = self._epoch
            if epoch is None or not epoch.is_running:
                return
            epoch.is_running = False
            # If a Ctrl-C cuts this short, the guard closes the epoch again when this iterator is dropped.
            if self._guard is not None:
                self._guard()
            _running.discard(self)

    _shutdown_workers = close  # PyTorch's name, which programs call to stop workers early


def _refuse_to_begin() -> Iteration:
    # Waiting for the lock would hang: this thread holds it.
    raise Misuse(
        "next() was called while the first next() of the same iterator runs, as by a signal handler; let "
        "the handler set a flag, and check the flag in the loop"
    )


_running: Living[Iteration] = Living()
_EXIT_TIME = 1.0  # seconds to wait at exit for threads that are waiting for a batch


def _close_running() -> None:
    deadline = monotonic() + _EXIT_TIME
    for iteration in list(_running):
        # A daemon thread may hold the lock while it waits for a batch. Its epoch ends when its workers do:
        # they are closed after this function.
        if iteration._lock.acquire(timeout=max(deadline - monotonic(), 0)):
            try:
                # A failed device refuses to wait for its copies. Nobody is left to tell, and the other epochs
                # still have to be closed.
                with contextlib.suppress(LoaderError):
                    iteration.close()
            finally:
                iteration._lock.release()
    finish_postponed()


at_exit(_close_running)


# What an epoch works with and leaves to the next one, so that its memory stays pinned and warm.


@dataclass(slots=True, eq=False, repr=False)
class EpochBuffers:
    """The slots and lanes that epochs of one loader use, one epoch after another."""

    ring: Ring  # the host slots
    lanes: tuple[Lane, ...]  # one per place
    process: int  # the owner: a forked child shares the memory and must not write to it


def take_buffers(
    idle: deque[EpochBuffers],
    delivery: Delivery,
    capacity: int,
    meter: Meter,
    *,
    shared: bool = False,
    stretch: int = 0,
    programmer: Programmer | None = None,
) -> EpochBuffers:
    """Return buffers left idle by an earlier epoch of this process, or new ones.

    Up to `capacity` batches may wait for the consumer. New slots have no memory before the first batch shows
    how much they need; `shared` and `stretch` are those of `Ring`.
    """
    if postponed:
        finish_postponed()
    # One epoch of many must not pay for reserving, faulting in and pinning its memory.
    while idle:
        try:
            found = idle.pop()
        except IndexError:  # another thread has taken the last one
            break
        # A forked child inherits the deque and must leave the parent's memory alone. In a garbage cycle,
        # memory may be finalized before the loader that would reuse it.
        if found.process == os.getpid() and not found.ring.is_finalized:
            return found
    prefetch = delivery.prefetch
    count, spare = count_slots(capacity, delivery.devices, prefetch)
    ring = Ring(count, spare, delivery.locker, shared=shared, stretch=stretch, near=delivery.near)
    lanes = []
    for device, output, static in zip(delivery.devices, delivery.outputs, delivery.statics, strict=True):
        lanes.append(Lane(device, ring, prefetch, meter, output, programmer, static, delivery.urgent))
    return EpochBuffers(ring, tuple(lanes), os.getpid())


def apply_setting(buffers: EpochBuffers, fetch: Any, fetching: Fetching, setting: Setting) -> int | None:
    """Apply a setting that tuning has chosen; return the steps that still belong to the previous one.

    `fetch` has workers, whose number can change while it runs. If the setting exceeds the memory budget, this
    changes nothing and returns None.
    """
    ring, lanes = buffers.ring, buffers.lanes
    ahead = fetching.ahead_of(setting.workers, setting.depth)
    prefetch = setting.prefetch if lanes[0].prefetch else 0  # a host has nothing to copy ahead
    slots, _ = count_slots(ahead, [lane.device for lane in lanes], prefetch)
    if slots > ring.count:
        # Zero bytes until the first batch has shown its size: the initial setting is never refused.
        if slots * ring.slot_nbytes > fetching.budget:
            return None
        ring.grow(slots - ring.count)
    fetch.resize(setting.workers, ahead)
    for lane in lanes:
        lane.prefetch = prefetch
    # Batches in progress, and those that new workers have yet to begin, say nothing about the new setting.
    return ahead + prefetch + setting.workers


# The running epoch.

DeliveredStep = list[tuple[StagedBatch, list[Any]]]
"""One entry per place: the staged batch, and its arrays in layout order, with its mask last if it has one."""

Masking = Callable[[StagedBatch], SampleMask]
"""Returns the mask of a batch that may end in repeated samples; called once per batch, in order."""


def open_epoch(epoch: Epoch, guard: Finalizer) -> Iteration:
    """Return the iterator over an epoch, which ends if the user drops the iterator.

    `guard` is a finalizer older than the epoch's fetch, so the garbage collector ends the epoch before the
    generators that it reads.
    """
    # The epoch knows neither the iterator nor the guard. Otherwise they would form a garbage cycle, and
    # workers would continue until Python collects it.
    guard.watch(epoch.close)
    iteration = Iteration(epoch=epoch, guard=guard)
    if epoch.tuner is not None:
        # As late as this: if there is too little memory for the setting, the guard closes the fetch.
        epoch.tuner.begin(epoch.apply)
    return iteration


@dataclass(eq=False, repr=False)
class Epoch:
    """Moves batches from a fetch over lanes to the consumer.

    One thread calls it at a time. It waits for the fetch, never for the user to release a batch. After the
    last step, or an error that is not `missed`, `next_step` always raises `QueueClosed`.
    """

    buffers: EpochBuffers  # used by this epoch alone until it closes
    fetch: Fetch  # fills the slots of the buffers
    present: Callable[[DeliveredStep], Any]  # converts a delivered step to what the user gets
    idle: deque[EpochBuffers]  # where to leave the buffers, if they can be reused
    meter: Meter
    drop_last: bool  # whether to leave out a last step that has no batch for every place
    ended: Callable[[], None] | None = None  # called when the last step has been delivered
    masking: Masking | None = None  # None delivers no masks
    kernels: KernelsAhead | None = None  # compiles in advance what the first batch launches
    tuner: Autotuner | None = None  # for the loader's 'auto' options
    apply: Callable[[Setting], int | None] = lambda _: None  # applies a setting of the tuner to this epoch
    reveals: bool = False  # whether to raise an exception of the user's code, not the error that tells of it
    # Called with a `SampleError` in place of a step; the epoch then continues with the next. None ends it.
    # Only with one place: on several, the step that the error has cut would be completed by the next one's.
    missed: Callable[[SampleError], None] | None = None

    def __post_init__(self) -> None:
        self.is_running = True
        self._ring = self.buffers.ring
        self._lanes = lanes = self.buffers.lanes
        self._copying_lanes: list[Lane] = [*filterfalse(attrgetter("device.direct"), lanes)]
        self._statics: list[StaticSlot] = [*filter(None, map(attrgetter("static"), lanes))]
        for static in self._statics:
            static.epoch = weakref.ref(self)
        # Whether `begin_step` precedes each step: a capture only forbids calls to a device, and only batches
        # in one memory can overwrite each other.
        self.asks = bool(self._copying_lanes or self._statics)
        only = lanes[0] if len(lanes) == 1 else None
        self._only_copying_lane = only if self._copying_lanes else None
        self._direct_lane = None if self._copying_lanes else only
        self._shortcut = self._direct_lane  # None while a prepared step waits
        self._group: list[InFlightBatch] = []  # a step that does not have a batch for every place yet
        self._flying: deque[list[InFlightBatch]] = deque()
        self._begun: InFlightBatch | None = None  # delivered by `begin_step`, not yet handed over
        self._ending: BaseException | None = None  # what to raise after the last step in flight
        self._is_whole = False  # whether the fetch has ended in time, so that the buffers can be reused
        self._waited = 0  # nanoseconds in this step
        self._handed = 0  # when the latest step was handed over; 0 before the first
        self.meter.ring = weakref.ref(self._ring)

    def begin_step(self) -> LoaderError | None:
        """Begin a step. If it must not be delivered, change nothing and return the error.

        That happens while the calling thread captures a graph, or if the user holds a batch whose memory the
        loader has reused.
        """
        early = self._begun  # set if the thread was interrupted when it read the next batch
        if early is None:
            for static in self._statics:
                if (error := static.find_held()) is not None:
                    return error
        lane = self._only_copying_lane
        if lane is None:
            error = None
            for other in self._copying_lanes:
                error = error or other.begin(drains=False)[0]
        else:
            # With one place, everything that can precede reading the next batch happens here, with one check
            # of the device. After it comes a copy, which needs no second check, or transforms, which do: the
            # reader may run any code in this thread, and may make another device current.
            if self._ring.freed:
                self._ring.drain()
            begun = perf_counter_ns()
            error, batch = lane.begin(self._flying if early is None else None)
            if batch is not None:
                self._begun = batch
                if is_tracing():
                    mark("deliver", begun, perf_counter_ns())
            elif early is not None and error is None:
                lane.follow(early)
        if error is None and postponed:
            finish_postponed()
        return error

    def next_step(self, asked: int) -> Any:
        """Return the next step as the user gets it; `asked` is the time of the request.

        Raises `QueueClosed` if the epoch is over. Raises what the fetch has raised, once every earlier step
        has been delivered.
        """
        meter, traced, last = self.meter, is_tracing(), self._handed
        if last:
            meter.compute += asked - last
            if traced:
                mark("step", last, asked)
        nvtx = push_range("next") if traced else None  # without a trace, not even a call
        try:
            lane = self._shortcut
            if lane is None:
                step = self._next_in_flight(traced)
            else:
                # One place on a host needs neither copies nor groups. For a batch of a few kilobytes, the
                # general path would take longer than everything else.
                if self._ring.freed:
                    self._ring.drain()
                if self._ending is not None:
                    raise self._end()
                begun = perf_counter_ns()
                try:
                    staged = self.fetch.get()
                except Exception as error:  # an interrupt does not end the epoch
                    self._ending = error
                    self._end()
                    raise
                fetched = perf_counter_ns()
                self._waited = fetched - begun
                mask = None if self.masking is None else self._mask(staged)
                step = [(staged, lane.lease(staged, mask))]
                if traced:
                    mark("wait", begun, fetched)
                    mark("deliver", fetched, perf_counter_ns())
            presented = self.present(step)
        finally:
            if nvtx is not None:
                pop_range(nvtx)
        if self.kernels is not None:  # the first step has launched all of them
            self.kernels.finish()
            self.kernels = None
        self._handed = handed = perf_counter_ns()
        waited = self._waited
        meter.steps += 1
        if last:
            meter.wait += waited
        else:
            meter.startup += waited
        meter.transfer += handed - asked - waited
        if self.tuner is not None and not self.tuner.after_step(self.apply):
            self.tuner = None
        return presented

    def _next_in_flight(self, traced: bool) -> DeliveredStep:
        """Return the oldest step in flight, after issuing the copies of those behind it."""
        if self._only_copying_lane is None:  # otherwise `begin_step` has drained
            self._ring.drain()
            for lane in self._copying_lanes:
                with lane.device.current() as device:
                    lane.drain(device)
        self._waited = 0
        early = self._begun
        # The copies of the next steps are issued before this one is delivered, so they run while the user
        # computes with it. With several places, all copies of a step precede its first delivery.
        self._fill(delivered=early is not None)
        if early is not None:
            self._begun = None
            arrays, early.arrays = early.arrays, None  # the lane may keep a batch for longer than the user
            assert arrays is not None
            return [(early.staged, arrays)]
        if not self._flying:
            raise self._end()
        self._shortcut = self._direct_lane  # only the prepared step had to take this path
        begun = perf_counter_ns()
        batches = self._flying.popleft()
        step: DeliveredStep = []
        try:
            for lane, batch in zip(self._lanes, batches):  # noqa: B905 - the last step may have fewer batches
                if batch.slot is None:
                    arrays = lane.lease(batch.staged, batch.mask)
                else:
                    with lane.device.current() as device:
                        arrays = lane.deliver(device, batch)
                step.append((batch.staged, arrays))
        except BaseException:
            for lane, batch in [*zip(self._lanes, batches, strict=False)][len(step) + 1 :]:
                lane.discard(batch)  # the lane that failed has its slot back already
            raise
        if traced:
            mark("deliver", begun, perf_counter_ns())
        return step

    def prepare(self) -> None:
        """Fetch the first step and copy it to its places; return once it could be delivered."""
        # In flight even on a host: the step has to wait somewhere until the loop asks for it.
        self._shortcut = None
        self._fill(delivered=False)
        if self._flying:
            for lane, batch in zip(self._lanes, self._flying[0]):  # noqa: B905 - as above
                lane.settle(batch)
        if self.kernels is not None:
            self.kernels.finish()

    def _fill(self, *, delivered: bool) -> None:
        """Issue the copies of the next steps; wait for one, unless one is already `delivered`."""
        flying, count = self._flying, self._lanes[0].prefetch + (not delivered)
        while len(flying) < count and self._ending is None:
            try:
                staged = self.fetch.get_nowait() if delivered or flying else self._wait()
            except Exception as error:
                # Only for an Exception: after an interrupt of this thread, the user may continue the epoch.
                # The end of the epoch is kept without its traceback, whose frames refer to this object. An
                # error keeps its own, which shows where the reader failed.
                is_end = isinstance(error, QueueClosed)
                self._ending = error.with_traceback(None) if is_end else error
                if is_end and self._group and not self.drop_last:
                    group, self._group = self._group, []
                    flying.append(group)
                return
            if staged is None:  # a ready step does not wait for the one behind it
                return
            group = self._group
            try:
                mask = None if self.masking is None else self._mask(staged)
                group.append(self._lanes[len(group)].issue(staged, mask))
                if len(group) == len(self._lanes):
                    self._group = []  # first: a Ctrl-C must not leave the step in both
                    flying.append(group)
            except SampleError as error:
                self._ending = error  # an image that the device cannot decode; to the user, the fetch's error
            except BaseException:
                # The batch is lost, perhaps to a Ctrl-C, and the ones behind it would reach the wrong places.
                self._ending = interrupted()
                raise

    def _wait(self) -> StagedBatch | None:
        """Wait for the fetch's next batch, and meanwhile free host slots that it may need."""
        begun = perf_counter_ns()
        try:
            while (staged := self.fetch.get_nowait()) is None:
                # The host runs ahead of the device: kernels are queued but have not run, so perhaps no host
                # slot is free. Only the oldest copy can free one for the reader, so wait for the copy first.
                if self._ring.free or not any(lane.finish_oldest_copy() for lane in self._copying_lanes):
                    return self.fetch.get()
            return staged
        finally:
            now = perf_counter_ns()
            self._waited += now - begun
            mark("wait", begun, now)

    def _mask(self, staged: StagedBatch) -> SampleMask | None:
        """Return a batch's mask; if that fails, return the batch's slot to the ring."""
        assert self.masking is not None
        try:
            return self.masking(staged)
        except BaseException:
            self._ring.release(staged.slot)
            raise

    def _end(self) -> BaseException:
        """Return what ends the epoch, or only a step, once; after the end, requests raise `QueueClosed`."""
        over = QueueClosed("the epoch is over")
        ending, self._ending = self._ending or over, over
        if self.missed is not None and isinstance(ending, SampleError):
            self.missed(ending)
            self._ending = None
        return ending

    def close(self) -> None:
        """Stop fetching, wait for copies, and leave the buffers; may be called again after an interrupt."""
        self.is_running = False
        self._ending = QueueClosed("the epoch was closed")
        if self._begun is not None:
            self._begun.arrays = None
            self._begun = None
        # Fetching stops even while a graph is captured, because that calls no device.
        self._is_whole = self.fetch.close()
        self.finish()

    def finish(self) -> None:
        """Wait for copies in progress, take every slot back, and leave the buffers if they are complete.

        If this thread captures a graph, do this later: waiting for a copy would end the capture.
        """
        for lane in self._copying_lanes:
            with contextlib.suppress(LoaderError):  # the device has failed; waiting for copies will say so
                if lane.begin(drains=False)[0] is not None:
                    postponed.append(self)
                    return
        if self.buffers.process != os.getpid():
            return  # the copies run in the parent
        group, self._group = self._group, []
        self._flying.append(group)
        while self._flying:
            for lane, batch in zip(self._lanes, self._flying.popleft(), strict=False):
                lane.discard(batch)
        if self.kernels is not None:
            self.kernels.finish()
        for lane in self._lanes:
            lane.close()
        self._ring.drain()
        # A reader that is still in the user's code may write to a slot at any time, so its slots are not
        # reused. A slot that did not come back would be missing forever.
        if self._is_whole and self._ring.rearm():
            self.idle.append(self.buffers)


postponed: deque[Epoch] = deque()
"""Closed epochs whose copies in progress the next epoch of any loader waits for."""


def finish_postponed() -> None:
    """Wait for the copies of epochs that were closed when waiting would have ended a capture."""
    for _ in range(len(postponed)):
        with contextlib.suppress(IndexError, LoaderError):  # taken by another thread; the device has failed
            postponed.popleft().finish()


# Compiling kernels ahead of a loader's first batches, while these are being fetched.

_LONGEST_COMPILATION = 60.0  # seconds to wait for one kernel, which takes less than one


class KernelsAhead:
    """Compiles the kernels of a loader's first program, in a thread that ends with the first step.

    Later programs launch the same kernels, with few exceptions. Launching waits for a kernel that is being
    compiled, and compiles any other. So launching raises the errors, and failures here are ignored.
    """

    # The first sample shows which kernels are needed. Compiling one takes 60 to 290 ms if no earlier process
    # has left it in CuPy's cache; meanwhile the rest of the first batch is fetched. The thread ends before
    # the first step is delivered, so it takes no core from the user's code.

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = dict.fromkeys(devices)  # several places may share a device
        self._process = os.getpid()
        self._beginning = threading.Lock()
        self._has_begun = False
        self._stop = threading.Event()
        self._thread: StartedThread | None = None

    def begin(self, program: BatchProgram) -> None:
        """Begin to compile what a program launches; only the first call does. Any thread may call it."""
        with self._beginning:
            # A forked worker plans the same programs but must not touch CUDA.
            if self._has_begun or os.getpid() != self._process:
                return
            self._has_begun = True
            with contextlib.suppress(LoaderError):  # the system cannot start another thread
                self._thread = start_thread("gpuloader-compiler", self._compile, program)

    def _compile(self, program: BatchProgram) -> None:
        for device in self._devices:
            with contextlib.suppress(Exception):  # launching raises it
                device.compile(program, self._stop.is_set)

    def finish(self) -> None:
        """Stop compiling ahead; wait for the kernel that is being compiled, though not indefinitely."""
        with self._beginning:
            self._has_begun = True
            thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:
            self._stop.set()
            # Not if this is that thread itself, which may have collected an epoch as garbage.
            thread.join(_LONGEST_COMPILATION)
