"""The user's options for workers, checked before any worker starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.base.checks import AUTO, check_count, check_flags, check_read_ahead, check_word
from gpuloader.base.errors import BadValue
from gpuloader.base.platforms import usable_cores
from gpuloader.watch.tuning import BUDGET

METHODS = ("fork", "forkserver", "spawn")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The user's options for workers.

    Attributes
    ----------
    count : int
        The number of workers; with 0 the consumer's thread fetches.
    kind : str
        'process' or 'thread'.
    prefetch_factor : int
        Batches in progress for each worker.
    in_order : bool
        Deliver in the plan's order; otherwise as batches finish.
    timeout : float
        Seconds to wait for a batch; 0 means no limit.
    init : callable or None
        Called with the worker's number before its first sample.
    persistent : bool
        Keep processes from one epoch to the next.
    start_method : str or None
        How processes start; None chooses by the dataset.
    respawn : bool
        Replace processes that die.
    most : int
        The most workers that tuning may choose; 0 if the number is fixed.
    deepens : bool
        Whether tuning chooses how far workers read ahead.
    budget : int
        The most bytes that the slots may grow to while tuning.
    read_ahead : bool or str
        Whether to read ahead without workers; 'thread' to do so in a thread always.
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
    read_ahead: bool | str = False

    @classmethod
    def of(
        cls,
        *,
        num_workers: int | str,
        worker_type: str,
        prefetch_factor: int | None,
        prefetch: int | str = 1,
        memory_budget: int | None = None,
        use_buffer_reader: bool | str = False,
        iterable: bool = False,
        in_order: bool,
        timeout: float,
        worker_init_fn: Callable[[int], object] | None,
        persistent_workers: bool,
        start_method: str | None,
        on_worker_death: str,
    ) -> WorkerOptions:
        """Return the options that a loader's parameters describe.

        Raises
        ------
        ValueError
            A number is out of range, a word is unknown, or two options contradict each other.
        TypeError
            ``worker_init_fn`` is not callable.

        >>> WorkerOptions.of(
        ...     num_workers=2, worker_type="thread", prefetch_factor=2, in_order=True, timeout=0,
        ...     worker_init_fn=None, persistent_workers=False, start_method=None, on_worker_death="raise",
        ... ).count
        2
        """
        check_flags(in_order=in_order, persistent_workers=persistent_workers)
        tuned, deepens = num_workers == AUTO, prefetch == AUTO
        if tuned and iterable:
            raise ValueError(
                "num_workers='auto' needs a map-style dataset, because the batches of an iterable dataset "
                "depend on how many workers read it; pass a number"
            )
        if tuned:
            num_workers = 1
        if isinstance(num_workers, bool) or not isinstance(num_workers, int | np.integer) or num_workers < 0:
            raise BadValue(f"num_workers must be 'auto' or an integer of 0 or more, got {num_workers!r}")
        if memory_budget is not None and not (tuned or deepens):
            raise ValueError(
                "memory_budget limits num_workers='auto' and prefetch='auto'; pass one of these, or leave "
                "memory_budget out"
            )
        check_word("worker_type", worker_type, ("process", "thread"))
        check_word("on_worker_death", on_worker_death, ("raise", "respawn"))
        if start_method is not None:
            check_word("start_method", start_method, METHODS)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
            raise BadValue(f"timeout must be a number of seconds of 0 or more, got {timeout!r}")
        check_worker_init(worker_init_fn)
        return cls(
            int(num_workers),
            worker_type,
            check_count("prefetch_factor", 2 if prefetch_factor is None else prefetch_factor),
            bool(in_order),
            float(timeout),
            worker_init_fn,
            bool(persistent_workers and num_workers),
            start_method,
            on_worker_death == "respawn",
            most_workers() if tuned else 0,
            deepens,
            BUDGET if memory_budget is None else check_count("memory_budget", memory_budget),
            check_read_ahead("use_buffer_reader", use_buffer_reader),
        )

    def as_options(self) -> dict[str, Any]:
        """Return the parameters of a `DataLoader` that fetches with the same workers.

        >>> WorkerOptions(2, "thread").as_options()["worker_type"]
        'thread'
        """
        return {
            "num_workers": AUTO if self.most else self.count,
            "timeout": self.timeout,
            "worker_init_fn": self.init,
            "worker_type": self.kind,
            "start_method": self.start_method,
            "on_worker_death": "respawn" if self.respawn else "raise",
        }


def check_worker_init(function: object) -> None:
    """Raise `TypeError` unless a ``worker_init_fn`` is callable or None.

    >>> check_worker_init(print)
    """
    if function is not None and not callable(function):
        raise TypeError(f"worker_init_fn must be callable, got {type(function).__name__}")


def most_workers() -> int:
    """Return the largest number of workers that ``num_workers='auto'`` may choose.

    It is more than the number of cores, because some workers wait for a disk.

    >>> 4 <= most_workers() <= 32
    True
    """
    return min(max(4 * usable_cores(), 4), 32)
