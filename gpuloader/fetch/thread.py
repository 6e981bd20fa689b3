"""Fetching in a thread of its own, which reads and stages while the consumer computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gpuloader.collate.stream import StagedBatch
from gpuloader.errors import QueueClosed
from gpuloader.staging.queue import BatchQueue
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
        self._thread = threading.Thread(
            target=_run, args=(batches, ring, self._queue), name="gpuloader-reader", daemon=True
        )
        self._thread.start()
        self.get = self._queue.get
        self.get_nowait = self._queue.get_nowait

    def close(self) -> bool:
        """End the thread; return False if the reader did not come back in time and the thread stays."""
        self._ring.interrupt()
        _give_back(self._queue, self._ring)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING_TIME)
        return not self._thread.is_alive()


def _run(batches: Iterator[StagedBatch], ring: Ring, queue: BatchQueue[StagedBatch]) -> None:
    # No reference to the loader: it must be able to die while this thread waits.
    error: BaseException | None = None
    try:
        for staged in batches:
            try:
                queue.put(staged)
            except QueueClosed:
                ring.release(staged.slot)
                break
    except QueueClosed:
        pass
    except BaseException as raised:
        error = raised
    finally:
        close = getattr(batches, "close", None)
        try:
            if callable(close):
                close()
        except BaseException as raised:
            error = error or raised
        queue.finish(error)
        if queue.statistics().closed:
            _give_back(queue, ring)


def _give_back(queue: BatchQueue[StagedBatch], ring: Ring) -> None:
    for staged in queue.close():
        ring.release(staged.slot)
