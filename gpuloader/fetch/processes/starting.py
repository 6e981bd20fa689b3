"""How worker processes start: forked, by the fork server, or as programs of their own."""

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
    """How worker processes come by what they need.

    Attributes
    ----------
    method : str
        'fork', 'forkserver' or 'spawn'.
    setup : Setup
        For forked ones, which simply have it.
    parcel : Parcel or None
        For the others.
    """

    method: str
    setup: Setup
    parcel: Parcel | None


def choose_start(setup: Setup, method: str | None) -> Start:
    """Return how workers start: as asked, or as suits the dataset.

    Without a wish, a fork server does it, which has NumPy and this package loaded and no thread or lock of
    the user's program; a dataset that cannot be pickled, or is so many Python objects that unpickling
    copies in each worker would cost more, is forked where that is safe.

    Raises
    ------
    LoaderError
        The dataset cannot be pickled, and the method needs that.
    """
    if method == "fork":
        return Start("fork", setup, None)
    may_fork = method is None and may_fork_unasked()
    try:
        parcel = pack(setup) if method is None else pack(setup, limit=None)
    except StagingMemoryError:
        if not may_fork:
            raise
        return Start("fork", setup, None)  # which needs no second copy of the dataset's arrays
    except Unshippable as reason:
        if not may_fork:
            what = str(reason).removeprefix("Setup.").removeprefix("reading.")
            raise LoaderError(
                f"the dataset cannot be sent to worker processes: {what}; make "
                "it picklable, or pass start_method='fork' or worker_type='thread'"
            ) from reason
        return Start("fork", setup, None)
    if parcel.needs_main and may_fork:
        # Importing the user's main module in every worker could start the whole program once more.
        parcel.close()
        return Start("fork", setup, None)
    return Start(method or "forkserver", setup, parcel)


@contextmanager
def prepared(start: Start) -> Iterator[None]:
    """Start a process with this package preloaded, and without the user's main module if it can be."""
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
    """Have a fork server that loads our modules start with SIGINT blocked, until it has loaded them.

    The server inherits what is blocked here. An interrupt of this process comes at the end of the block, as
    the server would complain of a connection that breaks off; a second one comes at once.
    """
    if not loads_ours:
        yield
        return
    resource_tracker.ensure_running()  # which unblocks SIGINT once it has started, so not within the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with _deferred_interrupt():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Have Python's own handler of SIGINT called at the end of the block, for an interrupt within it.

    To block the signal in this thread is not enough: another one takes it, and Python's handler runs here.
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
    """Have processes that start meanwhile not import the user's main module, which is the whole program."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    # By these two `multiprocessing` knows what to import into the child.
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
    """Have the fork server load our modules, unless somebody else has a wish; return whether it will."""
    server: Any = forkserver._forkserver
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        # Those that are not installed are passed over. Ours comes last: it opens the server to interrupts.
        multiprocessing.set_forkserver_preload(["threadpoolctl", "cloudpickle", _PRELOADED])
    return _PRELOADED in getattr(server, "_preload_modules", ())


def forget_server() -> None:
    """Have this process, which was just forked, start a fork server of its own if it needs one.

    Its parent's is no child of it, so `multiprocessing` would not start anything by that; and our copy of the
    pipe that keeps the server alive would keep it beyond the parent's end.
    """
    server: Any = forkserver._forkserver
    if getattr(server, "_forkserver_pid", None) is None:
        return
    with contextlib.suppress(OSError):
        os.close(server._forkserver_alive_fd)
    server._lock = threading.Lock()  # perhaps held by a thread that is not here
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None
