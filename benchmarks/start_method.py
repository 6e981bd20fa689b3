"""Measure how long workers take to get a dataset, and the memory they need, for each start method.

python benchmarks/start_method.py [--case NAME ...] [--workers N] [--repeats N] [--output FILE]
python benchmarks/start_method.py --table FILE     prints the table of an earlier run
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import describe_machine, make_parser, run_script, spread
from gpuloader.fetch.processes.shipping import Parcel, Unshippable, pack, unpack
from gpuloader.system.processes import without_main

METHODS = ("fork", "forkserver", "spawn")
PRELOADED = ["numpy", "gpuloader", "gpuloader.fetch.processes.shipping"]

Measured = dict[str, float]
"""The figures of one turn: `have_ms`, and private memory before (`private_mb`) and after touching all data
(`touched_mb`)."""


class Dataset:
    """A dataset of parts that a worker can touch one after the other."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def touch(self) -> float:
        """Read every element once, as an epoch does."""
        return float(sum(_touch(part) for part in self.parts))


def _touch(part: Any) -> float:
    if isinstance(part, np.ndarray | float):
        return float(np.sum(part))
    if isinstance(part, list):
        return sum(_touch(one) for one in part) if part and isinstance(part[0], list) else sum(part)
    return sum(len(path) + label for path, label in part) if isinstance(part, tuple) else 0.0


def nothing() -> Dataset:
    """Make an empty dataset, to measure the cost of a worker by itself."""
    return Dataset()


def arrays() -> Dataset:
    """Make one array of 150 MB of images, and their labels."""
    rng = np.random.default_rng(1)
    return Dataset(rng.random((47_800, 28, 28), np.float32), rng.integers(0, 10, 47_800))


def unpicklable() -> Dataset:
    """Make the same arrays and a lock, like datasets with a connection, a cache or a logger."""
    return Dataset(*arrays().parts, threading.Lock())


def samples() -> Dataset:
    """Make a million file names with a label each."""
    return Dataset(
        tuple((f"/data/images/train/{n % 1000:04d}/{n:08d}.jpg", n % 1000) for n in range(1_000_000))
    )


def numbers(count: int) -> Dataset:
    """Make `count` numbers as Python objects, in lists of a thousand."""
    return Dataset([[n * 0.5 + k for k in range(1000)] for n in range(count // 1000)])


CASES: dict[str, tuple[str, Callable[[], Dataset]]] = {
    "nothing": ("nothing", nothing),
    "arrays": ("150 MB of arrays", arrays),
    "unpicklable": ("150 MB of arrays and a lock", unpicklable),
    "samples": ("1 million (path, label) tuples", samples),
    "numbers_1": ("1 million floats in lists", lambda: numbers(1_000_000)),
    "numbers_3": ("3 million floats in lists", lambda: numbers(3_000_000)),
    "numbers_10": ("10 million floats in lists", lambda: numbers(10_000_000)),
}


def serve(connection: Connection, dataset: Dataset | None = None) -> None:
    """Run a worker: get the dataset, report it, then touch all of it and end, each on request."""
    dataset = unpack(recv_handle(connection)) if dataset is None else dataset
    connection.send("have it")
    connection.recv()
    connection.send(dataset.touch())
    connection.recv()


def start(method: str, dataset: Dataset, parcel: Parcel | None, workers: int) -> Measured:
    """Start all workers at once; return when the last had the dataset, and the private memory of one."""
    # Use several workers: any page that only one process maps counts as private to it.
    context: Any = multiprocessing.get_context(method)
    pipes = [context.Pipe() for _ in range(workers)]
    begin = time.perf_counter()
    processes = [
        context.Process(target=serve, args=(theirs,) if parcel else (theirs, dataset)) for _, theirs in pipes
    ]
    with without_main():
        for process in processes:
            process.start()
    if parcel:
        for process, (ours, _) in zip(processes, pipes, strict=True):
            send_handle(ours, parcel.descriptor, process.pid)
    for ours, _ in pipes:
        ours.recv()
    have = time.perf_counter() - begin
    before = median(private_bytes(process.pid) for process in processes)
    for ours, _ in pipes:
        ours.send("touch")
    for ours, _ in pipes:
        ours.recv()
    after = median(private_bytes(process.pid) for process in processes)
    for process, (ours, theirs) in zip(processes, pipes, strict=True):
        ours.send("end")
        process.join()
        ours.close()
        theirs.close()
    return {"have_ms": have * 1e3, "private_mb": before / 1e6, "touched_mb": after / 1e6}


def private_bytes(pid: int | None) -> int:
    """Return the memory that no other process shares (the unique set size)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def measure(name: str, workers: int, repeats: int) -> dict[str, Any]:
    """Measure one case with all start methods in turn, after a warm-up turn."""
    title, make = CASES[name]
    dataset = make()
    gc.collect()
    packing: list[float] = []
    refusal, parcel = None, None
    for _ in range(repeats):
        if parcel:
            parcel.close()
        begin = time.perf_counter()
        try:
            parcel = pack(dataset)
        except Unshippable as error:
            refusal = str(error)
        packing.append((time.perf_counter() - begin) * 1e3)
    methods = METHODS if parcel else ("fork",)
    runs: dict[str, list[Measured]] = {method: [] for method in methods}
    for turn in range(repeats + 1):
        for method in methods:
            measured = start(method, dataset, None if method == "fork" else parcel, workers)
            if turn:
                runs[method].append(measured)
    return {
        "case": title,
        "pack_ms": asdict(spread(packing)),
        "parcel_bytes": parcel.nbytes if parcel else None,
        "refused": refusal,
        "rows": {
            method: {key: asdict(spread([run[key] for run in seen])) for key in seen[0]}
            for method, seen in runs.items()
        },
    }


def render(report: dict[str, Any]) -> str:
    """Return a report as a Markdown table."""
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if name != "package")
    lines = [
        f"Measured on: {machine}. Median (min to max) of {report['repeats']} interleaved runs; "
        f"{report['workers']} workers at once. Packing is done once for all workers; memory is that of one. "
        f"The first forkserver start took {report['first_forkserver_ms']:,.0f} ms, including its server.",
        "",
        "| dataset | start | packing, ms | all have it, ms | private MB | private MB, all touched |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for case in report["cases"]:
        packing = f"{case['pack_ms']['median']:,.0f}"
        for method in METHODS:
            row = case["rows"].get(method)
            if row is None:
                lines.append(f"| {case['case']} | {method} | refused after {packing} | | | |")
                continue
            have, before, after = (row[key] for key in ("have_ms", "private_mb", "touched_mb"))
            times = f"{have['median']:,.0f} ({have['low']:,.0f} to {have['high']:,.0f})"
            packed = "" if method == "fork" else packing
            memory = f"{before['median']:,.1f} | {after['median']:,.1f}"
            lines.append(f"| {case['case']} | {method} | {packed} | {times} | {memory} |")
    return "\n".join(lines)


def main() -> None:
    """Run the chosen cases, print their table and write the report to a file."""
    parser = make_parser(__doc__)
    parser.add_argument("--case", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--workers", type=int, default=2, help="workers started at once (default: 2)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each start method (default: 5)")
    run_script(parser, measure_all, render)


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the chosen cases and return the report."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, "benchmarks.start_method"])
    first = start("forkserver", nothing(), pack(nothing()), 1)["have_ms"]
    report: dict[str, Any] = {
        "first_forkserver_ms": first,
        "machine": describe_machine(),
        "repeats": options.repeats,
        "workers": options.workers,
        "cases": [],
    }
    for name in options.case:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        report["cases"].append(measure(name, options.workers, options.repeats))
    return report


if __name__ == "__main__":
    # Workers must be able to import the module of the function that they run.
    from benchmarks import start_method

    start_method.main()
