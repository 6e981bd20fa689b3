"""The warning that every rank of a distributed run reads the whole dataset without being told to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpuloader.api.options import warn
from gpuloader.api.presenting import Present
from gpuloader.batches.items import ItemState
from gpuloader.epoch.epoch import DeliveredStep
from gpuloader.order.batching import Batching

_has_warned = False

_SAMPLES = "pass shard='auto' to read this rank's part of each step"
_ITEMS = (
    "pass shard='auto', or make the dataset divide its items by the rank and world_size of get_worker_info()"
)


def warn_if_undivided(batching: Batching) -> Callable[[Present], Present] | None:
    """Warn once per process if each of several ranks reads everything and nobody has asked for that.

    An iterable dataset may divide its items itself. Whether it asks for its rank is known once it has yielded
    a batch. So for an iterable dataset this returns a function to wrap the one that presents the steps.
    """
    # Once, not per loader: programs make one for training and one for evaluation, and the advice is the same.
    if _has_warned or batching.reads_all:
        return None
    try:
        ranks = batching.find()
    except ValueError:
        return None  # this loader does not need to know the rank
    if ranks[1] == 1 or batching.is_divided:
        return None
    if batching.iterable:
        return partial(_present_and_warn, ranks, batching.obstacle or _ITEMS)
    # The loop calls Iteration.__next__, _open, DataLoader._begin, Epochs.begin, _open_next twice and open.
    _warn_of_ranks(ranks, batching.obstacle or _SAMPLES, 7)
    return None


def _present_and_warn(ranks: tuple[int, int], advice: str, present: Present) -> Present:
    is_first = True

    def present_first(step: DeliveredStep) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            states = [staged.state for staged, _ in step]
            if not any(isinstance(state, ItemState) and state.asked for state in states):
                # The loop calls Iteration.__next__ and Epoch.__next__.
                _warn_of_ranks(ranks, advice, 2)
        return present(step)

    return present_first


def _warn_of_ranks(ranks: tuple[int, int], advice: str, depth: int) -> None:
    global _has_warned
    if _has_warned:
        return
    _has_warned = True
    warn(
        f"this process is rank {ranks[0]} of {ranks[1]}, and the loader reads all samples on every rank: "
        f"{advice}; if every rank is meant to read everything, pass shard=(0, 1)",
        UserWarning,
        depth + 1,
    )
