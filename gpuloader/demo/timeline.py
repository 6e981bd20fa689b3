"""Draw timelines that show when each thread, worker and copy stream was busy, for one run or several."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpuloader.errors import DataFileError
from gpuloader.watch.tracing import COPIES, WORKER, Span, sort_rows

COLOURS = {
    "fetch": "#4c78a8",
    "stage": "#72b7b2",
    "wait": "#e8e4dc",
    "deliver": "#b279a2",
    "copy": "#3b3f5c",
    "compute": "#f58518",
}
"""Colors that differ in lightness as well as hue, so that color-blind readers can tell them apart."""

SEAMED = 0.01
"""Bars wider than this fraction of the panel get a white edge."""


def read_trace(path: str | os.PathLike[str]) -> list[Span]:
    """Return the spans of a trace file that `gpuloader.trace` wrote.

    Parameters
    ----------
    path : path-like
        A file in the Chrome trace event format.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    DataFileError
        The file is not a trace, or lacks the rows of a trace from gpuloader.
    """
    try:
        events = json.loads(Path(path).read_text())["traceEvents"]
        rows = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
        return [
            Span(one["name"], rows[one["tid"]], round(one["ts"] * 1e3), round((one["ts"] + one["dur"]) * 1e3))
            for one in events
            if one["ph"] == "X"
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise DataFileError(
            f"{os.fspath(path)}: expected a trace written by gpuloader.trace, got something else "
            f"({type(error).__name__}: {error})"
        ) from None


def choose_window(spans: Iterable[Span], steps: int) -> tuple[int, int]:
    """Return the start and end, in nanoseconds, of `steps` steps from the middle of the run.

    >>> spans = [Span("compute", "MainThread", 10 * n, 10 * n + 5) for n in range(9)]
    >>> choose_window(spans, steps=2)
    (25, 45)
    """
    spans = _name_computing(spans)
    ends = [one.end for one in spans if one.name == "compute"]
    if len(ends) < 2:  # too few steps to choose from: show everything
        return min((one.start for one in spans), default=0), max((one.end for one in spans), default=1)
    middle = max((len(ends) - steps) // 2, 1)
    return ends[middle - 1], ends[min(middle - 1 + steps, len(ends) - 1)]


def draw(groups: dict[str, dict[str, list[Span]]], path: Path, *, steps: int = 8) -> None:
    """Draw one panel per run and write them to a PNG file.

    Parameters
    ----------
    groups : dict of str to dict of str to list of Span
        Groups of runs to compare, by title; each group maps a run's name to its spans.
    path : pathlib.Path
        The file to write.
    steps : int
        Steps of each group's first run to show; the group's other runs cover the same length of time.
    """
    from matplotlib.figure import Figure

    count = sum(map(len, groups.values()))
    figure = Figure(figsize=(11, 0.3 + 1.45 * count), dpi=120, layout="constrained")
    panels: Any = iter(figure.subplots(count, 1, squeeze=False)[:, 0])
    for title, runs in groups.items():
        width = 0
        for name, spans in runs.items():
            start, end = choose_window(spans, steps)
            width = width or end - start
            panel = next(panels)
            done = draw_run(panel, spans, start, start + width)
            panel.set_title(f"{title}: {name}, {done} steps", loc="left", fontsize=10)
            panel.set_xlabel("")
        panel.set_xlabel("milliseconds")
    add_legend(figure, (one for runs in groups.values() for spans in runs.values() for one in spans))
    figure.savefig(path)


def draw_trace(trace: str | os.PathLike[str], path: Path, *, steps: int = 8) -> None:
    """Draw the middle of a trace to a PNG file, with a row for each thread, worker and copy stream.

    Parameters
    ----------
    trace : path-like
        The trace file, written by `gpuloader.trace`.
    path : pathlib.Path
        The file to write.
    steps : int
        The number of steps to show.

    Raises
    ------
    FileNotFoundError, DataFileError
        The trace cannot be read; see `read_trace`.
    """
    from matplotlib.figure import Figure

    spans = read_trace(trace)
    start, end = choose_window(spans, steps)
    figure = Figure(figsize=(11, 1.1 + 0.45 * len(sort_rows(spans))), dpi=120, layout="constrained")
    draw_run(figure.subplots(), spans, start, end)
    add_legend(figure, (one for one in spans if one.end > start and one.start < end))
    figure.savefig(path)


def draw_run(panel: Any, spans: Sequence[Span], start: int, end: int) -> int:
    """Draw the spans from `start` to `end`, with a row for each thread, worker and copy stream.

    Parameters
    ----------
    panel : matplotlib.axes.Axes
        The axes to draw on.
    spans : sequence of Span
        The spans of a whole run; those whose names are not in `COLOURS` are left out.
    start, end : int
        The limits of the panel, in nanoseconds.

    Returns
    -------
    int
        The number of steps that overlap the panel.
    """
    spans = [one for one in _name_computing(spans) if one.name in COLOURS]
    rows = {name: row for row, name in enumerate(sort_rows(spans))}
    shown = [one for one in spans if one.end > start and one.start < end]
    # If the consumer itself reads, its wait contains its fetch and stage; draw waits first, behind them.
    for one in sorted(shown, key=lambda one: one.name != "wait"):
        left, right = max(one.start, start), min(one.end, end)
        panel.broken_barh(
            [((left - start) * 1e-6, (right - left) * 1e-6)],
            (rows[one.thread] - 0.4, 0.8),
            facecolors=COLOURS[one.name],
            # A white edge separates adjacent bars of one color; it would hide very narrow bars.
            edgecolors="white",
            linewidth=0.7 if right - left > SEAMED * (end - start) else 0,
        )
    panel.set_yticks(range(len(rows)), [_name_row(name) for name in rows])
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlim(0, (end - start) * 1e-6)
    panel.set_xlabel("milliseconds")
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(length=0)
    return sum(one.name == "compute" for one in shown)


def add_legend(figure: Any, spans: Iterable[Span]) -> None:
    """Add a legend above a figure with the colors that occur in the spans."""
    from matplotlib.patches import Patch

    names = {one.name for one in _name_computing(spans)}
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in names]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)


def _name_computing(spans: Iterable[Span]) -> list[Span]:
    """Rename "step" spans to "compute", unless the user marked compute spans."""
    spans = list(spans)
    if any(one.name == "compute" for one in spans):
        return spans
    return [one._replace(name="compute") if one.name == "step" else one for one in spans]


def _name_row(name: str) -> str:
    """Return the label of a row.

    >>> [_name_row(name) for name in ("MainThread", "gpuloader-worker-1", "gpu:0 copies")]
    ['consumer', 'worker 1', 'gpu:0, copy stream']
    """
    if name.startswith(WORKER):
        return f"worker {name.removeprefix(WORKER).removeprefix('-')}"
    if name.endswith(COPIES):
        return f"{name.removesuffix(COPIES)}, copy stream"
    return {"MainThread": "consumer", "gpuloader-reader": "reader thread"}.get(name, name)
