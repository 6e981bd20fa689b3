"""Measure what workers cost a PyTorch user: how fast they start, and what a long list of strings takes.

Each measurement runs in a fresh interpreter that has imported the library and the dataset. Workers do not
persist, so every epoch starts new ones, and both libraries use the start method that they choose themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result, Spread, spread

_STARTS = """
import json, sys
from time import perf_counter
library, module, name, workers = sys.argv[1:]
dataset = getattr(__import__(f"benchmarks.{module}", fromlist=[name]), name)
dataset = dataset() if module == "torch_numbers" else dataset(64)
options = {"batch_size": 8, "num_workers": int(workers)}
if library == "gpuloader":
    from gpuloader import DataLoader
    options["places"] = "cpu"
else:
    import warnings
    warnings.simplefilter("ignore")  # about more workers than cores
    from torch.utils.data import DataLoader
seconds = []
for number in range(2):
    start = perf_counter()
    loader = DataLoader(dataset, **options)
    for epoch in range(2):
        batches = iter(loader)
        next(batches)
        seconds.append(perf_counter() - start)
        list(batches)
        start = perf_counter()
print(json.dumps([seconds[0], seconds[1], seconds[2]]))
"""

_MEMORY = """
import json, os, sys
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

def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        below = [int(word) for word in file.read().split()]
    return below + [one for child in below for one in children(child)]

def proportional(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1000

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
        print(json.dumps([sum(map(proportional, children(os.getpid()))), proportional(os.getpid())]))
        break
"""

_DATASETS = {"NumPy dataset": ("dataset_samples", "Whose"), "PyTorch dataset": ("torch_numbers", "Numbers")}
_MOMENTS = ("first epoch", "later epoch", "later loader")


def starts(repeats: int) -> Result:
    """Time the first batch of a program's first epoch, of a later epoch, and of a later loader."""
    cases = [
        (f"{dataset}, {workers} workers, {library}", (library, *where, workers))
        for dataset, where in _DATASETS.items()
        for workers in ("2", "8")
        for library in ("gpuloader", "torch")
    ]
    seen = _take_turns(_STARTS, dict(cases), repeats)
    rows = {
        f"{name}: {moment}": spread([1000 * turn[column] for turn in turns])
        for name, turns in seen.items()
        for column, moment in enumerate(_MOMENTS)
    }
    goal = "first epoch: torch + 300 (NumPy) or + 1,500 (PyTorch); later: 100; 8 workers: twice 2 workers"
    return Result("the first batch from workers that do not persist", "ms", None, goal, rows)


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
    for _ in range(repeats + 1):
        for name, arguments in cases.items():
            done = subprocess.run(
                [sys.executable, "-c", code, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                cwd=Path(__file__).parents[1],
            )
            seen[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {name: turns[1:] for name, turns in seen.items()}
