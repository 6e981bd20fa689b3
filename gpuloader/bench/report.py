"""A report's figures as plain data: rows, ratios, and the cases in which a peer is faster."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gpuloader.bench.measure import Spread
from gpuloader.bench.overlap import Overlapped
from gpuloader.bench.peers import FLOOR, OURS

UNIT = "µs per batch"


@dataclass(frozen=True, slots=True)
class Row:
    """One way of loading a case.

    Attributes
    ----------
    peer : str
        The name of the library, of gpuloader, or of the floor.
    way : str
        The name of this loader among the library's loaders; empty if the library failed to open any.
    spread : Spread or None
        Microseconds per batch; None if the loader failed in any turn or had no measured one.
    runs : int
        The number of measured turns.
    error : str or None
        Why there is no figure, in one line.
    """

    peer: str
    way: str
    spread: Spread | None
    runs: int = 0
    error: str | None = None

    @property
    def label(self) -> str:
        """The row's name in tables: the peer and its way."""
        return ", ".join(filter(None, (self.peer, self.way)))


@dataclass(frozen=True, slots=True)
class Measured:
    """All rows of one case.

    Attributes
    ----------
    case : str
        The case's name on the command line.
    title : str
        The case's title in tables and plots.
    rows : tuple of Row
        The floor's rows first, then gpuloader's, then the peers'.
    """

    case: str
    title: str
    rows: tuple[Row, ...]

    def best(self, peer: str) -> Row | None:
        """Return the peer's row with the smallest median, or None if none of its rows has a figure."""
        found = [row for row in self.rows if row.peer == peer and row.spread is not None]
        return min(found, key=lambda row: row.spread.median if row.spread else 0.0, default=None)

    @property
    def floor(self) -> Row | None:
        """The row that "× floor" refers to: the floor's first."""
        return next((row for row in self.rows if row.peer == FLOOR.name and row.spread is not None), None)

    @property
    def ours(self) -> Row | None:
        """The row that "× ours" refers to: gpuloader's fastest."""
        return self.best(OURS.name)

    def better(self) -> list[tuple[Row, float]]:
        """Return the peers' rows faster than our fastest, with their share of its time, fastest first.

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
    """All figures of one run.

    Attributes
    ----------
    machine : dict
        The hardware and software that the figures depend on.
    versions : dict
        The version of every requested library; None if it is not installed.
    repeats : int
        The number of measured turns that each loader was meant to have.
    cases : list of Measured
        The finished cases, which grow during the run; the last has fewer turns if the run was interrupted.
    overlap : list of Overlapped
        The finished workloads of the case that compares the ways to read ahead.
    """

    machine: dict[str, str]
    versions: dict[str, str | None]
    repeats: int
    cases: list[Measured] = field(default_factory=list)
    overlap: list[Overlapped] = field(default_factory=list)

    def failures(self) -> list[tuple[Measured, Row]]:
        """Return the rows that have an error instead of a figure, with their cases."""
        return [(case, row) for case in self.cases for row in case.rows if row.error is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "machine": self.machine,
            "peers": self.versions,
            "repeats": self.repeats,
            "cases": [case.to_json() for case in self.cases],
            "overlap": [one.to_json() for one in self.overlap],
        }

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Report:
        """Rebuild the report from the data that `to_json` returned.

        >>> report = Report({"cores": "2"}, {"torch": None}, 5)
        >>> Report.from_json(report.to_json()) == report
        True
        """
        cases = [
            Measured(one["case"], one["title"], tuple(_row_from_json(row) for row in one["rows"]))
            for one in written["cases"]
        ]
        overlap = [Overlapped.from_json(one) for one in written.get("overlap", ())]
        return cls(written["machine"], written["peers"], written["repeats"], cases, overlap)


def ratio(row: Row, reference: Row | None) -> float | None:
    """Return the row's median as a multiple of the reference's, or None if either has no figure."""
    if row.spread is None or reference is None or reference.spread is None:
        return None
    return row.spread.median / reference.spread.median


def format_number(value: float) -> str:
    """Format a number for tables: three significant digits below 100, an integer above.

    >>> format_number(17_683.2), format_number(99.96), format_number(8.481)
    ('17,683', '100', '8.48')
    """
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def format_ratio(value: float) -> str:
    """Format a ratio with as many digits as its size needs.

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
