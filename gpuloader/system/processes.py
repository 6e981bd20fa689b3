"""Start child processes, detect their death, and make sure that they never outlive this process."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gpuloader.errors import LoaderError, describe_error
from gpuloader.system.finalizers import Living
from gpuloader.system.interrupts import blocked_interrupts, do_unless_exiting
from gpuloader.system.platforms import after_fork, open_process
from gpuloader.system.rereading import current_owner, read_for

LONGEST_WAIT = 1e6
"""Seconds that one call waits at most: the system's calls take no more than 24 days."""

_starting = threading.Lock()


def starting() -> AbstractContextManager[Any]:
    """Return the lock to hold while starting a process, so that only one starts at a time.

    If another thread forked a child at the same time, that child would inherit this child's end of the pipe
    and hide its death. Also, `start_process` changes the `warnings` filters, which all threads share.
    """
    return _starting


_started: Living[Any] = Living()


def _begin_as_child() -> None:
    """Prevent a newly forked process from waiting for its parent's lock and from killing its siblings."""
    global _starting
    _starting = threading.Lock()  # the parent holds the inherited one while it forks
    # `multiprocessing` takes them for children of this process and would kill them when it exits.
    children: set[Any] = getattr(sys.modules.get("multiprocessing.process"), "_children", set())
    for process in list(_started):
        children.discard(process)


after_fork(_begin_as_child)


def start_process(process: Any) -> None:
    """Start a `multiprocessing` process with any start method; the caller holds `starting()`.

    SIGINT is blocked in the process until it calls `take_signals`, so that a Ctrl-C in a terminal is one
    traceback of the program, and none of its children.

    Every process started here ends with its parent. So a daemon may start one too, which `multiprocessing`
    would refuse: a reader process whose reader is another `multiprocess_reader`, for example.
    """
    import multiprocessing

    if getattr(process, "_start_method", None) == "spawn":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # starting it unblocks SIGINT
    parent = multiprocessing.current_process()
    if parent.daemon:
        parent.daemon = False  # what its own parent knows about it does not change
    with warnings.catch_warnings():
        # Python warns about forking a multi-threaded process, because the child may need a lock that another
        # thread holds. The children here run only their own target and take no lock of the parent's.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            with blocked_interrupts():
                process.start()
        except OSError as error:
            _close_pipes(error)
            raise
    _started.add(process)


def _close_pipes(error: OSError) -> None:
    """Close the pipes that `multiprocessing` leaves open if the system refuses to fork."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_launch" and frame.f_globals["__name__"] == "multiprocessing.popen_fork":
            for name in ("parent_r", "child_w", "child_r", "parent_w"):
                if name in frame.f_locals:
                    os.close(frame.f_locals[name])


class StartedThread:
    """A thread of this package, which does not belong to the garbage when its holder does.

    The standard library keeps all threads in a weak set, which removes them in Python code. A Ctrl-C that
    arrives while a thread is collected with the epoch that has started it would be lost there. So this refers
    to the thread weakly; as long as it runs, it keeps itself.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = weakref.ref(thread)

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return self._thread() is threading.current_thread()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most `timeout` seconds."""
        thread = self._thread()
        if thread is not None:
            thread.join(timeout)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        thread = self._thread()
        return thread is not None and thread.is_alive()


def start_thread(name: str, target: Callable[..., object], *arguments: object) -> StartedThread:
    """Start and return a daemon thread, which reads for the same loader as the calling thread, if any.

    Raises
    ------
    LoaderError
        The system starts no more threads.

    >>> start_thread("gpuloader-example", print, "started").join()
    started
    """
    thread = threading.Thread(target=_run, args=(current_owner(), target, *arguments), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise LoaderError(
            f"the thread {name} could not be started ({error}), and {threading.active_count()} are running; "
            "use fewer workers, or raise the limit of processes (ulimit -u, or that of the container)"
        ) from error
    return StartedThread(thread)


def _run(owner: object, target: Callable[..., object], *arguments: object) -> None:
    read_for(owner)
    target(*arguments)


def close_process(process: Any) -> None:
    """Wait for a process to exit, and free its `multiprocessing` resources."""
    process.join()
    # A thread that is starting another process may have reaped this one and not yet recorded that. At exit,
    # `multiprocessing` joins all processes that it knows, and fails if one of them is closed meanwhile.
    with contextlib.suppress(ValueError):
        do_unless_exiting(process.close)


def open_sentinel(process: Any) -> int:
    """Return a descriptor that becomes readable when the process dies, whoever inherited its pipes.

    The caller closes it, unless it is the process's own ``sentinel``, the fallback on systems without pidfd.
    """
    descriptor = open_process(process.pid)
    return int(process.sentinel) if descriptor is None else descriptor


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


def die_with_parent() -> None:
    """Make this process exit as soon as the process that requested it dies, whatever it is doing."""
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    # The parent's own sentinel is a pipe that later forked processes inherit, so it may outlive the parent.
    sentinel = open_sentinel(parent)

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    start_thread("gpuloader-watch-parent", watch)


def portable(error: BaseException) -> BaseException:
    """Return the exception itself, or a `LoaderError` with the same message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LoaderError(describe_error(error))
    return error
