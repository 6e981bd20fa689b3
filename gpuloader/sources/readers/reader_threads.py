"""Reader decorators that start threads: `buffered` reads ahead, `xmap_readers` maps in parallel."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from gpuloader.checks import check_count, check_integer
from gpuloader.errors import QueueClosed
from gpuloader.sources.readers.decorators import Reader, check_reader, iterate
from gpuloader.staging.queue import BatchQueue, pump
from gpuloader.system.processes import start_thread

_UNLIMITED = 2**31  # more items than anyone reads ahead


def buffered(reader: Reader, size: int) -> Reader:
    """Read up to `size` items ahead, in a thread; a size of 0 or less sets no limit.

    The thread ends with the iteration that started it. The consumer gets an exception of the reader after
    the items before it. Items may be of any type, including None and arrays.

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
        room: BatchQueue[None] = BatchQueue(capacity)
        queue: BatchQueue[Any] = BatchQueue(capacity)
        try:
            start_thread("gpuloader-buffered", pump, lambda: _admitted(reader, room), queue)
            for item in queue:
                room.get()
                yield item
        finally:
            room.close()
            queue.close()

    return read_ahead


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception on its way to the consumer, in order among the results."""

    error: BaseException


_Numbered = tuple[int, Any]


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: Reader,
    process_num: int,
    buffer_size: int,
    order: bool = False,
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
        window: BatchQueue[None] = BatchQueue(2 * size + workers)
        items: BatchQueue[_Numbered] = BatchQueue(size)
        results: BatchQueue[_Numbered] = BatchQueue(2 * size + workers, producers=workers)
        try:
            start_thread("gpuloader-xmap-reader", pump, lambda: _number(reader, window), items)
            for _ in range(workers):
                start_thread("gpuloader-xmap-worker", _map_all, mapper, items, results)
            for result in _in_order(results) if order else results:
                if isinstance(result[1], _Failure):
                    raise result[1].error
                window.get()
                yield result[1]
        finally:
            for queue in (window, items, results):
                queue.close()

    return mapped


def _as_capacity(name: str, size: object) -> int:
    """Return the capacity of a queue, as Paddle's queues have it: 0 or less is unlimited."""
    capacity = check_integer(name, size)
    return capacity if capacity > 0 else _UNLIMITED


def _admitted(reader: Reader, room: BatchQueue[None]) -> Generator[Any, None, None]:
    """Yield the reader's items, requesting each only when there is room for it."""
    source = iterate(reader)
    try:
        while True:
            try:
                room.put(None)
            except QueueClosed:
                return
            try:
                item = next(source)
            except StopIteration:
                return
            yield item
    finally:
        if isinstance(source, Generator):
            source.close()


def _number(reader: Reader, window: BatchQueue[None]) -> Iterator[_Numbered]:
    """Number the items; an exception of the reader becomes the last one."""
    number = 0
    try:
        with closing(_admitted(reader, window)) as items:
            for item in items:
                yield number, item
                number += 1
    except Exception as error:
        yield number, _Failure(error)


def _map_all(
    mapper: Callable[[Any], Any], items: BatchQueue[_Numbered], results: BatchQueue[_Numbered]
) -> None:
    try:
        for number, item in items:
            if isinstance(item, _Failure):
                results.put((number, item))
                continue
            try:
                result = mapper(item)
            except Exception as error:
                result = _Failure(error)
            results.put((number, result))
    except QueueClosed:
        return
    except BaseException as error:
        results.finish(error)
        return
    results.finish()


def _in_order(results: BatchQueue[_Numbered]) -> Iterator[_Numbered]:
    early: dict[int, _Numbered] = {}
    following = 0
    for result in results:
        early[result[0]] = result
        while following in early:
            yield early.pop(following)
            following += 1
