"""``gpuloader bench``: the time of a batch on this machine, beside a bare NumPy loop and torch.

The comparison with all other loaders is in the repository: ``python -m benchmarks.peers``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import platform
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.cli import FAILED, align, parse_count, show_status
from gpuloader.errors import describe_error
from gpuloader.system.platforms import allowed_cores

LEAST = 0.2  # seconds per turn; shorter turns would measure the clock and the scheduler
LIMIT = 90.0  # seconds to wait for an answer; the first includes imports and making the data


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
    """Samples that Python code makes of lists, as of parsed text; this holds the interpreter's lock."""

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
    """A dataset and how it is loaded; `workers` are processes, or threads of gpuloader if `waits`."""

    title: str
    make: Callable[[], Arrays]
    batch_size: int
    shuffle: bool = False
    workers: int = 0
    waits: bool = False


def _digits(kind: type[Arrays], length: int) -> Arrays:
    return kind(length, np.random.default_rng(0).random((length, 784), np.float32), np.arange(length))


def _images() -> Arrays:
    # Few enough to fit in memory, and too many to stay in a processor's cache.
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
    # Written over by every batch: the fastest that a loop can do, and what a loader must not do to its user.
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
        persistent_workers=case.workers > 0,  # a turn is a few epochs, and is not to measure their start
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
SPREAD = ("median", "min", "max")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    names = f"a case to measure: {', '.join(CASES)}; repeat for more (default: all)"
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=names)
    turns = "measured turns, after a warm-up turn (default: 5)"
    parser.add_argument("--repeats", type=parse_count, default=5, metavar="N", help=turns)
    parser.add_argument("--json", action="store_true", help="print only the figures, as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure the time per batch of gpuloader, a bare NumPy loop and, if it is installed, torch.

    The exit code is 1 if gpuloader failed.
    """
    libraries = [name for name in LIBRARIES if name == "bare loop" or importlib.util.find_spec(name)]
    versions = {"Python": platform.python_version(), "cores": str(allowed_cores())}
    for name in ("numpy", *libraries[1:]):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # run from its folder
            versions[name] = importlib.metadata.version(name)
    if not options.json:
        print(", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)
    measured: dict[str, dict[str, list[float] | str]] = {}
    for name in dict.fromkeys(options.case or CASES):
        try:
            measured[name] = measure(name, libraries, options.repeats)
        finally:
            show_status("")
        if not options.json:
            print(f"\n{render(CASES[name], measured[name])}", flush=True)
    if options.json:
        cases = {
            name: {
                library: {"error": runs}
                if isinstance(runs, str)
                else dict(zip(SPREAD, spread(runs), strict=True))
                for library, runs in found.items()
            }
            for name, found in measured.items()
        }
        report = {"machine": versions, "unit": "µs per batch", "repeats": options.repeats, "cases": cases}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    return FAILED if any(isinstance(found["gpuloader"], str) for found in measured.values()) else 0


def measure(name: str, libraries: list[str], repeats: int) -> dict[str, list[float] | str]:
    """Return the times of each library's turns, or its error; they take turns, so that noise hits all alike.

    Each has a process of its own: importing torch starts threads that slow every loop, and workers forked
    from a process with another library's threads can hang.
    """
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[float] | str] = {library: [] for library in libraries}
    pipes: dict[str, Connection] = {}
    with contextlib.ExitStack() as stack:
        # A terminal sends Ctrl-C to all processes, but the command alone reports it, and ends the others.
        # What a program ignores when it starts another, the other ignores too, even while it imports.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        stack.callback(signal.signal, signal.SIGINT, before)
        for library in libraries:
            pipes[library], theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, library, name))
            process.start()
            # With the only other end in the process, its death shows as the end of the pipe.
            theirs.close()
            # In the opposite order: close the pipe, so that the process ends by itself, and kill it if it
            # does not. With torch, this may take some ten seconds for eight workers.
            for end in (process.join, process.kill, partial(process.join, 30), pipes[library].close):
                stack.callback(end)
        signal.signal(signal.SIGINT, before)
        for number in range(repeats + 1):
            for library, pipe in pipes.items():
                runs = found[library]
                if isinstance(runs, str):
                    continue
                show_status(f"{name}: {library}, turn {number} of {repeats} …")
                answer: float | str = "its process ended"
                with contextlib.suppress(EOFError, OSError):
                    pipe.send("turn")
                    answer = pipe.recv() if pipe.poll(LIMIT) else f"no answer within {LIMIT:.0f} s"
                if isinstance(answer, str):
                    found[library] = answer
                elif number:  # the first turn starts workers and fills caches
                    runs.append(answer)
    return found


def serve(pipe: Connection, library: str, name: str) -> None:
    """Run a turn for each request, until the other end of the pipe is closed."""
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            loader = LIBRARIES[library](CASES[name])
            while True:
                pipe.recv()
                pipe.send(time_batches(loader))
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            pipe.send(describe_error(error).splitlines()[0][:200])


def time_batches(loader: Iterable[Any]) -> float:
    """Return the microseconds per batch, over as many whole epochs as fill a turn."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < LEAST:
        for batch in loader:
            count += 1
            del batch  # its memory can be used again, as in a training loop
    return (time.perf_counter() - start) / count * 1e6


def spread(runs: list[float]) -> tuple[float, float, float]:
    """Return what is shown of several runs.

    >>> spread([3.0, 1.0, 2.0])
    (2.0, 1.0, 3.0)
    """
    return statistics.median(runs), min(runs), max(runs)


def render(case: Case, found: dict[str, list[float] | str]) -> str:
    """Return a case's table, with ratios to the bare loop, and its errors."""
    workers = f", {case.workers} workers" if case.workers else ""
    cells: list[Sequence[str]] = [("", *SPREAD, "× bare loop")]
    errors, bare = "", found["bare loop"]
    for library, runs in found.items():
        if isinstance(runs, str):
            errors += f"\n{library}: {runs}"
            continue
        times = [f"{time:,.0f}" if time >= 100 else f"{time:.3g}" for time in spread(runs)]
        ratio = "" if isinstance(bare, str) else f"{statistics.median(runs) / statistics.median(bare):.2f}"
        cells.append((library, *times, ratio))
    return f"Batches of {case.title}{workers}, µs per batch\n{align(cells)}{errors}"
