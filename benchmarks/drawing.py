"""A random generator for each sample: `gpuloader.sample_rng`, and NumPy's own way to make one.

Figures are microseconds per generator, over 20,000 samples, without drawing from it. The floor is what a
dataset would write itself to be repeatable: a new generator from the seed, the epoch and the index.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np

from benchmarks.measure import Candidate, Result, interleave
from gpuloader import sample_rng, sample_rngs
from gpuloader.order.randomness import Draw, current_draw, exchange_draw

SAMPLES = 20_000
FLOOR = "numpy.random.default_rng((seed, epoch, index))"


def drawing(repeats: int) -> Result:
    """Time the generators; the goal is 2 µs for `sample_rng`."""
    candidates: dict[str, Candidate] = {
        FLOOR: partial(time_samples, make_anew),
        "sample_rng()": partial(time_samples, make_one_by_one),
        "sample_rngs(indices)": partial(time_samples, make_at_once),
    }
    goal = "sample_rng() at most 2 µs"
    return Result(
        "A random generator for each sample", "µs per sample", FLOOR, goal, interleave(candidates, repeats)
    )


def time_samples(make: Callable[[], None]) -> float:
    """Return the microseconds per sample, in a thread that fetches samples for a loader."""
    before = exchange_draw(Draw(seed=1, epoch=2))
    try:
        begin = perf_counter()
        make()
        return (perf_counter() - begin) / SAMPLES * 1e6
    finally:
        exchange_draw(before)


def make_anew() -> None:
    """Make every generator from numbers."""
    for index in range(SAMPLES):
        np.random.default_rng((1, 2, index))


def make_one_by_one() -> None:
    """Ask for every sample's generator as ``__getitem__`` does, after what the loader does before it."""
    draw = current_draw()
    for index in range(SAMPLES):
        draw.index, draw.generator = index, None
        sample_rng()


def make_at_once() -> None:
    """Ask for all generators as ``__getitems__`` does."""
    for _ in sample_rngs(range(SAMPLES)):
        pass
