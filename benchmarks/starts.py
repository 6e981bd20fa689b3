"""Measure what workers cost a PyTorch user: how fast they start, and what a long list of strings takes.

Each measurement runs in a fresh interpreter that has imported the library and made the dataset. Workers do
not persist, so every epoch starts new ones, and both libraries use the start method that they choose.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result, Spread, spread
from benchmarks.start_datasets import DATASETS

_SHARED = """
import json, os, sys, time

def tree(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        below = [int(word) for word in file.read().split()]
    return below + [one for child in below for one in tree(child)]

def proportional(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1000

def unmapped(pids):
    # Megabytes of files in memory that only descriptors keep.
    mapped, files = set(), {}
    for pid in pids:
        with open(f"/proc/{pid}/maps") as file:
            mapped |= {line.split()[4] for line in file if "/dev/shm/" in line or "/memfd:" in line}
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                status = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:  # it was closed meanwhile
                continue
            if target.startswith(("/dev/shm/", "/memfd:")):
                files[str(status.st_ino)] = status.st_blocks * 512 / 1e6
    return sum(size for number, size in files.items() if number not in mapped)
"""

_STARTS = (
    _SHARED
    + """
import torch, warnings
from time import perf_counter, sleep
from benchmarks.start_datasets import make
library, name, workers = sys.argv[1:]
dataset, options = make(name)
warnings.simplefilter("ignore")  # about more workers than cores
if library == "gpuloader":
    from gpuloader.torch import DataLoader
else:
    from torch.utils.data import DataLoader
firsts, epochs, memory, cpu, start = [], 3, [], sum(os.times()[:4]), perf_counter()
loader = DataLoader(dataset, batch_size=8, num_workers=int(workers), **options)
for epoch in range(epochs):
    for number, batch in enumerate(loader):
        if number == 0:
            firsts.append(1000 * (perf_counter() - start))
        if number == 8 and epoch == 1:
            before = time.process_time()
            sleep(1)  # as a loop that computes, until all batches that were asked for are there
            pids = [os.getpid(), *tree(os.getpid())]
            shared = sum(map(proportional, pids))
            memory = [shared, shared + unmapped(pids)]
            cpu += time.process_time() - before  # what measuring took
    start = perf_counter()
print(json.dumps([firsts[0], min(firsts[1:]), 1000 * (sum(os.times()[:4]) - cpu), *memory]))
"""
)

_MEMORY = (
    _SHARED
    + """
library, = sys.argv[1:]
files = [f"train/n{number % 1000:04d}/image_{number:08d}.jpg" for number in range(3_000_000)]
options = {"batch_size": 1000, "num_workers": 4, "shuffle": True}

class Lengths:
    def __init__(self, files):
        self.files = files
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        return len(self.files[index])

if library == "torch":
    from torch.utils.data import DataLoader
    loader = DataLoader(Lengths(files), **options)
else:
    from gpuloader import DataLoader, PackedList
    dataset = {"list": files, "packed": None}[library] or Lengths(PackedList(files))
    loader = DataLoader(dataset, places="cpu", seed=1, **options)
    if library == "packed":
        del files, dataset
for number, batch in enumerate(loader):
    if number == 2900:
        print(json.dumps([sum(map(proportional, tree(os.getpid()))), proportional(os.getpid())]))
        break
"""
)

_FIGURES = {
    "the first batch of a program's first epoch": ("ms", "torch + 30"),
    "the first batch of a later epoch": ("ms", "torch + 30"),
    "CPU time of three epochs, workers included": ("ms", "1.1 times torch"),
    "memory while batches wait for the loop, workers included": (
        "MB, shared pages divided (PSS)",
        "1.1 times torch",
    ),
    # PyTorch's batches lie in files that no process maps until the loop takes them, so PSS leaves them out.
    "that memory, and files in memory that no process maps": ("MB", "1.1 times torch"),
}


def starts(repeats: int) -> list[Result]:
    """Measure what workers cost that do not persist: until the first batch, in CPU time, and in memory."""
    cases = {
        f"{name}, {workers} workers, {library}": (library, name, workers)
        for name in DATASETS
        for workers in ("2", "8")
        for library in ("gpuloader", "torch")
    }
    seen = _take_turns(_STARTS, cases, repeats)
    results = []
    for column, (title, (unit, goal)) in enumerate(_FIGURES.items()):
        rows = {name: spread([turn[column] for turn in turns]) for name, turns in seen.items()}
        results.append(Result(title, unit, None, goal, rows))
    return results


def list_memory(repeats: int) -> Result:
    """Measure the memory of 4 workers and of the program that read 3 million file names in random order."""
    cases = {
        "torch, a dataset over the list": ("torch",),
        "gpuloader, a dataset over a PackedList": ("packed",),
        "gpuloader, the list as dataset": ("list",),
    }
    rows: dict[str, Spread] = {}
    for name, turns in _take_turns(_MEMORY, cases, repeats).items():
        for column, what in enumerate(("4 workers", "the program")):
            rows[f"{name}: {what}"] = spread([turn[column] for turn in turns])
    return Result(
        "memory for 3 million file names", "MB, shared pages divided", None, "less than torch", rows
    )


def _take_turns(code: str, cases: dict[str, tuple[str, ...]], repeats: int) -> dict[str, list[list[float]]]:
    """Run the programs in turn; return what each printed, but for the first turn, a warm-up."""
    seen: dict[str, list[list[float]]] = {name: [] for name in cases}
    # The warm-up leaves compiled bytecode, as any user has it. Without, each program would compile what it
    # imports late, for some 40 ms of the first batch.
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(repeats + 1):
        for name, arguments in cases.items():
            done = subprocess.run(
                [sys.executable, "-c", code, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                cwd=Path(__file__).parents[1],
                env=environment,
            )
            seen[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {name: turns[1:] for name, turns in seen.items()}
