"""Cases with a verdict, and candidates that take turns although one of them fails."""

from __future__ import annotations

import statistics
import sys
import traceback
from dataclasses import dataclass

from benchmarks.measure import Candidate, Result, Spread


@dataclass(frozen=True, slots=True)
class Judged(Result):
    """A case whose goal is a number.

    Attributes
    ----------
    row : str or None
        The candidate that is judged; None: the case only informs.
    limit : float or None
        The most its median may be: times the floor's, or in the unit where there is no floor.
    """

    row: str | None = None
    limit: float | None = None


def measure(value: Judged, candidates: dict[str, Candidate], repeats: int) -> Judged:
    """Return a case with the rows of its candidates; those that fail are left out, as `take_turns` does."""
    rows = {**value.rows, **take_turns(candidates, repeats)}
    floor = value.floor if value.floor in rows else None
    limit = value.limit if floor == value.floor else None
    return Judged(value.case, value.unit, floor, value.goal, rows, value.row, limit)


def take_turns(candidates: dict[str, Candidate], repeats: int) -> dict[str, Spread]:
    """Run all candidates in turn, `repeats` times after a turn to warm up.

    A candidate that raises is left out from then on, and its traceback goes to stderr.
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
    return {name: Spread(statistics.median(seen), min(seen), max(seen)) for name, seen in runs.items()}


def _try(name: str, candidate: Candidate) -> float | None:
    try:
        return candidate()
    except Exception:
        print(f"left out: {name}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return None


def verdict(case: dict[str, object]) -> tuple[str, float, float] | None:
    """Return a case's judged row, what it reached and the limit; None where there is no verdict."""
    rows: dict[str, dict[str, float]] = case["rows"]  # type: ignore[assignment]
    row, limit, floor = case.get("row"), case.get("limit"), case["floor"]
    if not isinstance(limit, float) or not isinstance(row, str) or row not in rows:
        return None
    reached = rows[row]["median"]
    if isinstance(floor, str):
        reached /= rows[floor]["median"]
    return row, reached, limit
