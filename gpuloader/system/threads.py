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

# Ctrl-C at moments when it would cut a message or a start in two, and in processes that are not meant.


def take_signals() -> None:
    """Ignore SIGINT and reset SIGTERM; a worker process or a reader process calls this first."""
    # A terminal sends SIGINT to the loader too, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # `blocked_interrupts` blocked it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # A forked worker inherits the user's handler, which might not end it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
    # Blocking the signal in this thread is not enough: another thread receives it, and Python then runs the
    # handler in the main thread.
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
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


# The end of the interpreter: what is closed first, and how threads that still loop over a loader end.

_exiting = False
_closers: list[Callable[[], object]] = []
_last: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Call a function when the interpreter exits, before worker processes are ended.

    >>> at_exit(lambda: None)
    """
    _closers.append(function)


def at_last(function: Callable[[], object]) -> None:
    """Call a function when the interpreter exits, after those of `at_exit` and those of other modules.

    >>> at_last(lambda: None)
    """
    _last.append(function)


def exit_first() -> None:
    """Make the functions of `at_exit` precede those that others have registered with `atexit` so far."""
    # `multiprocessing` ends its own processes at exit, which a thread that still loops over a loader may use.
    atexit.unregister(_exit)
    atexit.register(_exit)


def end_if_exiting() -> None:
    """End the calling thread if the interpreter exits; do nothing in the main thread, or before.

    >>> end_if_exiting()
    """
    # A daemon thread may loop over a loader until the interpreter has gone, but workers and descriptors go
    # first. A thread ends by `SystemExit` without a traceback, and a loop cut short does not seem to be over.
    if _exiting and threading.current_thread() is not threading.main_thread():
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


# Seconds that one call waits at most: the system's calls take no more than 24 days.
LONGEST_WAIT = 1e6


class _ThisThread(threading.local):
    reads_for: object = None


# `this_thread.reads_for` is the token of the loader that the calling thread reads for, or None.
#
# Whoever reads for a loader sets it and restores it, so that no loader is read by its own dataset, forever.
this_thread = _ThisThread()


@dataclass(frozen=True, slots=True)
class StartedThread:
    """A thread of this package, which does not belong to the garbage when its holder does."""

    # The standard library keeps all threads in a weak set, which removes them in Python code. A Ctrl-C
    # that arrives while a thread is collected with the epoch that has started it would be lost there. So
    # this refers to the thread weakly; as long as it runs, it keeps itself.
    _thread: weakref.ref[threading.Thread]

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, at most `timeout` seconds; return whether it has.

        The thread itself does not wait, and counts as running.
        """
        thread = self._thread()
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()


def start_thread(name: str, target: Callable[..., object], *arguments: object) -> StartedThread:
    """Start and return a daemon thread, which reads for the same loader as the calling thread, if any.

    Raises
    ------
    LoaderError
        The system starts no more threads.

    >>> _ = start_thread("gpuloader-example", print, "started").join()
    started
    """
    owner = this_thread.reads_for

    def run(*arguments: object) -> None:
        this_thread.reads_for = owner
        target(*arguments)

    thread = threading.Thread(target=target if owner is None else run, name=name, args=arguments, daemon=True)
    try:
        # A Ctrl-C within `start` may become a RuntimeError about a lock.
        with deferred_interrupt():
            thread.start()
    except RuntimeError as error:
        raise LoaderError(
            f"the thread {name} could not be started ({error}), and {threading.active_count()} are running; "
            "use fewer workers, or raise the limit of processes (ulimit -u, or that of the container)"
        ) from error
    return StartedThread(weakref.ref(thread))
