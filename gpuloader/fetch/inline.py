"""Fetching in the consumer's own thread: nothing is read ahead, and no thread exists."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from time import perf_counter_ns

from gpuloader.collate.assembly import Assembler
from gpuloader.collate.gather import Gatherer
from gpuloader.collate.items import ItemStream
from gpuloader.collate.stream import StagedBatch
from gpuloader.errors import QueueClosed
from gpuloader.sources.randomness import draws
from gpuloader.spec import Indices
from gpuloader.staging.ring import Ring, Slot
from gpuloader.stats import Meter


class InlineFetch:
    """Reads the next batch when it is asked for.

    Has the two ends of a `ThreadFetch`, so the pipeline does not know the difference.
    """

    def __init__(self, batches: Iterator[StagedBatch]) -> None:
        self._batches = batches

    def get(self) -> StagedBatch:
        """Read and stage the next batch; raise `QueueClosed` at the end, or what the reader raised."""
        try:
            return next(self._batches)
        except StopIteration:
            raise QueueClosed("the reader has no further batch") from None

    def get_nowait(self) -> None:
        """Return None: nothing is ever read ahead."""

    def close(self) -> bool:
        """Close the reader; return True: nothing runs on."""
        if isinstance(self._batches, Generator):
            self._batches.close()
        return True


class _Spot:
    """Where one batch is written: a slot of the ring, taken when its size is known."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.slot: Slot | None = None

    def reserve(self, nbytes: int) -> Slot:
        self.slot = self._ring.acquire(nbytes)
        return self.slot

    def give_back(self) -> None:
        if self.slot is not None:
            self._ring.release(self.slot)


def stage_batches(
    assembler: Assembler | Gatherer,
    numbered: Iterator[tuple[int, Indices]],
    ring: Ring,
    meter: Meter,
    *,
    seed: int,
    epoch: int,
) -> Iterator[StagedBatch]:
    """Yield every batch of a plan, fetched and staged in whatever thread iterates.

    Raises
    ------
    SampleError
        The data set raised, or a sample does not fit.
    """
    draws.begin(seed, epoch)
    for number, indices in numbered:
        begun = perf_counter_ns()
        spot = _Spot(ring)
        try:
            staged = assembler.assemble(number, indices, spot.reserve)
        except BaseException:
            spot.give_back()
            raise
        meter.fetched(begun, perf_counter_ns(), staged.layout.nbytes)
        yield staged


def stage_items(
    stream: ItemStream, start: int, ring: Ring, meter: Meter, *, seed: int, epoch: int
) -> Iterator[StagedBatch]:
    """Yield every batch of an iterable data set, the first of them as number `start`."""
    draws.begin(seed, epoch)
    try:
        for number in itertools.count(start):
            begun = perf_counter_ns()
            spot = _Spot(ring)
            try:
                staged = stream.stage(number, spot.reserve)
            except BaseException:
                spot.give_back()
                raise
            if staged is None:
                spot.give_back()
                return
            meter.fetched(begun, perf_counter_ns(), staged.layout.nbytes)
            yield staged
    finally:
        stream.close()
