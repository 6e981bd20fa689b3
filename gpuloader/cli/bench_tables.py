"""Render a benchmark's report: a table for each case, the failures, and where a peer is better."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from gpuloader.bench.cases import CASES
from gpuloader.bench.overlap import WAYS, Overlapped
from gpuloader.bench.peers import FLOOR, OURS, PEERS
from gpuloader.bench.report import UNIT, Measured, Report, Row, format_number, format_ratio, ratio
from gpuloader.cli.consoles import titled_table


def show_machine(report: Report) -> RenderableType:
    """Return the header: the machine, the peers, and the peers that are not installed."""
    machine = ", ".join(
        f"{value} {name}"
        if name == "cores"
        else value
        if name in ("processor", "system")
        else f"{name} {value}"
        for name, value in report.machine.items()
    )
    there = [f"{name} {version}" for name, version in report.versions.items() if version is not None]
    lines = [
        Text.assemble(("On ", "dim"), machine),
        Text.assemble(("Peers: ", "dim"), ", ".join(there) or "none"),
    ]
    for name, version in report.versions.items():
        if version is None:
            install = f"pip install {PEERS[name].distributions[0]}"
            lines.append(Text.assemble(("Not installed: ", "dim"), name, (f" ({install})", "dim")))
    return Group(*lines, Text())


def show_case(case: Measured) -> RenderableType:
    """Return a case's table, its failures, and its note."""
    table = titled_table(f"{case.title}, {UNIT}")
    table.add_column("", overflow="fold")
    for heading in ("median", "min to max", "× ours", "× floor"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in case.rows:
        table.add_row(*_cells(case, row), style=_style(case, row))
    lines = [Text(f"{row.label}: {row.error}", "red") for row in case.rows if row.error is not None]
    note = CASES[case.case].note if case.case in CASES else ""
    return Group(table, *lines, *([Text(note, "dim")] if note else []), Text())


def show_overlap(measured: Sequence[Overlapped]) -> RenderableType:
    """Return the table of the workloads that compare the ways to read ahead."""
    table = titled_table("Reading ahead, µs per step")
    table.add_column("", overflow="fold")
    for heading in (*WAYS, "ratio", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in measured:
        figures = [format_number(one.rows[way].median) for way in WAYS]
        style = "" if one.ratio <= one.goal else "yellow"
        table.add_row(one.name, *figures, format_ratio(one.ratio), f"≤ {one.goal:.2f}", style=style)
    note = "The ratio is the default's time over that of the faster way to which the user can force it."
    return Group(table, Text(note, "dim"), Text())


def show_better(report: Report) -> RenderableType:
    """Return one line for each peer's loader that is faster than gpuloader's fastest."""
    lines: list[RenderableType] = []
    for case in report.cases:
        ours = case.ours
        for row, share in case.better():
            assert ours is not None
            assert ours.spread is not None
            assert row.spread is not None
            took = f"{format_number(row.spread.median)} against {format_number(ours.spread.median)} {UNIT}"
            line = Text.assemble(
                (f"{case.title}: ", "bold"),
                f"{row.label} takes ",
                (format_ratio(share), "bold yellow"),
                f" of the time of {ours.label}, {took}",
            )
            if row.spread.high >= ours.spread.low:
                line.append("; the spreads overlap", "dim")
            lines.append(line)
    if not lines:
        peers = any(row.peer in PEERS for case in report.cases for row in case.rows)
        lines = [Text("In none of these cases." if peers else "No peer was measured.")]
    return Group(Rule(Text("Where a peer is better", "bold"), align="left", style="dim"), *lines)


def _cells(case: Measured, row: Row) -> list[str]:
    if row.spread is None:
        return [row.label, "failed", "", "", ""]
    ratios = [ratio(row, case.ours), ratio(row, case.floor)]
    return [
        row.label,
        format_number(row.spread.median),
        f"{format_number(row.spread.low)} to {format_number(row.spread.high)}",
        *(format_ratio(value) if value is not None else "" for value in ratios),
    ]


def _style(case: Measured, row: Row) -> str:
    if row.spread is None:
        return "red"
    if row.peer == FLOOR.name:
        return "dim"
    if row.peer == OURS.name:
        return "bold" if row == case.ours else ""
    share = ratio(row, case.ours)
    return "yellow" if share is not None and share < 1 else ""
