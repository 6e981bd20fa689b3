"""One rank's batches of an iterable dataset: the rank keeps its own items of every step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from gpuloader.base.once import Steady
from gpuloader.collate.assembly import Reserve
from gpuloader.collate.items import ItemAssembler
from gpuloader.collate.stream import StagedBatch, close_items
from gpuloader.order.division import Division
from gpuloader.order.randomness import current_draw, mixed_seed
from gpuloader.order.worker_info import WorkerInfo, exchange_worker


class ShareStream:
    """One rank's pass over an iterable dataset; every rank, and every worker, reads all items.

    A step is the dataset's next ``size * world_size`` items, dealt to the ranks one by one. A rank keeps its
    own `size` items, skips the others, and delivers its batch after reading the whole step. All ranks see
    the same items, so they see the same end, and divide an incomplete last step by the same rule. So no rank
    waits for a batch that another rank does not have.

    A step is identified by its number alone. So several workers may each read all items and stage different
    steps, as long as the numbers that a worker is asked for increase.

    Used by one thread.

    Parameters
    ----------
    assembler : ItemAssembler
        Assembles the batches; holds the dataset.
    size : int
        Items per batch.
    division : Division
        This process's rank and the world size.
    drop_last : bool
        Whether to drop an incomplete last step.
    base : int
        Items of the epoch before those of batch 0.
    """

    def __init__(
        self, assembler: ItemAssembler, size: int, division: Division, *, drop_last: bool, base: int = 0
    ) -> None:
        self._assembler = assembler
        self._size = size
        self._division = division
        self._drop_last = drop_last
        self._base = base
        self._items: Iterator[Any] | None = None
        self._read = 0

    def stage(self, number: int, reserve: Reserve) -> StagedBatch | None:
        """Read and stage this rank's part of step `number`; return None at the end.

        If a last batch may be filled up with repeated samples, the batch's state is a pair: how many of its
        samples count, and how many it has.
        """
        draw = current_draw()
        seed = mixed_seed(draw.seed or 0, draw.epoch, 0)
        # A dataset that divides itself must yield all items here, so it sees one worker on one rank.
        outer = exchange_worker(WorkerInfo(0, 1, seed, self._assembler.dataset, (0, 1)))
        try:
            begin = self._base + number * self._size * self._division.world_size
            kept, count = self._read_step(number, begin)
        finally:
            exchange_worker(outer)
        division, world_size = self._division, self._division.world_size
        own, size = division.own_items(count, self._size)
        if not size or (self._drop_last and count < self._size * world_size):
            return None
        # Keys are positions in the epoch, so that an item's random draws do not depend on its rank.
        keys = [begin + division.rank + at * world_size for at in range(own)] or [begin]
        kept, keys = (kept + kept[-1:])[:size], (keys + keys[-1:])[:size]
        staged = self._assembler.stage(iter(kept), number, size, reserve, drop_last=False, keys=keys)
        if staged is not None and division.pads(None, drop_last=self._drop_last):
            staged.state = own, size
        return staged

    def _read_step(self, number: int, begin: int) -> tuple[list[Any], int]:
        """Return this rank's items of a step, and the number of items in the whole step.

        If the step has items but none for this rank, return the step's first item instead.
        """
        division, assembler = self._division, self._assembler
        if self._items is None:
            self._items = self._open(number)
        read = assembler.read(self._items, lambda count: (number, count))
        for _ in itertools.islice(read, begin - self._read):
            self._read += 1
        read = assembler.read(self._items, lambda count: (number, count))
        kept: list[Any] = []
        first: list[Any] = []
        count = 0
        for count, item in enumerate(itertools.islice(read, self._size * division.world_size), 1):
            if (count - 1) % division.world_size == division.rank:
                kept.append(item)
            elif count == 1:
                first = [item]
        self._read += count
        return kept or first, count

    def _open(self, number: int) -> Iterator[Any]:
        draw = current_draw()
        draw.index, draw.generator = 0, None  # every reader must draw the same numbers
        try:
            return Steady.of(iter(self._assembler.dataset))
        except Exception as error:
            raise self._assembler.failure(error, number, None, None) from error

    def close(self) -> None:
        """Close the dataset's iterator, if it can be closed."""
        close_items(self._items)
