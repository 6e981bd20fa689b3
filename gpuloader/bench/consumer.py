"""The consumer of the batches, the same for every library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter, sleep
from typing import Any

LEAST = 0.2
"""Minimum seconds per turn."""


class Endless:
    """Epochs cut from an endless iterator, for loaders whose workers live only as long as their iterator.

    Parameters
    ----------
    batches : iterator
        An endless iterator of batches.
    epoch : int
        Batches per epoch.
    ahead : int
        The most batches that the loader prefetches while the consumer is idle.
    """

    def __init__(self, batches: Iterator[Any], epoch: int, ahead: int = 0) -> None:
        self._batches = batches
        self._epoch = epoch
        self.ahead = ahead

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, self._epoch)

    def drop_what_was_made_ahead(self) -> None:
        """Discard the batches prefetched between turns, which would make this turn look faster than it is."""
        for _ in itertools.islice(self._batches, self.ahead):
            pass


def turn(loader: Iterable[Any], touch: Callable[[Any], object], least: float = LEAST) -> float:
    """Return the microseconds per batch, over as many whole epochs as fill `least` seconds.

    The consumer reads the first number of each batch, then drops the batch. So a loader that hands over
    memory not yet mapped, as from worker processes, pays for mapping one page of it and not for all.
    """
    endless = loader if isinstance(loader, Endless) else None
    if endless is not None:
        endless.drop_what_was_made_ahead()
    count, start = 0, perf_counter()
    while True:
        for batch in loader:
            touch(batch)
            count += 1
            del batch
        seconds = perf_counter() - start
        if seconds >= least or not count:
            break
    if not count:
        raise ValueError("the loader yielded no batches")
    if endless is not None:
        # Let its workers finish prefetching, so that they do not disturb the next library's turn.
        sleep(min(1.0, endless.ahead * seconds / count))
    return seconds / count * 1e6
