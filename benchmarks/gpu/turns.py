"""Cases with a verdict, and candidates that take turns even if one of them fails."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass

from benchmarks.measure import Candidate, Result, Spread, spread


@dataclass(frozen=True, slots=True)
class Judged(Result):
    """A case whose goal is a number.

    Attributes
    ----------
    row : str or None
        The candidate to judge; None if the case has no goal.
    limit : float or None
        The largest median that meets the goal, as a multiple of the floor's, or in `unit` without a floor.
    """

    row: str | None = None
    limit: float | None = None


def measure(value: Judged, candidates: dict[str, Candidate], repeats: int) -> Judged:
    """Measure the candidates and return the case with their rows, without those that failed."""
    rows = {**value.rows, **take_turns(candidates, repeats)}
    floor = value.floor if value.floor in rows else None
    limit = value.limit if floor == value.floor else None
    return Judged(value.case, value.unit, floor, value.goal, rows, value.row, limit)


def take_turns(candidates: dict[str, Candidate], repeats: int) -> dict[str, Spread]:
    """Run all candidates in turn, `repeats` times after a warm-up turn.

    Leave out a candidate from its first exception on, and print the traceback to stderr.
    """
    runs: dict[str, list[float]] = {}
    for name, candidate in candidates.items():
        if _try(name, candidate) is not None:
            runs[name] = []
    for _ in range(repeats):
        for name in list(runs):
            seen = _try(name, candidates[name])
            if seen is None:
                del runs[name]
            else:
                runs[name].append(seen)
    return {name: spread(seen) for name, seen in runs.items()}


def _try(name: str, candidate: Candidate) -> float | None:
    try:
        return candidate()
    except Exception:
        print(f"left out: {name}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return None


def verdict(case: dict[str, object]) -> tuple[str, float, float] | None:
    """Return a case's judged row, its figure and the limit, or None if the case has no verdict."""
    rows: dict[str, dict[str, float]] = case["rows"]  # type: ignore[assignment]
    row, limit, floor = case.get("row"), case.get("limit"), case["floor"]
    if not isinstance(limit, float) or not isinstance(row, str) or row not in rows:
        return None
    reached = rows[row]["median"]
    if isinstance(floor, str):
        reached /= rows[floor]["median"]
    return row, reached, limit
