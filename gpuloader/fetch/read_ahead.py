"""Reading ahead without workers: in a thread where that pays, and in the consumer's own thread elsewhere."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import NoReturn

from gpuloader.batches.stream import StagedBatch
from gpuloader.errors import LoaderError, QueueClosed
from gpuloader.fetch.inline import interrupted
from gpuloader.staging.ring import Ring
from gpuloader.system.processes import StartedThread, start_thread
from gpuloader.watch.read_ahead_policy import PAYS, ReadAheadPolicy

# What a reading thread and its consumer share: staged batches, whose turn it is, and who waits for whom.

_BURST = 2 << 20  # bytes of short batches that are read for one hand-over, so that they stay in the caches
_PATIENCE = 1_000_000  # nanoseconds that the consumer waits for several short batches instead of one
_IDLE = 1e-3  # seconds without a question from the consumer, after which the thread reads beside its step


class Relay:
    """What the consumer and its reading thread share; it does not refer to the loader, which may be dropped.

    Whoever holds `turn` reads. The other fields change under `mutex`, except that the ends of `items` and the
    flags may be looked at without it: a look that is out of date costs a wake-up or a second look.
    """

    def __init__(
        self, batches: Iterator[StagedBatch], ring: Ring, capacity: int, pace: ReadAheadPolicy
    ) -> None:
        self.batches = batches
        self.ring = ring
        self.capacity = capacity
        self.pace = pace
        self.items: deque[StagedBatch] = deque()
        self.turn = threading.Lock()
        self.mutex = threading.Lock()
        self.ending: BaseException | None = None
        self.closed = self.paused = False
        self.alternates = not pace.beside
        self.consumer_waits = self.reader_waits = False
        self.waiting_since = 0
        self.ready: SimpleQueue[None] = SimpleQueue()  # a permit for the consumer, another for the reader
        self.room: SimpleQueue[None] = SimpleQueue()

    def has_news(self) -> bool:
        """Whether the consumer need not wait."""
        return bool(self.items) or self.ending is not None

    @property
    def room_for(self) -> int:
        """The number of batches to read ahead."""
        return self.capacity + self.ring.stretched

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another batch."""
        return len(self.items) >= self.room_for

    @property
    def must_wait(self) -> bool:
        """Whether the reader has to wait."""
        return self.is_full or self.paused or (self.alternates and not self.consumer_waits)

    @property
    def is_burst(self) -> bool:
        """Whether enough short batches have been read for the consumer to be woken."""
        count = len(self.items)
        return count >= self.room_for or (self.alternates and count * self.ring.slot_nbytes >= _BURST)

    def read(self) -> bool:
        """Read one batch in the reading thread, which holds `turn`; return False at the end."""
        changes, begun, reserved_in = self.pace.changes, perf_counter_ns(), self.ring.reserved_in
        try:
            staged = next(self.batches)
        except StopIteration:
            self.ending = QueueClosed("the reader has no more batches")
            return False
        except BaseException as error:
            self.ending = error
            return False
        ended = perf_counter_ns()
        self.items.append(staged)
        self.pace.note_read(ended - begun - (self.ring.reserved_in - reserved_in), changes)
        self.alternates = not self.pace.beside
        # While the consumer waits for short batches, several are read for one wake-up. Without a free slot,
        # the next read might wait for the consumer.
        if self.consumer_waits and (
            (ended - begun >= PAYS and not self.alternates)
            or ended - self.waiting_since >= _PATIENCE
            or self.is_burst
            or not self.ring.free
        ):
            self.wake_consumer()
        return True

    def wake_consumer(self) -> None:
        """Give the consumer a permit, if it waits for news."""
        with self.mutex:
            waits, self.consumer_waits = self.consumer_waits, False
        if waits:
            self.ready.put(None)

    def wake_reader(self) -> None:
        """Give the reader a permit, if it waits."""
        with self.mutex:
            waits, self.reader_waits = self.reader_waits, False
        if waits:
            self.room.put(None)

    def wait_for_news(self) -> None:
        """Wait until a batch or the end has arrived, and let the reader read meanwhile."""
        with self.mutex:
            if self.has_news():
                return
            self.waiting_since = perf_counter_ns()
            self.consumer_waits = True
            reader_waits, self.reader_waits = self.reader_waits, False
        if reader_waits:
            self.room.put(None)
        try:
            self.ready.get(timeout=_PATIENCE * 1e-9)
            return
        except Empty:
            pass
        # The batch after a short one may be a long one, so the wait ends here if a batch has arrived.
        with self.mutex:
            if self.consumer_waits and self.has_news():
                self.consumer_waits = False
                return
        self.ready.get()

    def wait_for_room(self) -> None:
        """Wait, in the reading thread, until it may read again."""
        with self.mutex:
            if self.closed or not self.must_wait:
                return
            self.reader_waits = True
        self.wake_consumer()
        if self.paused or self.pace.trying or not self.alternates:
            self.room.get()
        else:
            self.wait_for_a_long_step()

    def wait_for_a_long_step(self) -> None:
        """Wait until the consumer waits for a batch, or has long not asked for one."""
        count = len(self.items)
        while True:
            try:
                self.room.get(timeout=20 * _IDLE if self.is_full else _IDLE)
                return
            except Empty:
                before, count = count, len(self.items)
            if count == before and not self.is_full:
                break
        with self.mutex:
            is_called, self.reader_waits = not self.reader_waits, False
        if is_called:
            self.room.get()
        else:
            self.pace.mixed = True

    def drop(self) -> None:
        """Close the source and return all slots; called with `turn`, by the last one to read."""
        try:
            if isinstance(self.batches, Generator):
                self.batches.close()
        except BaseException as error:
            self.ending = self.ending or error
        while self.items:
            self.ring.release(self.items.popleft().slot)


def run(relay: Relay) -> None:
    """Read until the end, or until the consumer closes: the main function of the reading thread."""
    while True:
        with relay.turn:
            if relay.closed or relay.ending is not None or not (relay.is_full or relay.read()):
                break
        if relay.must_wait:
            relay.wait_for_room()
    with relay.turn:
        if relay.closed:
            relay.drop()
    relay.wake_consumer()


CLOSING_TIME = 1.0
"""Seconds that `close` waits for the user's code to return before it leaves the thread to end by itself."""

STRETCH = 8 << 20
"""Bytes of slots within which short batches are read in longer bursts than the queue's capacity."""


class ReadAhead:
    """Fetches without workers, reading ahead in a thread for as long as that pays.

    A source that any thread may advance is read by whoever needs the next batch first. So the consumer reads
    the first batch itself, and every batch while the thread is paused. A source that belongs to the thread it
    was opened in, such as a generator with a database connection, is opened by the consumer or by the thread,
    as the pace of the epoch before suggests, and stays there.

    Parameters
    ----------
    batches : iterator of StagedBatch
        What is read.
    ring : Ring
        The source of the slots.
    capacity : int
        The number of staged batches to read ahead; more if they are small, see `Ring.stretched`.
    pace : Pace
        Decides how to read; it belongs to the loader and outlives the epoch.
    bound : bool
        Whether the source stays in the thread that opens it.
    eager : bool
        Whether to read the next batch early in the consumer's thread, so that its copy to a device can start.
    """

    def __init__(
        self,
        batches: Iterator[StagedBatch],
        ring: Ring,
        capacity: int,
        pace: ReadAheadPolicy,
        *,
        bound: bool,
        eager: bool = False,
    ) -> None:
        self._relay = Relay(batches, ring, capacity, pace)
        self._relay.paused = not (bound or pace.beside)
        self._pace = pace
        self._process = os.getpid()
        self._thread: StartedThread | None = None
        self._reads = not (bound and pace.threaded)  # whether this thread may read
        self._switches = not bound
        self._eager = eager
        self._left = 0
        self._waited = 0
        self._handed = False
        if not self._reads:
            self._start()

    def _start(self) -> None:
        self._thread = start_thread("gpuloader-reader", run, self._relay)

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
        relay, asked = self._relay, perf_counter_ns()
        if self._left:
            self._choose(self._pace.note_step(asked - self._left, self._waited, self._handed))
        self._handed = True
        while True:
            has_ended = relay.ending is not None  # asked first, because the end comes after the last batch
            if relay.items:
                staged = relay.items.popleft()
                if relay.reader_waits and not relay.must_wait and self._is_room_enough():
                    relay.wake_reader()
                break
            if has_ended:
                self._raise_ending()
            if self._reads and relay.turn.acquire(blocking=False):
                found = self._read_here()
                if found is None:
                    continue
                staged = found
                break
            self._check_process()
            relay.wait_for_news()
        self._left = perf_counter_ns()
        self._waited = self._left - asked
        return staged

    def _is_room_enough(self) -> bool:
        """Return whether to wake the reader, which waits for room: for several short batches, or one long."""
        relay, read = self._relay, self._pace.read
        return not 0 < read < PAYS or len(relay.items) <= relay.room_for >> 1

    def _raise_ending(self) -> NoReturn:
        # The traceback refers to this object and to the frames of the loop, so keeping it would be a cycle.
        ending = self._relay.ending
        over = ending is None or isinstance(ending, Exception)
        self._relay.ending = QueueClosed("the epoch is over") if over else interrupted()
        try:
            raise ending or QueueClosed("the epoch is over")
        finally:
            del ending

    def _read_here(self) -> StagedBatch | None:
        """Read a batch in this thread, which holds `turn`; None if there is one already, or no more."""
        relay, ring = self._relay, self._relay.ring
        begun, reserved_in = perf_counter_ns(), ring.reserved_in
        try:
            if relay.has_news():
                return None
            staged = next(relay.batches)
        except StopIteration:
            relay.ending = QueueClosed("the reader has no more batches")
            return None
        except Exception as error:
            relay.ending = error
            return None
        except BaseException:
            relay.ending = interrupted()
            raise
        finally:
            relay.turn.release()
        self._handed = False
        self._pace.see_early(perf_counter_ns() - begun - (ring.reserved_in - reserved_in))
        if self._switches and self._pace.beside:
            try:
                self._resume()
            except BaseException:  # a Ctrl-C, while the thread starts
                relay.items.appendleft(staged)
                raise
        return staged

    def _choose(self, beside: bool) -> None:
        """Make the thread, if there is one, read beside the consumer's step or let it wait."""
        relay = self._relay
        relay.alternates = not beside
        if self._switches:
            relay.paused = not beside

    def _resume(self) -> None:
        """Make the thread read the next batch."""
        self._relay.paused = self._relay.alternates = False
        if self._thread is None:
            self._start()
        elif self._relay.reader_waits:
            self._relay.wake_reader()

    def _check_process(self) -> None:
        if self._thread is not None and os.getpid() != self._process and not self._relay.has_news():
            raise LoaderError(
                "the loader's reader thread does not exist in this forked process; start a new epoch here, "
                "or create the loader after the fork"
            )

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, or None if `get` would wait or read; an eager fetch reads it."""
        relay = self._relay
        asleep = relay.alternates and relay.reader_waits and not relay.paused
        may_read = self._eager and (asleep or (self._reads and not relay.turn.locked()))
        # Without a free slot this thread would wait for itself.
        if relay.has_news() or (may_read and (relay.ring.free or not relay.ring.allocated)):
            return self.get()
        return None

    def close(self) -> bool:
        """Stop reading and return every slot; return False if the thread did not return in time."""
        relay = self._relay
        relay.closed = True
        if self._thread is None or os.getpid() != self._process:
            relay.drop()
            return True
        relay.ring.interrupt()
        with relay.mutex:
            relay.reader_waits = False
        relay.room.put(None)
        if not self._thread.is_current:
            self._thread.join(CLOSING_TIME)
        if self._thread.is_alive():
            return False  # it returns the slots when the user's code returns
        relay.drop()  # the thread may have ended before
        return True
