"""A bounded queue between who fetches and who consumes: closeable from both ends, carrying errors."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, Full, SimpleQueue
from typing import Generic, TypeVar

from gpuloader.base.errors import QueueClosed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a `BatchQueue`.

    Attributes
    ----------
    capacity : int
        Items the queue holds before `put` waits.
    queued : int
        Items in the queue now.
    closed : bool
        Whether the consumer has gone.
    """

    capacity: int
    queued: int
    closed: bool


class _End:
    """What lies behind the last item."""


_END = _End()


class BatchQueue(Generic[T]):
    """A bounded queue with two ends: producers `put` then `finish`, the consumer `get`s and may `close`.

    The first `capacity` items are put freely; every later `put` takes a credit that a `get` left behind. So
    no more than `capacity` items are ever queued, the two unbounded C queues underneath bound each other,
    and no Python-level lock is held while a thread waits.

    Any thread may call any method. When full, `put` waits; when empty, `get` waits. After `finish(error)`
    the consumer receives every item put before, then `error` (or `QueueClosed` without one), on that call
    and every later one. After `close()` every waiting or later `put` raises `QueueClosed`. An item may
    slip in while `close` runs: a producer whose items own something calls `close` too as its last act and
    disposes of what it returns.

    Parameters
    ----------
    capacity : int
        Items held at most, 1 or more.
    producers : int
        How often `finish()` must be called without an error before the stream ends.

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
        self._items: SimpleQueue[T | _End] = SimpleQueue()
        self._credits: SimpleQueue[bool] = SimpleQueue()
        self._puts = itertools.count()  # its next() is one step of C, so producers need no lock to share it
        # Reentrant: a finalizer that runs inside `finish` may call `close` on this very queue.
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
        """Add an item, or raise `queue.Full` at once where `put` would wait."""
        try:
            credit = next(self._puts) < self._capacity or self._credits.get_nowait()
        except Empty:
            raise Full from None
        self._put(item, credit)

    def _put(self, item: T, credit: bool) -> None:
        if not credit or self._closed:
            self._credits.put(False)  # the next producer in line must wake up too
            raise QueueClosed("the consumer has closed the queue")
        self._items.put(item)

    def finish(self, error: BaseException | None = None) -> None:
        """Say that this producer puts nothing more; an `error` ends the stream for all producers at once."""
        with self._lock:
            self._producers -= 1
            if error is not None and self._error is None:
                self._error = error
            if error is not None or self._producers == 0:
                self._items.put(_END)

    def get(self) -> T:
        """Take the oldest item, waiting while the queue is empty.

        Raises
        ------
        QueueClosed
            Every producer has finished and the queue is empty, or the queue was closed.
        BaseException
            The error a producer finished with.
        """
        return self._take(self._items.get())

    def get_nowait(self) -> T:
        """Take the oldest item, or raise `queue.Empty` at once where `get` would wait."""
        return self._take(self._items.get_nowait())

    def _take(self, item: T | _End) -> T:
        if isinstance(item, _End):
            self._items.put(item)  # whoever asks again meets the end again
            if self._error is not None and not self._closed:
                raise self._error
            raise QueueClosed("no producer will put anything more")
        self._credits.put(True)
        return item

    def is_empty(self) -> bool:
        """Return whether `get` would wait now; another consumer may change that at any time."""
        return self._items.empty()

    def close(self) -> list[T]:
        """Refuse all further items, wake every waiting producer, return what was queued; may be repeated."""
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
        """Return a snapshot: capacity, items queued, closed or not."""
        return QueueStatistics(self._capacity, min(self._items.qsize(), self._capacity), self._closed)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self.get()
        except QueueClosed:
            raise StopIteration from None


def pump(
    open_items: Callable[[], Iterator[T]],
    queue: BatchQueue[T],
    dispose: Callable[[T], object] = lambda _: None,
) -> None:
    """Put every item into the queue, then finish it: the whole life of a thread that reads.

    Whatever `open_items` or its iterator raises becomes the error of the queue. When the consumer
    closes the queue the iterator is closed, if it can be, in this thread, and `dispose` is called with
    every item that nobody will get.
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
