"""A report's figures: ratios, tables, and the cases in which a peer is faster."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from benchmarks.hosts import Row
from benchmarks.measure import Result, Spread
from benchmarks.overlap import WAYS, Overlapped
from benchmarks.peers import FLOOR, OURS, PEERS
from benchmarks.peers.cases import CASES
from gpuloader.cli import align

UNIT = "µs per batch"


@dataclass(frozen=True, slots=True)
class Measured:
    """All rows of one case: the floor's first, then gpuloader's, then the peers'."""

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

        >>> from benchmarks.measure import spread
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

    def to_result(self) -> Result:
        """Return the case in the form of the other cases of ``run.py``."""
        floor = self.floor.label if self.floor else None
        goal = CASES[self.case].goal if self.case in CASES else "none"
        rows = {row.label: row.spread for row in self.rows if row.spread is not None}
        return Result(self.title, UNIT, floor, goal, rows)

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

    `versions` has every requested library, with None if it is not installed. `cases` and `overlap` grow
    during the run; if it was interrupted, the last case has fewer turns than `repeats`.
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


def render_machine(report: Report) -> str:
    """Return the machine, the peers, and the peers that are not installed."""
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items() if name != "package")
    there = [f"{name} {version}" for name, version in report.versions.items() if version is not None]
    lines = [f"On {machine}", f"Peers: {', '.join(there) or 'none'}"]
    for name, version in report.versions.items():
        if version is None:
            lines.append(f"Not installed: {name} (pip install {PEERS[name].distributions[0]})")
    return "\n".join(lines)


def render_case(case: Measured) -> str:
    """Return a case's table, its failures, and its note."""
    cells = [("", "median", "min to max", "× ours", "× floor")]
    for row in case.rows:
        figures = ("–", "", "", "")
        if row.spread is not None:
            shares = (ratio(row, case.ours), ratio(row, case.floor))
            figures = (
                format_number(row.spread.median),
                f"{format_number(row.spread.low)} to {format_number(row.spread.high)}",
                *("" if share is None else format_ratio(share) for share in shares),
            )
        cells.append((row.label, *figures))
    errors = [f"{row.label}: {row.error}" for row in case.rows if row.error is not None]
    note = CASES[case.case].note if case.case in CASES else ""
    return "\n".join([f"{case.title}, {UNIT}", align(cells), *errors, *filter(None, [note])])


def render_overlap(measured: list[Overlapped]) -> str:
    """Return the table of the workloads that compare the ways to read ahead."""
    cells = [("", *WAYS, "ratio", "goal")]
    for one in measured:
        figures = [format_number(one.rows[way].median) for way in WAYS]
        cells.append((one.name, *figures, format_ratio(one.ratio), f"≤ {one.goal:.2f}"))
    note = "The ratio is the default's time over that of the faster way to which the user can force it."
    return f"Reading ahead, µs per step\n{align(cells)}\n{note}"


def render_better(report: Report) -> str:
    """Return one line for each peer's loader that is faster than gpuloader's fastest."""
    lines = ["Where a peer is better"]
    for case in report.cases:
        ours = case.ours
        for row, share in case.better():
            assert ours is not None
            assert ours.spread is not None
            assert row.spread is not None
            took = f"{format_number(row.spread.median)} against {format_number(ours.spread.median)} {UNIT}"
            overlap = "; the spreads overlap" if row.spread.high >= ours.spread.low else ""
            line = f"{row.label} takes {format_ratio(share)} of the time of {ours.label}, {took}{overlap}"
            lines.append(f"{case.title}: {line}")
    if len(lines) == 1:
        peers = any(row.peer in PEERS for case in report.cases for row in case.rows)
        lines.append("In none of these cases." if peers else "No peer was measured.")
    return "\n".join(lines)
