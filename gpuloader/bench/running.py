"""Run the cases, with all libraries' loaders taking turns."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuloader.bench.cases import Case
from gpuloader.bench.hosts import open_host
from gpuloader.bench.measure import spread
from gpuloader.bench.peers import FLOOR, OURS, Peer
from gpuloader.bench.report import Measured, Row
from gpuloader.bench.sides import Side, TurnFailed
from gpuloader.errors import install_command

Opener = Callable[[Peer, Case], Side]
"""Opens the side of a library for a case."""

Tell = Callable[[str, int, int], None]
"""Called before each turn with what runs next, the case's finished turns, and all its turns, 0 if unknown."""


@dataclass(slots=True)
class _Entry:
    """A loader, or a library that could not open any, while a case runs."""

    peer: str
    way: str
    side: Side | None
    runs: list[float] = field(default_factory=list)
    error: str | None = None

    def to_row(self) -> Row:
        figure = spread(self.runs) if self.runs and self.error is None else None
        return Row(self.peer, self.way, figure, len(self.runs), self.error)


def run_cases(
    cases: Sequence[Case],
    peers: Sequence[Peer],
    repeats: int,
    *,
    open_side: Opener = open_host,
    tell: Tell | None = None,
) -> Iterator[Measured]:
    """Measure the cases one after the other and yield each when it is finished.

    All loaders of a case take turns, `repeats` times after a warm-up turn, so that noise hits all alike. A
    loader that fails gets no further turns and keeps its error. The caller leaves out libraries that are not
    installed.

    Parameters
    ----------
    cases : sequence of Case
        The cases to measure.
    peers : sequence of Peer
        The libraries to measure, in addition to the floor and gpuloader.
    repeats : int
        Measured turns of each loader.
    open_side : callable
        A function that opens a library's side; the default starts a process for it.
    tell : callable
        A function called before each turn.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C, after yielding the interrupted case with the turns it had.
    """
    for case in cases:
        rows, interrupted = _run_case(case, [FLOOR, OURS, *peers], repeats, open_side, tell)
        if rows or not interrupted:
            yield Measured(case.name, case.title, rows)
        if interrupted:
            raise KeyboardInterrupt


def take_turns(
    sides: Mapping[str, Side], repeats: int, tell: Tell | None = None
) -> tuple[tuple[Row, ...], bool]:
    """Run all ways of all sides in turn, `repeats` times after a warm-up turn; the sides stay open.

    Returns
    -------
    tuple of Row, bool
        The figures, and whether Ctrl-C ended the run. If it did, rows have fewer turns or are missing.
    """
    entries: list[_Entry] = []
    try:
        for name, side in sides.items():
            if tell is not None:
                tell(f"{name} opens", 0, 0)
            entries.extend(_open(name, side))
        turns = len(entries) * (repeats + 1)
        for number in range(turns):
            entry = entries[number % len(entries)]
            if tell is not None:
                tell(entry.to_row().label, number, turns)
            _take_turn(entry, measured=number >= len(entries))
    except KeyboardInterrupt:
        return tuple(entry.to_row() for entry in entries if entry.runs or entry.error is not None), True
    return tuple(entry.to_row() for entry in entries), False


def _run_case(
    case: Case, peers: Sequence[Peer], repeats: int, open_side: Opener, tell: Tell | None
) -> tuple[tuple[Row, ...], bool]:
    if case.needs is not None and importlib.util.find_spec(case.needs) is None:
        error = f"the dataset needs {case.needs}, which is not installed: {install_command('bench')}"
        return (Row(OURS.name, "", None, error=error),), False
    with contextlib.ExitStack() as stack:
        sides: dict[str, Side] = {}
        for peer in peers:
            if case.name in peer.cases:
                sides[peer.name] = open_side(peer, case)
                stack.callback(sides[peer.name].close)
        rows, interrupted = take_turns(sides, repeats, tell)
        if not interrupted:
            for side in sides.values():
                side.finish()
    return rows, interrupted


def _open(peer: str, side: Side) -> list[_Entry]:
    try:
        return [_Entry(peer, way, side) for way in side.ways()]
    except TurnFailed as failure:
        return [_Entry(peer, "", None, error=str(failure))]


def _take_turn(entry: _Entry, *, measured: bool) -> None:
    if entry.side is None or entry.error is not None:
        return
    try:
        took = entry.side.turn(entry.way)
    except TurnFailed as failure:
        entry.error = str(failure)
    else:
        if measured:
            entry.runs.append(took)
