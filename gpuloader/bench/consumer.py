"""Who reads the batches: the same for every library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter, sleep
from typing import Any

LEAST = 0.2
"""Seconds that a turn takes at least."""


class Endless:
    """Epochs out of an iterator that never ends, for loaders whose workers only live as long as it.

    Parameters
    ----------
    batches : iterator
        Endless.
    epoch : int
        Batches that are taken for an epoch.
    ahead : int
        Batches, at most, that are made while nobody asks for any.
    """

    def __init__(self, batches: Iterator[Any], epoch: int, ahead: int = 0) -> None:
        self._batches = batches
        self._epoch = epoch
        self.ahead = ahead

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, self._epoch)

    def drop_what_was_made_ahead(self) -> None:
        """Take what was made between turns, which must not count as fast."""
        for _ in itertools.islice(self._batches, self.ahead):
            pass


def turn(loader: Iterable[Any], touch: Callable[[Any], object], least: float = LEAST) -> float:
    """Return the microseconds a batch of whole epochs takes, as many as fill `least` seconds.

    Of each batch the consumer reads one number, the very first, and drops it: a loader that hands over
    memory which is not mapped yet, as from worker processes, pays for one page of it and not for all.
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
        raise ValueError("the loader gave no batch")
    if endless is not None:
        # Its workers are filling up what is made ahead, which is not to disturb whose turn is next.
        sleep(min(1.0, endless.ahead * seconds / count))
    return seconds / count * 1e6
