"""What all kinds of fetching share: the protocol, the user's options, the request for an epoch, errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gpuloader.batches.items import BatchSpec, ItemState
from gpuloader.batches.staged import StagedBatch
from gpuloader.errors import LoaderError, QueueClosed, SampleError, WorkerTimeout, caused_by, describe_error
from gpuloader.fields.spec import Indices, plain_indices
from gpuloader.order.randomness import mixed_seed
from gpuloader.system.cores import Cores
from gpuloader.system.platforms import usable_cores


class Fetch(Protocol):
    """The consumer's view of whatever fills the slots of one epoch."""

    def get(self) -> StagedBatch:
        """Wait for the next staged batch and return it; raise `QueueClosed` at the end of the epoch."""

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, or None if `get` would wait."""

    def close(self) -> bool:
        """Stop fetching and return every slot; return False if a thread or process is still running."""


# The user's options for workers, checked before any worker starts.

# Seconds that closing waits for the user's code to return; after that, the thread is left to end by itself.
CLOSING_TIME = 1.0

# Bytes of host memory that the slots may grow to without a `memory_budget`.
BUDGET = 1 << 30

# The fewest bytes that each thread gathers from arrays; for less, handing over the task costs more.
PART_NBYTES = 1 << 20

METHODS = ("fork", "forkserver", "spawn")


@dataclass(slots=True, repr=False)
class WorkerOptions:
    """The user's options for workers."""

    count: int = 0  # 0 lets the consumer's thread fetch
    kind: str = "process"  # or "thread"
    prefetch_factor: int = 2  # batches in progress per worker
    in_order: bool = True  # deliver in the plan's order; otherwise as batches finish
    timeout: float = 0.0  # seconds to wait for a batch; 0 means no limit
    init: Callable[[int], object] | None = None  # called with the worker's number before its first sample
    persistent: bool = False  # keep processes from one epoch to the next
    start_method: str | None = None  # None starts them like `multiprocessing`, and so like PyTorch
    respawn: bool = False  # replace processes that die
    most: int = 0  # the most workers that tuning may choose; 0 if the number is fixed
    deepens: bool = False  # whether tuning chooses how far workers read ahead
    budget: int = BUDGET  # bytes that the slots may grow to while tuning
    read_ahead: bool | str = False  # without workers; "thread" always uses a thread


def most_workers() -> int:
    """Return the largest number of workers that ``num_workers='auto'`` may choose.

    >>> 4 <= most_workers() <= 32
    True
    """
    # More than the number of cores, because some workers wait for a disk.
    return min(max(4 * usable_cores(), 4), 32)


class EpochRequest(NamedTuple):
    """One epoch to fetch."""

    seed: int
    epoch: int
    # Each batch's number and its indices; an iterable dataset has none.
    numbered: Iterator[tuple[int, Indices]]
    # For an iterable dataset: the state from which each worker resumes, and the worker that yields the first
    # batch. None for others.
    reached: Mapping[int, ItemState] | None
    turn: int = 0
    # The token of the loader that reads; see `gpuloader.system.threads.this_thread`.
    owner: object = None
    # Whether worker k of n fetches batches k, k + n, ..., and its global generators are seeded only once,
    # when it starts, as in PyTorch. A dataset then draws what it draws under PyTorch's loader.
    follows_torch: bool = False
    # For a map-style dataset whose own states are kept: the states to begin with. None for others.
    own: Mapping[int, ItemState] | None = None
    # Whether the batches behind one with an error follow, as in PyTorch.
    continues: bool = False


@dataclass(slots=True, eq=False, repr=False)
class WorkerSetup:
    """What a worker thread or process receives once, when it starts."""

    spec: BatchSpec
    init: Callable[[int], object] | None
    count: int  # the number of workers; with num_workers='auto', the most there may be
    ranks: tuple[int, int] | None  # rank and world size; None if asking for them raises an error
    cores: Cores = frozenset()  # the cores on which it runs; empty: any
    depth: int = 1  # how deeply worker processes are nested in worker processes
    # The options that the program has given to fsspec, which a process that is not forked would lack.
    fsspec: Any = field(default_factory=lambda: getattr(sys.modules.get("fsspec.config"), "conf", {}))

    @property
    def salt(self) -> tuple[int, ...]:
        """Numbers mixed into the workers' seeds along with the worker numbers."""
        # Loaders that divide an epoch all have the same seed, so the rank makes their workers' seeds differ.
        # Rank 0 adds nothing: alone or not, its workers draw the same numbers.
        division = self.spec.division
        return () if division is None or not division.rank else (division.rank,)

    def worker_seed(self, seed: int, epoch: int, number: int, *, follows_torch: bool) -> int:
        """Return the seed of worker `number` in an epoch."""
        return seed + number if follows_torch else mixed_seed(seed, epoch, number, *self.salt)


# The errors that the consumer sees when a worker thread or process fails.


def as_failure(error: BaseException, batch: int, worker: int) -> Exception:
    """Return the exception to raise in the consumer for one raised in a worker."""
    # SystemExit, StopIteration and the like would end the consumer's program, generator or epoch.
    if isinstance(error, Exception) and not isinstance(error, QueueClosed):
        return error
    problem = f"the dataset raised {describe_error(error)}"
    return caused_by(error, SampleError(problem, batch=batch, worker=worker))


def interrupted() -> LoaderError:
    """Return the error for an epoch that a Ctrl-C has interrupted in the middle of a batch."""
    return LoaderError(
        "the epoch was interrupted in the middle of a batch and cannot continue; start a new epoch, "
        "or resume this one in a new loader from state_dict()"
    )


def timed_out(who: str, pid: int, seconds: float, batch: int | None, indices: Indices) -> WorkerTimeout:
    """Return the error for a worker that did not deliver a batch in time."""
    what = "answer" if batch is None else f"deliver batch {batch}"
    problem = f"{who} did not {what} within the timeout of {seconds} s"
    return WorkerTimeout(problem, pid=pid, indices=plain_indices(indices))


def failed_alone(number: int, error: BaseException, *, first: bool = True) -> LoaderError:
    """Return the error for a worker that failed outside a batch: before its `first` epoch, or later."""
    what = "could not start" if first else "cannot continue"
    return caused_by(error, LoaderError(f"worker {number} {what}: {describe_error(error)}"))
