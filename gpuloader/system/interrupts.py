"""Ctrl-C at moments when it would cut a message or a start in two, and in processes that are not meant."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


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
_deciding = threading.Lock()
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
    # `multiprocessing` ends its children at exit. A thread that still loops over a loader would see them die.
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


def do_unless_exiting(function: Callable[[], object]) -> None:
    """Call a short function, unless the interpreter exits; its exit then begins after the call.

    >>> do_unless_exiting(lambda: print("done"))
    done
    """
    with _deciding:
        if not _exiting:
            function()


def _exit() -> None:
    global _exiting
    with _deciding:
        _exiting = True
    for function in _closers:
        function()


def _exit_last() -> None:
    for function in _last:
        function()


atexit.register(_exit_last)
exit_first()
