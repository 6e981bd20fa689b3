"""How long worker processes take to give a first batch, and how much memory one of them has to itself.

Each measurement runs in a fresh interpreter that has imported the library and made its data, a NumPy array
of 128 kB; every sample names the process that made it.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.measure import Result, Spread

_CODE = """
import json, sys
from time import perf_counter
from benchmarks.dataset_samples import Whose

library, method = sys.argv[1:]
dataset = Whose(1000)
if library == "gpuloader":
    from gpuloader import DataLoader
    loader = lambda: DataLoader(dataset, places="cpu", batch_size=100, num_workers=2,
                                persistent_workers=True, start_method=method)
elif library == "torch":
    from torch.utils.data import DataLoader
    loader = lambda: DataLoader(dataset, 100, num_workers=2, persistent_workers=True,
                                multiprocessing_context=method)
else:
    import paddle
    paddle.set_device("cpu")
    loader = lambda: paddle.io.DataLoader(dataset, batch_size=100, num_workers=2, persistent_workers=True)

def private(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1000

start = perf_counter()
first = loader()
epoch = iter(first)
pids = {int(number) for number in next(epoch)[1]}
seconds = [perf_counter() - start]
for _, numbers in epoch:
    pids |= {int(number) for number in numbers}
memory = max(map(private, pids))
start = perf_counter()
epoch = iter(first)
next(epoch)
again = perf_counter() - start
for _ in epoch:
    pass
start = perf_counter()
other = loader()
epoch = iter(other)
next(epoch)
seconds += [perf_counter() - start, again]
for _ in epoch:  # Paddle leaves shared memory behind if it is left early
    pass
print(json.dumps([*(1000 * value for value in seconds), memory]))
"""

_CANDIDATES = [
    ("gpuloader", "forkserver"),
    ("gpuloader", "fork"),
    ("torch", "fork"),
    ("torch", "forkserver"),
    ("paddle", "fork"),
]


def worker_start(repeats: int) -> Result:
    """Time the first batch of 2 workers: a process's first loader, its second, and a later epoch.

    The clock runs from before the loader is made, or the epoch begun, until the batch is there. The
    workers of the first loader persist and are there while the second starts. Imports are not counted,
    unless the workers themselves import what a forked one finds: that is the price of a forkserver.
    """
    kinds = ("first loader", "second loader", "second epoch")
    rows = {
        f"{name}: {kind}": spreads[column]
        for column, kind in enumerate(kinds)
        for name, spreads in _measure(repeats).items()
    }
    return Result(
        "the first batch of 2 workers", "ms", None, "first loader 1,000, second 150, second epoch 2", rows
    )


def worker_memory(repeats: int) -> Result:
    """Measure what a worker has to itself after an epoch: its private pages, the greater of two workers."""
    rows = {name: spreads[3] for name, spreads in _measure(repeats).items()}
    return Result("private memory of a worker", "MB", None, "at most 40", rows)


@cache
def _measure(repeats: int) -> dict[str, list[Spread]]:
    """Return spreads of milliseconds (three) and megabytes by candidate; two cases share one measurement."""
    runs: dict[tuple[str, str], list[list[float]]] = {
        candidate: [] for candidate in _CANDIDATES if importlib.util.find_spec(candidate[0])
    }
    for _ in range(repeats + 1):
        for candidate in list(runs):
            try:
                runs[candidate].append(_run(*candidate))
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as failure:
                print(f"left out: {', '.join(candidate)}: {failure}", file=sys.stderr)
                del runs[candidate]
    return {
        ", ".join(candidate): [
            Spread(statistics.median(seen), min(seen), max(seen))
            for seen in zip(*measured[1:], strict=True)  # the first warmed up the file cache
        ]
        for candidate, measured in runs.items()
    }


def _run(library: str, method: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, library, method],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
    )
    measured: list[float] = json.loads(done.stdout.splitlines()[-1])
    return measured
