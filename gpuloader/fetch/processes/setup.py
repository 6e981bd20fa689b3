"""Both sides: the setup of a worker process, which it gets once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuloader.batches.items import Reading
from gpuloader.order.plan import RankInfo
from gpuloader.system.cores import Cores


@dataclass(frozen=True)  # no slots: pickling errors find the culprit through `__dict__`
class Setup:
    """The setup of a worker process, which it gets once, when it starts.

    Attributes
    ----------
    reading : Reading
        The dataset, and how its samples become batches.
    init : callable or None
        Called with the worker's number before its first sample.
    count : int
        The number of workers, the most there may be with ``num_workers='auto'``.
    standing : Standing
        The rank that the workers belong to.
    depth : int
        How deep the workers are within worker processes, from 1.
    cores : set of int
        The processor cores on which the workers run; empty: any.
    """

    reading: Reading
    init: Callable[[int], object] | None
    count: int
    standing: RankInfo
    depth: int = 1
    cores: Cores = frozenset()
