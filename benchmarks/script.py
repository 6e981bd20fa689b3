"""The command line that the benchmark scripts share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import write_report


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def run_script(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    render: Callable[[dict[str, Any]], str],
) -> None:
    """Measure and print the tables, or with ``--table`` print those of an earlier report.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        The script's parser; this function adds ``--output`` and ``--table``.
    measure : callable
        A function that returns the report, given the parsed options.
    render : callable
        A function that returns the report's tables as Markdown.
    """
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--table", type=Path, help="print the tables of this file and measure nothing")
    options = parser.parse_args()
    if options.table:
        print(render(json.loads(options.table.read_text())))
        return
    report = measure(options)
    print(render(report))
    if options.output:
        write_report(report, options.output)
