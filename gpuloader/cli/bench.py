"""``gpuloader bench``: compare gpuloader with other installed loaders, case by case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloader.cli.consoles import fail, open_console
from gpuloader.errors import MissingPackage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from gpuloader.bench.cases import Case
    from gpuloader.bench.peers import Peer
    from gpuloader.bench.report import Report
    from gpuloader.bench.running import Tell

OVERLAP = "overlap"
"""The case that compares the ways to read ahead; it has no peers, because only the options differ."""


def bench(
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME",
            help="A library to compare with; repeat for more. Default: all.",
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            metavar="NAME",
            help="A case to measure; repeat for more. Default: all. An unknown name prints the list.",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measured turns of each loader, after a warm-up turn.")
    ] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the figures to this file, as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Plot the figures to this file, as PNG.")
    ] = None,
) -> None:
    """Measure the time per batch of gpuloader, other loaders and a bare NumPy loop.

    The libraries take turns, each in its own process. The report names those
    that are not installed and every error. The exit code is 1 if gpuloader failed.
    """
    from gpuloader.bench.cases import CASES
    from gpuloader.bench.machine import describe_machine
    from gpuloader.bench.peers import OURS, PEERS
    from gpuloader.bench.report import Report
    from gpuloader.cli.bench_tables import show_better, show_machine

    peers = [PEERS[name] for name in _choose(peer, PEERS, "peer")]
    names = _choose(case, [*CASES, OVERLAP], "case")
    cases = [CASES[name] for name in names if name != OVERLAP]
    _check_targets(output, plot)
    versions = {one.name: one.version() for one in peers}
    report = Report(describe_machine(), versions, repeats)
    console = open_console()
    console.print(show_machine(report))
    try:
        _measure(report, cases, [one for one in peers if versions[one.name] is not None], console)
        if OVERLAP in names:
            _measure_overlap(report, console)
    finally:  # on Ctrl-C, show the figures so far before the message
        if cases:
            console.print(show_better(report))
    _write(report, output, plot, console)
    raise typer.Exit(1 if any(row.peer == OURS.name for _, row in report.failures()) else 0)


def _choose(names: list[str] | None, known: Iterable[str], what: str) -> list[str]:
    chosen = list(dict.fromkeys(names or known))
    for name in chosen:
        if name not in known:
            fail(f"no {what} is named {name!r}; choose from {', '.join(known)}")
    return chosen


def _check_targets(output: Path | None, plot: Path | None) -> None:
    """Fail before the measurement if its results could not be written."""
    try:
        if plot is not None:
            from gpuloader.bench.plot import check_plotting

            check_plotting()
        for path in (output, plot):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                new = not path.exists()
                with path.open("ab"):
                    pass
                if new:  # leave nothing behind if the measurement is interrupted
                    path.unlink()
    except (MissingPackage, OSError) as error:
        fail(error)


def _measure(report: Report, cases: list[Case], peers: list[Peer], console: Console) -> None:
    from gpuloader.bench.running import run_cases
    from gpuloader.cli.bench_tables import show_case

    with _show_progress(console, len(cases), report) as tell:
        for measured in run_cases(cases, peers, report.repeats, tell=tell):
            report.cases.append(measured)
            console.print(show_case(measured))


def _measure_overlap(report: Report, console: Console) -> None:
    from rich.live import Live

    from gpuloader.bench.overlap import measure_overlap
    from gpuloader.cli.bench_tables import show_overlap

    # No thread to refresh the table: it would disturb the measurement.
    with Live(show_overlap(report.overlap), console=console, auto_refresh=False) as live:
        for measured in measure_overlap(report.repeats):
            report.overlap.append(measured)
            live.update(show_overlap(report.overlap), refresh=True)


@contextmanager
def _show_progress(console: Console, cases: int, report: Report) -> Iterator[Tell | None]:
    """Show which turn of which case is running; yield None if the output is not a terminal."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.fields[case]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}", style="dim"),
    )
    # No thread to refresh the bar: it would disturb the measurement.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=1, case="")

        def tell(what: str, done: int, total: int) -> None:
            number = f"case {len(report.cases) + 1} of {cases}"
            progress.update(task, description=what, completed=done, total=total or 1, case=number)
            progress.refresh()

        yield tell


def _write(report: Report, output: Path | None, plot: Path | None, console: Console) -> None:
    try:
        if output is not None:
            output.write_text(json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8")
            console.print("Wrote", str(output), markup=False)
        if plot is not None:
            from gpuloader.bench.plot import draw

            draw(report, plot)
            console.print("Plotted", str(plot), markup=False)
    except OSError as error:
        fail(error)
