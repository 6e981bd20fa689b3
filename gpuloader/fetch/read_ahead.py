"""Reading ahead without workers: in a thread where that pays, and in the consumer's own thread elsewhere."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import NoReturn

from gpuloader.base.errors import LoaderError, QueueClosed
from gpuloader.collate.stream import StagedBatch
from gpuloader.fetch.failures import interrupted
from gpuloader.staging.ring import Ring
from gpuloader.watch.pace import LONG, PAYS, Pace

CLOSING_TIME = 1.0
"""Seconds that `close` waits for the user's code to return before it leaves the thread to end by itself."""

STRETCH = 8 << 20
"""Bytes of slots within which short batches are read in longer bursts than the queue's capacity."""

_PATIENCE = 200_000  # nanoseconds that the consumer waits for several short batches instead of one


class _Relay:
    """What the consumer and its reading thread share; it does not refer to the loader, which may be dropped.

    Whoever holds `turn` reads. The other fields change under `mutex`, except that the ends of `items` and the
    flags may be looked at without it: a look that is out of date costs a wake-up or a second look.
    """

    def __init__(self, batches: Iterator[StagedBatch], ring: Ring, capacity: int, pace: Pace) -> None:
        self.batches = batches
        self.ring = ring
        self.capacity = capacity
        self.pace = pace
        self.items: deque[StagedBatch] = deque()
        self.turn = threading.Lock()
        self.mutex = threading.Lock()
        self.ending: BaseException | None = None
        self.closed = self.paused = False
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
        """Whether the reader has to wait."""
        return len(self.items) >= self.room_for

    def read(self) -> bool:
        """Read one batch in the reading thread, which holds `turn`; return False at the end."""
        begun = perf_counter_ns()
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
        self.pace.note_read(ended - begun)
        # While the consumer waits for short batches, several are read for one wake-up. Without a free slot,
        # the next read might wait for the consumer.
        if self.consumer_waits and (
            ended - begun >= PAYS
            or ended - self.waiting_since >= _PATIENCE
            or self.is_full
            or not self.ring.free
        ):
            self.wake_consumer()
        return True

    def wake_consumer(self) -> None:
        with self.mutex:
            waits, self.consumer_waits = self.consumer_waits, False
        if waits:
            self.ready.put(None)

    def wake_reader(self) -> None:
        with self.mutex:
            waits, self.reader_waits = self.reader_waits, False
        if waits:
            self.room.put(None)

    def wait_for_news(self) -> None:
        with self.mutex:
            if self.has_news():
                return
            self.waiting_since = perf_counter_ns()
            self.consumer_waits = True
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
        with self.mutex:
            if self.closed or not (self.is_full or self.paused):
                return
            self.reader_waits = True
        self.wake_consumer()
        self.room.get()

    def drop(self) -> None:
        """Close the source and return all slots; called with `turn`, by the last one to read."""
        try:
            if isinstance(self.batches, Generator):
                self.batches.close()
        except BaseException as error:
            self.ending = self.ending or error
        while self.items:
            self.ring.release(self.items.popleft().slot)


def _run(relay: _Relay) -> None:
    """Read until the end, or until the consumer closes: the main function of the reading thread."""
    while True:
        with relay.turn:
            if relay.closed or relay.ending is not None or not (relay.is_full or relay.read()):
                break
        if relay.is_full or relay.paused:
            relay.wait_for_room()
    with relay.turn:
        if relay.closed:
            relay.drop()
    relay.wake_consumer()


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
        pace: Pace,
        *,
        bound: bool,
        eager: bool = False,
    ) -> None:
        self._relay = _Relay(batches, ring, capacity, pace)
        self._relay.paused = not (bound or pace.threaded)
        self._pace = pace
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._reads = not (bound and pace.threaded)  # whether this thread may read
        self._switches = not bound
        self._eager = eager
        self._left = 0
        self._read = 0
        if not self._reads:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=_run, args=(self._relay,), name="gpuloader-reader", daemon=True
        )
        self._thread.start()

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
        relay = self._relay
        if self._left:
            self._choose(self._pace.note_step(perf_counter_ns() - self._left, self._read))
        self._read = 0
        while True:
            if relay.items:
                staged = relay.items.popleft()
                if relay.reader_waits and not relay.paused and self._is_room_enough():
                    relay.wake_reader()
                break
            if relay.ending is not None:
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
        return staged

    def _is_room_enough(self) -> bool:
        """Return whether to wake the reader, which waits for room: for several short batches, or one long."""
        relay, read = self._relay, self._pace.read
        return not 0 < read < PAYS or len(relay.items) <= relay.room_for >> 1

    def _raise_ending(self) -> NoReturn:
        # The traceback refers to this object and to the frames of the loop, so keeping it would be a cycle.
        ending, self._relay.ending = self._relay.ending, QueueClosed("the epoch is over")
        try:
            raise ending or QueueClosed("the epoch is over")
        finally:
            del ending

    def _read_here(self) -> StagedBatch | None:
        """Read a batch in this thread, which holds `turn`; None if there is one already, or no more."""
        relay = self._relay
        begun = perf_counter_ns()
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
        self._read = perf_counter_ns() - begun
        # The first read includes the reservation of memory, and nothing is known about steps yet.
        enough = PAYS if self._left else LONG
        if self._switches and not relay.paused and (self._thread is not None or self._read >= enough):
            self._resume()
        return staged

    def _choose(self, threaded: bool) -> None:
        if self._switches:
            self._relay.paused = not threaded

    def _resume(self) -> None:
        """Make the thread read the next batch."""
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
        may_read = self._eager and self._reads and not relay.turn.locked()
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
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING_TIME)
        if self._thread.is_alive():
            return False  # it returns the slots when the user's code returns
        relay.drop()  # the thread may have ended before
        return True
