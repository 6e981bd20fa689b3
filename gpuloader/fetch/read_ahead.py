"""Reading ahead without workers: in a thread where that pays, and in the consumer's own thread elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import perf_counter_ns
from typing import NoReturn

from gpuloader.base.errors import LoaderError, QueueClosed
from gpuloader.base.processes import StartedThread, start_thread
from gpuloader.collate.stream import StagedBatch
from gpuloader.fetch.failures import interrupted
from gpuloader.fetch.relay import Relay, run
from gpuloader.staging.ring import Ring
from gpuloader.watch.pace import PAYS, Pace

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
        pace: Pace,
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
