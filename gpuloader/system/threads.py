"""Threads of this package: how they start, and for which loader a thread reads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from gpuloader.errors import LoaderError, Misuse

# Seconds that one call waits at most: the system's calls take no more than 24 days.
LONGEST_WAIT = 1e6


class _ThisThread(threading.local):
    reads_for: object = None


# `this_thread.reads_for` is the token of the loader that the calling thread reads for, or None.
#
# Whoever reads for a loader sets it and restores it, so that no loader is read by its own dataset, forever.
this_thread = _ThisThread()


def check_not_reading(owner: object) -> None:
    """Raise `Misuse` if the calling thread reads for this loader, of which it wants to begin an epoch."""
    if this_thread.reads_for is owner:
        raise Misuse(
            "the reader or dataset of a loader began an epoch of the same loader, which would read itself "
            "without end; make another loader for the data that it reads"
        )


class StartedThread:
    """A thread of this package, which does not belong to the garbage when its holder does."""

    def __init__(self, thread: threading.Thread) -> None:
        # The standard library keeps all threads in a weak set, which removes them in Python code. A Ctrl-C
        # that arrives while a thread is collected with the epoch that has started it would be lost there. So
        # this refers to the thread weakly; as long as it runs, it keeps itself.
        self._thread = weakref.ref(thread)

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

    def run() -> None:
        this_thread.reads_for = owner
        target(*arguments)

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise LoaderError(
            f"the thread {name} could not be started ({error}), and {threading.active_count()} are running; "
            "use fewer workers, or raise the limit of processes (ulimit -u, or that of the container)"
        ) from error
    return StartedThread(thread)
