"""What a loop over a `DataLoader` holds: an epoch that begins with the first batch that is requested."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpuloader.base.exiting import end_if_exiting
from gpuloader.pipeline.epoch import Epoch


class Iteration(Iterator[Any]):
    """The iterator over one epoch of a loader.

    The epoch begins when its first step is requested, not when the iterator is made. So an iterator that is
    never used takes no epoch and starts no worker, and rank, epoch and state are those of the first request.
    Trainers that make an iterator to find out whether they can, or long before they use it, rely on that.

    Any thread may call the methods.

    Parameters
    ----------
    begin : callable
        Begins the loader's next epoch.
    length : callable
        Returns the number of steps in a whole epoch, or raises TypeError.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(4), places="cpu", batch_size=2)
    >>> unused, used = iter(loader), iter(loader)
    >>> next(used), loader.state_dict()["epoch"], len(used)
    (array([0, 1]), 0, 2)
    """

    def __init__(self, begin: Callable[[], Epoch], length: Callable[[], int]) -> None:
        self._length = length
        self._begin: Callable[[], Epoch] | None = begin
        self._epoch: Epoch | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch, however many of them have been delivered.

        Raises
        ------
        TypeError
            The number is unknown.
        """
        return self._length()

    def __bool__(self) -> bool:
        return True  # not the length, which may be unknown

    def __next__(self) -> Any:
        epoch = self._epoch
        return next(self._open() if epoch is None else epoch)

    def _open(self) -> Epoch:
        with self._lock:
            if self._epoch is None:
                if self._begin is None:
                    raise StopIteration
                end_if_exiting()
                try:
                    self._epoch = self._begin()
                except Exception:
                    end_if_exiting()
                    raise
                self._begin = None
            return self._epoch

    def close(self) -> None:
        """End the epoch early, or make sure that it never begins; may be called again."""
        with self._lock:
            self._begin = None
            epoch = self._epoch
        if epoch is not None:
            epoch.close()
