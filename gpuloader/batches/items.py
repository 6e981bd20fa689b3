"""Batches of an iterable dataset: a fixed number of items each, in the order they arrive.

An `ItemAssembler` stages the next items of an iterator. The passes over a dataset use it: an `ItemStream`
belongs to one worker, and remembers how far it has read; a `ShareStream` belongs to one rank, and reads all
items but keeps only its own. `BatchSpec` describes what to read, for threads and worker processes alike.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any, NamedTuple

from gpuloader.batches.assembly import Assembler, BatchRows, KeptBatch
from gpuloader.batches.schema import Collation
from gpuloader.batches.staged import END, Reserve, StagedBatch, complete
from gpuloader.errors import BadValue, LoaderError, QueueClosed, SampleError
from gpuloader.order.dividing import Division
from gpuloader.order.randomness import current_draw, mixed_seed
from gpuloader.order.worker_info import WorkerInfo, count_rank_questions, exchange_worker
from gpuloader.sources.block import Block
from gpuloader.sources.describing import Source, has_state
from gpuloader.sources.skipping import leaves_out
from gpuloader.staging import check_available
from gpuloader.system.iterators import Steady, close_iterator, skip

Keys = Sequence[Any] | None
"""Replaces the indices of a batch, because items have none; by default its number and the position."""

AT_ONCE = 64 << 20
"""Slots for a full batch up to this many bytes are reserved before their samples have arrived."""
_PLAIN = frozenset({int, float, bool, str, type(None)})
_OF_DATASET, _OF_ITERATOR = "dataset", "gpuloader_iterator"
"""The keys of a state that combines a dataset's and its iterator's; a dataset's alone is kept as it is."""


class ItemAssembler(Assembler):
    """Assembles the batches of an iterable dataset: `size` items each, in the order they arrive."""

    def stage(
        self,
        items: Iterator[Any],
        number: int,
        size: int,
        least: int,
        reserve: Reserve,
        keys: Keys = None,
        *,
        in_blocks: bool = False,
    ) -> StagedBatch | None:
        """Read and stage batch `number`; return None if fewer than `least` items are left.

        If they come `in_blocks`, the batch is the next block. If a slot was reserved but no batch is
        returned, the caller must release the slot.

        Raises
        ------
        SampleError
            The dataset raised, or an item does not fit its field; the error names batch and item.
        """
        batch: KeptBatch | None = None
        try:
            if in_blocks:
                block = next(items, None)
                if block is None or 0 < len(block) < least:
                    return None
                self.check_block(block, number, size)
                if self.collation.images is None:
                    staged = self.stage_block(block, number, reserve, keys or self._keys(number, len(block)))
                    if staged is not None:
                        return staged
                items = iter(block)
            if (images := self.collation.images) is not None:
                draw, names = current_draw(), keys or ((number, at) for at in itertools.count())
                pairs = enumerate(zip(names, items, strict=False))
                begun = (
                    (at, self.make_images(at, images.begin, item, draw, key)) for at, (key, item) in pairs
                )
                items = (self.make_images(at, images.finish, item) for at, item in begun)
            if not self.keeps:
                return self._stage_rows(items, number, size, least, reserve, keys)
            samples = list(itertools.islice(items, size))
            # Items that are left out count as read, and later items do not replace them. So the batches that
            # follow are the same as without a bad image.
            if len(samples) < least:
                return None
            if self.collation.whole and not self.collation.skips:
                return self.stage_whole(samples, number, reserve)
            batch = KeptBatch(self, number, keys or self._keys(number, len(samples)), reserve)
            batch.samples = samples
            return batch.finish()
        except SampleError as error:
            self.locate(error, number, None if batch is None else batch.gaps)
            raise

    def _keys(self, number: int, count: int) -> list[Any]:
        """Return the substitutes for the indices of a batch; nothing if no transform needs them."""
        if self.collation.programmer is None:
            return []
        # Not the worker's number, which a loader without workers lacks. None keeps its position, so that such
        # a loader still draws the same numbers as when workers' numbers were used here.
        return [(None, number, position) for position in range(count)]

    def _stage_rows(
        self, items: Iterator[Any], number: int, size: int, least: int, reserve: Reserve, keys: Keys
    ) -> StagedBatch | None:
        """Write items as they arrive; return None if there are too few."""
        first = next(items, END)
        if first is END:
            return None
        collation, samples = self.collation, [first]
        refused: SampleError | None = None
        try:
            schema = self.schemas.declared or self.find_schema(samples)
        except SampleError as error:
            if collation.fallback is None:
                raise
            refused = error
        # The number of items is unknown, and a last batch may be far smaller than `size` allows. So nothing
        # large is reserved until one batch has been full: memory use grows with the items.
        is_large = refused is None and schema.is_large(size, AT_ONCE) and length_hint(items) < size - 1
        if is_large:  # before anything is read: a slot for all of them could exhaust the machine's memory
            check_available(schema.fields.layout_of(size).nbytes)
        # With a fallback, samples are kept in case one does not fit; with small ones this costs nothing.
        keeps_all = collation.fallback is not None and (refused is not None or schema.chunk >= size)
        reads_all = is_large or keeps_all
        every, count = itertools.chain(samples, itertools.islice(items, size - 1)), size
        if reads_all:
            samples = [*map(_copy, every)] if is_large else [*every]
            count = len(samples)
            if count < least:  # a batch that is dropped need not fit together
                return None
        if refused is not None:
            return self.fall_back(samples, number, reserve, refused)
        placed = BatchRows(collation, schema, count, number, reserve)
        staged = placed.staged
        try:
            written = placed.write(samples if reads_all else every)
        except SampleError as error:
            if collation.fallback is None or not reads_all:
                raise
            return self.fall_back(samples, number, reserve, error, staged.slot)
        if written < least:
            return None
        if written < count:
            staged.layout = staged.layout.shorten(written)
            staged.objects = tuple([column[:written] for column in staged.objects])
        elif count == size > schema.fullest:
            schema.fullest = size
        return complete(collation, staged, keys or self._keys(number, written))

    def check_block(self, block: Block, number: int, size: int) -> None:
        """Raise `SampleError` if a block for batch `number` is empty or has more than `size` samples."""
        if not 0 < len(block) <= size:
            problem = f"iter_blocks({size}) yielded a block of {len(block)} samples"
            raise SampleError(problem, batch=number, worker=self.worker)

    def read(
        self, items: Iterator[Any], place: Callable[[int], tuple[int, int]], *, closes: bool = False
    ) -> Generator[Any, None, None]:
        """Yield items; wrap what the dataset raises in a `SampleError` that names batch and item.

        Given the number of items read so far, `place` returns the next one's batch and its position there.
        `closes` closes the items if they are not read to their end. They do not always end by themselves,
        because the dataset may also hold them.
        """
        count = 0
        try:
            for count, item in enumerate(items, 1):  # noqa: B007 - the error names it
                yield item
        except GeneratorExit:
            if closes:
                close_iterator(items)
            raise
        except Exception as error:
            # The loader's own errors already say where. `QueueClosed` would silently end the epoch.
            if isinstance(error, LoaderError) and not isinstance(error, QueueClosed):
                raise
            raise self.failure(error, *place(count), None) from error


def _copy(sample: Any) -> Any:
    """Return a copy of a sample, because the source may reuse its memory for the next one."""
    try:
        return copy.deepcopy(sample)
    except Exception:  # the user's class may raise anything; its objects are then kept as they are
        return sample


class ItemState(NamedTuple):
    """One worker's progress through an iterable dataset, as of one of its batches.

    In this epoch, the worker has produced `batches` batches, including this one. `state` is what the
    dataset's own ``state_dict`` returned; None if it has no such method. `ended` says that the worker knows
    this batch to be its last; the state is then None, because the dataset's state would already describe the
    next pass. If ranks divide the dataset, `base` is the number of the epoch's items before those of batch 0.
    `asked` says that the dataset has asked for the rank, so it may divide its items among ranks itself.
    """

    worker: int
    batches: int
    state: Any = None
    base: int = 0
    ended: bool = False
    asked: bool = False


class Pass:
    """A pass over an iterable dataset; one thread stages its batches one after another."""

    _items: Iterator[Any] | None = None

    def __init__(self, assembler: ItemAssembler, size: int, *, drop_last: bool) -> None:
        self._assembler = assembler
        self._size = size
        self._drop_last = drop_last
        self._in_blocks = not assembler.collation.whole and assembler.source.in_blocks

    def stage(self, number: int, reserve: Reserve) -> StagedBatch | None:
        """Read and stage batch `number`; return None at the end."""
        raise NotImplementedError

    def _iterate(self, size: int) -> Iterator[Any]:
        """Begin to iterate over the dataset; its blocks have `size` items."""
        dataset, collation = self._assembler.dataset, self._assembler.collation
        current_draw().skips = collation.skips and leaves_out(dataset)
        return iter(dataset.iter_blocks(size) if self._in_blocks else dataset)

    def close(self) -> None:
        """Close the dataset's iterator, if it can be closed."""
        close_iterator(self._items)


def copy_state(state: Any) -> Any:
    """Return a copy of a state that the dataset may still change while it reads ahead of the user."""
    is_flat = type(state) is dict and _PLAIN.issuperset(map(type, state.values()))
    return dict(state) if is_flat else copy.deepcopy(state)


class ItemStream(Pass):
    """One worker's pass over an iterable dataset, in batches of `size` items; used by one thread.

    The pass begins after the batches that `reached` counts. A dataset that can load its own state continues
    there. With any other, the earlier items are read and dropped. `keep_state` asks the dataset for its state
    after each batch, if it has one.
    """

    _items: Generator[Any, None, None] | None

    def __init__(
        self,
        assembler: ItemAssembler,
        size: int,
        *,
        drop_last: bool,
        reached: ItemState,
        keep_state: bool = True,
    ) -> None:
        super().__init__(assembler, size, drop_last=drop_last)
        self._reached = reached
        self._keeps = keep_state
        # The owners of a state: the dataset, its iterator, or both.
        is_stateful = keep_state and assembler.source.keeps_state
        self._stateful: dict[str, Any] = {_OF_DATASET: assembler.dataset} if is_stateful else {}
        self._number = 0
        self._asked_before = 0

    def stage(self, number: int, reserve: Reserve) -> StagedBatch | None:
        """Read and stage the next batch, as batch `number`; return None at the end."""
        assembler = self._assembler
        if self._items is None:
            self._asked_before = count_rank_questions()
            at = lambda count: (self._number, 0 if self._in_blocks else count % self._size)  # noqa: E731
            self._items = assembler.read(self._open(number), at, closes=True)
        self._number = number
        least = self._size if self._drop_last else 1
        staged = assembler.stage(self._items, number, self._size, least, reserve, in_blocks=self._in_blocks)
        if staged is None:
            return None
        # A short batch has reached the end. After a full one, only reading one item too many would tell.
        ended = getattr(self._items, "gi_frame", None) is None
        state = None
        if self._stateful and not ended:
            try:
                state = {name: copy_state(one.state_dict()) for name, one in self._stateful.items()}
                if _OF_ITERATOR not in state:
                    state = state[_OF_DATASET]
            except Exception as error:
                raise assembler.failure(error, number, None, None) from error
        reached, asked = self._reached, count_rank_questions() > self._asked_before
        self._reached = ItemState(reached.worker, reached.batches + 1, state, ended=ended, asked=asked)
        staged.state = self._reached
        return staged

    def _open(self, number: int) -> Iterator[Any]:
        dataset, reached = self._assembler.dataset, self._reached
        draw = current_draw()
        draw.index, draw.generator = reached.worker, None
        # A pass that had ended must not call the dataset again: its next iterator may be the next epoch's.
        if reached.ended:
            return iter(())
        own: Any = reached.state
        kept: Any = None
        if isinstance(own, Mapping) and _OF_ITERATOR in own:
            own, kept = own.get(_OF_DATASET), own[_OF_ITERATOR]
        try:
            if _OF_DATASET not in self._stateful:
                own = None
            if own is not None:
                dataset.load_state_dict(own)
            made: Any = self._iterate(self._size)
            if self._keeps and made is not dataset and has_state(made):
                self._stateful[_OF_ITERATOR] = made
                if kept is not None:
                    made.load_state_dict(kept)
            else:
                kept = None
            again = own is not None and made is dataset
            if again and pickle.dumps(dataset.state_dict()) != pickle.dumps(own):
                # An `__iter__` that returns the dataset itself may have started over. One that only continues
                # must not get its state twice, because that could begin the next epoch.
                dataset.load_state_dict(own)
            items = Steady.of(made)
            if own is None and kept is None and reached.batches:
                size = 1 if self._in_blocks else self._size
                skip(items, reached.batches * size, size, "the dataset")
        except BadValue:  # from `skip`: the dataset is shorter than the state says, and the user must know
            raise
        except Exception as error:
            raise self._assembler.failure(error, number, None, None) from error
        return items


class ShareStream(Pass):
    """One rank's pass over an iterable dataset; every rank, and every worker, reads all items.

    A step is the dataset's next ``size * world_size`` items, dealt to the ranks one by one. A rank keeps its
    own `size` items, skips the others, and delivers its batch after reading the whole step. A dataset in
    blocks yields a step as one block. All ranks see the same items and so the same end, and divide an
    incomplete last step by the same rule. So no rank waits for a batch that another rank does not have.

    A step is identified by its number alone. So several workers may each read all items and stage different
    steps, as long as each worker is asked for increasing numbers.

    Used by one thread. `base` is the number of items of the epoch before those of batch 0.
    """

    def __init__(
        self, assembler: ItemAssembler, size: int, division: Division, *, drop_last: bool, base: int = 0
    ) -> None:
        super().__init__(assembler, size, drop_last=drop_last)
        self._division = division
        self._base = base
        self._alone: WorkerInfo | None = None  # what the dataset sees
        self._read = 0
        self._step = size * division.world_size
        # A state saved with other ranks or batches may begin within a block.
        self._in_blocks &= base % self._step == 0

    def stage(self, number: int, reserve: Reserve) -> StagedBatch | None:
        """Read and stage this rank's part of step `number`; return None at the end.

        If a last batch may be filled up with repeated samples, the batch's state is a pair: how many of its
        samples count, and how many it has.
        """
        if self._items is None:
            draw = current_draw()
            draw.index, draw.generator = 0, None  # every reader must draw the same numbers
            # A dataset that divides itself must yield all items here, so it sees one worker on one rank.
            seed = mixed_seed(draw.seed or 0, draw.epoch, 0)
            self._alone = WorkerInfo(0, 1, seed, self._assembler.dataset, (0, 1))
        outer = exchange_worker(self._alone)
        try:
            begin = self._base + number * self._step
            kept, count = self._read_step(number, begin)
        finally:
            exchange_worker(outer)
        division, ranks = self._division, self._division.world_size
        # All ranks count the same items here, so they agree on who gets how many without communicating.
        own, size = division.own(count, self._size, items=True)
        if not size or (self._drop_last and count < self._step):
            return None
        # Keys are positions in the epoch, so that an item's random draws do not depend on its rank.
        first = begin + division.rank
        keys: range | list[int] = range(first, first + own * ranks, ranks) or range(begin, begin + 1)
        if size != len(keys):
            keys = [*keys, keys[-1]][:size]
        if isinstance(kept, list):
            items: Iterator[Any] = iter((kept + kept[-1:])[:size])
        else:
            items = iter((kept.take(keys, begin) if size < count else kept,))
        staged = self._assembler.stage(items, number, size, 1, reserve, keys, in_blocks=self._in_blocks)
        if staged is not None and division.pads(None, drop_last=self._drop_last):
            staged.state = own, size
        return staged

    def _read_step(self, number: int, begin: int) -> tuple[list[Any] | Block, int]:
        """Return the block of a step, or this rank's items of it, and the number of items in the whole step.

        If the step has items but none for this rank, returns the step's first item instead.
        """
        division, assembler = self._division, self._assembler
        if self._items is None:
            try:
                self._items = Steady.of(self._iterate(self._step))
            except Exception as error:
                raise assembler.failure(error, number, None, None) from error
        # Other workers' steps lie in between. Their items are read and dropped, because what a dataset yields
        # may depend on what it has yielded.
        read = assembler.read(self._items, lambda count: (number, 0 if self._in_blocks else count))
        at_once = self._step if self._in_blocks else 1
        for _ in itertools.islice(read, min((begin - self._read) // at_once, sys.maxsize)):
            self._read += at_once
        if self._in_blocks:
            block = next(read, None)
            if block is None:
                return [], 0
            assembler.check_block(block, number, self._step)
            self._read += self._step
            return block, len(block)
        read = assembler.read(self._items, lambda count: (number, count))
        kept: list[Any] = []
        first: list[Any] = []
        count = 0
        for count, item in enumerate(itertools.islice(read, min(self._step, sys.maxsize)), 1):
            # Dealt one by one, the ranks' shares of a short step differ by one item at most.
            if (count - 1) % division.world_size == division.rank:
                kept.append(item)
            elif count == 1:
                first = [item]  # a rank without any items repeats it, so that all ranks have a batch
        self._read += count
        return kept or first, count


class BatchSpec(NamedTuple):
    """What to read from a dataset, and how samples become batches.

    Attributes
    ----------
    source : Source
        The dataset, and how it is read.
    collation : Collation
        How samples become a batch.
    size : int or None
        Samples per batch; None if a batch sampler determines it. Always set for an iterable dataset.
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

    def make_assembler(self, worker: int | None = None) -> Assembler:
        """Return an assembler, which reads samples into slots; `worker` is the worker's number, if any."""
        kind = ItemAssembler if self.source.iterable else Assembler
        return kind(self.source, self.collation, worker)

    def open_stream(self, assembler: Assembler, reached: ItemState, *, keep_state: bool = True) -> Pass:
        """Return one worker's pass over an iterable dataset: over all its items, or over one rank's part.

        It begins where `reached` says. If the items are divided among ranks, only its `base` is used.
        """
        assert isinstance(assembler, ItemAssembler)
        assert self.size is not None
        if self.division is None:
            return ItemStream(
                assembler, self.size, drop_last=self.drop_last, reached=reached, keep_state=keep_state
            )
        return ShareStream(assembler, self.size, self.division, drop_last=self.drop_last, base=reached.base)
