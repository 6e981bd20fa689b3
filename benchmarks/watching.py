"""Measure the cost of watching a loop: the counters, which are always on, a trace, and NVTX ranges."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from time import perf_counter, perf_counter_ns

import numpy as np

from benchmarks.measure import Result, interleave
from gpuloader import DataLoader, TensorDataset, trace
from gpuloader.watch.meter import Meter

STEPS = 400


def watching(repeats: int) -> Result:
    """Time a loop over batches of 100 images of 784 float32, with and without watching.

    The counters cannot be turned off, so their row times a step's calls to them in isolation.
    """
    dataset = TensorDataset(np.zeros((STEPS * 100, 784), np.float32), np.zeros(STEPS * 100, np.int64))
    loader = DataLoader(dataset, places="cpu", batch_size=100, shuffle=True, seed=1)

    def loop() -> float:
        begun = perf_counter()
        for _ in loader:
            pass
        return (perf_counter() - begun) / STEPS * 1e6

    def traced(**options: bool) -> Callable[[], float]:
        def run() -> float:
            with trace(**options):
                return loop()

        return run

    candidates = {
        "a loop, counters on": loop,
        "a step's counters alone": _count,
        "loader.explain(), one call": lambda: _time(lambda: loader.explain(), 100),
        "loader.stats(), one call": lambda: _time(lambda: loader.stats(), 100),
        "a loop in a trace": traced(),
    }
    if importlib.util.find_spec("nvtx"):
        candidates["a loop in a trace with NVTX ranges"] = traced(nvtx=True)
    with contextlib.closing(loader):
        rows = interleave(candidates, repeats)
    return Result(
        "the cost of watching",
        "µs",
        "a loop, counters on",
        "counters at most 2 µs per batch",
        rows,
    )


def _count(steps: int = 20_000) -> float:
    """Return the microseconds that a step's counters take: four clock reads and two calls to the meter."""
    meter = Meter()
    begun = perf_counter()
    for _ in range(steps):
        asked = perf_counter_ns()
        meter.compute += asked - asked
        fetching = perf_counter_ns()
        meter.fetched(perf_counter_ns() - fetching, 1000)
        meter.steps += 1
        meter.wait += 10
        meter.transfer += perf_counter_ns() - asked - 10
    return (perf_counter() - begun) / steps * 1e6


def _time(call: Callable[[], object], count: int) -> float:
    begun = perf_counter()
    for _ in range(count):
        call()
    return (perf_counter() - begun) / count * 1e6
