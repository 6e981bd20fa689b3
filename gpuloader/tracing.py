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

from gpuloader.errors import missing_package


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

    The main thread comes first, then readers and workers by name, then copy streams.

    >>> events = chrome_trace([Span("copy", "gpu:0 copies", 2000, 5000)])["traceEvents"]
    >>> events[-1]["name"], events[-1]["ts"], events[-1]["dur"]
    ('copy', 2.0, 3.0)
    """
    rows = {name: row for row, name in enumerate(sort_rows(spans))}
    process = os.getpid()
    events: list[dict[str, Any]] = [_metadata(process, 0, "process_name", name="gpuloader")]
    for name, row in rows.items():
        events.append(_metadata(process, row, "thread_name", name=name))
        events.append(_metadata(process, row, "thread_sort_index", sort_index=row))
    for one in sorted(spans, key=lambda one: one.start):
        events.append(
            {
                "ph": "X",
                "name": one.name,
                "cat": "gpuloader",
                "pid": process,
                "tid": rows[one.thread],
                "ts": one.start / 1000,
                "dur": (one.end - one.start) / 1000,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


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
