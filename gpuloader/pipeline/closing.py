"""What an epoch leaves: slots and lanes for the next one, once nothing is fetched or copied any more."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from time import sleep

from gpuloader.base.errors import LoaderError
from gpuloader.pipeline.lane import Lane
from gpuloader.pipeline.steps import Pipeline
from gpuloader.staging.ring import Ring


@dataclass(frozen=True, slots=True)
class Road:
    """Slots and lanes, reused from epoch to epoch so that their memory stays page-locked and warm.

    Attributes
    ----------
    ring : Ring
        The host slots.
    lanes : tuple of Lane
        One per place.
    prefetch : int
        Steps copied ahead of the consumer.
    process : int
        The id of the process that owns them; a forked child shares the memory and must not write to it.
    """

    ring: Ring
    lanes: tuple[Lane, ...]
    prefetch: int
    process: int


@dataclass(slots=True, eq=False)
class Remains:
    """What has to be closed at the end of an epoch; does not refer to the epoch, which may be dropped.

    Attributes
    ----------
    pipeline : Pipeline
        Fetches and copies.
    road : Road
        The slots and lanes.
    idle : deque of Road
        Where to leave the road, if it can be reused.
    is_closed : bool
        Whether the epoch closes it.
    is_whole : bool
        Whether fetching has ended in time, so that the road can be reused.
    """

    pipeline: Pipeline
    road: Road
    idle: deque[Road]
    is_closed: bool = False
    is_whole: bool = False


postponed: deque[Remains] = deque()
"""Epochs whose copies in progress are to be waited for by the next epoch of any loader."""


def take_road(idle: deque[Road]) -> Road | None:
    """Return a road left idle by an earlier epoch of this process, or None."""
    finish_postponed()
    while idle:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            road = idle.pop()
            if road.process == os.getpid():
                return road
    return None


class Guard:
    """Closes what is left of an epoch when the epoch is dropped before it has been closed.

    Make it before the epoch's other objects: the garbage collector finalizes the oldest ones first, and a
    Ctrl-C that arrives while it finalizes a generator of the fetch, before this object closes it, is lost.
    """

    def __init__(self) -> None:
        self._watched: list[Remains] = []
        self._keeper = _keep(self._watched)
        next(self._keeper)

    def watch(self, remains: Remains) -> None:
        """Close this when the guard is dropped, unless it is closed by then."""
        self._watched.append(remains)

    def end(self) -> None:
        """Run no Python code when the guard is dropped."""
        self._keeper.close()


def _keep(watched: list[Remains]) -> Generator[None, None, None]:
    """Close what is watched when this generator is dropped.

    Python swallows a Ctrl-C that arrives while an object is freed. A generator that has ended runs no Python
    code then, unlike a ``__del__``, in which programs of short epochs would spend a good part of their time.
    Where an epoch is left early, a thread delivers the Ctrl-C again, after the generator has been freed.
    """
    try:
        yield
    finally:
        if watched and not watched[0].is_closed:
            remains = watched[0]
            try:
                close(remains)
            except KeyboardInterrupt:
                _thread.start_new_thread(_deliver_interrupt, (remains,))
            except Exception:
                pass


def _deliver_interrupt(remains: Remains) -> None:
    """Interrupt the main thread once more, and close what it could not wait for."""
    sleep(0.01)
    if hasattr(signal, "pthread_kill"):  # a signal also wakes a thread that sleeps or waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()
    with contextlib.suppress(Exception):
        close(remains)


def close(remains: Remains) -> None:
    """Stop fetching, wait for copies, and leave the road; if this thread captures a graph, postpone that."""
    remains.is_whole = remains.pipeline.stop()
    if _is_captured(remains.pipeline):
        postponed.append(remains)
    else:
        _finish(remains)


def finish_postponed() -> None:
    """Wait for the copies of epochs that were closed where waiting would have ended a capture."""
    for _ in range(len(postponed)):
        with contextlib.suppress(IndexError, LoaderError):  # taken by another thread; the device has failed
            remains = postponed.popleft()
            if _is_captured(remains.pipeline):
                postponed.append(remains)
            else:
                _finish(remains)


def _is_captured(pipeline: Pipeline) -> bool:
    try:
        return pipeline.find_capture() is not None
    except LoaderError:
        return False  # the device has failed, as closing the epoch will say


def _finish(remains: Remains) -> None:
    if remains.road.process != os.getpid():
        return  # its copies run in the parent
    remains.pipeline.finish()
    if remains.is_whole and remains.road.ring.rearm():
        remains.idle.append(remains.road)
