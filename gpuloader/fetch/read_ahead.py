"""Fetching without workers: each batch on request, or ahead, in a thread if that helps.

Who reads is one of three modes, which `ReadAheadPolicy` chooses from the times it measures:

                        reading or stepping is short
              +-------------------------------------------------+
              v                                                 |
    INLINE: the consumer reads    -- both are long -->    BESIDE: the thread reads whenever it has room,
    its own batches; the thread,                          while the consumer steps
    if there is one, sleeps                                  |           ^
                                                       short |           | long
                                                             v           |
                                                          TURNS: the thread reads while the consumer waits

A source that any thread may advance goes between INLINE and BESIDE; until the consumer's next batch it may be
in TURNS, because the thread has noticed first. A source that belongs to the thread it was opened in, such as
a generator with a database connection, stays there for the epoch. If that is the thread, it goes between
TURNS and BESIDE; if it is the consumer, there is no thread, and `InlineFetch` only measures the loop.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from types import GeneratorType
from typing import Any

from gpuloader.batches.staged import Reserve, StagedBatch
from gpuloader.errors import QueueClosed, SampleError, in_a_fork
from gpuloader.fetch.contract import CLOSING_TIME, EpochRequest, Fetch, interrupted
from gpuloader.fields.spec import Indices
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.staging import Ring, Slot
from gpuloader.system.threads import StartedThread, deferred_interrupt, start_thread, this_thread
from gpuloader.watch.meter import Meter, mark
from gpuloader.watch.read_ahead_policy import PAYS, ReadAheadPolicy

# Bytes of slots within which short batches are read in longer bursts than the queue's capacity.
STRETCH = 8 << 20

# Bytes of short batches to read per hand-over: few enough to stay in the caches.
_BURST = 2 << 20
# The most nanoseconds that the consumer waits for several short batches instead of one.
_PATIENCE = 1_000_000
# Seconds without a request from the consumer, after which it must be in a long step.
_IDLE = 1e-3


Fetched = StagedBatch | SampleError
"""A batch, or what was raised instead of it, in an epoch that continues after an error of a sample."""


def stage_inline(
    epoch: EpochRequest,
    assemble: Callable[[int, Indices, Reserve], StagedBatch | None],
    ring: Ring,
    meter: Meter,
    close: Callable[[], None] | None = None,
) -> Iterator[Fetched]:
    """Yield every batch of an epoch, fetched and staged in the thread that iterates.

    `assemble` stages a batch, given its number, its indices and a function that reserves a slot; it returns
    None at the end of the data. `close` is called after the last batch, or when the iteration ends early. If
    the epoch continues after an error of a sample, the error takes the place of the batch.

    Raises
    ------
    SampleError
        The dataset raised, or a sample does not fit its field.
    """
    draw = Draw(epoch.seed, epoch.epoch)
    slots: list[Slot] = []  # those of the current batch, until it is handed on

    def reserve(nbytes: int) -> Slot:
        slots.append(ring.acquire(nbytes))
        return slots[-1]

    try:
        for number, indices in epoch.numbered:
            begun = perf_counter_ns()
            # Set for each batch, because loops over other loaders may run in between.
            outer, before = exchange_draw(draw), this_thread.reads_for
            this_thread.reads_for = epoch.owner
            staged: Fetched | None
            try:
                staged = assemble(number, indices, reserve)
            except SampleError as error:
                if not epoch.continues:
                    raise
                staged = error
            finally:
                this_thread.reads_for = before  # first, because a Ctrl-C may come when a function is called
                exchange_draw(outer)
            if staged is None:
                return
            if isinstance(staged, SampleError):
                while slots:
                    ring.release(slots.pop())
                # A variable would keep the error, and so what its traceback refers to, until the next batch.
                failed, staged = [staged], None
                yield failed.pop()
                continue
            slots.clear()
            ended = perf_counter_ns()
            meter.fetched(ended - begun, staged.layout.nbytes, staged.skipped)
            mark("fetch", begun, ended)
            yield staged
    finally:
        for slot in slots:
            ring.release(slot)
        if close is not None:
            close()


@dataclass(eq=False, repr=False)
class InlineFetch:
    """Reads each batch when the consumer asks for it; a `Fetch` without a thread.

    With a `policy`, times the loop, because the next epoch may read in a thread, and reads early for
    `get_nowait` while the `ring` has a free slot.
    """

    batches: Iterator[Fetched]
    ring: Ring | None = None
    policy: ReadAheadPolicy | None = None
    _interrupted: bool = field(default=False, init=False)
    _left: int = field(default=0, init=False)  # when the consumer last left with a batch
    _waited: int = field(default=0, init=False)

    def get(self) -> StagedBatch:
        """Read and stage the next batch; raise `QueueClosed` at the end, or the reader's exception."""
        asked = perf_counter_ns()
        if self._left and self.policy is not None:
            self.policy.note_step(asked - self._left, self._waited, handed=False)
        try:
            staged = next(self.batches, None)  # a Ctrl-C during a StopIteration would show both
        except BaseException as error:
            self._interrupted = not isinstance(error, Exception)
            raise
        if staged is None:  # an interrupt may have ended the generator, and then its rest is lost
            raise interrupted() if self._interrupted else QueueClosed("the reader has no more batches")
        self._left = perf_counter_ns()
        self._waited = self._left - asked
        if isinstance(staged, SampleError):
            try:
                raise staged
            finally:
                del staged  # its traceback refers to this frame, which would keep the epoch alive
        return staged

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, read here, or None if nothing is read ahead, or `get` would wait."""
        # Reading early lets the copy to a device start before the step waits for the device. But without a
        # free slot, this thread would wait for itself.
        if self.policy is None or self.ring is None or (self.ring.allocated and not self.ring.free):
            return None
        return self.get()

    def close(self) -> bool:
        """Close the reader; return False if this is called from within it."""
        if isinstance(self.batches, GeneratorType):
            if self.batches.gi_running:  # as in `_Shared.drop`
                return False
            self.batches.close()
        return True


# Who reads: the consumer, the thread while the consumer waits, or the thread whenever it has room.
#
# A thread costs two wake-ups per batch and contention for the interpreter's lock. With less than about 40 us
# of work to hide, that is more than it gains. In TURNS the two do not compete: the thread reads a burst of
# short batches while the consumer waits, and sleeps while the consumer steps. So TURNS is the mode when there
# is little to hide, or nothing is known yet, and the consumer cannot read by itself.
#
# Even so, the consumer gets each batch from the caches of another core. With batches of 300 kB, TURNS takes
# 1.1 times the processor time of INLINE if both threads share a core, and 1.8 times on two.
INLINE, TURNS, BESIDE = "inline", "in turns", "in parallel"


@dataclass(eq=False, repr=False)
class _Shared:
    """What the consumer and its reading thread share; it does not refer to the loader, which may be dropped.

    The holder of `turn` reads. Only its owner can release it, so the consumer may try to without knowing, as
    after a Ctrl-C. The other fields change under `mutex`, but the ends of `items` and the flags may be read
    without it: an outdated value costs at most a wake-up or a second look.

    Each side sleeps until it gets a permit from the other. It announces its sleep with a note under `mutex`,
    and whoever removes the note gives the permit before. So there is one permit per sleep, and one too many
    after a Ctrl-C, or if it comes just when a sleep has ended by itself. Then a batch is read early:

        awake -- nothing to do, notes `..._sleeps` --> asleep -- note taken, permit --> awake
    """

    batches: Iterator[Fetched]
    ring: Ring
    capacity: int
    policy: ReadAheadPolicy
    mode: str
    items: deque[Fetched] = field(default_factory=deque)
    ending: BaseException | None = None  # what follows the last item
    closed: bool = False
    turn: Any = field(default_factory=threading.RLock)
    thread_reads: bool = False  # whether the thread has the turn
    mutex: threading.Lock = field(default_factory=threading.Lock)
    consumer_sleeps: bool = False
    reader_sleeps: bool = False
    sleeps_since: int = 0
    for_consumer: SimpleQueue[None] = field(default_factory=SimpleQueue)  # permits
    for_reader: SimpleQueue[None] = field(default_factory=SimpleQueue)

    @property
    def must_wait(self) -> bool:
        """Whether the reader has to wait."""
        mode = self.mode
        return (
            mode is INLINE
            or (mode is TURNS and not self.consumer_sleeps)
            or len(self.items) >= self.capacity + self.ring.stretched
        )

    def wake_consumer(self) -> None:
        """Give the consumer a permit if it sleeps."""
        with self.mutex:
            if self.consumer_sleeps:
                self.for_consumer.put(None)
                self.consumer_sleeps = False

    def wake_reader(self) -> None:
        """Give the reader a permit if it sleeps."""
        with self.mutex:
            if self.reader_sleeps:
                self.for_reader.put(None)
                self.reader_sleeps = False

    def wait_for_news(self) -> None:
        """Wait, in the consumer, for a batch or the end, and let the reader read meanwhile."""
        with self.mutex:
            if self.items or self.ending is not None:
                return
            self.sleeps_since = perf_counter_ns()
            self.consumer_sleeps = True
        self.wake_reader()
        with suppress(Empty):
            self.for_consumer.get(timeout=_PATIENCE * 1e-9)
            return
        # A long batch may follow a short one, so the wait ends here if a batch has arrived.
        with self.mutex:
            if self.consumer_sleeps and (self.items or self.ending is not None):
                self.consumer_sleeps = False
                return
        self.for_consumer.get()  # without limit: the thread gives the permit after each batch and at its end

    def wait_for_room(self) -> None:
        """Wait, in the reading thread, until it may read again."""
        with self.mutex:
            if self.closed or not self.must_wait:
                return
            self.reader_sleeps = True
        self.wake_consumer()  # before a sleep, whatever has been read
        if self.mode is not TURNS or self.policy.trying:
            self.for_reader.get()  # without limit: the consumer gives it when it waits, and when it closes
            return
        # In TURNS, the consumer wakes this thread by waiting. If it has not asked for a batch in a long time,
        # its step is a long one, and this thread reads during it.
        count = len(self.items)
        while True:
            is_full = count >= self.capacity + self.ring.stretched
            try:
                self.for_reader.get(timeout=20 * _IDLE if is_full else _IDLE)
                return
            except Empty:
                before, count = count, len(self.items)
            if count == before and count < self.capacity + self.ring.stretched:
                break
        with self.mutex:
            self.policy.mixed |= self.reader_sleeps  # or else it is called just now
            self.reader_sleeps = False

    def drop(self) -> None:
        """Close the source and return all slots; the last one to read calls this, holding `turn`."""
        try:
            # In a fork, the generator may still run, in a thread that the fork does not have. Now and then,
            # CPython 3.11 crashes when a running generator is closed, instead of raising ValueError.
            if isinstance(self.batches, GeneratorType) and not self.batches.gi_running:
                self.batches.close()
        except BaseException as error:
            self.ending = self.ending or error
        while self.items:
            staged = self.items.popleft()
            if not isinstance(staged, SampleError):
                self.ring.release(staged.slot)


def _read_beside(shared: _Shared) -> None:
    """Read until the end, or until the consumer closes: the main function of the reading thread."""
    ring, policy, items = shared.ring, shared.policy, shared.items
    while True:
        with shared.turn:
            shared.thread_reads = True
            if shared.closed or shared.ending is not None:
                break
            room = shared.capacity + ring.stretched
            if len(items) < room:
                changes, begun, reserved_in = policy.changes, perf_counter_ns(), ring.reserved_in
                try:
                    # Straight into the queue: a variable here would keep the batch until the next one.
                    items.append(next(shared.batches))
                except StopIteration:
                    shared.ending = QueueClosed("the reader has no more batches")
                    break
                except BaseException as error:
                    shared.ending = error
                    break
                ended = perf_counter_ns()
                # Growing the ring is not part of reading: it happens a few times.
                policy.note_read(ended - begun - (ring.reserved_in - reserved_in), changes)
                mode = BESIDE if policy.beside else TURNS
                if mode is not shared.mode:
                    with shared.mutex:  # the consumer may have resumed reading by itself
                        if shared.mode is not INLINE:
                            shared.mode = mode
                # While the consumer waits for short batches, several are read per wake-up, because a wake-up
                # costs as much as several of them.
                if shared.consumer_sleeps and (
                    (ended - begun >= PAYS and mode is BESIDE)
                    or ended - shared.sleeps_since >= _PATIENCE
                    or len(items) >= room
                    or (mode is TURNS and len(items) * ring.slot_nbytes >= _BURST)
                    # Without a free slot, the next read might wait for the consumer.
                    or not ring.free
                ):
                    shared.wake_consumer()
        shared.thread_reads = False
        if shared.must_wait:
            shared.wait_for_room()
    with shared.turn:
        if shared.closed:
            shared.drop()
    shared.wake_consumer()


class ReadAhead:
    """Fetches without workers, reading ahead in a thread for as long as that helps.

    If any thread may advance a source, whoever needs the next batch first reads it. So the consumer reads the
    first batch itself, and every batch while the thread sleeps.

    The `policy` belongs to the loader and outlives the epoch. A source that it calls `bound` stays in the
    thread, which opens it.
    """

    def __init__(self, batches: Iterator[Fetched], ring: Ring, ahead: int, policy: ReadAheadPolicy) -> None:
        mode = BESIDE if policy.beside else TURNS if policy.bound else INLINE
        self._shared = _Shared(batches, ring, ahead, policy, mode)
        self._process = os.getpid()
        self._thread: StartedThread | None = None
        self._left = 0  # when the consumer last left with a batch
        self._waited = 0
        self._handed = False  # whether the thread has read that batch
        if policy.bound:
            self._resume()

    def _resume(self) -> None:
        """Make the thread read the next batch, as the mode allows."""
        if self._thread is None:
            with deferred_interrupt():  # nobody would end a thread that is not recorded
                self._thread = start_thread("gpuloader-reader", _read_beside, self._shared)
        elif self._shared.reader_sleeps:
            self._shared.wake_reader()

    def get(self) -> StagedBatch:
        """Return the next staged batch; read it here, or wait for the thread.

        Raises
        ------
        QueueClosed
            The epoch is over.
        LoaderError
            This process was forked from the one the thread runs in, so no batch would ever arrive; or the
            epoch was interrupted in the middle of a batch.
        BaseException
            What the source raised.
        """
        shared, policy, asked = self._shared, self._shared.policy, perf_counter_ns()
        if self._left:
            beside = policy.note_step(asked - self._left, self._waited, self._handed)
            mode = BESIDE if beside else TURNS if policy.bound else INLINE
            if mode is not shared.mode:
                with shared.mutex:
                    shared.mode = mode
        self._handed = True
        # Nobody waits for a thread to start: the consumer reads the first batch itself.
        while True:
            has_ended = shared.ending is not None  # read first, because the end comes after the last batch
            if shared.items:
                staged = shared.items.popleft()
                if shared.reader_sleeps and not shared.must_wait:
                    # A single long batch is worth a wake-up; of short batches, several are.
                    is_long = not 0 < policy.read < PAYS
                    if is_long or len(shared.items) <= (shared.capacity + shared.ring.stretched) >> 1:
                        shared.wake_reader()
                break
            if has_ended:
                # Its traceback refers to this object and the loop's frames, so keeping it would form a cycle.
                ending = shared.ending
                over = ending is None or isinstance(ending, Exception)
                shared.ending = QueueClosed("the epoch is over") if over else interrupted()
                try:
                    raise ending or QueueClosed("the epoch is over")
                finally:
                    del ending
            if not policy.bound and (found := self._read_here()) is not None:
                staged = found
                break
            if self._thread is not None and os.getpid() != self._process and shared.ending is None:
                raise in_a_fork("the loader's reader thread")
            shared.wait_for_news()
        self._left = perf_counter_ns()
        self._waited = self._left - asked
        if isinstance(staged, SampleError):
            try:
                raise staged
            finally:
                del staged  # as above
        return staged

    def _read_here(self) -> Fetched | None:
        """Read a batch here; None if the thread reads, or there is a batch already, or no more."""
        shared, ring, policy = self._shared, self._shared.ring, self._shared.policy
        begun, reserved_in = perf_counter_ns(), ring.reserved_in
        try:
            if not shared.turn.acquire(blocking=False) or shared.items or shared.ending is not None:
                return None
            staged = next(shared.batches, None)  # as above
            if staged is None:
                shared.ending = QueueClosed("the reader has no more batches")
                return None
        except Exception as error:
            shared.ending = error
            return None
        except BaseException:
            shared.ending = interrupted()
            raise
        finally:
            try:  # noqa: SIM105 - a `with` takes longer
                shared.turn.release()
            except RuntimeError:  # the thread has it
                pass
        self._handed = False
        policy.see_early(perf_counter_ns() - begun - (ring.reserved_in - reserved_in))
        if policy.beside:
            with shared.mutex:
                shared.mode = BESIDE
            try:
                self._resume()
            except BaseException:  # a Ctrl-C, while the thread starts
                shared.items.appendleft(staged)
                raise
        return staged

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, which may be read here, or None if `get` would wait."""
        shared = self._shared
        if not (shared.items or shared.ending is not None):
            sleeps = shared.mode is TURNS and shared.reader_sleeps
            if not (sleeps or (not shared.policy.bound and not shared.thread_reads)):
                return None
            # Reading early lets the copy to a device start before the step waits for the device. But without
            # a free slot, this thread would wait for itself.
            if shared.ring.allocated and not shared.ring.free:
                return None
        return self.get()

    def close(self) -> bool:
        """Stop reading and return every slot; return False if the thread did not return in time."""
        shared = self._shared
        shared.closed = True
        if self._thread is None or os.getpid() != self._process:
            shared.drop()
            return True
        shared.ring.interrupt()  # the thread may be waiting for a slot
        with shared.mutex:
            shared.reader_sleeps = False
        shared.for_reader.put(None)
        if not self._thread.join(CLOSING_TIME):
            return False  # the thread returns the slots when the user's code returns
        shared.drop()  # the thread may have ended before
        return True


def open_fetch(batches: Iterator[Fetched], ring: Ring, ahead: int, policy: ReadAheadPolicy | None) -> Fetch:
    """Return what fetches an epoch without workers, up to `ahead` batches ahead if the `policy` says so."""
    if policy is None or (policy.bound and not policy.threaded):
        return InlineFetch(batches, ring, policy)
    return ReadAhead(batches, ring, ahead, policy)
