"""Render the doctor's findings as tables."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gpuloader.doctor.finding import Finding, Report, Section, Verdict

_MARKS: dict[Verdict, tuple[str, str]] = {
    "good": ("✓", "green"),
    "note": ("!", "yellow"),
    "bad": ("✗", "bold red"),
}
_PLAIN_MARKS = {"✓": "+", "✗": "x"}


def show_report(report: Report, *, ascii_only: bool = False) -> RenderableType:
    """Return the printable report: a table per section, and a summary."""
    sections = [part for section in report.sections for part in _show_section(section, ascii_only)]
    return Group(*sections, _show_summary(report))


def _show_section(section: Section, ascii_only: bool) -> tuple[RenderableType, ...]:
    # A width for the longest finding name aligns the columns of all sections.
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(width=1)
    table.add_column(width=16, no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for finding in section.findings:
        mark, style = _MARKS[finding.verdict]
        mark = _PLAIN_MARKS.get(mark, mark) if ascii_only else mark
        table.add_row(Text(mark, style), Text(finding.name), _show_value(finding, style))
    return Rule(Text(section.title, "bold"), align="left", style="dim"), table, Text()


def _show_value(finding: Finding, style: str) -> Text:
    value = Text(finding.value, "dim" if finding.verdict == "good" else style)
    if finding.advice:
        value.append(f"\n{finding.advice}", "default not bold")
    return value


def _show_summary(report: Report) -> Panel:
    notes, bad = report.count("note"), report.count("bad")
    counts = " and ".join(
        _count(number, name) for number, name in ((bad, "problem"), (notes, "note")) if number
    )
    if bad:
        text, style = f"A loader would fail here: {counts} above.", "red"
    elif notes:
        text, style = f"A loader works here; {counts} above.", "yellow"
    else:
        text, style = "Everything a loader needs works here.", "green"
    return Panel(Text(text, f"bold {style}"), box=box.ROUNDED, border_style=style, expand=False)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
