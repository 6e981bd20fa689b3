"""Run the cases, with all libraries' loaders taking turns."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.hosts import Here, Host, Row, Side, Tell, report_errors, run_sides
from benchmarks.measure import LEAST, Candidate, Result, turn
from benchmarks.peers import FLOOR, OURS, PEERS, Peer, find_peer
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.report import Measured
from gpuloader.errors import install_command

Opener = Callable[[Peer, Case], Side]
"""Opens the side of a library for a case."""


def open_peer(peer: Peer, case: Case, least: float = LEAST) -> Here:
    """Return a library's side for a case in this process; turns take at least `least` seconds."""

    def open_candidates() -> dict[str, Candidate]:
        loading = peer.load()
        loaders = loading.open_loaders(case)
        return {way: partial(turn, loader, loading.touch, least) for way, loader in loaders.items()}

    return Here(open_candidates)


def open_here(peer: str, case: str, length: str) -> Here:
    """Return the side of a library for a case of `length` samples, all given as strings."""
    return open_peer(find_peer(peer), replace(CASES[case], length=int(length)))


def open_host(peer: Peer, case: Case) -> Host:
    """Start the process of one library for one case."""
    return Host(__name__, open_here.__name__, peer.name, case.name, str(case.length))


def run_cases(
    cases: Sequence[Case],
    peers: Sequence[Peer],
    repeats: int,
    *,
    open_side: Opener = open_host,
    tell: Tell | None = None,
) -> Iterator[Measured]:
    """Measure the cases with the floor, gpuloader and `peers`; yield each when it is finished.

    All loaders of a case take turns, `repeats` times after a warm-up turn. The caller leaves out libraries
    that are not installed. On Ctrl-C, yield the interrupted case with the turns it had, then raise
    `KeyboardInterrupt`.
    """
    for case in cases:
        rows, interrupted = _run_case(case, [FLOOR, OURS, *peers], repeats, open_side, tell)
        if rows or not interrupted:
            yield Measured(case.name, case.title, rows)
        if interrupted:
            raise KeyboardInterrupt


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
        rows, interrupted = run_sides(sides, repeats, tell)
        if not interrupted:
            for side in sides.values():
                side.finish()
    return rows, interrupted


def measure_case(name: str, repeats: int) -> Result:
    """Measure a case beside every installed peer, for ``run.py``."""
    installed = [peer for peer in PEERS.values() if peer.version() is not None]
    (measured,) = run_cases([CASES[name]], installed, repeats)
    report_errors(measured.rows)
    return measured.to_result()
