"""Fetching in one reader thread, which reads and stages while the consumer computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gpuloader.base.errors import LoaderError
from gpuloader.collate.stream import StagedBatch
from gpuloader.staging.queue import BatchQueue, pump
from gpuloader.staging.ring import Ring

CLOSING_TIME = 1.0
"""Seconds that `close` waits for the user's code to return before it leaves the thread to end by itself."""


class ThreadFetch:
    """A daemon thread that fills slots, and the queue it puts them into.

    The thread waits while the queue is full. After `close` it stops at its next batch, closes the user's
    reader and returns every slot. A reader that blocks forever cannot be stopped from outside: its thread
    stays, harmless, until the reader returns or the process ends.

    Parameters
    ----------
    batches : iterator of StagedBatch
        The iterator that the thread runs.
    ring : Ring
        The source of the slots.
    capacity : int
        The number of staged batches that the queue holds.
    """

    def __init__(self, batches: Iterator[StagedBatch], ring: Ring, capacity: int) -> None:
        self._ring = ring
        self._queue: BatchQueue[StagedBatch] = BatchQueue(capacity)
        # The thread must not refer to the loader, which may be garbage-collected while the thread waits.
        self._thread = threading.Thread(
            target=pump,
            args=(lambda: batches, self._queue, lambda staged: ring.release(staged.slot)),
            name="gpuloader-reader",
            daemon=True,
        )
        self._thread.start()

    def get(self) -> StagedBatch:
        """Wait for the next staged batch and return it.

        Raises
        ------
        QueueClosed
            The epoch is over.
        LoaderError
            This process was forked from the one the thread runs in, so no batch would ever arrive.
        """
        if self._queue.is_empty() and self._is_gone():
            raise LoaderError(
                "the loader's reader thread does not exist in this forked process; start a new epoch here, "
                "or create the loader after the fork"
            )
        return self._queue.get()

    def _is_gone(self) -> bool:
        # A thread puts the end-of-epoch entry before it ends, so check the queue again after the thread.
        return not self._thread.is_alive() and self._queue.is_empty()

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, or None if `get` would wait; for one consumer at a time."""
        # Checked first, so that a `queue.Empty` raised here can only come from the user's reader.
        return None if self._queue.is_empty() else self._queue.get()

    def close(self) -> bool:
        """Stop the thread; return False if the reader did not return in time and the thread stays."""
        self._ring.interrupt()
        for staged in self._queue.close():
            self._ring.release(staged.slot)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING_TIME)
        return not self._thread.is_alive()
