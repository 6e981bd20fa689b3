"""The cases of `gpuloader bench` with their goals, in the form of the other cases of `run.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from benchmarks.measure import Result
from gpuloader.bench.cases import CASES
from gpuloader.bench.peers import PEERS
from gpuloader.bench.report import UNIT, Measured
from gpuloader.bench.running import run_cases

GOALS = {
    "arrays": "6 times torch's TensorDataset, 3 times its __getitems__, 0.85 of the floor's rate",
    "lists": "0.95 of the floor's rate without workers, 1.7 times torch's with 2 workers each",
    "images": "10 times torch, 20 times Paddle, with 2 workers each",
    "jpeg": "1.1 times torch",
    "waits": "16 threads: 7 times torch's 2 workers",
    "small": "at most 100 with 1 worker",
    "stream": "0.7 of the bare loop's rate",
    "stream_lists": "0.7 of the bare loop's rate",
    "ready": "at most 40 asynchronous, 25 synchronous",
    "ready_images": "0.85 of the bare loop's bandwidth",
}


def beside_peers() -> dict[str, Callable[[int], Result]]:
    """Return a function for each case that measures it, given the number of repeats."""
    return {name: partial(_measure, name) for name in CASES}


def _measure(name: str, repeats: int) -> Result:
    installed = [peer for peer in PEERS.values() if peer.version() is not None]
    (measured,) = run_cases([CASES[name]], installed, repeats)
    for row in measured.rows:
        if row.error is not None:
            print(f"left out: {row.label}: {row.error}", file=sys.stderr)
    return to_result(measured)


def to_result(measured: Measured) -> Result:
    """Convert a case of `gpuloader bench` to one of `run.py`."""
    return Result(
        measured.title,
        UNIT,
        measured.floor.label if measured.floor else None,
        GOALS.get(measured.case, "none"),
        {row.label: row.spread for row in measured.rows if row.spread is not None},
    )
