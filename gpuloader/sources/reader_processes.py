"""`multiprocess_reader`: one process a reader, items through a pipe."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from gpuloader.errors import LoaderError, ReaderError, WorkerError
from gpuloader.sources.contract import Reader, check_reader, iterate
from gpuloader.spec import check_count

_ITEM, _END, _ERROR = 0, 1, 2


def multiprocess_reader(readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000) -> Reader:  # noqa: ARG001
    """Run each reader in a process of its own and give their items as they arrive.

    The processes are forked where the system can, since readers are mostly closures, which do not pickle;
    a forked reader must not touch CUDA. They end with the iteration that started them, and with their
    parent, however it dies.

    Parameters
    ----------
    readers : list of callable
        One process each.
    use_pipe : bool
        Taken for Paddle's sake: items travel through a pipe either way.
    queue_size : int
        Items a process may be ahead of the consumer.

    Raises
    ------
    ReaderError
        There is no reader, or one of them is not a function without arguments.
    ValueError
        The queue size is not an integer of 1 or more.
    WorkerError
        While reading: a process was killed; names it and the signal.
    LoaderError
        While reading: an item or an exception cannot be pickled.
    BaseException
        While reading: what a reader raised, with the traceback of its process in a note.

    Examples
    --------
    >>> sorted(multiprocess_reader([lambda: [1, 2], lambda: [3]])())
    [1, 2, 3]
    """
    sources = [check_reader(reader) for reader in readers]
    if not sources:
        raise ReaderError("multiprocess_reader needs one reader or more, got an empty list")
    ahead = check_count("queue_size", queue_size)

    def read() -> Iterator[Any]:
        workers: list[_Worker] = []
        try:
            for source in sources:
                workers.append(_Worker.start(source, ahead))
            yield from _interleave(workers)
        finally:
            for worker in workers:
                worker.stop()

    return read


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process, our end of its pipe, and the count of items it may still send."""

    process: Any
    pipe: Connection
    room: Any

    @classmethod
    def start(cls, reader: Reader, ahead: int) -> _Worker:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("fork" if "fork" in methods else None)
        ours, theirs = context.Pipe(duplex=False)
        room = context.Semaphore(ahead)
        process = context.Process(
            target=_work, args=(reader, theirs, room), name="gpuloader-reader-process", daemon=True
        )
        try:
            with warnings.catch_warnings():
                # Python warns of forking beside threads because the child may need a lock that one of them
                # holds. The child here runs the reader alone and takes no lock of the parent's.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours, room)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()

    def death(self) -> WorkerError:
        self.process.join()
        code = self.process.exitcode
        cause = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return WorkerError(
            f"the reader's process {self.process.pid} {cause} before its reader was done",
            pid=self.process.pid,
            signal=-code if code < 0 else None,
        )


def _interleave(workers: list[_Worker]) -> Iterator[Any]:
    pending = {worker.pipe: worker for worker in workers}
    while pending:
        for ready in wait(list(pending)):
            worker = pending[ready]  # type: ignore[index]
            try:
                kind, payload, trace = worker.pipe.recv()
            except (EOFError, OSError):
                raise worker.death() from None
            if kind == _ITEM:
                worker.room.release()
                yield payload
            elif kind == _END:
                del pending[worker.pipe]
            else:
                payload.add_note(f"gpuloader: raised in a reader's process\n{trace}")
                raise payload


def _work(reader: Reader, pipe: Connection, room: Any) -> None:
    _die_with_parent()
    number = 0
    try:
        for item in iterate(reader):
            room.acquire()
            try:
                message = pickle.dumps((_ITEM, item, ""), pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                raise LoaderError(
                    f"item {number} of a multiprocess reader cannot be pickled "
                    f"({type(error).__name__}: {error}); yield arrays, numbers, strings or lists of them"
                ) from None
            pipe.send_bytes(message)
            number += 1
        pipe.send((_END, None, ""))
    except BaseException as error:
        pipe.send((_ERROR, _portable(error), traceback.format_exc()))
    finally:
        pipe.close()


def _portable(error: BaseException) -> BaseException:
    """Return the exception, or one that says the same where it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LoaderError(f"the reader raised {type(error).__name__}: {error}")
    return error


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
