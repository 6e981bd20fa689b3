"""The host's time per batch on a GPU's pipeline, without a GPU: calls of CUDA return at once and are counted.

python benchmarks/gpu/host.py [--case NAME ...] [--batches N] [--repeats N] [--json]
    [--beside FOLDER ...] [--rounds N] [--output FILE.json]

The loop drops each batch at once. Times are the least of all repeats, in microseconds per batch: those that
have passed, and those of the processor in all threads, which count on a machine that does other work. Calls
are those of CUDA per batch. `--beside` names checkouts of other commits. All take turns, each time in a new
process, and the least of all rounds are compared.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from benchmarks.gpu.counted_cuda import CountedRuntime, counted_cuda
from benchmarks.measure import describe_machine, write_report
from gpuloader import DataLoader, TensorDataset, prefetch
from gpuloader.transforms import Normalize, OneHot, RandomCropFlip

BATCH = 64
STEPS = (RandomCropFlip("0", (28, 28)), Normalize("0", 0.5, 0.25, scale=1 / 255), OneHot("1", 10))

Epochs = Callable[[], Iterable[Any]]


def _ready(batches: int) -> Epochs:
    """Return epochs of batches that are staged already: the pipeline alone."""
    from benchmarks.gpu.ready import ReadyBuffers

    buffers = ReadyBuffers(BATCH * 785)
    return lambda: buffers.epoch(batches)


def _from_generator(batches: int, output: str | None = None) -> Epochs:
    batch = [np.zeros((BATCH, 784), np.uint8), np.zeros((BATCH, 1), np.int64)]
    loader = DataLoader.from_generator(capacity=4, return_list=True, output=output)
    loader.set_batch_generator(lambda: (batch for _ in range(batches)), places="gpu:0")
    return lambda: loader


def _prefetch(batches: int, output: str | None = None) -> Epochs:
    batch = {
        "image": np.zeros((BATCH, 784), np.uint8),
        "label": np.zeros((BATCH, 1), np.int64),
        "name": "text",
    }
    loader = prefetch([batch] * batches, places="gpu:0", output=output)
    return lambda: loader


def _dataset(batches: int, cache: str | None = None, transforms: tuple[Any, ...] = ()) -> Epochs:
    pictures = np.zeros((batches * BATCH, 32, 32, 1), np.uint8)
    rows = TensorDataset(pictures, np.arange(batches * BATCH) % 10)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 0, "cache": cache}
    loader = DataLoader(rows, places="gpu:0", transforms=list(transforms), **options)
    return lambda: loader


CASES: dict[str, Callable[[int], Epochs]] = {
    "ready": _ready,
    "from_generator": _from_generator,
    "from_generator_torch": lambda batches: _from_generator(batches, "torch"),
    "prefetch": _prefetch,
    "prefetch_torch": lambda batches: _prefetch(batches, "torch"),
    "dataset": _dataset,
    "augmented": lambda batches: _dataset(batches, None, STEPS),
    "cached": lambda batches: _dataset(batches, "device"),
    "cached_augmented": lambda batches: _dataset(batches, "device", STEPS),
}


def measure(case: str, batches: int, repeats: int) -> dict[str, float]:
    """Return the least times and CUDA calls per batch of `repeats` epochs, after a warm one."""
    with counted_cuda() as runtime:
        epochs = CASES[case](batches)
        _run(runtime, epochs())
        gc.collect()
        gc.disable()
        runs = [_run(runtime, epochs()) for _ in range(repeats)]
        gc.enable()
    passed, used, calls = (min(kind) / batches for kind in zip(*runs, strict=True))
    return {"us": round(passed / 1000, 2), "cpu": round(used / 1000, 2), "calls": round(calls, 2)}


def _run(runtime: CountedRuntime, epoch: Iterable[Any]) -> tuple[int, int, int]:
    begun, used, before = perf_counter_ns(), process_time_ns(), runtime.calls
    for batch in epoch:
        del batch
    return perf_counter_ns() - begun, process_time_ns() - used, runtime.calls - before


def compare(folders: list[Path], case: str, options: argparse.Namespace) -> list[dict[str, float] | None]:
    """Return the least of one case for each checkout, measured by turns; None where it has no such case."""
    arguments = ["--json", "--case", case, f"--batches={options.batches}", f"--repeats={options.repeats}"]
    runs: list[list[dict[str, float]]] = [[] for _ in folders]
    for _ in range(options.rounds):
        for folder, seen in zip(folders, runs, strict=True):
            command = [sys.executable, str(folder / "benchmarks/gpu/host.py"), *arguments]
            environment = {**os.environ, "PYTHONPATH": str(folder)}
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
            if not done.returncode:
                seen.append(json.loads(done.stdout)[case])
    return [{kind: min(one[kind] for one in seen) for kind in seen[0]} if seen else None for seen in runs]


def _describe(folder: Path) -> str:
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _show(figures: dict[str, float]) -> str:
    return f"{figures['us']:.1f} µs, {figures['cpu']:.1f} µs of the processor, {figures['calls']:.1f} calls"


def compare_all(options: argparse.Namespace) -> None:
    """Compare all checkouts case by case, and print a table."""
    folders = [*options.beside, Path(__file__).parents[2]]
    names = [_describe(folder) for folder in folders]
    report: dict[str, dict[str, dict[str, float] | None]] = {}
    print(f"| case | {' | '.join(names)} | processor, last / first |")
    print("|---|" + "---:|" * (len(names) + 1))
    for case in options.case:
        found = compare(folders, case, options)
        report[case] = dict(zip(names, found, strict=True))
        cells = ["" if one is None else _show(one) for one in found]
        first, last = found[0], found[-1]
        share = f"{last['cpu'] / first['cpu']:.2f}" if first is not None and last is not None else ""
        print(f"| `{case}` | {' | '.join(cells)} | {share} |", flush=True)
    if options.output is not None:
        taken = {name: getattr(options, name) for name in ("rounds", "batches", "repeats")}
        write_report({"machine": describe_machine(), **taken, "cases": report}, options.output)


def main() -> None:
    """Measure the chosen cases and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), help="the cases to measure")
    parser.add_argument("--batches", type=int, default=500, help="batches per epoch")
    parser.add_argument("--repeats", type=int, default=15, help="epochs to take the least of")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--beside", nargs="+", type=Path, default=[], help="checkouts of other commits")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each checkout")
    parser.add_argument("--output", type=Path, help="write the comparison to this file")
    options = parser.parse_args()
    if options.beside:
        compare_all(options)
        return
    found = {case: measure(case, options.batches, options.repeats) for case in options.case}
    if options.json:
        print(json.dumps(found))
        return
    for case, figures in found.items():
        print(f"{case:22} {_show(figures)}")


if __name__ == "__main__":
    main()
