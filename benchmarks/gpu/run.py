"""Measure gpuloader on a GPU: bandwidth, step time, host time, kernels, pictures, data there, other loaders.

python benchmarks/gpu/run.py [--case NAME ...] [--repeats N] [--output FILE]

Each case runs in its own process. If one fails or takes too long, the report says so and the others still
run. The file is rewritten after each case. `benchmarks/run.py --table FILE` prints the tables of an earlier
run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu.limited import run_limited
from benchmarks.gpu.one import CASES
from benchmarks.gpu.predictions import render_predictions
from benchmarks.gpu.turns import verdict
from benchmarks.measure import make_parser, write_report
from benchmarks.run import render

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run the chosen cases, print and write their tables and verdicts; return 1 if a case failed."""
    options = _parse()
    import cupy

    from benchmarks.gpu.machine import describe_gpu_machine, slug

    if not cupy.cuda.is_available():
        print("CuPy finds no usable GPU; gpuloader doctor says why", file=sys.stderr)
        return 2
    machine = describe_gpu_machine(options.commit)
    output = options.output or ROOT / "benchmarks" / "results" / f"{slug(machine['gpu'])}.json"
    output.parent.mkdir(parents=True, exist_ok=True)  # fail now rather than after measuring
    report: dict[str, Any] = {"machine": machine, "repeats": options.repeats, "cases": [], "failed": {}}
    print(render(report), flush=True)
    end = monotonic() + 60 * options.minutes
    for name in options.case:
        begun = monotonic()
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        limit = min(options.limit, end - begun)
        cases, failure = _run(name, options.repeats, limit) if limit > 0 else ([], "no time left")
        print(f"{name}: {monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        report["cases"] += cases
        if failure:
            report["failed"][name] = failure
            print(f"\n**{name}** failed: {failure}", flush=True)
        print(render(report | {"cases": cases}).partition("\n")[2], flush=True)
        write_report(report, output)
    print(render_verdicts(report) + "\n" + render_predictions(report), flush=True)
    return 1 if report["failed"] else 0


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--case", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=5, help="turns of each candidate (default: 5)")
    parser.add_argument("--output", type=Path, help="JSON file to write (default: named after the GPU)")
    parser.add_argument("--minutes", type=float, default=8, help="minutes for all cases (default: 8)")
    parser.add_argument("--limit", type=float, default=150, help="seconds per case (default: 150)")
    parser.add_argument("--commit", help="commit to record if git cannot tell")
    return parser.parse_args()


def _run(name: str, repeats: int, limit: float) -> tuple[list[Any], str]:
    """Run a case in its process; return its results as plain data and, if it failed, the reason."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        command = [sys.executable, "-m", "benchmarks.gpu.one", name, str(repeats), str(file)]
        code = run_limited(command, limit, cwd=ROOT, stdout=sys.stderr)
        if code is None:
            return [], f"took longer than {limit:.0f} s"
        if not file.is_file():
            return [], f"its process ended with code {code}; see stderr"
        return json.loads(file.read_text()), ""


def render_verdicts(report: dict[str, Any]) -> str:
    """Return a Markdown table of the goals and whether they were met."""
    lines = ["", "**Goals**", "", "| case | goal | reached | at most | |", "|---|---|---:|---:|---|"]
    for case in report["cases"]:
        found = verdict(case)
        if found is None and case["goal"] != "none":
            lines.append(f"| {case['case']} | {case['goal']} | | | **not measured** |")
        if found is not None:
            _, reached, limit = found
            unit = "times the floor" if case["floor"] else case["unit"].split()[0]
            met = "met" if reached <= limit else "**missed**"
            lines.append(f"| {case['case']} | {case['goal']} | {reached:.3g} {unit} | {limit:.3g} | {met} |")
    lines += [f"| {name} | | {failure} | | **failed** |" for name, failure in report["failed"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
