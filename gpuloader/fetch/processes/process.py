"""Worker processes as the loader sees them: what they were told, and how they end."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import socket
import weakref
from collections import deque
from time import monotonic
from typing import Any

from gpuloader.base.errors import LoaderError
from gpuloader.base.platforms import after_fork, kill_process, message_pair
from gpuloader.base.processes import close_process, open_sentinel, start_process, starting
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.processes import worker
from gpuloader.fetch.processes.starting import Start, forget_server, prepared
from gpuloader.fetch.processes.wire import Board, Kind, Message, send
from gpuloader.staging.arena import Arena
from gpuloader.staging.ring import Slot

GRACE = 1.0
"""Seconds a worker has to end by itself once its link is closed; then it is killed."""

_known: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _disown_all() -> None:
    forget_server()
    for one in list(_known):
        one.disown()


after_fork(_disown_all)


class WorkerProcess:
    """One worker process.

    Attributes
    ----------
    number : int
        Of the worker.
    pid : int
        Of its process.
    link : socket
        Our end.
    sentinel : int
        Descriptor that is ready once it is dead.
    jobs : deque of Job
        What it was given and has not answered, oldest first.
    look : tuple
        Layout, levels and structure of its last batch; what it does not repeat.
    unsent : deque
        Messages that its link has no room for yet, and what is to live as long as they wait.
    deaths : int
        How many workers of this number died in a row without an answer to anything.
    """

    def __init__(self, number: int, start: Start, board: Board, descriptor: int) -> None:
        self.number = number
        self.jobs: deque[Job] = deque()
        self.look: tuple[Any, ...] = ()
        self.deaths = 0
        self.unsent: deque[tuple[Message, object]] = deque()
        self._arenas: set[int] = set()
        context: Any = multiprocessing.get_context(start.method)
        with starting():
            self.link, theirs = message_pair()
            try:
                self._process = context.Process(
                    target=worker.run,
                    args=(theirs, number, start.setup if start.parcel is None else None),
                    name=f"gpuloader-worker-{number}",
                    daemon=True,
                )
                _known.add(self)
                with prepared(start):
                    start_process(self._process)
            except BaseException:
                self.link.close()
                raise
            finally:
                theirs.close()
        self.pid: int = self._process.pid
        self._owner = os.getpid()
        self.sentinel = open_sentinel(self._process)
        self._finalizer = weakref.finalize(self, _end, self.link, self._process, self.sentinel, self._owner)
        if start.parcel is not None:
            self.send(Message(Kind.SETUP, descriptor=start.parcel.descriptor))
        rows, columns = board.rows.shape
        self.send(Message(Kind.BOARD, a=rows, b=columns, descriptor=descriptor))

    def send(self, message: Message, keep: object = None) -> None:
        """Send a message without waiting; one to a dead worker is lost, its sentinel says the rest.

        Where the link is full the message follows once the worker has answered others: if both sides waited
        for room, neither would read. `keep` lives as long as the message waits.

        Raises
        ------
        LoaderError
            There are no descriptors or memory left to send it with.
        """
        if not self.unsent:
            try:
                send(self.link, message, socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                pass
            except ConnectionError:
                return
            except OSError as error:
                raise LoaderError(f"worker {self.number} could not be told what to do: {error}") from error
        self.unsent.append((message, keep))

    def flush(self) -> None:
        """Send what there was no room for, as far as there is now; raises as `send`."""
        waiting, self.unsent = self.unsent, deque()
        while waiting and not self.unsent:
            self.send(*waiting.popleft())
        self.unsent += waiting

    def show(self, slot: Slot) -> tuple[int, int, int]:
        """Return arena, offset and size by which the worker finds a slot; tell it of the arena first."""
        arena = slot.memory
        assert isinstance(arena, Arena)
        number = number_arena(arena)
        if number not in self._arenas:
            for gone in [one for one in self._arenas if one not in _living]:
                self._arenas.remove(gone)
                self.send(Message(Kind.FORGET, a=gone))
            self._arenas.add(number)
            self.send(Message(Kind.ARENA, a=number, b=arena.nbytes, descriptor=arena.descriptor), arena)
        return number, slot.address - arena.address, slot.bytes.size

    def exit_code(self, wait: float) -> int | None:
        """Return what it ended with, None if it did not within `wait` seconds."""
        self._process.join(wait)
        code: int | None = self._process.exitcode
        return code

    def disown(self) -> None:
        """Let go of the worker of another process, from which this one was forked."""
        # Our copy of the link would hide that process's death from the worker.
        self.link.close()

    def part(self) -> None:
        """Close the link: the worker ends once it has done what it is at."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process at once, whatever it is at; `close` does the rest."""
        _kill(self._process, self.sentinel)

    def close(self, deadline: float) -> None:
        """End the process, by force once `deadline` has passed; may be repeated."""
        if self.is_closed:
            return
        self._process.join(max(deadline - monotonic(), 0))
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether the process was ended from here."""
        return not self._finalizer.alive


def _end(link: socket.socket, process: Any, sentinel: int, owner: int) -> None:
    """End a worker for good; in a forked child, which only has copies of it, let go of those."""
    link.close()
    is_ours = os.getpid() == owner
    if is_ours:
        _kill(process, sentinel)
    if sentinel != process.sentinel:
        os.close(sentinel)
    if is_ours:
        close_process(process)


def _kill(process: Any, sentinel: int) -> None:
    if sentinel != process.sentinel and kill_process(sentinel):
        return
    if process.is_alive():
        process.kill()


def close_all(workers: list[WorkerProcess], grace: float) -> None:
    """End workers: what they are at may take so many seconds, then they are killed."""
    for one in workers:
        one.part()
    deadline = monotonic() + grace
    for one in workers:
        one.close(deadline)


_arena_numbers = itertools.count()
_numbered: weakref.WeakKeyDictionary[Arena, int] = weakref.WeakKeyDictionary()
_living: set[int] = set()


def number_arena(arena: Arena) -> int:
    """Return the number by which worker processes know an arena."""
    number = _numbered.get(arena)
    if number is None:
        number = _numbered[arena] = next(_arena_numbers)
        _living.add(number)
        weakref.finalize(arena, _living.discard, number).atexit = False
    return number
