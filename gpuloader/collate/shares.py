"""One rank's batches of an iterable dataset: of every step of all ranks, the items that are its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from gpuloader.collate.assembly import Reserve
from gpuloader.collate.items import ItemAssembler
from gpuloader.collate.stream import StagedBatch
from gpuloader.order.division import Division
from gpuloader.order.randomness import current_draw, mixed_seed
from gpuloader.order.worker_info import WorkerInfo, exchange_worker


class ShareStream:
    """A pass over an iterable dataset of which every rank, and every worker, reads all items.

    A step of all ranks is `size` items for each, the next ones of the dataset; they are dealt one by one, so
    a rank keeps `size` of them and knows of the others only that they are there. It delivers its batch when
    the step is whole. Every rank sees the same items, so all see the same end, and share the items of a last
    step that is not whole by the same rule: none waits for a batch that another has not.

    A batch is found by its number alone, so several workers may each read all items and take some of the
    steps, whichever they are asked for, as long as the numbers rise.

    Used by one thread.

    Parameters
    ----------
    assembler : ItemAssembler
        Puts batches together, and has the dataset.
    size : int
        Items a batch.
    division : Division
        Which rank this is, of how many.
    drop_last : bool
        Whether a last step that is not whole is left out.
    base : int
        Items before those of batch 0.
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

    def stage(self, number: int, reserve: Reserve, *, settles: bool = True) -> StagedBatch | None:
        """Read and stage this rank's part of step `number`; None at the end.

        Its state is how many of its samples count and how many it has, where some may be repeated.
        """
        draw = current_draw()
        seed = mixed_seed(draw.seed or 0, draw.epoch, 0)
        # To a dataset that divides itself the loader is one worker on one rank: all items are asked for.
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
        # Positions in the epoch stand for indices, so that what is drawn for an item depends on no rank.
        keys = [begin + division.rank + at * world_size for at in range(own)] or [begin]
        kept, keys = (kept + kept[-1:])[:size], (keys + keys[-1:])[:size]
        staged = self._assembler.stage(
            iter(kept), number, size, reserve, drop_last=False, settles=settles, keys=keys
        )
        if staged is not None and division.pads(drop_last=self._drop_last):
            staged.state = own, size
        return staged

    def _read_step(self, number: int, begin: int) -> tuple[list[Any], int]:
        """Return the items of a step that are this rank's, and how many items it has in all.

        Where it has none of a step that has some, the first one stands for it.
        """
        division, assembler = self._division, self._assembler
        if self._items is None:
            self._items = self._open(number)
        for _ in itertools.islice(assembler.read(self._items, number), begin - self._read):
            self._read += 1
        read = assembler.read(self._items, number)
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
        draw.index, draw.generator = 0, None  # the same numbers for whoever reads
        try:
            return iter(self._assembler.dataset)
        except Exception as error:
            raise self._assembler.failure(error, number, None, None) from error

    def close(self) -> None:
        """Close the dataset's generator, if it is one."""
        close = getattr(self._items, "close", None)
        if callable(close):
            close()
