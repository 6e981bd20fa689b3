"""``gpuloader bench``: the time of a batch on this machine, next to a bare NumPy loop and torch.

The comparison with all other loaders is in the repository: ``python -m benchmarks.peers``.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.cli import FAILED, align, parse_count, show_status
from gpuloader.system.platforms import allowed_cores

if TYPE_CHECKING:
    from gpuloader.doctor.trials import Outcome

LEAST = 0.2  # seconds per turn; shorter turns would measure the clock and the scheduler
LIMIT = 90.0  # seconds to wait for each turn; the first includes imports and making the data


class Arrays:
    """Samples that are rows of arrays in memory, repeated up to a length."""

    def __init__(self, length: int, *arrays: NDArray[Any]) -> None:
        self.length = length
        self.arrays = arrays

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index % len(array)] for array in self.arrays)


class Lists(Arrays):
    """Samples that Python code makes from lists, like parsed text; this holds the interpreter's lock."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image, label = super().__getitem__(index)
        return np.array(image.tolist(), np.float32), label


class Waits(Arrays):
    """Samples that take 2 ms to arrive, as from a disk or a server."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        time.sleep(0.002)
        return super().__getitem__(index)


@dataclass(frozen=True, slots=True)
class Case:
    """A dataset and how it is loaded; `workers` are processes, or gpuloader's threads if it `waits`."""

    title: str
    make: Callable[[], Arrays]
    batch_size: int
    shuffle: bool = False
    workers: int = 0
    waits: bool = False


def _digits(kind: type[Arrays], length: int) -> Arrays:
    return kind(length, np.random.default_rng(0).random((length, 784), np.float32), np.arange(length))


def _images() -> Arrays:
    # Few enough to fit in memory, but too many to stay in a processor's cache.
    return Arrays(2048, np.random.default_rng(0).integers(0, 255, (256, 3, 224, 224), np.uint8))


CASES = {
    "arrays": Case("100 rows of 784 float32, shuffled", lambda: _digits(Arrays, 50_000), 100, True),
    "lists": Case("100 lists of 784 numbers, shuffled", lambda: _digits(Lists, 4_000), 100, True, 2),
    "images": Case("64 images of 3 × 224 × 224 uint8", _images, 64, False, 2),
    "waits": Case("32 samples that wait 2 ms", lambda: _digits(Waits, 640), 32, False, 8, True),
    "small": Case("8 rows of 784 float32", lambda: _digits(Arrays, 8_000), 8),
}


def open_bare(case: Case) -> Iterable[Any]:
    """Return the loop that a careful engineer would write: one thread, one set of buffers, no checks."""
    dataset = case.make()
    order = np.arange(len(dataset))
    if case.shuffle:
        np.random.default_rng(0).shuffle(order)
    size = case.batch_size
    # Every batch overwrites them: the fastest loop possible, and what a loader must not do to its user.
    buffers = [np.empty((size, *np.shape(value)), np.asarray(value).dtype) for value in dataset[0]]

    class Loop:
        def __iter__(self) -> Iterator[Any]:
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                if type(dataset) is Arrays:  # in memory, so nobody would loop over the samples
                    for array, buffer in zip(dataset.arrays, buffers, strict=True):
                        np.take(array, chosen, 0, buffer[: len(chosen)], "wrap")
                else:
                    for row, index in enumerate(chosen.tolist()):
                        for buffer, value in zip(buffers, dataset[index], strict=True):
                            buffer[row] = value
                yield buffers

    return Loop()


def open_ours(case: Case) -> Iterable[Any]:
    """Return the loader that a user of gpuloader would write."""
    from gpuloader.api.loader import DataLoader
    from gpuloader.sources.dataset import TensorDataset

    dataset: Any = case.make()
    return DataLoader(
        dataset if case.workers else TensorDataset(dataset.arrays),
        places="cpu",
        batch_size=case.batch_size,
        shuffle=case.shuffle,
        num_workers=case.workers,
        worker_type="thread" if case.waits else "process",
        persistent_workers=case.workers > 0,  # a turn is a few epochs, and must not measure their start
    )


def open_torch(case: Case) -> Iterable[Any]:
    """Return the loader that a user of torch would write."""
    import warnings

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    dataset: Any = case.make()
    if not case.workers:
        dataset = TensorDataset(*map(torch.from_numpy, dataset.arrays))
    options = {"num_workers": case.workers, "persistent_workers": case.workers > 0}
    loader: Iterable[Any] = DataLoader(dataset, case.batch_size, shuffle=case.shuffle, **options)
    return loader


LIBRARIES = {"bare loop": open_bare, "gpuloader": open_ours, "torch": open_torch}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    names = f"a case to measure: {', '.join(CASES)}; repeat for more (default: all)"
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=names)
    turns = "measured turns, after a warm-up turn (default: 5)"
    parser.add_argument("--repeats", type=parse_count, default=5, metavar="N", help=turns)


def run(options: argparse.Namespace) -> int:
    """Measure the time per batch of gpuloader, a bare NumPy loop and, if it is installed, torch.

    The exit code is 1 if gpuloader failed.
    """
    from gpuloader.doctor.facts import installed_distributions
    from gpuloader.doctor.trials import attempt

    libraries = [name for name in LIBRARIES if name == "bare loop" or importlib.util.find_spec(name)]
    installed = installed_distributions()
    versions = [f"{name} {installed[name]}" for name in ("numpy", *libraries) if name in installed]
    print(f"Python {platform.python_version()}, {', '.join(versions)}, {allowed_cores()} cores", flush=True)
    failed = False
    for name in dict.fromkeys(options.case or CASES):
        found: dict[str, Outcome] = {}
        try:
            for library in libraries:
                show_status(f"{name}: {library} …")
                # Each in a separate process: importing torch starts threads that slow every loop, and workers
                # forked from a process with another library's threads can hang.
                limit = LIMIT * (options.repeats + 1)
                arguments = library, name, str(options.repeats)
                found[library] = attempt(*arguments, seconds=limit, module="gpuloader.cli.bench")
        finally:
            show_status("")
        print(f"\n{render(CASES[name], found)}", flush=True)
        failed |= bool(found["gpuloader"].problem)
    return FAILED if failed else 0


def time_case(library: str, name: str, repeats: str) -> dict[str, list[float]]:
    """Return the times of a library's turns; command-line arguments are text."""
    loader = LIBRARIES[library](CASES[name])
    times = [time_batches(loader) for _ in range(int(repeats) + 1)]
    return {"times": times[1:]}  # the first turn starts workers and fills caches


def time_batches(loader: Iterable[Any]) -> float:
    """Return the microseconds per batch, over as many whole epochs as fill a turn."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < LEAST:
        for batch in loader:
            count += 1
            del batch  # its memory can be used again, as in a training loop
    return (time.perf_counter() - start) / count * 1e6


def render(case: Case, found: dict[str, Outcome]) -> str:
    """Return a case's table, with ratios to the bare loop, and its errors."""
    workers = f", {case.workers} workers" if case.workers else ""
    rows: list[Sequence[str]] = [("", "median", "min", "max", "× bare loop")]
    errors, bare = "", 0.0
    for library, outcome in found.items():
        if outcome.problem:
            errors += f"\n{library}: {outcome.problem}"
            continue
        times = outcome.answer["times"]
        middle = statistics.median(times)
        bare = middle if library == "bare loop" else bare
        shown = [f"{one:,.0f}" if one >= 100 else f"{one:.3g}" for one in (middle, min(times), max(times))]
        rows.append((library, *shown, f"{middle / bare:.2f}" if bare else ""))
    return f"Batches of {case.title}{workers}, µs per batch\n{align(rows)}{errors}"


if __name__ == "__main__":
    from gpuloader.cli import bench  # by the name under which worker processes find its classes
    from gpuloader.doctor.trials import answer

    answer(bench.time_case, *sys.argv[1:])
