"""Plan the demonstration's runs, compare them, and write their results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from gpuloader.demo.timeline import draw
from gpuloader.demo.training import Run

Way = Literal["synchronous", "asynchronous"]

AS_IT_IS = "as it is"
WITH_WAITS = "with waits"

_SLOWED_DIGITS = 20_000
"""The most digits for runs with waits, which need not be long: most of their time is known in advance."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned run.

    Attributes
    ----------
    title : str
        `AS_IT_IS` or `WITH_WAITS`; runs with the same title are compared.
    way : Way
        How the run reads.
    epochs : int
        Passes over the digits.
    wait : float
        Seconds to add to each read and each step, to simulate a slow disk and a larger model.
    """

    title: str
    way: Way
    epochs: int
    wait: float


def plan_runs(way: Way | None, epochs: int, wait: float, digits: int) -> list[Plan]:
    """Plan one run that reads in the given way; for None, plan both ways, with and without waits.

    >>> [(one.title, one.way) for one in plan_runs(None, 3, 0.0, 4000)]
    [('as it is', 'synchronous'), ('as it is', 'asynchronous')]
    >>> [plan.epochs for plan in plan_runs(None, 3, 0.002, 50_000)]
    [3, 3, 1, 1]
    """
    if way is not None:
        return [Plan(WITH_WAITS if wait else AS_IT_IS, way, epochs, wait)]
    few = max(1, min(epochs, _SLOWED_DIGITS // digits))
    titles = {AS_IT_IS: (epochs, 0.0), **({WITH_WAITS: (few, wait)} if wait else {})}
    ways: tuple[Way, Way] = ("synchronous", "asynchronous")
    return [Plan(title, one, *terms) for title, terms in titles.items() for one in ways]


def group_runs(runs: dict[Plan, Run]) -> dict[str, dict[str, Run]]:
    """Group the runs by title, then by way."""
    groups: dict[str, dict[str, Run]] = {}
    for plan, run in runs.items():
        groups.setdefault(plan.title, {})[plan.way] = run
    return groups


def are_equal(runs: list[Run]) -> bool:
    """Return whether all runs have the same losses and parameters, bit for bit."""
    first, *others = runs
    return all(
        np.array_equal(first.losses, other.losses)
        and all(
            bool((getattr(first.model, name) == getattr(other.model, name)).all())
            for name in ("weight", "bias")
        )
        for other in others
    )


def write_runs(groups: dict[str, dict[str, Run]], folder: Path) -> list[str]:
    """Write the first group's parameters and losses and a timeline of all runs; return the file names.

    Without matplotlib, write no timeline.
    """
    first = next(iter(groups.values()))
    [*_, last] = first.values()
    last.model.save(folder / "parameters.npz")
    losses = {way: run.losses for way, run in first.items()}
    with (folder / "losses.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, **losses)
    written = ["parameters.npz", "losses.npz"]
    spans = {title: {way: run.spans for way, run in runs.items()} for title, runs in groups.items()}
    try:
        draw(spans, folder / "timeline.png")
    except ImportError:
        return written
    return [*written, "timeline.png"]
