"""`multiprocess_reader`: runs each reader in its own process, which sends items through a pipe.

`multiprocessing` is slow to import, so it is imported by the first read, not along with this package.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from gpuloader.checks import check_count
from gpuloader.errors import LoaderError, ReaderError, WorkerError, in_a_fork
from gpuloader.sources.readers.decorators import Reader, check_reader, iterate
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.threads import deferred_interrupt, exit_first, take_signals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from gpuloader.system.processes import ChildHandle


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


@dataclass(frozen=True, slots=True, eq=False)
class _ReaderProcess:
    """A process, our end of its pipe, and how many more items it may send."""

    # When an iterator is dropped in a reference cycle, the garbage collector closes its processes. If they
    # were part of that garbage, their pipe might be finalized first, and `close` would close its descriptor
    # again, which may belong to another file by then. Free-threaded Python finalizes in any order.
    still_open: ClassVar[set[_ReaderProcess]] = set()

    child: ChildHandle
    pipe: Connection
    room: Any
    owner: int

    @classmethod
    def start(cls, reader: Reader, ahead: int) -> _ReaderProcess:
        import multiprocessing

        from gpuloader.system.platforms import close_quietly
        from gpuloader.system.processes import start_child, starting

        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        exit_first()  # before what `multiprocessing` has registered, which ends things a reader may use
        with starting():
            ours = theirs = None
            try:
                ours, theirs = context.Pipe(duplex=False)
                room = context.Semaphore(ahead)
                child = start_child(method, "gpuloader-reader-process", _work, reader, theirs, room)
            except BaseException as error:
                if ours is not None:
                    close_quietly(ours)
                if not isinstance(error, OSError):
                    raise
                raise LoaderError(
                    f"a process for a reader could not be started ({error}): the system has no more "
                    "processes, descriptors or memory, or /dev/shm is full; free some, or read in a thread, "
                    "with buffered or use_multiprocess=False"
                ) from error
            finally:
                if theirs is not None:  # our copy would hide the end of the process
                    close_quietly(theirs)
        started = cls(child, ours, room, os.getpid())
        cls.still_open.add(started)
        return started

    def close(self) -> None:
        from gpuloader.system.platforms import close_quietly

        self.child.end()
        close_quietly(self.pipe)
        self.still_open.discard(self)

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
        return WorkerError(
            f"reader process {self.child.pid} {cause} before its reader ended",
            pid=self.child.pid,
            signal=signal,
        )


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
        try:
            item = next(items)
        except StopIteration:
            return
        try:
            message = pickle.dumps((_ITEM, item, ""), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise LoaderError(
                f"item {number} of a reader in a process cannot be pickled "
                f"({type(error).__name__}: {error}); yield arrays, numbers, strings or lists of them"
            ) from None
        pipe.send_bytes(message)
