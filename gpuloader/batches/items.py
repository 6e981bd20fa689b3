"""Batches of an iterable dataset: a fixed number of items each, in the order they arrive."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuloader.batches.assembly import Assembler, Reserve, stage_kept
from gpuloader.batches.blocks import stage_block
from gpuloader.batches.left_out import Gaps, shorten
from gpuloader.batches.schema import CachedSchema, Collation, complete, room_for
from gpuloader.batches.stream import StagedBatch, close_items
from gpuloader.batches.tree import array_leaves, object_columns
from gpuloader.batches.varying import AT_ONCE, Varying, copy_rows, write_gradually
from gpuloader.errors import BadValue, LoaderError, QueueClosed, SampleError
from gpuloader.order.plan import Division
from gpuloader.order.randomness import current_draw, mixed_seed
from gpuloader.order.samplers import skip
from gpuloader.order.worker_info import WorkerInfo, count_rank_questions, exchange_worker
from gpuloader.sources.describing import Source
from gpuloader.staging.layout import Layout
from gpuloader.staging.ring import Slot
from gpuloader.system.rereading import Steady

_Filled = tuple[Slot, Layout, tuple[list[Any], ...]]
"""A slot, the layout of the samples in it, and the fields that are not arrays."""


class ItemAssembler(Assembler):
    """Assembles the batches of an iterable dataset: `size` items each, in the order they arrive."""

    def stage(
        self,
        items: Iterator[Any],
        number: int,
        size: int,
        reserve: Reserve,
        *,
        drop_last: bool,
        keys: Sequence[Any] | None = None,
    ) -> StagedBatch | None:
        """Read and stage batch `number`; return None if no items are left.

        If a slot was reserved but no batch is returned, the caller must release the slot.

        Parameters
        ----------
        items : iterator
            The dataset's items, from `read`.
        number : int
            The batch's position in the epoch.
        size : int
            Items per batch.
        reserve : callable
            Reserves a slot of at least the given number of bytes.
        drop_last : bool
            Whether to return None instead of a batch of fewer than `size` items.
        keys : sequence or None
            Stand-ins for the indices, which items do not have. By default (worker, batch, position).

        Raises
        ------
        SampleError
            The dataset raised, or an item does not fit its field; the error names batch and item.
        """
        with self.locate(number):
            if self.collation.pictures is None:
                return self._stage(items, number, size, reserve, drop_last, keys)
            # Not the worker's number: it is another with processes than without.
            names = keys or ((number, position) for position in itertools.count())
            if not self.collation.skips:
                return self._stage(
                    self.with_pictures(items, names, 0), number, size, reserve, drop_last, keys
                )
            read = list(itertools.islice(items, size))
            if not read or (len(read) < size and drop_last):
                return None
            gaps = Gaps(len(read))
            left = self.with_pictures(read, names, 0, gaps.begin(0, len(read)))
            with gaps.locate():
                staged = self._stage(left, number, size, reserve, False, keys, gaps)
                gaps.check()
            if staged is not None:
                staged.skipped = gaps.count
            return staged

    def _stage(
        self,
        items: Iterator[Any],
        number: int,
        size: int,
        reserve: Reserve,
        drop_last: bool,
        keys: Sequence[Any] | None,
        gaps: Gaps | None = None,
    ) -> StagedBatch | None:
        """Stage at most `size` items as `stage` does."""
        first = list(itertools.islice(items, 1))
        if not first:
            return None
        if not self.keeps:
            items = itertools.chain(first, itertools.islice(items, size - 1))
            return self._stage_rows(self.settle(first), items, number, size, reserve, drop_last, keys)
        samples = first + list(itertools.islice(items, size - 1))
        if len(samples) < size and drop_last:
            return None
        if self.collation.whole:
            return stage_kept(self.collation, samples, number, reserve)
        batch = Varying(lambda left: self.settle(left).schema, self.collation, samples, number, reserve, gaps)
        batch.write(0, batch.unwritten)
        staged = batch.finish()
        return self._complete(staged, keys, len(batch.samples))

    def stage_block(
        self,
        blocks: Iterator[Any],
        number: int,
        size: int,
        reserve: Reserve,
        *,
        drop_last: bool,
    ) -> StagedBatch | None:
        """Read and stage batch `number` as `stage` does, from a dataset that yields blocks of items."""
        block = next(blocks, None)
        if block is None or (len(block) < size and drop_last):
            return None
        if not 0 < len(block) <= size:
            problem = f"iter_blocks({size}) yielded a block of {len(block)} samples"
            raise SampleError(problem, batch=number, worker=self.worker)
        with self.locate(number):
            schema = None if self.collation.pictures is not None else self.find_schema(block)
            if schema is not None:
                staged = stage_block(block, schema, self.collation, number, reserve)
                return self._complete(staged, None, len(block))
        return self.stage(iter(block), number, size, reserve, drop_last=drop_last)

    def _stage_rows(
        self,
        known: CachedSchema,
        samples: Iterator[Any],
        number: int,
        size: int,
        reserve: Reserve,
        drop_last: bool,
        keys: Sequence[Any] | None,
    ) -> StagedBatch | None:
        fill = self._fill_gradually if known.is_large(size, AT_ONCE) else self._fill
        least = size if drop_last else 1
        filled = fill(known, samples, size, reserve, least)
        if filled is None:
            return None
        slot, layout, objects = filled
        schema, count = known.schema, layout.fields[0].shape[0] if layout.fields else len(objects[0])
        staged = StagedBatch(slot, layout, schema.levels, number, schema.tree, objects)
        return self._complete(staged, keys, count)

    def _fill(
        self, known: CachedSchema, samples: Iterator[Any], size: int, reserve: Reserve, least: int
    ) -> _Filled | None:
        """Write samples into a slot for a full batch; return None if there are fewer than `least`."""
        schema, table = known.schema, known.rows(size)
        layout = table.layout
        slot = reserve(room_for(self.collation, schema.tree, schema.levels, layout))
        objects = object_columns(schema.tree, size)
        count = table.write(slot.views(layout), array_leaves(schema.tree, samples, 0, objects))
        if count < least:
            return None
        if count < size:
            layout = shorten(layout, count)
        else:
            known.fullest = max(known.fullest, count)
        return slot, layout, tuple(column[:count] for column in objects.values())

    def _fill_gradually(
        self, known: CachedSchema, samples: Iterator[Any], size: int, reserve: Reserve, least: int
    ) -> _Filled | None:
        """Write samples as `_fill` does, into memory that grows with them, and then into a slot."""
        schema, objects = known.schema, object_columns(known.schema.tree, 0)
        leaves = array_leaves(schema.tree, samples, 0, objects)
        held, count = write_gradually(known.rows, leaves, size, objects)
        if count < least:
            return None
        if count == size:
            known.fullest = max(known.fullest, count)
        layout = known.rows(1).layout_of(count)
        slot = reserve(room_for(self.collation, schema.tree, schema.levels, layout))
        copy_rows(held, slot.views(layout))
        return slot, layout, tuple(column[:count] for column in objects.values())

    def _complete(self, staged: StagedBatch, keys: Sequence[Any] | None, count: int) -> StagedBatch:
        """Transform a batch of `count` items; items without `keys` get stand-ins for the indices."""
        if self.collation.programmer is None:
            return staged
        keys = keys or [(self.worker, staged.number, position) for position in range(count)]
        return complete(self.collation, staged, keys)

    def read(
        self, items: Iterator[Any], place: Callable[[int], tuple[int, int]], *, closes: bool = False
    ) -> Generator[Any, None, None]:
        """Yield items; wrap what the dataset raises in a `SampleError` that names batch and item.

        Parameters
        ----------
        items : iterator
            The dataset's items.
        place : callable
            Given the number of items read so far, returns the next one's batch and its position there.
        closes : bool
            Whether to close the items if they are not read to their end. They do not always end by
            themselves, because the dataset may hold them too.
        """
        count = 0
        try:
            for count, item in enumerate(items, 1):  # noqa: B007 - the error names it
                yield item
        except GeneratorExit:
            if closes:
                close_items(items)
            raise
        except LoaderError as error:
            if not isinstance(error, QueueClosed):  # which would end the epoch without an error
                raise
            raise self.failure(error, *place(count), None) from error
        except Exception as error:
            raise self.failure(error, *place(count), None) from error


@dataclass(frozen=True, slots=True)
class ItemState:
    """One worker's progress through an iterable dataset, as of one of its batches.

    Attributes
    ----------
    worker : int
        The worker's number.
    batches : int
        Batches the worker has produced in this epoch, including this one.
    state : object
        What the dataset's own ``state_dict`` returned; None if it has no such method.
    base : int
        Items of the epoch before those of batch 0, if the dataset is divided among ranks.
    ended : bool
        Whether the worker knows that this is its last batch. `state` is then None, because the dataset's
        state would already describe the next pass.
    asked : bool
        Whether the dataset has asked for the rank, so that it may divide its items among ranks itself.
    """

    worker: int
    batches: int
    state: Any = None
    base: int = 0
    ended: bool = False
    asked: bool = False


class ItemStream:
    """One worker's pass over an iterable dataset, in batches; used by one thread.

    Parameters
    ----------
    assembler : ItemAssembler
        Assembles the batches; holds the dataset.
    size : int
        Items per batch.
    drop_last : bool
        Whether to drop a shorter last batch.
    reached : ItemState
        Where the pass begins: after the batches produced before. It is reached at once if the dataset can
        load its own state; otherwise the earlier items are read and dropped.
    keep_state : bool
        Whether to ask the dataset for its state after each batch, if it has one.
    """

    def __init__(
        self,
        assembler: ItemAssembler,
        size: int,
        *,
        drop_last: bool,
        reached: ItemState,
        keep_state: bool = True,
    ) -> None:
        self._assembler = assembler
        self._size = size
        self._drop_last = drop_last
        self._reached = reached
        dataset = assembler.dataset
        self._keep_state = keep_state and all(
            callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict")
        )
        if not self._keep_state:
            self._reached = replace(reached, state=None)
        self._in_blocks = not assembler.collation.whole and assembler.source.in_blocks
        self._items: Generator[Any, None, None] | None = None
        self._number = 0
        self._asked_before = 0

    def stage(self, number: int, reserve: Reserve) -> StagedBatch | None:
        """Read and stage the next batch, as batch `number`; return None at the end."""
        assembler = self._assembler
        if self._items is None:
            self._asked_before = count_rank_questions()
            self._items = assembler.read(
                self._open(number),
                lambda count: (self._number, 0 if self._in_blocks else count % self._size),
                closes=True,
            )
        self._number = number
        stage = assembler.stage_block if self._in_blocks else assembler.stage
        staged = stage(self._items, number, self._size, reserve, drop_last=self._drop_last)
        if staged is None:
            return None
        ended = inspect.getgeneratorstate(self._items) == inspect.GEN_CLOSED
        state = self._read_state(number) if self._keep_state and not ended else None
        self._reached = ItemState(
            self._reached.worker,
            self._reached.batches + 1,
            state,
            ended=ended,
            asked=count_rank_questions() > self._asked_before,
        )
        staged.state = self._reached
        return staged

    def _read_state(self, number: int) -> Any:
        try:
            # A copy, because the dataset may go on to change this object, and it reads ahead of the user.
            return copy.deepcopy(self._assembler.dataset.state_dict())
        except Exception as error:
            raise self._assembler.failure(error, number, None, None) from error

    def _open(self, number: int) -> Iterator[Any]:
        dataset, reached = self._assembler.dataset, self._reached
        draw = current_draw()
        draw.index, draw.generator = reached.worker, None
        if reached.ended:
            return iter(())
        try:
            if reached.state is not None:
                dataset.load_state_dict(reached.state)
            items = Steady.of(iter(dataset.iter_blocks(self._size) if self._in_blocks else dataset))
            if reached.state is None and reached.batches:
                size = 1 if self._in_blocks else self._size
                skip(items, reached.batches * size, size, "the dataset")
        except BadValue:
            raise
        except Exception as error:
            raise self._assembler.failure(error, number, None, None) from error
        return items

    def close(self) -> None:
        """Close the dataset's iterator, if it can be closed."""
        close_items(self._items)


# One rank's batches of an iterable dataset: the rank keeps its own items of every step.


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


# Describes what to read from a dataset; the description is the same for threads and worker processes.


@dataclass(frozen=True)  # no slots: the error for an attribute that cannot be pickled finds it in __dict__
class Reading:
    """What to read from a dataset, and how samples become batches.

    Attributes
    ----------
    source : Source
        The dataset, and how it is read.
    collation : Collation
        How samples become a batch.
    size : int or None
        Samples per batch; None if a batch sampler decides. Always set for an iterable dataset.
    drop_last : bool
        Whether to drop a shorter last batch; used for iterable datasets only.
    division : Division or None
        The rank whose part of each step to read; None reads everything.
    """

    source: Source
    collation: Collation
    size: int | None
    drop_last: bool = False
    division: Division | None = None

    @property
    def dataset(self) -> Any:
        """The dataset."""
        return self.source.dataset

    @property
    def iterable(self) -> bool:
        """Whether the dataset is iterable and has no indices."""
        return self.source.iterable

    def make_assembler(self, worker: int | None = None) -> Assembler:
        """Return an assembler, which reads samples into slots; `worker` is the worker's number, if any."""
        kind = ItemAssembler if self.iterable else Assembler
        return kind(self.source, self.collation, worker)

    def open_stream(
        self, assembler: Assembler, reached: ItemState, *, keep_state: bool = True
    ) -> ItemStream | ShareStream:
        """Return one worker's pass over an iterable dataset: over all its items, or over one rank's part.

        Parameters
        ----------
        assembler : Assembler
            An assembler from `make_assembler`.
        reached : ItemState
            Where the pass begins. If the items are divided among ranks, only its `base` is used.
        keep_state : bool
            Whether batches carry the dataset's own state.
        """
        assert isinstance(assembler, ItemAssembler)
        assert self.size is not None
        if self.division is None:
            return ItemStream(
                assembler, self.size, drop_last=self.drop_last, reached=reached, keep_state=keep_state
            )
        return ShareStream(assembler, self.size, self.division, drop_last=self.drop_last, base=reached.base)
