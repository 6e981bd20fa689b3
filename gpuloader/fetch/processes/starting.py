"""Loader's side: starting worker processes by fork, with the fork server, or by spawn."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from types import FrameType
from typing import Any

from gpuloader.base.errors import LoaderError, StagingMemoryError
from gpuloader.base.platforms import may_fork_unasked
from gpuloader.fetch.processes.setup import Setup
from gpuloader.fetch.processes.shipping import Parcel, Unshippable, pack

_PRELOADED = "gpuloader.fetch.processes.preloaded"


@dataclass(frozen=True, slots=True)
class Start:
    """How worker processes start, and how they get their setup.

    Attributes
    ----------
    method : str
        'fork', 'forkserver' or 'spawn'.
    setup : Setup
        The setup, which forked workers inherit.
    parcel : Parcel or None
        The pickled setup, for workers that are not forked.
    """

    method: str
    setup: Setup
    parcel: Parcel | None


def choose_start(setup: Setup, method: str | None) -> Start:
    """Choose how workers start: by `method`, or if that is None by the dataset.

    The default is a fork server, which has loaded NumPy and this package and has no threads or locks of the
    user's program. Workers are forked instead, if that is safe, when the dataset cannot be pickled, or when
    it holds so many Python objects that unpickling them in every worker would cost more.

    Raises
    ------
    LoaderError
        The dataset cannot be pickled, and the method needs that.
    StagingMemoryError
        There is too little memory for a copy of the dataset's arrays, and forking is not an option.
    """
    if method == "fork":
        return Start("fork", setup, None)
    may_fork = method is None and may_fork_unasked()
    try:
        parcel = pack(setup) if method is None else pack(setup, limit=None)
    except StagingMemoryError:
        if not may_fork:
            raise
        return Start("fork", setup, None)  # forking needs no second copy of the dataset's arrays
    except Unshippable as reason:
        if not may_fork:
            what = str(reason).removeprefix("Setup.").removeprefix("reading.")
            raise LoaderError(
                f"the dataset cannot be sent to worker processes: {what}; make "
                "it picklable, or pass start_method='fork' or worker_type='thread'"
            ) from reason
        return Start("fork", setup, None)
    if parcel.needs_main and may_fork:
        # Importing the main module in every worker could run the whole program again.
        parcel.close()
        return Start("fork", setup, None)
    return Start(method or "forkserver", setup, parcel)


@contextmanager
def prepared(start: Start) -> Iterator[None]:
    """Preload this package for processes started in the block; skip the user's main module if possible."""
    if start.method == "fork" or start.parcel is None or start.parcel.needs_main:
        yield
        return
    if start.method == "forkserver":
        with _uninterrupted(_preload()), without_main():
            yield
    else:
        with without_main():
            yield


@contextmanager
def _uninterrupted(loads_ours: bool) -> Iterator[None]:
    """Start the fork server with SIGINT blocked, if it preloads our modules; it unblocks SIGINT afterwards.

    The server inherits the signals blocked here. An interrupt of this process is deferred to the end of the
    block, because the server would print a traceback about a broken connection. A second interrupt is not
    deferred.
    """
    if not loads_ours:
        yield
        return
    resource_tracker.ensure_running()  # before the block, because starting it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with _deferred_interrupt():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer an interrupt that arrives within the block to its end.

    Blocking SIGINT in this thread is not enough: another thread receives it, and Python still runs the
    handler in this one.
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


@contextmanager
def without_main() -> Iterator[None]:
    """Keep processes started within the block from importing the user's main module, the whole program."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    # From these two `multiprocessing` learns what the child must import.
    main.__spec__ = None
    if path is not None:
        del main.__file__
    try:
        yield
    finally:
        main.__spec__ = spec
        if path is not None:
            main.__file__ = path


def _preload() -> bool:
    """Make the fork server preload our modules, unless the user has set others; return whether it will."""
    server: Any = forkserver._forkserver
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        # The server skips modules that are not installed. Ours comes last, because it unblocks SIGINT.
        multiprocessing.set_forkserver_preload(["threadpoolctl", "cloudpickle", _PRELOADED])
    return _PRELOADED in getattr(server, "_preload_modules", ())


def forget_server() -> None:
    """Make this newly forked process start its own fork server when it needs one.

    The parent's server is not a child of this process, so `multiprocessing` could not use it. This process's
    copy of the pipe that keeps the server alive would also let it outlive the parent.
    """
    server: Any = forkserver._forkserver
    if getattr(server, "_forkserver_pid", None) is None:
        return
    with contextlib.suppress(OSError):
        os.close(server._forkserver_alive_fd)
    server._lock = threading.Lock()  # a thread that was not forked may hold the old one
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None
