"""Where the time goes: a few counters that are always on, and a trace of spans when asked for."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

_NANOSECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """A snapshot of what a loader has done since it was made; all times in seconds.

    Attributes
    ----------
    batches : int
        Batches staged.
    nbytes : int
        Their bytes.
    fetch : float
        Spent in the user's reader or data set, summed over all workers. Where samples are written into the
        slot as they come (`set_sample_generator`, data sets) the writing counts here too.
    stage : float
        Spent writing batches into slots.
    stall : float
        The fetcher waited for a free slot or for room in the queue: the consumer is the slower side.
    wait : float
        The consumer waited for a batch: the reader is the slower side.
    transfer : float
        Host time spent issuing copies and handing batches over. The copies themselves run beside it.
    """

    batches: int
    nbytes: int
    fetch: float
    stage: float
    stall: float
    wait: float
    transfer: float


class Meter:
    """The counters behind `LoaderStats`, in nanoseconds; one writer a counter, so no lock."""

    __slots__ = ("batches", "fetch", "nbytes", "stage", "stall", "transfer", "wait")

    def __init__(self) -> None:
        self.batches = self.nbytes = 0
        self.fetch = self.stage = self.stall = self.wait = self.transfer = 0

    def staged(self, begun: int, fetched: int, ready: int, nbytes: int) -> None:
        """Count one batch: `begun` reading, `fetched`, slot `ready` to be written, and written now."""
        now = perf_counter_ns()
        self.batches += 1
        self.nbytes += nbytes
        self.fetch += fetched - begun
        self.stall += ready - fetched
        self.stage += now - ready
        if _spans is not None:
            mark("fetch", begun, fetched)
            mark("stage", ready, now)

    def fetched(self, begun: int, done: int, nbytes: int, worker: str | None = None) -> None:
        """Count one batch, fetched and written into its slot from `begun` to `done` by the given worker."""
        self.batches += 1
        self.nbytes += nbytes
        self.fetch += done - begun
        if _spans is not None:
            mark("fetch", begun, done, worker)

    def snapshot(self) -> LoaderStats:
        """Return the counters as seconds."""
        return LoaderStats(
            self.batches,
            self.nbytes,
            *(
                count * _NANOSECONDS
                for count in (self.fetch, self.stage, self.stall, self.wait, self.transfer)
            ),
        )


class Span(NamedTuple):
    """One stretch of time on one thread; times in nanoseconds of `time.perf_counter_ns`."""

    name: str
    thread: str
    start: int
    end: int


_spans: list[Span] | None = None


def is_tracing() -> bool:
    """Return whether a trace is running: what only it wants to know need not be worked out otherwise."""
    return _spans is not None


def mark(name: str, start: int, end: int, thread: str | None = None) -> None:
    """Add a span of the calling thread, or of the one named, to the running trace, if there is one."""
    if _spans is not None:
        _spans.append(Span(name, thread or threading.current_thread().name, start, end))


@contextmanager
def span(name: str) -> Iterator[None]:
    """Mark what the block does, e.g. a training step, in the running trace.

    >>> with span("compute"):
    ...     total = sum(range(10))
    """
    start = perf_counter_ns()
    try:
        yield
    finally:
        mark(name, start, perf_counter_ns())


@contextmanager
def trace(path: str | os.PathLike[str] | None = None) -> Iterator[list[Span]]:
    """Record what every loader does within the block: fetch, stage, wait, transfer, one row a thread.

    Parameters
    ----------
    path : path-like or None
        Where to write the trace in the Chrome trace event format, which Perfetto and chrome://tracing
        open. None only gathers the spans.

    Yields
    ------
    list of Span
        Grows while the block runs.

    Raises
    ------
    RuntimeError
        A trace is already running: there is one a process.

    Examples
    --------
    >>> with trace() as spans, span("compute"):
    ...     total = sum(range(10))
    >>> [one.name for one in spans]
    ['compute']
    """
    global _spans
    if _spans is not None:
        raise RuntimeError("a trace is already running in this process; end it before starting another")
    spans = _spans = []
    try:
        yield spans
    finally:
        _spans = None
        if path is not None:
            Path(path).write_text(json.dumps(chrome_trace(spans)))


def chrome_trace(spans: list[Span]) -> dict[str, object]:
    """Return spans in the Chrome trace event format: complete events, microseconds, named threads."""
    rows = {name: row for row, name in enumerate(dict.fromkeys(one.thread for one in spans))}
    process = os.getpid()
    names: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": {"name": name}}
        for name, row in rows.items()
    ]
    events: list[dict[str, object]] = [
        {
            "ph": "X",
            "name": one.name,
            "pid": process,
            "tid": rows[one.thread],
            "ts": one.start / 1000,
            "dur": (one.end - one.start) / 1000,
        }
        for one in spans
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}
