"""Interleaved measurements and their summaries."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

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
