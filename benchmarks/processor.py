"""Measure processor time per batch next to a bare loop: other programs disturb it less than the time elapsed.

Counted are all threads, and the worker processes of a loader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import process_time, sleep
from typing import Any

import numpy as np

from benchmarks.measure import LEAST, Candidate, Result, interleave
from benchmarks.peers import Loader, floor, gpuloader
from benchmarks.peers.cases import CASES
from gpuloader import DataLoader

_GOALS = {
    "stream": "1.15 with a generator, 1.3 with an IterableDataset",
    "ready_images": "1.11",
    "images": "1.05 without workers",
    "lists": "with 2 workers 1.25, so that two cores reach 1.6 times the floor's rate",
}


class _Made:
    """The samples of a dataset, made anew for each request, as by a decoder."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self._dataset[index]
        return np.add(image, 1), label


def processor(repeats: int) -> list[Result]:
    """Measure streams of samples, large batches, and lists that workers convert."""
    results = []
    for name, goal in _GOALS.items():
        case = CASES[name]
        found = {"floor": floor.open_loaders(case)}, {"gpuloader": gpuloader.open_loaders(case)}
        results.append(_compare(case.title, goal, repeats, *found))
    case = CASES["images"]
    made = _Made(case.make(case.length))
    loop = floor.BareLoop(made, case.size, shuffle=False)
    ours = DataLoader(made, places="cpu", batch_size=case.size)
    rows = {"floor": {"bare loop": loop}}, {"gpuloader": {"no worker": ours}}
    results.append(_compare(f"{case.title}, made by the dataset", "1.05", repeats, *rows))
    return results


def _compare(title: str, goal: str, repeats: int, *groups: Mapping[str, Mapping[str, Loader]]) -> Result:
    touch: dict[str, Callable[[Any], object]] = {"floor": floor.touch, "gpuloader": gpuloader.touch}
    candidates: dict[str, Candidate] = {}
    for group in groups:
        for library, loaders in group.items():
            for way, loader in loaders.items():
                candidates[f"{library}, {way}"] = partial(_turn, loader, touch[library])
    rows = interleave(candidates, repeats)
    return Result(title, "µs of processor time per batch", next(iter(rows)), goal, rows)


def _turn(loader: Loader, touch: Callable[[Any], object]) -> float:
    """Return the microseconds per batch, over as many whole epochs as take `LEAST` seconds."""
    count, begun = 0, _used()
    while not count or _used() - begun < LEAST:
        for batch in loader:
            touch(batch)
            count += 1
            del batch
    sleep(0.05)  # workers finish what they have begun
    return (_used() - begun) / count * 1e6


def _used() -> float:
    """Return the seconds of processor time of this process and its living children."""
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return process_time() + sum(
        int(Path(f"/proc/{one}/schedstat").read_text().split()[0]) / 1e9 for one in children
    )
