"""Reader decorators that read in threads or processes.

`buffered` reads ahead and `xmap_readers` maps in parallel, both in threads. `multiprocess_reader` runs each
reader in its own process.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuloader.checks import check_count, check_integer
from gpuloader.errors import LoaderError, ReaderError, WorkerError, in_a_fork
from gpuloader.sources.readers.decorators import Reader, check_reader, iterate
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.threads import deferred_interrupt, exit_first, start_thread, take_signals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from gpuloader.system.processes import ChildHandle


# Threads. Items pass through `queue.SimpleQueue`, and so do permits: a thread that may be only n items ahead
# takes one permit per item, and the consumer returns it. `threading.Semaphore` would be the usual choice, but
# its lock is not reentrant. If a consumer drops its iterator, the garbage collector closes it, in any thread
# and between any two bytecodes, even those of the reading thread inside `acquire`. Closing returns a permit
# to wake that thread, and would then wait for itself. SimpleQueue is written in C and documents that a
# finalizer may call its `put`.

_LAST: Any = object()
_UNLIMITED = 2**31  # more items than anybody reads ahead


class _Failure(NamedTuple):
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
    count = 0
    try:
        source = iterate(reader)
        try:
            while all(permit.take() for permit in permits) and (item := next(source, _LAST)) is not _LAST:
                results.put((count, item) if number else item)
                count += 1
        finally:
            # Closed here, because only the thread that runs a generator may close it.
            if isinstance(source, Generator):
                source.close()
    except BaseException as error:
        results.put((count, _Failure(error)) if number else _Failure(error))
    results.put(_LAST)


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
            while (item := _take(items, process)) is not _LAST:
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
            items.put(_LAST)  # the workers need not wait for a reader that does not respond

        stop = Finalizer(close)
        try:
            start_thread("gpuloader-xmap-reader", _read, reader, [between, waiting], items, True)
            for _ in range(workers):
                start_thread("gpuloader-xmap-worker", _map_all, mapper, items, waiting, results)
                running += 1
            while running:
                result = _take(results, process)
                if result is _LAST:
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
        while (item := items.get()) is not _LAST and not waiting.is_closed:
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
    items.put(_LAST)  # for the next worker
    results.put(_LAST)


# Processes, which send items through a pipe. `multiprocessing` is slow to import, so it is imported by the
# first read, not along with this package.

_ITEM, _END, _ERROR = 0, 1, 2
_MOST_AHEAD = 2**31 - 1  # the largest count of a semaphore
_GRACE_S = 1.0


def multiprocess_reader(readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000) -> Reader:  # noqa: ARG001
    """Run each reader in its own process and yield their items in turn, one of each until it ends.

    So the order of the items is always the same. A reader may itself be a `multiprocess_reader`.

    The processes are forked if the system can, because most readers are closures, which do not pickle. A
    forked reader must not use CUDA. The processes end with the iteration that started them, and with their
    parent, however it dies.

    Parameters
    ----------
    readers : list of callable
        The readers; each gets one process.
    use_pipe : bool
        Accepted for compatibility with Paddle and ignored: items always travel through a pipe, in turn.
    queue_size : int
        The number of items that a process may be ahead of the consumer.

    Raises
    ------
    ReaderError
        There is no reader, or one of them is not a function without arguments.
    ValueError
        The queue size is not an integer of 1 or more.
    WorkerError
        Raised while reading: a process died. The message names the process and the signal.
    LoaderError
        Raised while reading: an item or an exception cannot be pickled, or this is a fork of the process that
        began to read.
    BaseException
        Raised while reading: an exception of a reader, with the traceback of its process in a note.

    Examples
    --------
    >>> list(multiprocess_reader([lambda: [1, 2, 3], lambda: [10]])())
    [1, 10, 2, 3]
    """
    sources = [check_reader(reader) for reader in readers]
    if not sources:
        raise ReaderError("multiprocess_reader needs at least one reader, got an empty list")
    ahead = min(check_count("queue_size", queue_size), _MOST_AHEAD)

    def read() -> Iterator[Any]:
        processes: list[_ReaderProcess] = []
        stop = Finalizer(partial(_stop, processes))
        try:
            for source in sources:
                with deferred_interrupt():  # nobody would end a process that is not recorded
                    processes.append(_ReaderProcess.start(source, ahead))
            yield from _take_turns(processes)
        except GeneratorExit:  # dropped or closed: `stop` goes as well, and a Ctrl-C meanwhile is not lost
            raise
        except BaseException:
            stop()
            raise

    return read


@dataclass(slots=True, eq=False, repr=False)
class _ReaderProcess:
    """A process, our end of its pipe, and how many more items it may send."""

    child: ChildHandle
    pipe: Connection
    room: Any
    owner: int

    @classmethod
    def start(cls, reader: Reader, ahead: int) -> _ReaderProcess:
        import multiprocessing

        from gpuloader.system.processes import linking, start_child, starting

        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        exit_first()  # before what `multiprocessing` has registered, which ends things a reader may use
        try:
            with starting(), linking(context.Pipe(duplex=False)) as (pipe, theirs):
                room = context.Semaphore(ahead)
                child = start_child(method, "gpuloader-reader-process", _work, reader, theirs, room)
        except OSError as error:
            raise LoaderError(
                f"a process for a reader could not be started ({error}): the system has no more processes, "
                "descriptors or memory, or /dev/shm is full; free some, or read in a thread, with buffered "
                "or use_multiprocess=False"
            ) from error
        return cls(child, pipe, room, os.getpid())

    def close(self) -> None:
        from gpuloader.system.processes import close_link

        self.child.end()
        close_link(self.pipe)

    def receive(self) -> tuple[int, Any, str]:
        try:
            message = self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self.death() from None
        try:
            found: tuple[int, Any, str] = pickle.loads(message)
            return found
        except Exception as error:
            raise LoaderError(
                f"an item from reader process {self.child.pid} cannot be unpickled "
                f"({type(error).__name__}: {error}); yield arrays, numbers, strings or lists of them"
            ) from error

    def failure(self) -> BaseException:
        """Return the exception that the reader raised after its items, or else the death of the process."""
        from gpuloader.system.processes import wait_for_any

        with suppress(WorkerError):
            while wait_for_any([self.pipe], 0):  # a child of the process may hold the pipe open
                kind, payload, trace = self.receive()
                if kind == _ERROR:
                    return _noted(payload, trace)
        return self.death()

    def death(self) -> WorkerError:
        from gpuloader.system.processes import describe_death

        cause, signal = describe_death(self.child.exit_code(_GRACE_S))
        problem = f"reader process {self.child.pid} {cause} before its reader ended"
        return WorkerError(problem, pid=self.child.pid, signal=signal)


def _stop(processes: list[_ReaderProcess]) -> None:
    with deferred_interrupt():  # an interrupt during `Connection.close` would leave the descriptor open
        ours = [one for one in processes if one.owner == os.getpid()]  # a fork has only copies
        for one in ours:  # kill all first, so that they end at the same time
            one.child.kill()
        for one in ours:
            one.close()


def _take_turns(processes: list[_ReaderProcess]) -> Iterator[Any]:
    pending = deque(processes)
    while pending:
        current = pending[0]
        if current.owner != os.getpid():  # reading here would take the items from the owner
            raise in_a_fork("the reader's processes")
        _await(current, pending)
        kind, payload, trace = current.receive()
        if kind == _ITEM:
            current.room.release()
            pending.rotate(-1)
            yield payload
        elif kind == _END:
            pending.popleft()
        else:
            raise _noted(payload, trace)


def _await(current: _ReaderProcess, pending: Iterable[_ReaderProcess]) -> None:
    """Wait until a process has sent something; meanwhile, raise the error of any process that fails."""
    from gpuloader.system.processes import wait_for_any

    alive = {one.child.sentinel: one for one in pending}
    while not wait_for_any([current.pipe], 0):  # first deliver what the process sent before it died
        ready = wait_for_any([current.pipe, *alive], None)
        if current.pipe in ready:
            return
        for one in [alive.pop(sentinel) for sentinel in list(alive) if sentinel in ready]:
            if one.child.exit_code(0) or (one is current and not wait_for_any([current.pipe], 0)):
                raise one.failure()


def _noted(error: BaseException, trace: str) -> BaseException:
    error.add_note(f"gpuloader: raised in a reader process\n{trace}")
    return error


def _work(reader: Reader, pipe: Connection, room: Any) -> None:
    from gpuloader.system.processes import die_with_parent, flush_output, portable

    take_signals()
    try:
        die_with_parent()
        _send_all(iterate(reader), pipe, room)
        last: tuple[int, Any, str] = (_END, None, "")
    except BaseException as error:
        import traceback  # imported late: most readers do not fail

        last = (_ERROR, portable(error), traceback.format_exc())
    flush_output()  # now, because the parent kills this process after the last message
    with suppress(OSError):  # the parent may be gone
        pipe.send(last)
    pipe.close()
    if last[0] == _ERROR:
        sys.exit(1)  # so that the parent notices while it waits for another reader


def _send_all(items: Iterator[Any], pipe: Connection, room: Any) -> None:
    for number in itertools.count():
        room.acquire()
        item = next(items, _LAST)
        if item is _LAST:
            return
        try:
            message = pickle.dumps((_ITEM, item, ""), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise LoaderError(
                f"item {number} of a reader in a process cannot be pickled "
                f"({type(error).__name__}: {error}); yield arrays, numbers, strings or lists of them"
            ) from None
        pipe.send_bytes(message)
