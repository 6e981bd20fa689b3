"""Traces: what each thread, worker, copy stream and consumer did and when, with one row for each."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from time import perf_counter_ns
from typing import Any, NamedTuple

from gpuloader.errors import import_package


class Span(NamedTuple):
    """A named time span on one row; times are those of `time.perf_counter_ns`."""

    name: str
    thread: str
    start: int
    end: int


_spans: list[Span] | None = None
_nvtx: Any = None
_tracing = threading.Lock()


def is_tracing() -> bool:
    """Return whether a trace is running, so that callers can skip work that only a trace needs."""
    return _spans is not None


def mark(name: str, start: int, end: int, thread: str | None = None) -> None:
    """Add a span to the running trace, if any, on the calling thread's row or on the row named `thread`."""
    # Read once: another thread may end the trace between the check and the span. A list's append needs no
    # lock, so tracing costs a loop well under a microsecond per span.
    spans = _spans
    if spans is not None:
        spans.append(Span(name, thread or threading.current_thread().name, start, end))


@contextmanager
def span(name: str) -> Iterator[None]:
    """Mark the block as a span in the running trace, for example a training step.

    >>> with span("compute"):
    ...     total = sum(range(10))
    """
    start = perf_counter_ns()
    nvtx = push_range(name)
    try:
        yield
    finally:
        pop_range(nvtx)
        mark(name, start, perf_counter_ns())


def push_range(name: str) -> Any:
    """Begin an NVTX range if the trace records ranges; return the argument for `pop_range`."""
    nvtx = _nvtx
    if nvtx is not None:
        nvtx.push_range(name, domain="gpuloader")
    return nvtx


def pop_range(nvtx: Any) -> None:
    """End the range that `push_range` began."""
    if nvtx is not None:
        nvtx.pop_range(domain="gpuloader")


@contextmanager
def trace(path: str | os.PathLike[str] | None = None, *, nvtx: bool = False) -> Iterator[list[Span]]:
    """Record what every loader does within the block, with one row per thread, worker and copy stream.

    The consumer's row shows wait, deliver and, between batches, step. The rows of reader threads and workers
    show fetch and stage. The row of a copy stream shows its copies, timed by events on the device.

    Parameters
    ----------
    path : path-like or None
        The file for the trace, in the Chrome trace event format that Perfetto and chrome://tracing open. None
        only collects the spans, about 100 bytes each and five per batch.
    nvtx : bool
        Also push NVTX ranges, in the domain gpuloader, for Nsight Systems.

    Yields
    ------
    list of Span
        The spans so far; the list grows while the block runs.

    Raises
    ------
    RuntimeError
        A trace is already running; there can be one per process.
    MissingPackage
        NVTX ranges need the package nvtx: ``pip install '.[nvtx]'``.
    OSError
        The file cannot be written; raised before the block is entered.

    Examples
    --------
    >>> with trace() as spans, span("compute"):
    ...     total = sum(range(10))
    >>> [one.name for one in spans]
    ['compute']
    """
    from pathlib import Path  # imported late, like `json` below: most programs write no trace

    global _spans, _nvtx
    # A missing package raises before the block, too.
    package = import_package("nvtx", "a trace with NVTX ranges", "nvtx") if nvtx else None
    spans: list[Span] = []
    with _tracing:
        if _spans is not None:
            raise RuntimeError("a trace is already running in this process; end it before starting another")
        if path is not None:
            Path(path).open("a").close()  # fail now, not after the training, if the file cannot be written
        _spans, _nvtx = spans, package
    try:
        yield spans
    finally:
        _spans = _nvtx = None
        if path is not None:
            import json

            Path(path).write_text(json.dumps(chrome_trace(spans)))


def chrome_trace(spans: list[Span]) -> dict[str, Any]:
    """Convert spans to the Chrome trace event format: complete events in µs, with named and sorted rows.

    The main thread comes first, then readers and workers by name, then copy streams. Events of one row may be
    nested but must not overlap. Overlapping spans, as in loops over two loaders, get an additional row.

    >>> events = chrome_trace([Span("copy", "gpu:0 copies", 2000, 5000)])["traceEvents"]
    >>> events[-1]["name"], events[-1]["ts"], events[-1]["dur"]
    ('copy', 2.0, 3.0)
    """
    process = os.getpid()

    def describe(row: int, kind: str, **arguments: str | int) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": arguments}

    spans = list(spans)  # a thread may still append to the original
    events = [describe(0, "process_name", name="gpuloader")]
    timed: list[dict[str, Any]] = []
    row = 0
    for thread in sort_rows(spans):
        own = [one for one in spans if one.thread == thread]
        # A viewer draws overlapping events of one row as if they were nested.
        for number, nested in enumerate(_split_overlapping(own), 1):
            name = thread if number == 1 else f"{thread} ({number})"
            events.append(describe(row, "thread_name", name=name))
            events.append(describe(row, "thread_sort_index", sort_index=row))
            for one in nested:
                event = {"ph": "X", "name": one.name, "cat": "gpuloader", "pid": process, "tid": row}
                timed.append({**event, "ts": one.start / 1000, "dur": (one.end - one.start) / 1000})
            row += 1
    timed.sort(key=itemgetter("ts"))
    return {"traceEvents": events + timed, "displayTimeUnit": "ms"}


def _split_overlapping(spans: list[Span]) -> list[list[Span]]:
    """Divide spans into lists, usually one, in which any two spans are disjoint or nested.

    >>> spans = [Span("a", "one", 0, 4), Span("b", "one", 1, 2), Span("c", "one", 3, 6)]
    >>> [[one.name for one in nested] for nested in _split_overlapping(spans)]
    [['a', 'b'], ['c']]
    """
    # Spans of one row overlap if two loops run in one thread, for example in a zip of two loaders.
    lists: list[list[Span]] = []
    running: list[list[int]] = []  # for each list, the ends of its open spans, innermost last
    for one in sorted(spans, key=lambda one: (one.start, -one.end)):
        for number, ends in enumerate(running):
            while ends and ends[-1] <= one.start:
                ends.pop()
            if not ends or one.end <= ends[-1]:
                lists[number].append(one)
                ends.append(one.end)
                break
        else:
            lists.append([one])
            running.append([one.end])
    return lists


def sort_rows(spans: list[Span]) -> list[str]:
    """Return the names of the spans' rows: the main thread, then readers and workers, then copy streams.

    >>> sort_rows([Span("copy", "gpu:0 copies", 2, 5), Span("wait", "MainThread", 1, 2)])
    ['MainThread', 'gpu:0 copies']
    """

    def order(name: str) -> tuple[int, int, str]:
        kind = 0 if name == "MainThread" else 2 if name.endswith(COPIES) else 1
        return kind, len(name), name  # by length, so that worker 10 comes after worker 9

    return sorted({one.thread for one in spans}, key=order)


WORKER = "gpuloader-worker"
"""The first part of the name of a worker's row; its number follows."""

COPIES = " copies"
"""The last part of the name of a copy stream's row, after the device's name."""
