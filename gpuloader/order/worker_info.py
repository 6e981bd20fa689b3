"""Which worker runs the calling code: for datasets that divide their work among workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from gpuloader.order.ranks import find_rank


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker knows of itself.

    Attributes
    ----------
    id : int
        From 0 to ``num_workers - 1``.
    num_workers : int
        How many there are.
    seed : int
        This worker's own; another one in each epoch.
    dataset : object
        The worker's copy of the dataset.
    ranks : tuple of int or None
        Rank and world size; None: what `gpuloader.order.ranks.find_rank` says.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    ranks: tuple[int, int] | None = None

    @property
    def rank(self) -> int:
        """Which of the processes of a distributed run the loader is in, from 0."""
        return (self.ranks or find_rank())[0]

    @property
    def world_size(self) -> int:
        """How many processes the run has, 1 where no launcher is known."""
        return (self.ranks or find_rank())[1]


class _Present(threading.local):
    info: WorkerInfo | None = None
    asked: bool = False


_present = _Present()


def get_worker_info() -> WorkerInfo | None:
    """Return what this worker knows of itself, or None where no worker runs, as in the main process.

    An `IterableDataset` asks in its ``__iter__`` which part of the items is its own; a worker that does
    not ask gives all of them. One that divides its files among ranks, too, is worker number
    ``info.rank * info.num_workers + info.id`` of ``info.world_size * info.num_workers``.

    Where the loader divides (``shard``), every dataset has to give all items, in the same order whoever
    reads: one that asks in its ``__iter__`` is told to be worker 0 of 1, on rank 0 of 1.

    Examples
    --------
    >>> from gpuloader import DataLoader, IterableDataset
    >>> class Squares(IterableDataset):
    ...     def __iter__(self):
    ...         info = get_worker_info()
    ...         first, step = (0, 1) if info is None else (info.id, info.num_workers)
    ...         return (number * number for number in range(first, 6, step))
    >>> loader = DataLoader(Squares(), places="cpu", num_workers=2, worker_type="thread")
    >>> sorted(int(square[0]) for square in loader)
    [0, 1, 4, 9, 16, 25]
    """
    _present.asked = True
    return _present.info


def enter_worker(info: WorkerInfo | None) -> None:
    """Make the calling thread the given worker, or none, from now on."""
    _present.info, _present.asked = info, False


def exchange_worker(info: WorkerInfo | None) -> WorkerInfo | None:
    """Make the calling thread the given worker and return which it was before, to be put back."""
    before, _present.info = _present.info, info
    return before


def has_asked() -> bool:
    """Return whether the calling thread asked `get_worker_info` since it became a worker."""
    return _present.asked
