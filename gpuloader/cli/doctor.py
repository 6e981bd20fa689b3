"""``gpuloader doctor``: check whether loaders work on this machine."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from gpuloader.cli import FAILED, parse_place, show_status

if TYPE_CHECKING:
    from gpuloader.doctor.findings import Report

# Columns: findings do not fit in fewer, and longer lines are hard to follow.
NARROWEST, WIDEST = 40, 100
NAME = 16  # wide enough for the longest name, which aligns the values of all sections


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    place = "where batches should land: cpu, gpu:0, gpu_pinned, …"
    parser.add_argument("--place", type=parse_place, metavar="PLACE", help=place)
    parser.add_argument("--json", action="store_true", help="print only the findings, as JSON")


def run(options: argparse.Namespace) -> int:
    """Check whether loaders work on this machine, and say what to fix.

    The exit code is 1 if a loader would fail here, else 0.
    """
    from gpuloader.doctor import findings

    try:
        report = findings.examine(options.place, tell=lambda what: show_status(f"Checking {what} …"))
    finally:
        show_status("")  # also on Ctrl-C, whose message would continue the same line
    print(json.dumps(report.to_json(), indent=2) if options.json else render(report))
    return 0 if report.works else FAILED


def render(report: Report) -> str:
    """Return the findings of each section, wrapped to the width of the terminal, and a summary."""
    marks = {"good": "✓", "note": "!", "bad": "✗"}
    try:
        "✓✗".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        marks |= {"good": "+", "bad": "x"}  # question marks would hide the verdicts
    width = max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))
    indent = " " * (NAME + 4)
    lines = []
    for title, findings in report.sections.items():
        lines.append(title)
        for one in findings:
            first = f"{marks[one.verdict]}  {one.name:<{NAME}} "
            # Long words stay whole: a path or a command in pieces cannot be copied.
            for part, text in ((first, one.value), (indent, one.advice)):
                lines += textwrap.wrap(
                    text, width, initial_indent=part, subsequent_indent=indent,
                    break_long_words=False, break_on_hyphens=False,
                )  # fmt: skip
        lines.append("")
    numbers = {"problem": report.count("bad"), "note": report.count("note")}
    told = [f"{number} {name}{'s' * (number > 1)}" for name, number in numbers.items() if number]
    summary = "A loader works here; " if report.works else "A loader would fail here: "
    summary += f"{' and '.join(told)} above."
    return "\n".join([*lines, summary if told else "Everything a loader needs works here."])
