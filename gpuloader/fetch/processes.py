"""Worker processes as the loader sees them: how they start, what they were told, how they end."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import socket
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from time import monotonic
from typing import Any

from gpuloader.errors import LoaderError, StagingMemoryError
from gpuloader.fetch import worker
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.shipping import Parcel, Unshippable, pack
from gpuloader.fetch.wire import Board, Kind, Message, pair, send
from gpuloader.fetch.worker import Setup
from gpuloader.sources.processes import open_sentinel, start_process, starting
from gpuloader.staging.arena import Arena
from gpuloader.staging.ring import Slot

GRACE = 1.0
"""Seconds a worker has to end by itself once its link is closed; then it is killed."""

_links: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_links() -> None:
    for link in list(_links):
        link.close()


# A forked child that kept our end of a link would hide our death from the worker at the other end.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_links)


@dataclass(frozen=True, slots=True)
class Start:
    """How worker processes come by what they need.

    Attributes
    ----------
    method : str
        'fork', 'forkserver' or 'spawn'.
    setup : Setup
        For forked ones, which simply have it.
    parcel : Parcel or None
        For the others.
    """

    method: str
    setup: Setup
    parcel: Parcel | None


def choose_start(setup: Setup, method: str | None) -> Start:
    """Return how workers start: as asked, or as suits the data set.

    Without a wish, a fork server does it, which has NumPy and this package loaded and no thread or lock of
    the user's program; a data set that cannot be pickled, or is so many Python objects that unpickling
    copies in each worker would cost more, is forked.

    Raises
    ------
    LoaderError
        The data set cannot be pickled, and the method needs that.
    """
    if method == "fork":
        return Start("fork", setup, None)
    try:
        parcel = pack(setup) if method is None else pack(setup, limit=None)
    except StagingMemoryError:
        if method is not None or "fork" not in multiprocessing.get_all_start_methods():
            raise
        return Start("fork", setup, None)  # which needs no second copy of the data set's arrays
    except Unshippable as reason:
        if method is not None or "fork" not in multiprocessing.get_all_start_methods():
            raise LoaderError(
                f"the data set cannot be sent to worker processes: {reason}; make it picklable, or pass "
                "start_method='fork' or worker_type='thread'"
            ) from reason
        return Start("fork", setup, None)
    if parcel.needs_main and method is None:
        # Importing the user's main module in every worker could start the whole program once more.
        parcel.close()
        return Start("fork", setup, None)
    return Start(method or "forkserver", setup, parcel)


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
    """

    def __init__(self, number: int, start: Start, board: Board, descriptor: int) -> None:
        self.number = number
        self.jobs: deque[Job] = deque()
        self.look: tuple[Any, ...] = ()
        self._arenas: set[int] = set()
        context: Any = multiprocessing.get_context(start.method)
        with starting():
            self.link, theirs = pair()
            try:
                self._process = context.Process(
                    target=worker.run,
                    args=(theirs, number, start.setup if start.parcel is None else None),
                    name=f"gpuloader-worker-{number}",
                    daemon=True,
                )
                with _prepared(start):
                    start_process(self._process)
            except BaseException:
                self.link.close()
                raise
            finally:
                theirs.close()
        _links.add(self.link)
        self.pid: int = self._process.pid
        self._owner = os.getpid()
        self.sentinel = open_sentinel(self._process)
        self._finalizer = weakref.finalize(self, _end, self.link, self._process, self.sentinel, self._owner)
        if start.parcel is not None:
            self.send(Message(Kind.SETUP, descriptor=start.parcel.descriptor))
        rows, columns = board.rows.shape
        self.send(Message(Kind.BOARD, a=rows, b=columns, descriptor=descriptor))

    def send(self, message: Message) -> None:
        """Send a message; one to a dead worker is lost, its sentinel says the rest."""
        with contextlib.suppress(OSError):
            send(self.link, message)

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
            self.send(Message(Kind.ARENA, a=number, b=arena.nbytes, descriptor=arena.descriptor))
        return number, slot.address - arena.address, slot.bytes.size

    def exit_code(self, wait: float) -> int | None:
        """Return what it ended with, None if it did not within `wait` seconds."""
        self._process.join(wait)
        code: int | None = self._process.exitcode
        return code

    def part(self) -> None:
        """Close the link: the worker ends once it has done what it is at."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def close(self, deadline: float) -> None:
        """End the process, by force once `deadline` has passed; may be repeated."""
        if not self._finalizer.alive:
            return
        self._process.join(max(deadline - monotonic(), 0))
        self._finalizer()


def _end(link: socket.socket, process: Any, sentinel: int, owner: int) -> None:
    """End a worker for good; in a forked child, which only has copies of it, let go of those."""
    link.close()
    if os.getpid() != owner:
        return
    process.kill()
    process.join()
    if sentinel != process.sentinel:
        os.close(sentinel)
    process.close()


def close_all(workers: list[WorkerProcess]) -> None:
    """End workers: what they are at may take a moment, then they are killed."""
    for one in workers:
        one.part()
    deadline = monotonic() + GRACE
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


@contextmanager
def _prepared(start: Start) -> Iterator[None]:
    """Start a process with this package preloaded, and without the user's main module if it can be."""
    if start.method == "fork" or start.parcel is None or start.parcel.needs_main:
        yield
        return
    if start.method == "forkserver":
        _preload()
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    # What `multiprocessing` imports into the child by these two would be the user's whole program.
    main.__spec__ = None
    if path is not None:
        del main.__file__
    try:
        yield
    finally:
        main.__spec__ = spec
        if path is not None:
            main.__file__ = path


def _preload() -> None:
    server: Any = forkserver._forkserver
    if getattr(server, "_preload_modules", None) == ["__main__"]:  # nobody else's wish
        multiprocessing.set_forkserver_preload(["gpuloader.fetch.worker"])
