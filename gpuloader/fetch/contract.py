"""What all kinds of fetching share: the protocol, the user's options, the request for an epoch, errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuloader.batches.items import ItemState, Reading
from gpuloader.batches.staged import StagedBatch
from gpuloader.checks import AUTO, check_count, check_flags, check_read_ahead, check_word
from gpuloader.errors import BadValue, LoaderError, QueueClosed, SampleError, WorkerTimeout, describe_error
from gpuloader.fields.spec import Indices
from gpuloader.order.dividing import RankInfo
from gpuloader.system.cores import Cores
from gpuloader.system.platforms import usable_cores
from gpuloader.watch.autotuner import BUDGET


class Fetch(Protocol):
    """The consumer's end of whatever fills the slots of one epoch."""

    def get(self) -> StagedBatch:
        """Wait for the next staged batch and return it; raise `QueueClosed` at the end of the epoch."""

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, or None if `get` would wait."""

    def close(self) -> bool:
        """Stop fetching and return every slot; return False if a thread or process is still running."""


# The user's options for workers, checked before any worker starts.

# How worker processes start if nobody has chosen.
#
# The fork server has loaded NumPy and this package, and has no threads or locks of the user's program.
DEFAULT_METHOD = "forkserver"

# Seconds that closing waits for the user's code to return before it leaves a thread to end by itself.
CLOSING_TIME = 1.0

METHODS = ("fork", "forkserver", "spawn")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The user's options for workers."""

    count: int = 0  # with 0 the consumer's thread fetches
    kind: str = "process"  # or "thread"
    prefetch_factor: int = 2  # batches in progress for each worker
    in_order: bool = True  # deliver in the plan's order; otherwise as batches finish
    timeout: float = 0.0  # seconds to wait for a batch; 0 means no limit
    init: Callable[[int], object] | None = None  # called with the worker's number before its first sample
    persistent: bool = False  # keep processes from one epoch to the next
    start_method: str | None = None  # None chooses by the dataset
    respawn: bool = False  # replace processes that die
    most: int = 0  # workers that tuning may choose; 0 if the number is fixed
    deepens: bool = False  # whether tuning chooses how far workers read ahead
    budget: int = BUDGET  # bytes that the slots may grow to while tuning
    read_ahead: bool | str = False  # without workers; "thread" to do so in a thread always

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

    >>> 4 <= most_workers() <= 32
    True
    """
    # More than the number of cores, because some workers wait for a disk.
    return min(max(4 * usable_cores(), 4), 32)


@dataclass(frozen=True, slots=True)
class EpochRequest:
    """One epoch to fetch."""

    seed: int
    epoch: int
    # Each batch's number and indices; None for an iterable dataset, whose items are not known ahead.
    numbered: Iterator[tuple[int, Indices]] | None
    # For an iterable dataset: the state from which each worker resumes, the number of the first batch, and
    # the worker that yields it.
    reached: Mapping[int, ItemState]
    start: int = 0
    turn: int = 0
    # The token of the loader that reads, see `gpuloader.system.threads.this_thread`.
    owner: object = None


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker thread or process gets once, when it starts."""

    reading: Reading
    init: Callable[[int], object] | None
    count: int  # the number of workers, the most there may be with num_workers='auto'
    rank: RankInfo
    cores: Cores = frozenset()  # on which it runs; empty: any
    depth: int = 1  # how deep worker processes are within worker processes


# The errors that the consumer sees when a worker thread or process fails.


def as_failure(error: BaseException, batch: int, worker: int) -> Exception:
    """Return the exception to raise in the consumer for one raised in a worker."""
    # SystemExit, StopIteration and the like would end the consumer's program, generator or epoch.
    if isinstance(error, Exception) and not isinstance(error, QueueClosed):
        return error
    failure = SampleError(f"the dataset raised {describe_error(error)}", batch=batch, worker=worker)
    failure.__cause__ = error
    return failure


def interrupted() -> LoaderError:
    """Return the error for an epoch that a Ctrl-C broke off in the middle of a batch."""
    return LoaderError(
        "the epoch was interrupted in the middle of a batch and cannot continue; start a new epoch, "
        "or resume this one in a new loader from state_dict()"
    )


def timed_out(who: str, pid: int, seconds: float, batch: int | None, indices: Indices) -> WorkerTimeout:
    """Return the error for a worker that did not deliver a batch in time."""
    what = "answer" if batch is None else f"deliver batch {batch}"
    problem = f"{who} did not {what} within the timeout of {seconds} s"
    return WorkerTimeout(problem, pid=pid, indices=plain_indices(indices))


def plain_indices(indices: Indices) -> list[Any]:
    """Return indices as a list, with NumPy integers as Python ints."""
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)


def set_up_failed(number: int, error: BaseException) -> LoaderError:
    """Return the error for a worker whose dataset could not be unpickled, or whose init function raised."""
    failure = LoaderError(f"worker {number} could not start: {describe_error(error)}")
    failure.__cause__ = error
    return failure
