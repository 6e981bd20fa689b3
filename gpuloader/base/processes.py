"""The life of a process that works for this one: its start, its death, and that it never outlives us."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import warnings
import weakref
from contextlib import AbstractContextManager
from typing import Any

from gpuloader.base.errors import LoaderError, describe_error
from gpuloader.base.platforms import after_fork, open_process

_starting = threading.Lock()


def starting() -> AbstractContextManager[Any]:
    """Return what to hold while a process starts: one start at a time.

    A child forked by another thread meanwhile would inherit this child's end of the pipe and hide its
    death; and the filters of `warnings`, changed while forking, belong to all threads.
    """
    return _starting


_started: weakref.WeakSet[Any] = weakref.WeakSet()


def _begin_as_child() -> None:
    """Have a process that was just forked not wait for its parent's locks, nor end its parent's children."""
    global _starting
    _starting = threading.Lock()  # a child is forked while the lock is held
    # What `multiprocessing` takes for children of ours, it ends when this process ends.
    children: set[Any] = getattr(sys.modules.get("multiprocessing.process"), "_children", set())
    for process in list(_started):
        children.discard(process)


after_fork(_begin_as_child)


def start_process(process: Any) -> None:
    """Start a process of `multiprocessing`, forked or not; `starting()` must be held."""
    with warnings.catch_warnings():
        # Python warns of forking beside threads because the child may need a lock that one of them holds.
        # The children here run what they were given alone and take no lock of the parent's.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    _started.add(process)


def close_process(process: Any) -> None:
    """Wait for a process that ends, and free what `multiprocessing` holds for it."""
    process.join()
    # Another thread, which starts a process, may have waited for it just now and not yet have noted that.
    with contextlib.suppress(ValueError):
        process.close()


def open_sentinel(process: Any) -> int:
    """Return a descriptor that is ready once the process is dead, whoever inherited its pipes.

    It is the process's own ``sentinel`` where the system has nothing better; otherwise the caller's to close.
    """
    descriptor = open_process(process.pid)
    return int(process.sentinel) if descriptor is None else descriptor


def describe_death(code: int | None) -> tuple[str, int | None]:
    """Return in words how a process with this exit code ended, and the signal that ended it.

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
    """End this process, whatever it does, as soon as the one that asked for it is dead."""
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    # The parent's own sentinel is a pipe that processes forked later inherit, and so may outlive it.
    sentinel = open_sentinel(parent)

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def portable(error: BaseException) -> BaseException:
    """Return the exception, or one that says the same where it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LoaderError(describe_error(error))
    return error
