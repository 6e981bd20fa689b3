"""Child processes: one function starts them, a handle tells of their death, and none outlives its parent.

Imported late, because it imports `multiprocessing`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import stat
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import Any

from gpuloader.errors import LoaderError, describe_error
from gpuloader.system.finalizers import closing_once, once
from gpuloader.system.platforms import after_fork, kill_process, open_process
from gpuloader.system.threads import blocked_interrupts, do_unless_exiting, start_thread

# Starting.

_starting = threading.Lock()


def starting() -> threading.Lock:
    """Return the lock to hold while starting a process, so that only one starts at a time."""
    # If another thread forked a child at the same time, that child would inherit this child's end of the pipe
    # and hide its death. Also, `start_child` changes the `warnings` filters, which all threads share.
    return _starting


def _renew_lock() -> None:
    global _starting
    _starting = threading.Lock()  # the parent held the inherited one while it forked


after_fork(_renew_lock)


class _Owned(BaseProcess):
    """A process that multiprocessing leaves alone in forks of its parent.

    A process that the user's program forks has a copy of the list of children, and would at its exit kill the
    daemons and wait for all, although they are its siblings.
    """

    def __init__(self, **options: Any) -> None:
        self._owner = os.getpid()
        super().__init__(**options)

    @property
    def daemon(self) -> bool:
        # In the process itself, its code may ask what it is.
        return (os.getpid() == self._owner or os.getpid() == self.pid) and super().daemon

    @daemon.setter
    def daemon(self, value: bool) -> None:
        BaseProcess.daemon.fset(self, value)  # type: ignore[attr-defined]

    def join(self, timeout: float | None = None) -> None:
        if os.getpid() == self._owner:
            super().join(timeout)


class OwnedSpawn(_Owned, context.SpawnProcess):
    """Has a name in this module, because a spawned process unpickles its own object."""


if sys.platform != "win32":

    class OwnedFork(_Owned, context.ForkProcess):
        """A forked process."""


def start_child(method: str, name: str, target: Callable[..., object], *arguments: object) -> StartedChild:
    """Start a daemon by 'fork' or 'spawn', and return a handle on it; the caller holds `starting`.

    SIGINT is blocked in the process until it calls `take_signals`, so that a Ctrl-C in a terminal is one
    traceback of the program, and none of its children.

    Raises
    ------
    OSError
        The system starts no more processes.
    """
    if method == "spawn" and os.name == "posix":
        resource_tracker.ensure_running()  # starting it later unblocks SIGINT
    kind = OwnedSpawn if method == "spawn" else OwnedFork
    process = kind(target=target, args=arguments, name=name, daemon=True)
    # multiprocessing refuses to start processes of a daemon, which would not end them. Ours end with their
    # parent: a reader process whose reader is another `multiprocess_reader`, for example. What the parent's
    # own parent knows about it does not change.
    parent = multiprocessing.current_process()
    if parent.daemon:
        parent.daemon = False
    with warnings.catch_warnings():
        # Python warns about forking a multi-threaded process, because the child may need a lock that another
        # thread holds. The children here run only their own target and take no lock of the parent's.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            with blocked_interrupts():
                process.start()
        except OSError as error:
            # If the system refuses to fork, multiprocessing leaves the pipes open that are local to the
            # function that has called `os.fork`.
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if frame.f_globals.get("__name__") == "multiprocessing.popen_fork":
                    for pipe in frame.f_locals.values():
                        if type(pipe) is int and pipe > 2:
                            with contextlib.suppress(OSError):
                                if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                                    os.close(pipe)
            raise
    return StartedChild(process)


# Handles. A child's own sentinel is a pipe, which other children that are forked meanwhile inherit and so
# keep open. A process descriptor becomes ready when the child dies, whoever has inherited what.


class ChildHandle:
    """What a process holds of one of its children.

    Attributes
    ----------
    pid : int
        Its process id.
    sentinel : int
        A descriptor that becomes ready when the process dies.
    """

    def __init__(self, pid: int, sentinel: int, *descriptors: int) -> None:
        self.pid = pid
        self.sentinel = sentinel
        # Noted and closed in one call of C code: between two, a Ctrl-C would make a later call close the
        # descriptors again, which may belong to others by then.
        self._closed: list[bool] = []
        self._close = once(partial(self._closed.append, True), closing_once(*descriptors))

    @property
    def released(self) -> bool:
        """Whether the handle is closed."""
        return bool(self._closed)


class StartedChild(ChildHandle):
    """A process that `start_child` has started."""

    def __init__(self, process: Any) -> None:
        self._process = process
        descriptor = open_process(process.pid)
        self._by_descriptor = descriptor is not None
        if descriptor is None:
            super().__init__(process.pid, process.sentinel)
        else:
            super().__init__(process.pid, descriptor, descriptor)

    def exit_code(self, seconds: float) -> int | None:
        """Return the exit code, or None if the process does not end within `seconds`."""
        # Not `join`: it waits for a pipe, and then without a limit for the process, which may only have
        # closed that pipe.
        deadline = monotonic() + seconds
        wait([self.sentinel], seconds)
        code: int | None = self._process.exitcode
        while code is None and not self._by_descriptor and monotonic() < deadline:
            sleep(1e-3)  # the pipe closes a moment before the process has ended
            code = self._process.exitcode
        return code

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if not (self._by_descriptor and kill_process(self.sentinel)) and self._process.is_alive():
            self._process.kill()

    def release(self, *, is_ours: bool) -> None:
        """Close the handle, after waiting for the process if it `is_ours` and not that of a forked parent."""
        if is_ours:
            self._process.join()
            # A thread that is starting another process may have reaped this one and not yet recorded that.
            # At exit, multiprocessing joins all processes that it knows, and fails if one is closed then.
            with contextlib.suppress(ValueError):
                do_unless_exiting(self._process.close)
        self._close()


def wait_for(descriptor: int, seconds: float | None) -> bool:
    """Wait until a descriptor is ready, at most `seconds` long (None: no limit); return whether it is."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = None if seconds is None else monotonic() + max(seconds, 0)
    while True:  # a wait of less than a millisecond is rounded down to none
        left = None if deadline is None else max(deadline - monotonic(), 0) * 1000
        if poll.poll(left):
            return True
        if deadline is not None and monotonic() >= deadline:
            return False


def describe_death(code: int | None) -> tuple[str, int | None]:
    """Return a description of how a process with this exit code ended, and the signal that killed it, if any.

    >>> describe_death(-9)
    ('was ended by signal 9 (SIGKILL)', 9)
    >>> describe_death(3)
    ('exited with code 3', None)
    """
    if code is None:
        return "closed its pipe", None
    if code >= 0:
        return f"exited with code {code}", None
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        name = ""
    return f"was ended by signal {-code}{name}", -code


# In the child.

# The most worker processes within worker processes.
MOST_NESTED = 4

_depth = 0


def next_depth() -> int:
    """Return how deep a worker process of this process would be within other worker processes.

    Raises
    ------
    LoaderError
        Too deep: probably each worker's dataset makes a loader of the same dataset.
    """
    if _depth >= MOST_NESTED:
        raise LoaderError(
            f"worker processes are nested {MOST_NESTED} deep: the dataset of each one begins an epoch of a "
            "loader with workers; use num_workers=0 or worker_type='thread' in the inner loader"
        )
    return _depth + 1


def enter_depth(depth: int) -> None:
    """Note how deep this worker process is."""
    global _depth
    _depth = depth


def die_with_parent() -> None:
    """Make this process exit as soon as the process that requested it dies, whatever it is doing."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    # The parent's own sentinel is a pipe that later forked processes inherit, so it may outlive the parent.
    descriptor = open_process(parent.pid)
    sentinel = int(parent.sentinel) if descriptor is None else descriptor

    def watch() -> None:
        wait([sentinel])
        os._exit(1)  # at once: the other threads may hang in the user's code

    start_thread("gpuloader-watch-parent", watch)


def portable(error: BaseException) -> BaseException:
    """Return the exception itself, or a `LoaderError` with the same message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LoaderError(describe_error(error))
    return error
