"""Render training runs: their losses, where the time went, and a verdict."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from gpuloader.cli.consoles import titled_table
from gpuloader.demo.training import Run

_ROWS = 8


def losses_table(runs: dict[str, Run]) -> Table:
    """Return a table of some of the runs' losses and, for several runs, whether they are equal."""
    table = titled_table("Loss", show_edge=False)
    for heading in ("step", *runs, *(["equal"] if len(runs) > 1 else [])):
        table.add_column(heading, justify="right")
    losses = [run.losses for run in runs.values()]
    last = len(losses[0]) - 1
    for step in sorted({round(last * row / (_ROWS - 1)) for row in range(_ROWS)}):
        values = [one[step] for one in losses]
        equal = [Text("yes", "green") if len(set(values)) == 1 else Text("NO", "bold red")] * (len(runs) > 1)
        table.add_row(f"{step:,}", *(f"{value:.6f}" for value in values), *equal)
    return table


def times_table(groups: dict[str, dict[str, Run]], wait: float) -> Table:
    """Return a table of where each run's steps spent their time, in microseconds; `wait` is in seconds."""
    compared = any(len(runs) > 1 for runs in groups.values())
    table = titled_table("Where a step's time went, in microseconds", show_edge=False)
    table.add_column("", no_wrap=True)
    for heading in (
        "fetch",
        "stage",
        "wait",
        "deliver",
        "compute",
        "total",
        *(["ratio"] if compared else []),
    ):
        table.add_column(heading, justify="right")
    for title, runs in groups.items():
        first = next(iter(runs.values()))
        table.add_row(Text(f"{title}{f', {wait * 1e3:g} ms' if title == 'with waits' else ''}", "bold"))
        for way, run in runs.items():
            stats, steps = run.stats, len(run.losses)
            waited = stats.startup + stats.wait
            times = (stats.fetch, stats.stage, waited, stats.transfer, run.compute, run.seconds)
            ratio = run.seconds / first.seconds
            table.add_row(
                f"  {way}",
                *(f"{time / steps * 1e6:,.0f}" for time in times),
                *([Text(f"{ratio:.2f}", "green" if ratio < 0.95 else "")] if compared else []),
            )
    return table


EXPLANATION = (
    "The asynchronous way is the default. Where a thread reads ahead, fetch and stage overlap with the rest, "
    "and wait is the part that still delays training. Recording the timeline takes the rest of the total."
)


def verdict(groups: dict[str, dict[str, Run]]) -> str:
    """Return what reading asynchronously gained in each group of runs, and how the loader explains it."""
    lines = []
    for title, runs in groups.items():
        synchronous, asynchronous = runs.values()
        ratio = asynchronous.seconds / synchronous.seconds
        lines.append(f"{title.capitalize()}: {ratio:.2f} of the synchronous time. {asynchronous.note}")
    return "\n".join(lines)
