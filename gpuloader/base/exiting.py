"""The end of the interpreter: what is closed first, and how threads that still loop over a loader end."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

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
    """Make the functions of `at_exit` precede those that other modules have registered with `atexit` so far.

    `multiprocessing` ends its children at exit. A thread that still loops over a loader would see them die.
    """
    atexit.unregister(_exit)
    atexit.register(_exit)


def end_if_exiting() -> None:
    """End the calling thread if the interpreter exits; do nothing in the main thread, or before.

    A daemon thread may loop over a loader until the interpreter has gone, but workers and descriptors go
    first. A thread ends by `SystemExit` without a traceback, and a loop cut short does not seem to be over.

    >>> end_if_exiting()
    """
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
