"""The warning that every rank of a distributed run reads the whole dataset, which nobody has asked for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from gpuloader.collate.items import ItemState
from gpuloader.order.batching import Batching
from gpuloader.pipeline.steps import DeliveredStep

Present = Callable[[DeliveredStep], Any]

_warned = False

_SAMPLES = "pass shard='auto' to read this rank's part of each step"
_ITEMS = (
    "pass shard='auto', or make the dataset divide its items by the rank and world_size of get_worker_info()"
)


def watch(batching: Batching) -> Callable[[Present], Present]:
    """Warn once per process if each of several ranks reads everything, and nobody has said that it should.

    An iterable dataset may divide its items itself. Whether it asks for its rank is known once it has yielded
    a batch. So this returns a function, through which the loader passes the one that presents its steps.
    """
    if _warned or batching.is_divided or batching.reads_all:
        return _keep
    try:
        ranks = batching.find()
    except ValueError:
        return _keep  # a loader that does not need the rank does not mind
    if ranks[1] == 1:
        return _keep
    if batching.iterable:
        return partial(_look_at_first, ranks, batching.obstacle or _ITEMS)
    _warn(ranks, batching.obstacle or _SAMPLES)
    return _keep


def _keep(present: Present) -> Present:
    return present


def _look_at_first(ranks: tuple[int, int], advice: str, present: Present) -> Present:
    asked: bool | None = None

    def look_and_present(step: DeliveredStep) -> Any:
        nonlocal asked
        if asked is None:
            asked = any(isinstance(staged.state, ItemState) and staged.state.asked for staged, _ in step)
            if not asked:
                _warn(ranks, advice)
        return present(step)

    return look_and_present


def _warn(ranks: tuple[int, int], advice: str) -> None:
    global _warned
    if _warned:
        return
    _warned = True
    rank, world_size = ranks
    warnings.warn(
        f"this process is rank {rank} of {world_size}, and the loader reads all samples on every rank: "
        f"{advice}; if every rank is meant to read everything, pass shard=(0, 1)",
        UserWarning,
        stacklevel=_count_own_frames() + 1,
    )


def _count_own_frames() -> int:
    """Return how many frames of this package lie between the caller and the user's code."""
    package = __name__.partition(".")[0] + "."
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame, count = frame.f_back, count + 1
    return count - 1
