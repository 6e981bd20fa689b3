"""Loader's side: one worker process as the loader sees it, from its start to its end."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections import deque
from functools import partial
from time import monotonic
from typing import Any

from gpuloader.errors import LoaderError
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.processes.child import Child, wait_for
from gpuloader.fetch.processes.starting import Start, start_child
from gpuloader.fetch.processes.wire import Board, Kind, Message, send
from gpuloader.staging.arena import Arena
from gpuloader.staging.ring import Slot
from gpuloader.system.finalizers import Finalizer, Living
from gpuloader.system.interrupts import at_last
from gpuloader.system.platforms import after_fork, message_pair
from gpuloader.system.processes import starting

GRACE = 1.0
"""Seconds that a worker has to end by itself after its link closes; then it is killed."""

_known: Living[WorkerProcess] = Living()


def _disown_all() -> None:
    for one in list(_known):
        one.disown()


def _end_all() -> None:
    for one in list(_known):
        one.end()


after_fork(_disown_all)
at_last(_end_all)


class WorkerProcess:
    """A handle on one worker process; creating it starts the process.

    Attributes
    ----------
    number : int
        The worker's number.
    pid : int
        Its process id.
    link : socket
        The loader's end of the link.
    sentinel : int
        A descriptor that becomes ready when the process dies.
    jobs : deque of Job
        The jobs it was sent and has not answered, oldest first.
    look : tuple
        Layout, levels and structure of its last batch; the worker sends them only when they change.
    unsent : deque
        Messages for which the link has no room yet, each with an object to keep alive while it waits.
    deaths : int
        How many workers of this number have died in a row without answering anything.
    """

    def __init__(self, number: int, start: Start, board: Board, descriptor: int) -> None:
        self.number = number
        self.jobs: deque[Job] = deque()
        self.look: tuple[Any, ...] = ()
        self.deaths = 0
        self.unsent: deque[tuple[Message, object]] = deque()
        self._arenas: dict[int, weakref.ref[Arena]] = {}
        self._finalizer = Finalizer()  # at exit, a thread may be about to start the process
        with starting():
            self.link, theirs = message_pair()
            try:
                _known.add(self)
                self._child = start_child(start, number, theirs)
            except BaseException:
                self.link.close()
                raise
            finally:
                theirs.close()
        self.pid = self._child.pid
        self.sentinel = self._child.sentinel
        self._finalizer.watch(partial(_end, self.link, self._child, os.getpid()))
        if start.parcel is not None:
            for one in start.parcel.lists:
                self.send(Message(Kind.LIST, descriptor=one.descriptor))
            self.send(Message(Kind.SETUP, descriptor=start.parcel.descriptor))
        rows, columns = board.rows.shape
        self.send(Message(Kind.BOARD, a=rows, b=columns, descriptor=descriptor))

    def send(self, message: Message, keep: object = None) -> None:
        """Send a message without waiting; one to a dead worker is lost, and its sentinel reports the death.

        If the link is full, the message is sent after the worker has answered others: if both sides waited
        for room, neither would read. `keep` is kept alive until then.

        Raises
        ------
        LoaderError
            Too few descriptors or too little memory to send it.
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
                raise LoaderError(f"could not send a message to worker {self.number}: {error}") from error
        self.unsent.append((message, keep))

    def flush(self) -> None:
        """Send as many waiting messages as the link has room for; raises like `send`."""
        waiting, self.unsent = self.unsent, deque()
        while waiting and not self.unsent:
            self.send(*waiting.popleft())
        self.unsent += waiting

    def show(self, slot: Slot) -> tuple[int, int, int]:
        """Return a slot's arena number, offset and size, after sending the worker the arena if it is new."""
        arena = slot.memory
        assert isinstance(arena, Arena)
        number = arena.number
        if number not in self._arenas:
            for gone in [one for one, shown in self._arenas.items() if shown() is None]:
                del self._arenas[gone]
                self.send(Message(Kind.FORGET, a=gone))
            self._arenas[number] = weakref.ref(arena)
            self.send(Message(Kind.ARENA, a=number, b=arena.nbytes, descriptor=arena.descriptor), arena)
        return number, slot.address - arena.address, slot.bytes.size

    def exit_code(self, wait: float) -> int | None:
        """Return the process's exit code, or None if it does not end within `wait` seconds."""
        return self._child.exit_code(wait)

    def disown(self) -> None:
        """Close this forked process's copy of a link that belongs to its parent."""
        # An open copy would hide the parent's death from the worker.
        self.link.close()

    def part(self) -> None:
        """Shut the link down; the worker ends after its current task."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the process now; `close` still has to follow."""
        self._child.kill()

    def close(self, deadline: float) -> None:
        """Wait for the process to end, and kill it after `deadline`; may be called again."""
        if self.is_closed:
            return
        wait_for(self.sentinel, deadline - monotonic())
        self.end()

    def end(self) -> None:
        """Kill the process, and free all that this object refers to; may be called again."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether `close` has run."""
        return not self._finalizer.alive


def _end(link: socket.socket, child: Child, owner: int) -> None:
    """Kill and reap a worker and close its descriptors; a forked child only closes its copies of them."""
    link.close()
    if child.released:  # a Ctrl-C had cut this short
        return
    is_ours = os.getpid() == owner
    if is_ours:
        child.kill()
    child.release(is_ours=is_ours)


def close_all(workers: list[WorkerProcess], grace: float) -> None:
    """Stop workers; those still at a task after `grace` seconds are killed."""
    for one in workers:
        one.part()
    deadline = monotonic() + grace
    for one in workers:
        one.close(deadline)
