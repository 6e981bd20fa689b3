"""Measure how long worker processes take to deliver a first batch, and the private memory of one.

Each measurement runs in a fresh interpreter that has imported the library and made its data, a NumPy array
of 128 kB. Every sample has the ID of the process that made it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.measure import Result, Spread, spread

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
for _ in epoch:  # Paddle leaks shared memory if an epoch is not finished
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
    """Time the first batch from 2 workers: of a process's first loader, its second, and a later epoch.

    The clock starts before the loader is made, or the epoch begins, and stops when the batch arrives. The
    first loader's workers persist and still run while the second loader starts. Imports do not count,
    except those in the workers: a forked worker inherits its imports, one from a fork server pays for them.
    """
    kinds = ("first loader", "second loader", "second epoch")
    rows = {
        f"{name}: {kind}": spreads[column]
        for column, kind in enumerate(kinds)
        for name, spreads in _measure(repeats).items()
    }
    return Result(
        "the first batch from 2 workers", "ms", None, "first loader 1,000, second 150, second epoch 2", rows
    )


def worker_memory(repeats: int) -> Result:
    """Measure the private pages of a worker after an epoch, the larger of two workers."""
    rows = {name: spreads[3] for name, spreads in _measure(repeats).items()}
    return Result("private memory of a worker", "MB", None, "at most 40", rows)


@cache
def _measure(repeats: int) -> dict[str, list[Spread]]:
    """Return three spreads in ms and one in MB per candidate; both cases share one measurement."""
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
            spread(seen)
            for seen in zip(*measured[1:], strict=True)  # the first run warmed up the file cache
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
