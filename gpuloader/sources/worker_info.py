"""Which worker runs the calling code: for data sets that divide their work among workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


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
        The worker's copy of the data set.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Present(threading.local):
    info: WorkerInfo | None = None
    asked: bool = False


_present = _Present()


def get_worker_info() -> WorkerInfo | None:
    """Return what this worker knows of itself, or None where no worker runs, as in the main process.

    An `IterableDataset` asks in its ``__iter__`` which part of the items is its own; a worker that does
    not ask gives all of them.

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


def has_asked() -> bool:
    """Return whether the calling thread asked `get_worker_info` since it became a worker."""
    return _present.asked
