"""Threads of this package: how they start, and for which loader a thread reads."""

from __future__ import annotations

import atexit
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from gpuloader.errors import LoaderError

# Ctrl-C at moments when it would cut a message or a start in two, and in processes that it is not meant for.


def take_signals() -> None:
    """Ignore SIGINT and reset SIGTERM; worker and reader processes call this first."""
    # A terminal also sends SIGINT to the loader, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # `blocked_interrupts` has blocked it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # A forked worker inherits the user's handler, which might not end the worker.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_main_thread() -> bool:
    """Return whether the calling thread is the main one."""
    # Arrow reads remote files in threads of its own. If one called `current_thread`, `threading.enumerate()`
    # would list a dummy for it from then on.
    return threading.get_ident() == threading.main_thread().ident


@contextmanager
def blocked_interrupts() -> Iterator[None]:
    """Start a process with SIGINT blocked, so that Ctrl-C cannot end it before it has chosen to ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with deferred_interrupt():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Delay the handler of SIGINT to the end of the block; a second interrupt is handled immediately."""
    # Blocking the signal in this thread is not enough: another thread would receive it, and Python would then
    # run the handler in the main thread.
    handler = signal.getsignal(signal.SIGINT)
    if not is_main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def defer(number: int, frame: FrameType | None) -> None:
        if came:
            handler(number, frame)
        came.append((number, frame))

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


# The end of the interpreter: what is closed first, and how threads that are still in a loop end.

_exiting = False
_closers: list[Callable[[], object]] = []
_last: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Call a function when the interpreter exits, before worker processes are ended.

    >>> at_exit(lambda: None)
    """
    _closers.append(function)


def at_last(function: Callable[[], object]) -> None:
    """Call a function when the interpreter exits, after those of `at_exit` and of other modules.

    >>> at_last(lambda: None)
    """
    _last.append(function)


def exit_first() -> None:
    """Make the functions of `at_exit` run before those that others have registered with `atexit` so far."""
    # `multiprocessing` ends its own processes at exit, and a thread that is still in a loop may use them.
    atexit.unregister(_exit)
    atexit.register(_exit)


def end_if_exiting() -> None:
    """End the calling thread if the interpreter is exiting; do nothing in the main thread or before.

    >>> end_if_exiting()
    """
    # A daemon thread may loop over a loader until the interpreter is gone, but workers and descriptors go
    # first. `SystemExit` ends the thread without a traceback, and without making its loop look complete.
    if _exiting and not is_main_thread():
        raise SystemExit


def _exit() -> None:
    global _exiting
    _exiting = True
    for function in _closers:
        function()


def _exit_last() -> None:
    for function in _last:
        function()


atexit.register(_exit_last)
exit_first()


# The most seconds that one call waits: the system's calls accept no more than 24 days.
LONGEST_WAIT = 1e6


class _ThisThread(threading.local):
    reads_for: object = None


# `this_thread.reads_for` is the token of the loader that the calling thread reads for, or None.
#
# Code that reads for a loader sets and restores it, so that no dataset reads its own loader, forever.
this_thread = _ThisThread()


@dataclass(frozen=True, slots=True)
class StartedThread:
    """A thread of this package, which does not become garbage together with its holder."""

    # The standard library keeps all threads in a weak set and removes them in Python code. A Ctrl-C that
    # arrives while a thread is collected with the epoch that started it would be lost there. So this refers
    # to the thread weakly; while it runs, the thread keeps itself alive.
    _thread: weakref.ref[threading.Thread]

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, at most `timeout` seconds; return whether it has.

        Called in the thread itself, this does not wait, and returns False.
        """
        thread = self._thread()
        if thread is None:
            return True
        if thread.ident != threading.get_ident():
            thread.join(timeout)
        return not thread.is_alive()


def start_thread(name: str, target: Callable[..., object], *arguments: object) -> StartedThread:
    """Start and return a daemon thread that reads for the same loader as the calling thread, if any.

    Raises
    ------
    LoaderError
        The system cannot start another thread.

    >>> _ = start_thread("gpuloader-example", print, "started").join()
    started
    """
    owner = this_thread.reads_for

    def run(*arguments: object) -> None:
        this_thread.reads_for = owner
        target(*arguments)

    thread = threading.Thread(target=target if owner is None else run, name=name, args=arguments, daemon=True)
    try:
        # A Ctrl-C within `start` may turn into a RuntimeError about a lock.
        with deferred_interrupt():
            thread.start()
    except RuntimeError as error:
        raise LoaderError(
            f"the thread {name} could not be started ({error}), and {threading.active_count()} are running; "
            "use fewer workers, or raise the limit of processes (ulimit -u, or that of the container)"
        ) from error
    return StartedThread(weakref.ref(thread))
