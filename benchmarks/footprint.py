"""Measure what a loader leaves behind (memory, threads, descriptors, mappings) and the time to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result, Spread, spread

_READER = """
import numpy as np
from gpuloader import DataLoader

def reader():
    batch = [np.zeros((32, 784), np.float32)]
    while True:
        yield batch
"""

_MEMORY = f"""
import json, os
{_READER}
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024

epoch = iter(DataLoader.from_generator(capacity=8).set_batch_generator(reader, places="cpu"))
for _ in range(5000):
    next(epoch)
start, seen = resident(), []
for number in range(200_000):
    next(epoch)
    if number % 20_000 == 19_999:
        seen.append(resident() - start)
print(json.dumps(seen))
"""

_MANY = f"""
import gc, json, os, threading, time
{_READER}
def counts():
    gc.collect()
    time.sleep(0.1)
    with open("/proc/self/maps") as maps:
        arenas = sum("gpuloader" in line for line in maps)
    return [threading.active_count(), len(os.listdir("/proc/self/fd")), arenas]

before = counts()
start = time.perf_counter()
for _ in range(1000):
    epoch = iter(DataLoader.from_generator(capacity=2).set_batch_generator(reader, places="cpu"))
    next(epoch), next(epoch)
    del epoch
micros = (time.perf_counter() - start) * 1000
print(json.dumps([micros, *[after - old for after, old in zip(counts(), before)]]))
"""

_START = """
import json, sys, time

times = [time.process_time()]
import numpy as np
times.append(time.process_time())
from gpuloader import DataLoader
times.append(time.process_time())
samples = [(np.zeros((28, 28), np.float32), number) for number in range(64)]
for _ in range(2):
    times.append(time.process_time())
    loader = DataLoader(samples, batch_size=32, places="cpu")
    times.append(time.process_time())
    next(iter(loader))
    times.append(time.process_time())
print(json.dumps([1000 * (after - before) for before, after in zip(times, times[1:])]))
assert "cupy" not in sys.modules
"""
_STEPS = {
    "import numpy": 0, "from gpuloader import DataLoader, after it": 1, "a program's first loader, made": 3,
    "its first batch": 4, "the second loader, made": 6, "the first batch of the second loader": 7,
}  # fmt: skip


def memory(repeats: int) -> Result:  # noqa: ARG001 - one long run shows more than several short ones
    """Measure how much the process grows over 200,000 batches, sampled every 20,000."""
    growth = json.loads(_run(_MEMORY))
    grown = Spread(growth[-1], min(growth), max(growth))
    return Result(
        "memory over 200,000 batches", "KiB more than after 5,000", None, "flat", {"gpuloader": grown}
    )


def many_loaders(repeats: int) -> Result:  # noqa: ARG001
    """Make 1,000 loaders, take two steps of each and drop it; count the resources left behind."""
    micros, threads, descriptors, mappings = json.loads(_run(_MANY))
    rows = {
        "µs per loader": micros,
        "threads left": threads,
        "descriptors left": descriptors,
        "mappings left": mappings,
    }
    return Result(
        "1,000 loaders made, partly used and dropped",
        "unit in each row",
        None,
        "none left",
        {name: Spread(value, value, value) for name, value in rows.items()},
    )


def import_time(repeats: int) -> Result:
    """Time what a program waits for before its first batch, in a process of its own."""
    runs = [json.loads(_run(_START)) for _ in range(repeats + 1)][1:]
    rows = {name: spread([run[at] for run in runs]) for name, at in _STEPS.items()}
    # An import that only defers work to the first batch would look better than it is.
    ours = list(_STEPS.values())[1:4]
    rows["all of ours up to the first batch"] = spread([sum(run[at] for at in ours) for run in runs])
    goal = "the import at most 0.4 times numpy's, loaders 5 + 5 and 0.25 + 0.6 ms"
    return Result(
        "import and first batches, 32 samples of 28 × 28", "ms of CPU time", "import numpy", goal, rows
    )


def _run(code: str) -> str:
    # With compiled bytecode, as any user has it, from the first run on.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
        env=environment,
    )
    return done.stdout
