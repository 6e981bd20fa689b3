"""What the user asked of workers, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuloader.watch.tuning import BUDGET


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What the user asked of workers.

    Attributes
    ----------
    count : int
        0: the consumer's thread fetches.
    kind : str
        'process' or 'thread'.
    prefetch_factor : int
        Batches under way a worker.
    in_order : bool
        Deliver in the order of the plan; otherwise as batches come.
    timeout : float
        Seconds a batch may be waited for, 0 for any time.
    init : callable or None
        Called with the worker's number before its first sample.
    persistent : bool
        Processes stay from one epoch to the next.
    start_method : str or None
        How processes start; None: as suits the data set.
    respawn : bool
        Replace dead processes.
    most : int
        How many there may be where their number is tuned; 0 where it stays.
    deepens : bool
        Whether it is tuned how far they read ahead.
    budget : int
        Bytes that tuning may let the slots come to.
    """

    count: int = 0
    kind: str = "process"
    prefetch_factor: int = 2
    in_order: bool = True
    timeout: float = 0.0
    init: Callable[[int], object] | None = None
    persistent: bool = False
    start_method: str | None = None
    respawn: bool = False
    most: int = 0
    deepens: bool = False
    budget: int = BUDGET

    def as_options(self) -> dict[str, Any]:
        """Return the options of a `DataLoader` that fetches with workers like these.

        >>> WorkerOptions(2, "thread").as_options()["worker_type"]
        'thread'
        """
        return {
            "num_workers": "auto" if self.most else self.count,
            "timeout": self.timeout,
            "worker_init_fn": self.init,
            "worker_type": self.kind,
            "start_method": self.start_method,
            "on_worker_death": "respawn" if self.respawn else "raise",
        }
