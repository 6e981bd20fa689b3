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
    "In asynchronous runs, fetch and stage overlap with the rest; wait is the part that still delays "
    "training. The rest of the total is spent on recording the timeline."
)


def verdict(groups: dict[str, dict[str, Run]]) -> str:
    """Return a sentence or two on what reading asynchronously gained in the runs without waits."""
    first, *slowed = groups.values()
    synchronous, asynchronous = first.values()
    ratio = asynchronous.seconds / synchronous.seconds
    if ratio < 0.95:
        return f"As it is, the asynchronous run takes {ratio:.2f} of the synchronous run's time."
    micros = synchronous.seconds / len(synchronous.losses) * 1e6
    return (
        f"As it is, a step takes {micros:,.0f} µs, too short for a second thread to help here (ratio "
        f"{ratio:.2f}). Reading ahead pays when reading or computing takes longer"
        f"{', as in the runs with waits' if slowed else ''}."
    )
