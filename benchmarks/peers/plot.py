"""Plot a report: for each case, the time of each library's fastest loader, in multiples of the floor."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from benchmarks.hosts import Row
from benchmarks.peers import FLOOR, OURS
from benchmarks.peers.report import Measured, Report, format_ratio, ratio
from gpuloader.errors import import_package

OUR_COLOUR = "#f58518"
PEER_COLOUR = "#a8b4c4"
_INK = "#444444"
_LEAST = 0.03
"""The smallest multiple of the floor on the axis. A shorter bar is clipped; its label has the true ratio."""


def check_plotting() -> None:
    """Raise an error before the measurement if its plot could not be drawn.

    Raises
    ------
    MissingPackage
        Matplotlib is not installed.
    """
    import_package("matplotlib", "the plot", "bench")


def draw(report: Report, path: Path) -> None:
    """Write a PNG file with a panel for each case that has a floor.

    Parameters
    ----------
    report : Report
        The figures to plot.
    path : pathlib.Path
        The file to write.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from PIL import Image

    cases = [case for case in report.cases if case.floor is not None]
    rows = max(1, -(-len(cases) // 2))
    most = max((len(_fastest(case)) for case in cases), default=1)
    height = 0.8 + rows * (0.6 + 0.24 * most)
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - 0.75 / height), hspace=0.03, wspace=0.02)
    figure = Figure(figsize=(12, height), dpi=100, layout=layout)
    panels = list(figure.subplots(rows, 2 if len(cases) > 1 else 1, squeeze=False).flat)
    limits = _limits(cases)
    for panel, case in zip(panels, cases, strict=False):
        _draw_case(panel, case, limits)
    for panel in panels[len(cases) :]:
        panel.set_axis_off()
    title = "Time per batch of each library's fastest loader, in multiples of a bare NumPy loop"
    figure.text(0.01, 1 - 0.1 / height, title, fontsize=13, fontweight="bold", color=_INK, va="top")
    figure.text(0.01, 1 - 0.42 / height, _describe(report), fontsize=9, color=_INK, va="top")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    # The file is committed, so a small palette keeps it small.
    Image.open(drawn).convert("RGB").quantize(64).save(path, format="png", optimize=True)


def _fastest(case: Measured) -> list[tuple[Row, float]]:
    """Return the fastest row of each library, ours included, with its ratio to the floor, smallest first."""
    names = dict.fromkeys(row.peer for row in case.rows if row.peer != FLOOR.name)
    rows = [row for name in names if (row := case.best(name)) is not None]
    return sorted(
        ((row, share) for row in rows if (share := ratio(row, case.floor)) is not None),
        key=lambda pair: pair[1],
    )


def _limits(cases: list[Measured]) -> tuple[float, float]:
    shares = [share for case in cases for _, share in _fastest(case)]
    return max(_LEAST, min([0.5, *shares]) / 1.5), max([2.0, *shares]) * 1.5


def _draw_case(panel: Any, case: Measured, limits: tuple[float, float]) -> None:
    fastest = _fastest(case)
    assert case.floor is not None
    assert case.floor.spread is not None
    for position, (row, share) in enumerate(fastest):
        ours = row.peer == OURS.name
        end = max(share, limits[0])
        # Bars start at the floor: left of it is faster, right of it slower.
        panel.barh(position, end - 1, left=1, height=0.72, color=OUR_COLOUR if ours else PEER_COLOUR)
        panel.annotate(
            f"{format_ratio(share)}×  {row.way}",
            (max(end, 1), position),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=_INK,
            fontweight="bold" if ours else "normal",
        )
    panel.axvline(1, color=_INK, linewidth=1)
    panel.set_xscale("log")
    panel.set_xlim(limits[0], limits[1] * 12)  # room for the longest bar's label
    panel.set_yticks(range(len(fastest)), [row.peer for row, _ in fastest], fontsize=9.5)
    for label, (row, _) in zip(panel.get_yticklabels(), fastest, strict=True):
        if row.peer == OURS.name:
            label.set(color=OUR_COLOUR, fontweight="bold")
    panel.invert_yaxis()
    panel.set_title(case.title, loc="left", fontsize=10, fontweight="bold", color=_INK)
    ticks = [tick for tick in (0.01, 0.1, 1, 10, 100, 1000) if limits[0] <= tick <= limits[1]]
    panel.set_xticks(ticks, [f"{tick:g}×" for tick in ticks], fontsize=8, color=_INK)
    panel.minorticks_off()
    panel.tick_params(length=0)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[:].set_visible(False)


def _describe(report: Report) -> str:
    machine = report.machine
    versions = " · ".join(f"{name} {version}" for name, version in report.versions.items() if version)
    return (
        f"{machine['processor']}, {machine['cores']} cores · gpuloader {machine['gpuloader']}"
        f"{f' · {versions}' if versions else ''} · medians of {report.repeats} runs · log scale"
    )
