"""All that a worker process is told once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuloader.collate.reading import Reading
from gpuloader.order.division import Standing


@dataclass(frozen=True)  # without slots: an error about what cannot be pickled names it by its attributes
class Setup:
    """All that a worker process is told once.

    Attributes
    ----------
    reading : Reading
        The dataset, and how its samples become batches.
    init : callable or None
        Called with the worker's number before its first sample.
    count : int
        How many workers there are.
    standing : Standing
        Which rank the workers belong to.
    """

    reading: Reading
    init: Callable[[int], object] | None
    count: int
    standing: Standing
