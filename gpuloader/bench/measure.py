"""Interleaved measurements, and what several runs came to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

Candidate = Callable[[], float]
"""Runs once and returns what it measured, e.g. microseconds a batch."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of several runs."""

    median: float
    low: float
    high: float


def spread(runs: Sequence[float]) -> Spread:
    """Return what runs came to.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0)
    """
    return Spread(statistics.median(runs), min(runs), max(runs))


def interleave(candidates: dict[str, Candidate], repeats: int) -> dict[str, Spread]:
    """Run all candidates in turn, `repeats` times after a turn to warm up, so all meet the same noise."""
    for candidate in candidates.values():
        candidate()
    runs: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            runs[name].append(candidate())
    return {name: spread(seen) for name, seen in runs.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """One case of figures that belong together.

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
