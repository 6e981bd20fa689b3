"""A bounded queue between producers and a consumer: both ends can close it, and it carries errors."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, Full, SimpleQueue
from typing import Generic, TypeVar

from gpuloader.errors import LoaderError, QueueClosed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a `BatchQueue`.

    Attributes
    ----------
    capacity : int
        Number of items the queue holds before `put` waits.
    queued : int
        Number of items in the queue now.
    closed : bool
        Whether the consumer has closed the queue.
    """

    capacity: int
    queued: int
    closed: bool


class _End:
    """The marker that follows the last item."""


_END = _End()


class BatchQueue(Generic[T]):
    """A bounded queue: producers call `put`, then `finish`; the consumer calls `get` and may call `close`.

    The first `capacity` items need no credit; every later `put` takes a credit left by a `get`. So at most
    `capacity` items are ever queued, the two unbounded C queues underneath bound each other, and no thread
    holds a Python-level lock while it waits.

    Any thread may call any method. `put` waits while the queue is full, `get` while it is empty. After
    `finish(error)` the consumer receives all earlier items; then `get` raises `error` (or `QueueClosed`
    without one), on that and every later call. After `close()`, every waiting or later `put` raises
    `QueueClosed`. An item may slip in while `close` runs. A producer whose items own resources therefore
    calls `close` itself at the end and disposes of the items it returns.

    Parameters
    ----------
    capacity : int
        Maximum number of items, 1 or more.
    producers : int
        Number of `finish()` calls without an error that end the stream.

    Examples
    --------
    >>> queue = BatchQueue(capacity=2)
    >>> queue.put("a"); queue.put("b"); queue.finish()
    >>> list(queue)
    ['a', 'b']
    """

    def __init__(self, capacity: int, producers: int = 1) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more, got {capacity}")
        self._capacity = capacity
        self._producers = producers
        self._process = os.getpid()
        self._items: SimpleQueue[T | _End] = SimpleQueue()
        self._credits: SimpleQueue[bool] = SimpleQueue()
        self._puts = itertools.count()  # next() is atomic, being C code, so producers share it without a lock
        # Reentrant: a finalizer that runs inside `finish` may call methods of this queue.
        self._lock = threading.RLock()
        self._error: BaseException | None = None
        self._closed = False

    def put(self, item: T) -> None:
        """Add an item, waiting while the queue is full.

        Raises
        ------
        QueueClosed
            The consumer has closed the queue.
        """
        self._put(item, next(self._puts) < self._capacity or self._credits.get())

    def put_nowait(self, item: T) -> None:
        """Add an item, or raise `queue.Full` instead of waiting."""
        try:
            credit = next(self._puts) < self._capacity or self._credits.get_nowait()
        except Empty:
            raise Full from None
        self._put(item, credit)

    def _put(self, item: T, credit: bool) -> None:
        if not credit or self._closed:
            self._credits.put(False)  # wakes the next waiting producer too
            raise QueueClosed("the consumer has closed the queue")
        self._items.put(item)

    def finish(self, error: BaseException | None = None) -> None:
        """Announce that this producer is done; an `error` ends the stream for all producers immediately."""
        with self._lock:
            self._producers -= 1
            if error is not None and self._error is None:
                self._error = error
            if error is not None or self._producers == 0:
                self._items.put(_END)

    def get(self) -> T:
        """Remove and return the oldest item, waiting while the queue is empty.

        Raises
        ------
        QueueClosed
            Every producer has finished and the queue is empty, or the queue was closed.
        LoaderError
            This process was forked from the producers', so no item would ever arrive.
        BaseException
            The error that a producer passed to `finish`.
        """
        try:
            item = self._items.get_nowait()
        except Empty:
            pass
        else:
            return self._take(item)
        if os.getpid() != self._process:
            raise LoaderError(
                "the threads that read do not exist in this forked process; start a new epoch here"
            )
        return self._take(self._items.get())

    def get_nowait(self) -> T:
        """Remove and return the oldest item, or raise `queue.Empty` instead of waiting."""
        return self._take(self._items.get_nowait())

    def _take(self, item: T | _End) -> T:
        if isinstance(item, _End):
            self._items.put(item)  # every later call must find the end too
            if self._error is not None and not self._closed:
                raise self._error
            raise QueueClosed("every producer has finished")
        self._credits.put(True)
        return item

    def is_empty(self) -> bool:
        """Return whether `get` would wait now; another thread may change that at any time."""
        return self._items.empty()

    def close(self) -> list[T]:
        """Refuse further items, wake all waiting producers and return the queued items; may be repeated."""
        self._closed = True
        left: list[T] = []
        while True:
            try:
                item = self._items.get_nowait()
            except Empty:
                break
            if not isinstance(item, _End):
                left.append(item)
        self._credits.put(False)
        self._items.put(_END)
        return left

    def statistics(self) -> QueueStatistics:
        """Return a snapshot of capacity, queued items and state."""
        return QueueStatistics(self._capacity, min(self._items.qsize(), self._capacity), self._closed)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self.get()
        except QueueClosed as closed:
            if closed is self._error:  # a producer's own, which is no end
                raise
            raise StopIteration from None


def pump(
    open_items: Callable[[], Iterator[T]],
    queue: BatchQueue[T],
    dispose: Callable[[T], object] = lambda _: None,
) -> None:
    """Put every item into the queue, then finish it: the main function of a reader thread.

    An exception of `open_items` or its iterator becomes the error of the queue. If the consumer closes the
    queue, the iterator is closed in this thread (if it has a `close` method), and `dispose` is called with
    every item that nobody will receive.
    """
    error: BaseException | None = None
    items: Iterator[T] | None = None
    try:
        items = open_items()
        for item in items:
            try:
                queue.put(item)
            except QueueClosed:
                dispose(item)
                break
    except BaseException as raised:
        error = raised
    try:
        close = getattr(items, "close", None)
        if callable(close):
            close()
    except BaseException as raised:
        error = error or raised
    queue.finish(error)
    if queue.statistics().closed:
        for item in queue.close():
            dispose(item)
