"""A picture of who was busy with what, and when: runs that are compared one above the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuloader.tracing import Span

COLOURS = {
    "fetch": "#4c78a8",
    "stage": "#72b7b2",
    "wait": "#e8e4dc",
    "deliver": "#b279a2",
    "compute": "#f58518",
}
_ROWS = {"MainThread": "consumer", "gpuloader-reader": "reader thread"}


def choose_window(spans: list[Span], steps: int) -> tuple[int, int]:
    """Return start and end, in nanoseconds, of `steps` steps in the middle of the run.

    >>> spans = [Span("compute", "MainThread", 10 * n, 10 * n + 5) for n in range(9)]
    >>> choose_window(spans, steps=2)
    (25, 45)
    """
    ends = [one.end for one in spans if one.name == "compute"]
    middle = max((len(ends) - steps) // 2, 1)
    return ends[middle - 1], ends[min(middle - 1 + steps, len(ends) - 1)]


def draw(groups: dict[str, dict[str, list[Span]]], path: Path, *, steps: int = 8) -> None:
    """Write one panel a run to a PNG file.

    Parameters
    ----------
    groups : dict of str to dict of str to list of Span
        The spans of runs by their names, in groups that are compared; the group's title.
    path : pathlib.Path
        The file to write.
    steps : int
        Steps of a group's first run to show; the others are drawn over as much time.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    count = sum(map(len, groups.values()))
    figure = Figure(figsize=(11, 0.3 + 1.45 * count), dpi=120, layout="constrained")
    panels: Any = iter(figure.subplots(count, 1, squeeze=False)[:, 0])
    for title, runs in groups.items():
        width = 0
        for name, spans in runs.items():
            start, end = choose_window(spans, steps)
            width = width or end - start
            panel = next(panels)
            _draw_run(panel, spans, start, width, f"{title}: {name}")
        panel.set_xlabel("milliseconds")
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in COLOURS.items()],
        loc="outside upper right",
        ncols=len(COLOURS),
        frameon=False,
    )
    figure.savefig(path)


def _draw_run(panel: Any, spans: list[Span], start: int, width: int, title: str) -> None:
    threads = [name for name in _ROWS if any(one.thread == name for one in spans)]
    shown = [one for one in spans if one.end > start and one.start < start + width and one.name in COLOURS]
    # A wait in which the consumer itself reads spans its fetch and stage: it is drawn first, behind them.
    for one in sorted(shown, key=lambda one: one.name != "wait"):
        row = len(threads) - 1 - threads.index(one.thread) if one.thread in threads else 0
        left, right = max(one.start, start), min(one.end, start + width)
        panel.broken_barh(
            [((left - start) * 1e-6, (right - left) * 1e-6)], (row - 0.4, 0.8), facecolors=COLOURS[one.name]
        )
    done = sum(one.name == "compute" for one in shown)
    panel.set_title(f"{title}, {done} steps", loc="left", fontsize=10)
    panel.set_yticks(range(len(threads)), [_ROWS[name] for name in reversed(threads)])
    panel.set_xlim(0, width * 1e-6)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(length=0)
