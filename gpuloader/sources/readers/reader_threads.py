"""Reader decorators that start threads: `buffered` reads ahead, `xmap_readers` maps in parallel.

Items pass through `queue.SimpleQueue`, and so do permits: a thread that may be only n items ahead takes one
permit per item, and the consumer returns it. `threading.Semaphore` would be the usual choice, but its lock is
not reentrant. If a consumer drops its iterator, the garbage collector closes it, in any thread and between
any two bytecodes, even those of the reading thread inside ``acquire``. Closing returns a permit to wake that
thread, and would then wait for itself. SimpleQueue is written in C and documents that a finalizer may call
its ``put``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from gpuloader.checks import check_count, check_integer
from gpuloader.errors import in_a_fork
from gpuloader.sources.readers.decorators import Reader, check_reader, iterate
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.threads import start_thread

_END: Any = object()
_UNLIMITED = 2**31  # more items than anybody reads ahead


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception on its way to the consumer, in sequence with the items."""

    error: BaseException


class _Permits:
    """How many items one thread may take before others give permits back.

    One thread takes; any thread may give and close. After `close`, `take` returns False, even if it waits.
    """

    def __init__(self, count: int) -> None:
        self._free = count  # may be 2**31, so the first ones are counted instead of queued
        self._returned: SimpleQueue[bool] = SimpleQueue()
        self.is_closed = False

    def take(self) -> bool:
        if self.is_closed:
            return False
        if self._free:
            self._free -= 1
            return True
        return self._returned.get() and not self.is_closed

    def give(self) -> None:
        self._returned.put(True)

    def close(self) -> None:
        self.is_closed = True
        self._returned.put(False)


def _read(reader: Reader, permits: list[_Permits], results: SimpleQueue[Any], number: bool) -> None:
    """Read items into a queue, each once all permits allow it; the main function of a thread."""
    count, source = 0, None
    try:
        source = iterate(reader)
        while all(permit.take() for permit in permits):
            item = next(source, _END)
            if item is _END:
                break
            results.put((count, item) if number else item)
            count += 1
    except BaseException as error:
        results.put((count, _Failure(error)) if number else _Failure(error))
    try:
        # Closed here, because only the thread that runs a generator may close it.
        if isinstance(source, Generator):
            source.close()
    except BaseException as error:
        results.put((count, _Failure(error)) if number else _Failure(error))
    results.put(_END)


def _take(results: SimpleQueue[Any], process: int) -> Any:
    """Wait for and return the next item of a queue; raise the other side's exceptions."""
    if os.getpid() != process and results.empty():
        raise in_a_fork("the threads that read")
    item = results.get()
    if isinstance(item, _Failure):
        raise item.error
    return item


def buffered(reader: Reader, size: int) -> Reader:
    """Read up to `size` items ahead, in a thread; a size of 0 or less sets no limit.

    The thread ends with the iteration that started it. The consumer gets an exception of the reader after the
    items before it. Items may be of any type, including None and arrays.

    Raises
    ------
    ValueError
        The size is not an integer.

    Examples
    --------
    >>> list(buffered(lambda: range(4), size=2)())
    [0, 1, 2, 3]
    """
    check_reader(reader)
    capacity = _as_capacity("size", size)

    def read_ahead() -> Iterator[Any]:
        yield from start_reading(reader, capacity)

    return read_ahead


def start_reading(reader: Reader, capacity: int) -> Iterator[Any]:
    """Start a thread that reads up to `capacity` items ahead, and return an iterator over the items."""
    permits, items, process = _Permits(capacity), SimpleQueue[Any](), os.getpid()
    stop = Finalizer(permits.close)
    start_thread("gpuloader-buffered", _read, reader, [permits], items, False)

    def consume(stop: Finalizer) -> Iterator[Any]:
        try:
            while (item := _take(items, process)) is not _END:
                permits.give()
                yield item
        except GeneratorExit:  # dropped or closed: `stop` goes as well, and a Ctrl-C meanwhile is not lost
            raise
        except BaseException:
            stop()
            raise

    return consume(stop)


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Reader:
    """Map items with several threads.

    Parameters
    ----------
    mapper : callable
        The function to call with each item, in a worker thread.
    reader : callable
        A reader of items, which has its own thread.
    process_num : int
        The number of worker threads; the name is Paddle's.
    buffer_size : int
        The number of items that may wait for the workers, and of results that may wait for the consumer. At
        most ``2 * buffer_size + process_num`` items are between reader and consumer, with either `order`. A
        size of 0 or less sets no limit.
    order : bool
        True keeps the order of the items. False yields results as they are ready.

    Raises
    ------
    ValueError
        `process_num` is not an integer of 1 or more, or `buffer_size` is not an integer.

    Examples
    --------
    >>> list(xmap_readers(lambda n: n * n, lambda: range(4), process_num=2, buffer_size=4, order=True)())
    [0, 1, 4, 9]
    """
    check_reader(reader)
    workers = check_count("process_num", process_num)
    size = _as_capacity("buffer_size", buffer_size)

    def mapped() -> Iterator[Any]:
        # Each permit of `between` allows one item between reader and consumer. Without it, results that
        # follow a slow one would pile up in `early` when the order is kept.
        waiting, between, process = _Permits(size), _Permits(2 * size + workers), os.getpid()
        items, results = SimpleQueue[Any](), SimpleQueue[Any]()
        early: dict[int, Any] = {}
        following = running = 0

        def close() -> None:
            waiting.close()
            between.close()
            items.put(_END)  # the workers need not wait for a reader that does not respond

        stop = Finalizer(close)
        try:
            start_thread("gpuloader-xmap-reader", _read, reader, [between, waiting], items, True)
            for _ in range(workers):
                start_thread("gpuloader-xmap-worker", _map_all, mapper, items, waiting, results)
                running += 1
            while running:
                result = _take(results, process)
                if result is _END:
                    running -= 1
                    continue
                number, value = result
                early[number if order else following] = value
                while following in early:
                    value = early.pop(following)
                    following += 1
                    if isinstance(value, _Failure):
                        raise value.error
                    between.give()
                    yield value
        except GeneratorExit:  # as above
            raise
        except BaseException:
            stop()
            raise

    return mapped


def _as_capacity(name: str, size: object) -> int:
    """Return the capacity of a queue by Paddle's rule: 0 or less means unlimited."""
    capacity = check_integer(name, size)
    return capacity if capacity > 0 else _UNLIMITED


def _map_all(
    mapper: Callable[[Any], Any], items: SimpleQueue[Any], waiting: _Permits, results: SimpleQueue[Any]
) -> None:
    """Map items until they end; the main function of a worker thread."""
    try:
        while (item := items.get()) is not _END and not waiting.is_closed:
            waiting.give()
            number, value = item
            if not isinstance(value, _Failure):
                try:
                    value = mapper(value)
                except Exception as error:
                    value = _Failure(error)
            results.put((number, value))
    except BaseException as error:
        results.put(_Failure(error))  # not in its order, because the program is to end
    items.put(_END)  # for the next worker
    results.put(_END)
