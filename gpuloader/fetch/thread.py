"""Fetching in a thread of its own, which reads and stages while the consumer computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gpuloader.base.errors import LoaderError
from gpuloader.collate.stream import StagedBatch
from gpuloader.staging.queue import BatchQueue, pump
from gpuloader.staging.ring import Ring

CLOSING_TIME = 1.0
"""Seconds `close` gives the user's reader to come back before its thread is left to end by itself."""


class ThreadFetch:
    """A daemon thread that fills slots, and the queue it puts them into.

    When full, the thread waits for room; when the consumer closes, it ends at its next step, closes the
    user's reader and gives every slot back. A reader that never returns from its own waiting cannot be
    stopped from outside: its thread then stays, harmless, until the reader returns or the process ends.

    Parameters
    ----------
    batches : iterator of StagedBatch
        What the thread runs.
    ring : Ring
        Where its slots come from.
    capacity : int
        Staged batches the queue holds.
    """

    def __init__(self, batches: Iterator[StagedBatch], ring: Ring, capacity: int) -> None:
        self._ring = ring
        self._queue: BatchQueue[StagedBatch] = BatchQueue(capacity)
        # Nothing the thread holds refers to the loader, which must be able to die while the thread waits.
        self._thread = threading.Thread(
            target=pump,
            args=(lambda: batches, self._queue, lambda staged: ring.release(staged.slot)),
            name="gpuloader-reader",
            daemon=True,
        )
        self._thread.start()

    def get(self) -> StagedBatch:
        """Return the next staged batch, waiting for it.

        Raises
        ------
        QueueClosed
            The epoch is over.
        LoaderError
            This process was forked from the one the thread runs in, so nothing would ever come.
        """
        if self._queue.is_empty() and self._is_gone():
            raise LoaderError(
                "the loader's reader thread does not exist in this forked process; begin a new epoch here, "
                "or make the loader after the fork"
            )
        return self._queue.get()

    def _is_gone(self) -> bool:
        # A thread that has ended has put the end of the queue before, so an empty one is asked last.
        return not self._thread.is_alive() and self._queue.is_empty()

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, or None where `get` would wait; for one consumer at a time."""
        # Asked first, so that an `Empty` can only be one that the user's reader raised.
        return None if self._queue.is_empty() else self._queue.get()

    def close(self) -> bool:
        """End the thread; return False if the reader did not come back in time and the thread stays."""
        self._ring.interrupt()
        for staged in self._queue.close():
            self._ring.release(staged.slot)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING_TIME)
        return not self._thread.is_alive()
