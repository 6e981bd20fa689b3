"""The pipeline without fetching: prefilled slots, to measure the stages after them."""

from __future__ import annotations

from collections import deque

import numpy as np

from gpuloader import CUDAPlace
from gpuloader.batches.staged import StagedBatch
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import Epoch, Iteration, open_epoch, take_buffers
from gpuloader.errors import QueueClosed
from gpuloader.staging import Layout, Ring, Slot, arrange
from gpuloader.system.finalizers import Finalizer
from gpuloader.watch.meter import Meter


class ReadyFetch:
    """A fetch stage that delivers `count` free slots unchanged: fetching and staging take no time."""

    def __init__(self, ring: Ring, layout: Layout, count: int) -> None:
        self._ring = ring
        self._layout = layout
        self._count = count
        self._given = 0

    def get(self) -> StagedBatch:
        """Return the next batch, waiting for a free slot."""
        self._check()
        return self._stage(self._ring.acquire(self._layout.nbytes))

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch if a slot is free."""
        self._check()
        if not self._ring.allocated:
            return self.get()
        slot = self._ring.take()
        return None if slot is None else self._stage(slot)

    def close(self) -> bool:
        """Return True: nothing is left running."""
        return True

    def _check(self) -> None:
        if self._given == self._count:
            raise QueueClosed("the epoch is over")

    def _stage(self, slot: Slot) -> StagedBatch:
        self._given += 1
        return StagedBatch(slot, self._layout, (0,), self._given - 1)


class ReadyBuffers:
    """Slots and a lane to the first GPU for batches of one size, kept across epochs.

    Parameters
    ----------
    nbytes : int
        Bytes per batch.
    prefetch : int
        Steps to copy ahead of the consumer; a loader's default is 1.
    capacity : int
        Batches that a queue would hold, which determines the number of host slots.
    """

    def __init__(self, nbytes: int, prefetch: int = 1, capacity: int = 2) -> None:
        self._layout = arrange((((nbytes,), np.dtype(np.uint8)),))
        self._meter = Meter()
        delivery = Delivery.of([CUDAPlace(0)], None, None, prefetch=prefetch, drop_last=True)
        self._buffers = take_buffers(deque(), delivery, capacity, self._meter)

    @property
    def slots(self) -> int:
        """The number of host slots."""
        return self._buffers.ring.count

    def epoch(self, count: int) -> Iteration:
        """Begin an epoch of `count` batches, each a list of one CuPy array."""
        fetch = ReadyFetch(self._buffers.ring, self._layout, count)
        epoch = Epoch(
            self._buffers,
            fetch,
            lambda step: step[0][1],
            deque(maxlen=0),  # they are kept here
            drop_last=False,
            meter=self._meter,
        )
        return open_epoch(epoch, Finalizer())
