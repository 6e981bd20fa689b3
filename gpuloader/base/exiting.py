"""The end of the interpreter: what is closed first, and how threads that still loop over a loader end."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable

_exiting = False
_deciding = threading.Lock()
_closers: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Call a function when the interpreter exits, before worker processes are ended.

    >>> at_exit(lambda: None)
    """
    _closers.append(function)


def close_descriptor(descriptor: int | None, close: Callable[[int], None] = os.close) -> None:
    """Close a file descriptor, if there is one, for a finalizer; an error has nobody to be raised to.

    Module globals may be None when the interpreter tears its modules down. So this function's `close` is a
    default argument, and finalizers keep the function itself as one.

    Parameters
    ----------
    descriptor : int or None
        None and negative numbers stand for no descriptor.

    Examples
    --------
    >>> close_descriptor(-1)
    """
    try:
        if descriptor is not None and descriptor >= 0:
            close(descriptor)
    except OSError:
        pass


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


# Finalizers register themselves with the first one, and those of workers end the workers.
weakref.finalize(_exit, int)
exit_first()
