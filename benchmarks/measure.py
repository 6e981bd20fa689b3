"""What all benchmarks share: candidates that take turns, their figures, the machine, and the command line."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np

import gpuloader

LEAST = 0.2
"""Minimum seconds per turn of a loader."""

Candidate = Callable[[], float]
"""Runs once and returns its measurement, e.g. microseconds per batch."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of several runs."""

    median: float
    low: float
    high: float


def spread(runs: Sequence[float]) -> Spread:
    """Summarize several runs.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0)
    """
    return Spread(statistics.median(runs), min(runs), max(runs))


def interleave(candidates: dict[str, Candidate], repeats: int) -> dict[str, Spread]:
    """Run all candidates in turn, `repeats` times after a warm-up turn, so that noise hits all alike."""
    for candidate in candidates.values():
        candidate()
    runs: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            runs[name].append(candidate())
    return {name: spread(seen) for name, seen in runs.items()}


def compare_epochs(
    loaders: dict[str, Any],
    units: int,
    options: argparse.Namespace,
    clock: Callable[[], float] = process_time,
) -> dict[str, Spread]:
    """Return the microseconds per unit of loaders that take turns, `units` to an epoch: of processor time.

    The last loader is ours. It first runs `options.warm` epochs: with Numba, resizing is compiled after so
    many images. With another clock, the times are those of it.
    """

    def time_epoch(loader: Any) -> float:
        begun = clock()
        for batch in loader:
            del batch
        return (clock() - begun) / units * 1e6

    for _ in range(options.warm):
        time_epoch([*loaders.values()][-1])
    turns = {name: partial(time_epoch, loader) for name, loader in loaders.items()}
    return interleave(turns, options.repeats)


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one case.

    Attributes
    ----------
    case : str
        The case's title.
    unit : str
        The unit of every spread; smaller is better.
    floor : str or None
        The row that ratios refer to.
    goal : str
        The target, in words.
    rows : dict
        The spread of each candidate, by name.
    """

    case: str
    unit: str
    floor: str | None
    goal: str
    rows: dict[str, Spread]

    def to_json(self) -> dict[str, object]:
        """Return the result as plain data."""
        return asdict(self)


class Endless:
    """Epochs cut from an endless iterator, for loaders whose workers live only as long as their iterator.

    `epoch` is the number of batches per epoch; `ahead` the most batches that the loader prefetches while the
    consumer is idle.
    """

    def __init__(self, batches: Iterator[Any], epoch: int, ahead: int = 0) -> None:
        self._batches = batches
        self._epoch = epoch
        self.ahead = ahead

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, self._epoch)

    def drop_what_was_made_ahead(self) -> None:
        """Discard the batches prefetched between turns, which would make this turn look faster than it is."""
        for _ in itertools.islice(self._batches, self.ahead):
            pass


def turn(loader: Iterable[Any], touch: Callable[[Any], object], least: float = LEAST) -> float:
    """Return the microseconds per batch, over as many whole epochs as fill `least` seconds.

    The consumer, the same for every library, reads the first number of each batch, then drops the batch. So a
    loader that hands over memory not yet mapped, as from worker processes, pays for mapping one page of it.
    """
    endless = loader if isinstance(loader, Endless) else None
    if endless is not None:
        endless.drop_what_was_made_ahead()
    count, start = 0, perf_counter()
    while True:
        for batch in loader:
            touch(batch)
            count += 1
            del batch
        seconds = perf_counter() - start
        if seconds >= least or not count:
            break
    if not count:
        raise ValueError("the loader yielded no batches")
    if endless is not None:
        # Let its workers finish prefetching, so that they do not disturb the next library's turn.
        sleep(min(1.0, endless.ahead * seconds / count))
    return seconds / count * 1e6


def describe_machine() -> dict[str, str]:
    """Return the hardware and software that figures depend on, without naming the machine."""
    try:
        version = importlib.metadata.version("gpuloader")
    except importlib.metadata.PackageNotFoundError:
        version = "from a folder, not installed"
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gpuloader": version,
        "commit": done.stdout.strip() or "unknown",
        "package": Path(gpuloader.__file__).parent.name,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown"


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write a report to an indented JSON file; create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def run_script(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    render: Callable[[dict[str, Any]], str],
) -> None:
    """Measure and print the tables, or with ``--table`` print those of an earlier report.

    Adds ``--output`` and ``--table`` to the parser. `measure` returns the report, given the parsed options;
    `render` returns its tables as Markdown.
    """
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--table", type=Path, help="print the tables of this file and measure nothing")
    options = parser.parse_args()
    if options.table:
        print(render(json.loads(options.table.read_text())))
        return
    report = measure(options)
    print(render(report))
    if options.output:
        write_report(report, options.output)
