"""Which worker runs the calling code, for datasets that divide their items among workers."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any

from gpuloader.order.ranks import find_rank

WORKER_MODULES = ("torch.utils.data._utils.worker", "paddle.io.dataloader.worker")
"""Where PyTorch and Paddle keep the information about their worker processes."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's number, seed and dataset.

    Attributes
    ----------
    id : int
        The worker's number, from 0 to ``num_workers - 1``.
    num_workers : int
        The number of workers.
    seed : int
        The worker's seed, different for each worker and epoch.
    dataset : object
        The worker's copy of the dataset.
    ranks : tuple of int or None
        Rank and world size; if None, `gpuloader.order.ranks.find_rank` determines them.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    ranks: tuple[int, int] | None = None

    @property
    def rank(self) -> int:
        """The rank of the loader's process in the distributed run, from 0."""
        return self._find_ranks()[0]

    @property
    def world_size(self) -> int:
        """The number of processes in the run; 1 without a known launcher."""
        return self._find_ranks()[1]

    def _find_ranks(self) -> tuple[int, int]:
        _present.rank_questions += 1
        return self.ranks or find_rank()


class _Present(threading.local):
    info: WorkerInfo | None = None
    rank_questions: int = 0


_present = _Present()


def get_worker_info() -> WorkerInfo | None:
    """Return information about the calling worker, or None outside workers, as in the main process.

    An `IterableDataset` calls this in its ``__iter__`` to find its worker's part of the items. If it does
    not, every worker yields all items. A dataset that also divides its files among ranks takes part
    ``info.rank * info.num_workers + info.id`` of ``info.world_size * info.num_workers``.

    If the loader divides the epoch among ranks (``shard``), every dataset must yield all items in the same
    order on every rank and worker. A call in ``__iter__`` then returns worker 0 of 1, on rank 0 of 1.

    In a worker process of PyTorch's or Paddle's own loader, this returns what their function returns.

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
    return _present.info or _find_foreign()


def own_worker_info() -> WorkerInfo | None:
    """Return information about the calling worker of a loader of this package, or None in any other thread.

    >>> own_worker_info() is None
    True
    """
    return _present.info


def _find_foreign() -> WorkerInfo | None:
    """Return information about this worker process of PyTorch's or Paddle's loader, or None."""
    for name in WORKER_MODULES:
        found: Any = getattr(sys.modules.get(name), "_worker_info", None)
        if found is not None:
            return WorkerInfo(found.id, found.num_workers, found.seed, found.dataset)
    return None


def find_share(*, of_ranks: bool = True) -> tuple[int, int]:
    """Return which part the calling thread reads of a dataset that all workers of all ranks share.

    Parameters
    ----------
    of_ranks : bool
        Whether the ranks share the dataset; False if each has its own.

    Returns
    -------
    tuple of int
        The number of the part, from 0, and the number of parts. A rank has the same parts with any number of
        workers.

    Examples
    --------
    >>> find_share(of_ranks=False)
    (0, 1)
    """
    info = _present.info
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    rank, ranks = ask_ranks()  # also if they have their own: the dataset has been divided with them in mind
    if not of_ranks:
        return worker, workers
    return rank + worker * ranks, ranks * workers


def enter_worker(info: WorkerInfo | None) -> None:
    """Make the calling thread the given worker, or none."""
    _present.info = info


def exchange_worker(info: WorkerInfo | None) -> WorkerInfo | None:
    """Make the calling thread the given worker and return the previous one, for restoring it later."""
    before, _present.info = _present.info, info
    return before


def ask_ranks() -> tuple[int, int]:
    """Return the rank and world size for a dataset that divides its items among ranks, in a worker or not."""
    return (_present.info or WorkerInfo(0, 1, 0, None))._find_ranks()


def count_rank_questions() -> int:
    """Return how often code in the calling thread has asked for the rank or the world size."""
    return _present.rank_questions
