"""Threads of this package: how they start, and for which loader a thread reads."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from gpuloader.errors import LoaderError

# Ctrl-C at moments when it would cut a message or a start in two, and in processes that it is not meant for.


def take_signals() -> None:
    """Ignore SIGINT and reset SIGTERM; worker and reader processes call this first."""
    # A terminal also sends SIGINT to the loader, which then ends its workers. Not SIG_IGN, because programs
    # that a dataset starts, such as ffmpeg, would inherit it.
    signal.signal(signal.SIGINT, lambda *_: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.siginterrupt(signal.SIGINT, False)  # libraries' reads and writes do not fail, unlike `poll`
        # `blocked_interrupts` has blocked it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # A forked worker inherits the user's handler, which might not end the worker.
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


_NAMES = {"SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2"}  # where the system has them
_DEFERRED: list[int] = [one for one in signal.Signals if one.name in _NAMES]


def _restore(handlers: dict[int, Callable[[int, FrameType | None], object]]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Delay the handler of a signal to the end of the block; a second signal is handled immediately."""
    # Besides Ctrl-C, they may raise for a time limit or to end a job. Blocking the signals in this thread is
    # not enough: another thread would receive them, and Python would then run their handlers in the main one.
    #
    # Not `current_thread`: Arrow reads remote files in threads of its own, and `threading.enumerate()` would
    # list a dummy for each from then on.
    is_main = threading.get_ident() == threading.main_thread().ident
    handlers = {one: old for one in _DEFERRED if is_main and callable(old := signal.getsignal(one))}
    came: list[tuple[int, FrameType | None]] = []
    process = os.getpid()

    def defer(number: int, frame: FrameType | None) -> None:
        if came or process != os.getpid():  # a forked worker inherits this
            handlers[number](number, frame)
        else:
            came.append((number, frame))

    try:
        for number in handlers:
            signal.signal(number, defer)
        yield
    finally:
        try:
            _restore(handlers)
        except BaseException:  # a handler that was back has raised, perhaps before all were
            _restore(handlers)
            raise
        if came:
            handlers[came[0][0]](*came[0])


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
    if _exiting and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def _exit() -> None:
    global _exiting
    _exiting = True
    for function in _closers:
        with suppress(KeyboardInterrupt):  # the program ends anyway, and Python would print a traceback
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


class StartedThread:
    """A thread of this package, which does not become garbage together with its holder."""

    # The standard library keeps all threads in a weak set and removes them in Python code. A Ctrl-C that
    # arrives while a thread is collected with the epoch that started it would be lost there. So this refers
    # to the thread weakly; while it runs, the thread keeps itself alive.
    def __init__(self, thread: threading.Thread) -> None:
        self._thread = weakref.ref(thread)

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
    return StartedThread(thread)
