"""Ctrl-C at moments when it would cut a message or a start in two, and in processes that are not meant."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def take_signals() -> None:
    """Ignore SIGINT, which a terminal sends to the loader too, so that it ends its workers; reset SIGTERM.

    A worker process or a reader process calls this first.
    """
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
    """Delay the handler of SIGINT to the end of the block; a second interrupt is handled at once.

    Blocking the signal in this thread is not enough: another thread receives it, and Python then runs the
    handler in the main thread.
    """
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
