"""Measure the time per batch of gpuloader, other loaders and a bare NumPy loop.

python -m benchmarks.peers [--peer NAME ...] [--case NAME ...] [--repeats N] [--output FILE] [--plot FILE]

The libraries take turns, each in its own process. The report names those that are not installed and every
error. The exit code is 1 if gpuloader failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.measure import describe_machine, write_report
from benchmarks.overlap import measure_overlap
from benchmarks.peers import OURS, PEERS, report, running
from benchmarks.peers.cases import CASES
from gpuloader.cli import FAILED, INTERRUPTED, Parser, check_writable, fail, parse_count, show_status
from gpuloader.errors import MissingPackage

OVERLAP = "overlap"
"""The case that compares the ways to read ahead; it has no peers, because only the options differ."""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the tables and write the files; return the exit code."""
    parser = Parser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--peer",
        action="append",
        choices=PEERS,
        metavar="NAME",
        help="a library; repeat for more (default: all)",
    )
    cases = [*CASES, OVERLAP]
    add(
        "--case",
        action="append",
        choices=cases,
        metavar="NAME",
        help="a case; repeat for more (default: all)",
    )
    add(
        "--repeats",
        type=parse_count,
        default=5,
        help="turns of each loader, after a warm-up turn (default: 5)",
    )
    add("--output", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    add("--plot", type=Path, metavar="FILE", help="plot the figures to this file, as PNG")
    options = parser.parse_args(arguments)
    try:
        # Before the measurement, which would be lost if its results could not be written.
        if options.plot is not None:
            from benchmarks.peers.plot import check_plotting

            check_plotting()
        for path in filter(None, (options.output, options.plot)):
            path.parent.mkdir(parents=True, exist_ok=True)
            check_writable(path)
    except (MissingPackage, OSError) as error:
        fail(error)
    try:
        return _measure(options)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED


def _measure(options: argparse.Namespace) -> int:
    peers = [PEERS[name] for name in dict.fromkeys(options.peer or PEERS)]
    names = list(dict.fromkeys(options.case or [*CASES, OVERLAP]))
    cases = [CASES[name] for name in names if name != OVERLAP]
    versions = {one.name: one.version() for one in peers}
    installed = [one for one in peers if versions[one.name] is not None]
    made = report.Report(describe_machine(), versions, options.repeats)
    print(f"{report.render_machine(made)}\n", flush=True)

    def tell(what: str, done: int, total: int) -> None:
        show_status(f"case {len(made.cases) + 1} of {len(cases)}: {what}, turn {done} of {total or '?'} …")

    try:
        for measured in running.run_cases(cases, installed, options.repeats, tell=tell):
            show_status("")
            made.cases.append(measured)
            print(f"{report.render_case(measured)}\n", flush=True)
        if OVERLAP in names:
            for one in measure_overlap(options.repeats):
                show_status(f"read {one.name}")
                made.overlap.append(one)
            show_status("")
            print(f"{report.render_overlap(made.overlap)}\n", flush=True)
    finally:  # on Ctrl-C, show the figures so far before the message
        show_status("")
        if cases:
            print(report.render_better(made), flush=True)
    if options.output is not None:
        write_report(made.to_json(), options.output)
        print("Wrote", options.output)
    if options.plot is not None:
        from benchmarks.peers.plot import draw

        draw(made, options.plot)
        print("Plotted", options.plot)
    return FAILED if any(row.peer == OURS.name for _, row in made.failures()) else 0


if __name__ == "__main__":
    sys.exit(main())
