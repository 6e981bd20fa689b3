"""What was measured, as plain data: rows, ratios, and where others are better."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gpuloader.bench.measure import Spread
from gpuloader.bench.peers import FLOOR, OURS

UNIT = "µs a batch"


@dataclass(frozen=True, slots=True)
class Row:
    """One way of loading a case.

    Attributes
    ----------
    peer : str
        Who loads: a library, ourselves, or the floor.
    way : str
        What is particular about this loader; empty where the library gave none.
    spread : Spread or None
        Microseconds a batch; None if it failed before its first measured turn, or failed at all.
    runs : int
        Turns that were measured.
    error : str or None
        In a line, why there is no figure.
    """

    peer: str
    way: str
    spread: Spread | None
    runs: int = 0
    error: str | None = None

    @property
    def label(self) -> str:
        """Return who and how, as tables name it."""
        return ", ".join(filter(None, (self.peer, self.way)))


@dataclass(frozen=True, slots=True)
class Measured:
    """All rows of one case.

    Attributes
    ----------
    case : str
        Its name.
    title : str
        What tables and plots call it.
    rows : tuple of Row
        The floor's first, then ours, then the peers'.
    """

    case: str
    title: str
    rows: tuple[Row, ...]

    def best(self, peer: str) -> Row | None:
        """Return the row of a peer with the least median, or None if it has no figure."""
        found = [row for row in self.rows if row.peer == peer and row.spread is not None]
        return min(found, key=lambda row: row.spread.median if row.spread else 0.0, default=None)

    @property
    def floor(self) -> Row | None:
        """The row that ratios to the floor refer to: the floor's first."""
        return next((row for row in self.rows if row.peer == FLOOR.name and row.spread is not None), None)

    @property
    def ours(self) -> Row | None:
        """The row that ratios to ours refer to: our fastest."""
        return self.best(OURS.name)

    def better(self) -> list[tuple[Row, float]]:
        """Return peers' rows that are faster than our fastest, with their share of its time, least first.

        >>> from gpuloader.bench.measure import spread
        >>> rows = [Row("gpuloader", "a", spread([4.0])), Row("gpuloader", "b", spread([2.0]))]
        >>> rows += [Row("torch", "a", spread([1.0])), Row("torch", "b", spread([3.0]))]
        >>> [(row.label, share) for row, share in Measured("case", "Case", tuple(rows)).better()]
        [('torch, a', 0.5)]
        """
        shares = [
            (row, share)
            for row in self.rows
            if row.peer not in (FLOOR.name, OURS.name)
            and (share := ratio(row, self.ours)) is not None
            and share < 1
        ]
        return sorted(shares, key=lambda pair: pair[1])

    def to_json(self) -> dict[str, Any]:
        """Return the case as plain data."""
        floor = self.floor
        return {
            "case": self.case,
            "title": self.title,
            "unit": UNIT,
            "floor": floor.label if floor else None,
            "rows": [_row_to_json(row) for row in self.rows],
        }


@dataclass(slots=True)
class Report:
    """All that was measured in a run.

    Attributes
    ----------
    machine : dict
        What the figures depend on.
    versions : dict
        Of every library that was asked for; None where it is not installed.
    repeats : int
        Turns that each loader was to have.
    cases : list of Measured
        Grows as cases are done; the last one has fewer turns if the run was interrupted.
    """

    machine: dict[str, str]
    versions: dict[str, str | None]
    repeats: int
    cases: list[Measured] = field(default_factory=list)

    def failures(self) -> list[tuple[Measured, Row]]:
        """Return what has an error instead of a figure."""
        return [(case, row) for case in self.cases for row in case.rows if row.error is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "machine": self.machine,
            "peers": self.versions,
            "repeats": self.repeats,
            "cases": [case.to_json() for case in self.cases],
        }

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Report:
        """Return the report that `to_json` gave.

        >>> report = Report({"cores": "2"}, {"torch": None}, 5)
        >>> Report.from_json(report.to_json()) == report
        True
        """
        cases = [
            Measured(one["case"], one["title"], tuple(_row_from_json(row) for row in one["rows"]))
            for one in written["cases"]
        ]
        return cls(written["machine"], written["peers"], written["repeats"], cases)


def ratio(row: Row, reference: Row | None) -> float | None:
    """Return how many times the reference's median a row takes, or None if either has no figure."""
    if row.spread is None or reference is None or reference.spread is None:
        return None
    return row.spread.median / reference.spread.median


def format_number(value: float) -> str:
    """Return a number as tables show it.

    >>> format_number(17_683.2), format_number(99.96), format_number(8.481)
    ('17,683', '100', '8.48')
    """
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def format_ratio(value: float) -> str:
    """Return a ratio with the digits that it deserves.

    >>> format_ratio(456.99), format_ratio(13.694), format_ratio(0.068), format_ratio(0.000086)
    ('457', '13.7', '0.07', '0.00009')
    """
    if 0 < value < 0.01:
        return f"{value:.{-math.floor(math.log10(value))}f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _row_to_json(row: Row) -> dict[str, Any]:
    spread = row.spread
    numbers = {"median": spread.median, "low": spread.low, "high": spread.high} if spread else {}
    return {"peer": row.peer, "way": row.way, **numbers, "runs": row.runs, "error": row.error}


def _row_from_json(written: dict[str, Any]) -> Row:
    spread = Spread(written["median"], written["low"], written["high"]) if "median" in written else None
    return Row(written["peer"], written["way"], spread, written["runs"], written["error"])
