"""Draw timelines that show when each thread, worker and copy stream was busy, for one run or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpuloader.watch.meter import COPIES, WORKER, Span, sort_rows

# These differ in lightness as well as hue, so that color-blind readers can tell them apart.
COLOURS = {
    "fetch": "#4c78a8",
    "stage": "#72b7b2",
    "wait": "#e8e4dc",
    "deliver": "#b279a2",
    "copy": "#3b3f5c",
    "compute": "#f58518",
}


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
    # From the middle, because the first steps of a run also start threads and fill the slots.
    middle = max((len(ends) - steps) // 2, 1)
    return ends[middle - 1], ends[min(middle - 1 + steps, len(ends) - 1)]


def draw(groups: dict[str, dict[str, list[Span]]], path: Path, *, steps: int = 8) -> None:
    """Draw one panel per run, by group and run name, and write them to a PNG file.

    A group's first run shows `steps` steps; its other runs cover the same length of time.
    """
    from matplotlib.figure import Figure  # not pyplot, which would keep the figure and may open a window

    runs = [spans for group in groups.values() for spans in group.values()]
    figure = Figure(figsize=(11, 0.3 + 1.45 * len(runs)), dpi=120, layout="constrained")
    panels: Any = iter(figure.subplots(len(runs), 1, squeeze=False)[:, 0])
    for title, group in groups.items():
        width = 0
        for name, spans in group.items():
            start, end = choose_window(spans, steps)
            # The same scale for the whole group, so that the faster run visibly does more steps.
            width = width or end - start
            panel = next(panels)
            done = draw_run(panel, spans, start, start + width)
            panel.set_title(f"{title}: {name}, {done} steps", loc="left", fontsize=10)
            panel.set_xlabel("")  # once for the group, below its last panel
        panel.set_xlabel("milliseconds")
    add_legend(figure, (one for spans in runs for one in spans))
    figure.savefig(path)


def draw_run(panel: Any, spans: Sequence[Span], start: int, end: int) -> int:
    """Draw the spans from `start` to `end` nanoseconds on Matplotlib's axes; return the number of steps.

    Each thread, worker and copy stream has a row. Spans whose names are not in `COLOURS` are left out.
    """
    spans = [one for one in _name_computing(spans) if one.name in COLOURS]
    rows = {name: row for row, name in enumerate(sort_rows(spans))}
    shown = [one for one in spans if one.end > start and one.start < end]
    # If the consumer itself reads, its wait contains its fetch and stage, so draw waits first, behind them.
    for one in sorted(shown, key=lambda one: one.name != "wait"):
        left, right = max(one.start, start), min(one.end, end)
        panel.broken_barh(
            [((left - start) * 1e-6, (right - left) * 1e-6)],
            (rows[one.thread] - 0.4, 0.8),
            facecolors=COLOURS[one.name],
            # A white edge separates adjacent bars of one color; it would hide very narrow bars.
            edgecolors="white",
            linewidth=0.7 if right - left > 0.01 * (end - start) else 0,
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
