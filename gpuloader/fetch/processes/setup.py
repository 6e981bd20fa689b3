"""All that a worker process is told once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuloader.collate.form import Collation
from gpuloader.order.division import Division, Standing


@dataclass(frozen=True)  # without slots: who looks for what does not pickle looks at attributes
class Setup:
    """All a worker is told once.

    Attributes
    ----------
    dataset : object
        What it reads.
    collation : Collation
        How samples become a batch.
    items_a_batch : int or None
        For an iterable data set: its batch size. None for one with indices.
    drop_last : bool
        For an iterable data set: whether a last shorter batch is left out.
    init : callable or None
        Called with the worker's number before its first sample.
    count : int
        Workers there are.
    division : Division or None
        Of an iterable data set: which rank's part of each step is read.
    standing : Standing
        Of which rank the workers are.
    """

    dataset: Any
    collation: Collation
    items_a_batch: int | None
    drop_last: bool
    init: Callable[[int], object] | None
    count: int
    division: Division | None
    standing: Standing
