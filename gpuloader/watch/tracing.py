"""A trace of who did what and when: one row a thread, worker, copy stream and consumer."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

from gpuloader.base.errors import missing_package


class Span(NamedTuple):
    """One stretch of time on one row; times in nanoseconds of `time.perf_counter_ns`."""

    name: str
    thread: str
    start: int
    end: int


_spans: list[Span] | None = None
_nvtx: Any = None
_tracing = threading.Lock()


def is_tracing() -> bool:
    """Return whether a trace is running: what only it wants to know need not be worked out otherwise."""
    return _spans is not None


def mark(name: str, start: int, end: int, thread: str | None = None) -> None:
    """Add a span of the calling thread, or of the row named, to the running trace, if there is one."""
    spans = _spans
    if spans is not None:
        spans.append(Span(name, thread or threading.current_thread().name, start, end))


@contextmanager
def span(name: str) -> Iterator[None]:
    """Mark what the block does, e.g. a training step, in the running trace.

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
    """Begin an NVTX range where the trace asked for them; return what `pop_range` takes."""
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
    """Record what every loader does within the block, one row a thread, worker and copy stream.

    The consumer's row has wait, deliver and, between two batches, step; a reader's thread and each worker
    have fetch and stage; each copy stream has its copies, timed by events on the device.

    Parameters
    ----------
    path : path-like or None
        Where to write the trace in the Chrome trace event format, which Perfetto and chrome://tracing
        open. None only gathers the spans, some 100 bytes each, five a batch.
    nvtx : bool
        Push NVTX ranges as well, in the domain gpuloader, for Nsight Systems.

    Yields
    ------
    list of Span
        Grows while the block runs.

    Raises
    ------
    RuntimeError
        A trace is already running: there is one a process.
    MissingPackage
        NVTX ranges need the package nvtx: ``pip install 'gpuloader[nvtx]'``.
    OSError
        The file cannot be written there; known before the block is entered.

    Examples
    --------
    >>> with trace() as spans, span("compute"):
    ...     total = sum(range(10))
    >>> [one.name for one in spans]
    ['compute']
    """
    global _spans, _nvtx
    package = _import_nvtx() if nvtx else None
    spans: list[Span] = []
    with _tracing:
        if _spans is not None:
            raise RuntimeError("a trace is already running in this process; end it before starting another")
        if path is not None:
            Path(path).open("a").close()  # what cannot be written is to fail now, not after the training
        _spans, _nvtx = spans, package
    try:
        yield spans
    finally:
        _spans = _nvtx = None
        if path is not None:
            Path(path).write_text(json.dumps(chrome_trace(spans)))


def _import_nvtx() -> Any:
    try:
        import nvtx
    except ImportError as error:
        raise missing_package("a trace with NVTX ranges", "nvtx", "nvtx") from error
    return nvtx


def chrome_trace(spans: list[Span]) -> dict[str, Any]:
    """Return spans in the Chrome trace event format: complete events, microseconds, named and sorted rows.

    The main thread comes first, then readers and workers by name, then copy streams. On one row events may
    lie within each other, but not overlap: what does, as in loops over two loaders, is given a row beside.

    >>> events = chrome_trace([Span("copy", "gpu:0 copies", 2000, 5000)])["traceEvents"]
    >>> events[-1]["name"], events[-1]["ts"], events[-1]["dur"]
    ('copy', 2.0, 3.0)
    """
    process = os.getpid()
    threads: dict[str, list[Span]] = {name: [] for name in sort_rows(spans)}
    for one in spans:
        threads[one.thread].append(one)
    events: list[dict[str, Any]] = [_metadata(process, 0, "process_name", name="gpuloader")]
    placed: list[tuple[Span, int]] = []
    row = 0
    for thread, its in threads.items():
        for number, nested in enumerate(_split_overlapping(its), 1):
            name = thread if number == 1 else f"{thread} ({number})"
            events.append(_metadata(process, row, "thread_name", name=name))
            events.append(_metadata(process, row, "thread_sort_index", sort_index=row))
            placed += [(one, row) for one in nested]
            row += 1
    for one, row in sorted(placed, key=lambda both: both[0].start):
        events.append(
            {
                "ph": "X",
                "name": one.name,
                "cat": "gpuloader",
                "pid": process,
                "tid": row,
                "ts": one.start / 1000,
                "dur": (one.end - one.start) / 1000,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _split_overlapping(spans: list[Span]) -> list[list[Span]]:
    """Return spans in lists, mostly one, any two of a list being apart or one within the other.

    >>> spans = [Span("a", "one", 0, 4), Span("b", "one", 1, 2), Span("c", "one", 3, 6)]
    >>> [[one.name for one in nested] for nested in _split_overlapping(spans)]
    [['a', 'b'], ['c']]
    """
    lists: list[list[Span]] = []
    running: list[list[int]] = []  # for each list the ends of what has begun, the innermost last
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


def _metadata(process: int, row: int, kind: str, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": arguments}


def sort_rows(spans: list[Span]) -> list[str]:
    """Return the rows of some spans: the main thread, then readers and workers, then copy streams.

    >>> sort_rows([Span("copy", "gpu:0 copies", 2, 5), Span("wait", "MainThread", 1, 2)])
    ['MainThread', 'gpu:0 copies']
    """
    return sorted({one.thread for one in spans}, key=_row_order)


def _row_order(name: str) -> tuple[int, int, str]:
    kind = 0 if name == "MainThread" else 2 if name.endswith(COPIES) else 1
    return kind, len(name), name  # so that worker 10 comes behind worker 9


WORKER = "gpuloader-worker"
"""The row of a worker is named so, with its number."""

COPIES = " copies"
"""The row of a copy stream is named after its device, and this."""
