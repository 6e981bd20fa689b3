"""Measure gpuloader against a bare floor and against installed peers.

python benchmarks/run.py [--case NAME ...] [--repeats N] [--output FILE]
python benchmarks/run.py --table FILE     prints the tables of an earlier run, or of benchmarks.peers
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import (
    dataset_start,
    drawing,
    files,
    footprint,
    huggingface,
    overlap,
    packing,
    processor,
    stages,
    starts,
    tokens,
    torch_samples,
    watching,
)
from benchmarks.measure import describe_machine, make_parser, run_script
from benchmarks.overlap import WAYS, Overlapped
from benchmarks.peers.cases import CASES as PEER_CASES
from benchmarks.peers.report import Report
from benchmarks.peers.running import measure_case

CASES = {
    **{name: partial(measure_case, name) for name in PEER_CASES},
    "parquet": files.parquet,
    "huggingface": huggingface.huggingface,
    "tokens": tokens.tokens,
    "packing": packing.packing,
    "sample_rng": drawing.drawing,
    "worker_start": dataset_start.worker_start,
    "worker_memory": dataset_start.worker_memory,
    "starts": starts.starts,
    "list_memory": starts.list_memory,
    "no_workers": overlap.no_workers,
    "stages": stages.stages,
    "stages_labelled": partial(stages.stages, label=True),
    "processor": processor.processor,
    "watching": watching.watching,
    "torch_samples": torch_samples.torch_samples,
    "memory": footprint.memory,
    "many_loaders": footprint.many_loaders,
    "import_time": footprint.import_time,
}


def main() -> None:
    """Run the chosen cases, print their tables and write the report to a file."""
    parser = make_parser(__doc__)
    parser.add_argument("--case", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=7, help="turns of each candidate (default: 7)")
    run_script(parser, measure, render)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the chosen cases and return the report."""
    report: dict[str, Any] = {"machine": describe_machine(), "repeats": options.repeats, "cases": []}
    for name in options.case:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        measured = CASES[name](options.repeats)
        results = measured if isinstance(measured, list) else [measured]
        report["cases"] += [result.to_json() for result in results]
    return report


def render(report: dict[str, Any]) -> str:
    """Return a report as Markdown tables, with ratios of medians to each case's floor."""
    if "peers" in report:
        return _render_peers(Report.from_json(report))
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if name != "package")
    lines = [f"Measured on: {machine}. Median (min to max) of {report['repeats']} interleaved runs."]
    for case in report["cases"]:
        lines += ["", f"**{case['case']}**, {case['unit']}; goal: {case['goal']}", ""]
        floor = case["rows"][case["floor"]]["median"] if case["floor"] else None
        lines += ["| | median | min to max | × floor |", "|---|---:|---:|---:|"]
        for name, row in case["rows"].items():
            ratio = f"{row['median'] / floor:.2f}" if floor else ""
            spread = f"{_number(row['low'])} to {_number(row['high'])}"
            lines.append(f"| {name} | {_number(row['median'])} | {spread} | {ratio} |")
    return "\n".join(lines)


def _render_peers(report: Report) -> str:
    versions = {name: version for name, version in report.versions.items() if version is not None}
    cases = [case.to_result().to_json() for case in report.cases]
    rendered = render({"machine": report.machine | versions, "repeats": report.repeats, "cases": cases})
    return "\n".join([rendered, *_render_overlap(report.overlap)])


def _render_overlap(workloads: list[Overlapped]) -> list[str]:
    if not workloads:
        return []
    lines = ["", "**Reading ahead**, µs per step; ratio of the default to the faster of the others", ""]
    lines += ["| | default | synchronous | thread | ratio | goal |", "|---|---:|---:|---:|---:|---:|"]
    for one in workloads:
        times = " | ".join(_number(one.rows[way].median) for way in WAYS)
        lines.append(f"| {one.name} | {times} | {one.ratio:.2f} | {one.goal:.2f} |")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
