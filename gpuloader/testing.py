"""Test your own loading code: places on simulated devices, and a reader that advances step by step.

Nothing in the package imports this module.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from gpuloader.checks import check_count
from gpuloader.devices.places import CustomPlace
from gpuloader.devices.simulated import RaceError, SimulatedArray, SimulatedDevice, SimulatedStream

__all__ = [
    "CustomPlace",
    "RaceError",
    "SimulatedArray",
    "SimulatedDevice",
    "SimulatedStream",
    "StepReader",
    "simulated_places",
]


def simulated_places(count: int, seed: int = 0) -> list[CustomPlace]:
    """Return places on `count` simulated devices, each with its own order of events drawn from `seed`.

    >>> [place.device.name for place in simulated_places(2)]
    ['simulated:0', 'simulated:1']
    """
    check_count("count", count)
    devices = (SimulatedDevice(f"simulated:{index}", seed=seed * 1009 + index) for index in range(count))
    return list(map(CustomPlace, devices))


class StepReader:
    """A reader that waits before each item until the test lets it continue.

    Attributes
    ----------
    given : int
        Number of items yielded so far, over all epochs.
    closed : threading.Event
        Set when an epoch has ended, whether or not it was read to the end.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> reader = StepReader([[[1]], [[2]]])
    >>> loader = DataLoader.from_generator(capacity=1).set_batch_generator(reader, places="cpu")
    >>> epoch = iter(loader)
    >>> reader.allow(1); next(epoch)
    [array([1])]
    >>> reader.allow(2); list(epoch)
    [[array([2])]]
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._permits = threading.Semaphore(0)
        self.given = 0
        self.closed = threading.Event()

    def allow(self, count: int) -> None:
        """Let `count` more items pass; unused permits stay valid in later epochs."""
        for _ in range(count):
            self._permits.release()

    def __call__(self) -> Iterator[Any]:
        """Begin an epoch."""
        try:
            for item in self._items:
                self._permits.acquire()
                self.given += 1
                yield item
        finally:
            self.closed.set()
