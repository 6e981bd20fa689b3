"""Interleaved measurements and a description of the machine they were made on."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import gpuloader

Candidate = Callable[[], float]
"""Runs once and returns what it measured, e.g. microseconds a batch."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of several runs."""

    median: float
    low: float
    high: float


def interleave(candidates: dict[str, Candidate], repeats: int) -> dict[str, Spread]:
    """Run all candidates in turn, `repeats` times after a turn to warm up, so all meet the same noise."""
    for candidate in candidates.values():
        candidate()
    runs: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            runs[name].append(candidate())
    return {name: Spread(statistics.median(seen), min(seen), max(seen)) for name, seen in runs.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """One case.

    Attributes
    ----------
    case : str
        Name of the case.
    unit : str
        Of every spread; smaller is better.
    floor : str or None
        The row that ratios refer to.
    goal : str
        What was wished for.
    rows : dict
        Candidate to spread.
    """

    case: str
    unit: str
    floor: str | None
    goal: str
    rows: dict[str, Spread]

    def to_json(self) -> dict[str, object]:
        """Return the result as plain data."""
        return asdict(self)


def describe_machine() -> dict[str, str]:
    """Return what the figures depend on; nothing that names the machine itself."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": _commit(),
        "package": Path(gpuloader.__file__).parent.name,
    }


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
