"""One batch of a dataset: a plain loop fetches its samples and hands them to what writes them.

An `Assembler` holds what lasts: the dataset, the collation, and the schemas of recent batches. It begins an
`Assembly` for each batch, whose life cycle is always the same, with any number of threads:

    begin ── fetch(start, stop), once for each part ── [lay_out ── write, once for each part] ── finish

The collation chooses how the batch gets into its slot. Rows: samples of fixed size are written as they
arrive, once the batch's first sample has settled the schema. Columns: a dataset that keeps its samples in
columns is asked for blocks of them. Kept: if a field varies in length, or a ``collate_fn`` wants the samples,
all of them are kept until the last one has arrived.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.batches.columns import Column, block_columns, fits, split_columns, stage_columns, stage_fitting
from gpuloader.batches.schema import Collation, Schema, SchemaCache
from gpuloader.batches.staged import BatchBuilder, Gaps, Reserve, StagedBatch, begin_batch, complete
from gpuloader.batches.tree import array_columns, array_leaves, object_columns
from gpuloader.errors import DecodeError, SampleError, caused_by, describe_error
from gpuloader.fields.convert import IF_IMAGES, IF_IT_VARIES
from gpuloader.fields.spec import Array, Indices, plain_indices
from gpuloader.foreign import is_tensor, tensor_over
from gpuloader.order.randomness import current_draw
from gpuloader.sources.block import Block
from gpuloader.sources.describing import Source
from gpuloader.sources.skipping import LeftOut, is_about_data
from gpuloader.staging import Slot

if TYPE_CHECKING:
    from gpuloader.batches.kept import BatchSignature

# NumPy and others take None for a new dimension, so the result would be a different sample.
_NO_INDEX = "the sampler yielded None instead of an index"
_GROWN = (
    "if the dataset has grown, persistent workers still read it as it was when they started: pass "
    "persistent_workers=False to start workers in every epoch, or num_workers=0 to read it where it grows"
)


class Assembler:
    """Assembles the batches of one dataset; each process has one, which its threads share.

    The first sample of a batch settles the batch's schema, even if another sample is fetched earlier. So the
    batches do not depend on which worker was faster. For error messages, `worker` is the number of the worker
    process that this runs in; None outside of workers.
    """

    def __init__(self, source: Source, collation: Collation, worker: int | None = None) -> None:
        self.source = source
        self.dataset = source.dataset
        # A gradient leads back to tensors of the process that computed it.
        self.collation = collation if worker is None else replace(collation, keeps_gradients=False)
        self.worker = worker
        # A batch that may lose samples waits, too: only its end shows where each row goes.
        self.keeps = collation.keeps or collation.skips
        self.by_sample: type[SampleBatch] = KeptBatch if self.keeps else RowBatch
        self.schemas = SchemaCache(collation)
        self._signature: BatchSignature | None = None
        if collation.whole or collation.fallback is not None:
            from gpuloader.batches.kept import keep_whole, stage_whole  # late: few loaders need them

            self._keep_whole, self._stage_whole = keep_whole, stage_whole
        # A collate_fn, declared feeds and images want whole samples, so columns would gain nothing.
        by_sample = collation.whole or collation.feeds is not None or collation.images is not None
        by_sample |= collation.skips  # skipping asks for each sample by itself
        self.take_block = None if by_sample else source.take_block
        self.kind = self.by_sample if self.take_block is None else BlockBatch
        self.fetch_many = source.read_many if collation.batched else None

    def begin(self, number: int, indices: Indices, reserve: Reserve) -> SampleBatch:
        """Begin batch `number`, of the samples at `indices`; the caller then fetches its parts."""
        return self.kind(self, number, indices, reserve)

    def assemble(self, number: int, indices: Indices, reserve: Reserve) -> StagedBatch:
        """Fetch and stage batch `number` in the calling thread.

        Raises
        ------
        SampleError
            The dataset raised, or a sample does not fit its field; the error names batch, sample and index.
        """
        batch = self.kind(self, number, indices, reserve)
        try:
            batch.fetch(0, len(indices))
            return batch.finish()
        except SampleError as error:
            batch.locate(error)
            raise

    def stage_block(
        self, block: Block, number: int, reserve: Reserve, keys: Sequence[Any]
    ) -> StagedBatch | None:
        """Stage a block of samples; return None if its columns do not match what the first sample needs."""
        for known in self.schemas.recent:
            if (staged := stage_fitting(block, known, self.collation, number, reserve)) is not None:
                return complete(self.collation, staged, keys)
        schema = next((known for known in self.schemas.recent if fits(block, known)), None)
        if schema is None:
            samples = iter(block)
            schema = self.schemas.find(list(samples) if self.collation.keeps else [next(samples)])
            if not fits(block, schema):
                return None
        staged = stage_fitting(block, schema, self.collation, number, reserve)
        if staged is None:
            columns, objects = block_columns(block, schema, self.collation.pads)
            staged, _ = stage_columns(columns, schema, self.collation, number, reserve, objects)
        return complete(self.collation, staged, keys)

    def stage_whole(self, samples: list[Any], number: int, reserve: Reserve) -> StagedBatch:
        """Stage the result of the user's ``collate_fn``, or the single sample of an unbatched loader."""
        collation = self.collation
        value: Any = samples if collation.batched else samples[0]
        if collation.function is not None:
            # It runs for the whole batch, so its draws do not belong to any sample either.
            draw = current_draw()
            draw.index = draw.generator = None
            try:
                value = collation.function(value)
            except Exception as error:
                problem = f"collate_fn raised {describe_error(error)}"
                raise caused_by(error, SampleError(problem)) from error
        if collation.as_returned and self.worker is None:
            return self._keep_whole(value, number, reserve)
        # Threads may replace the signature meanwhile; it only saves time.
        staged, self._signature = self._stage_whole(value, collation, number, reserve, self._signature)
        return staged

    def find_schema(self, samples: Sequence[Any]) -> Schema:
        """Return the schema of a batch, given its first samples; raise `SampleError` if it has none."""
        fallback = self.collation.fallback
        if fallback is not None and fallback.is_for(samples[0]):
            raise SampleError("the batch cannot be collated", index=0)
        return self.schemas.find(samples)

    def fall_back(
        self,
        samples: list[Any],
        number: int,
        reserve: Reserve,
        refused: SampleError,
        slot: Slot | None = None,
    ) -> StagedBatch:
        """Return the batch that the framework's own function makes from samples that were `refused`.

        `slot` is the batch's slot, if it already has one.
        """
        collation = self.collation
        assert collation.fallback is not None
        try:
            batch = collation.fallback.collate(samples)
        except Exception as error:
            raise caused_by(error, refused) from error
        if slot is not None or self.worker is None:
            return self._keep_whole(batch, number, reserve if slot is None else lambda _: slot)
        staged, self._signature = self._stage_whole(batch, collation, number, reserve, self._signature)
        return staged

    def fetch(self, samples: list[Any], indices: Sequence[Any], number: int, start: int, fewer: bool) -> None:
        """Append the samples at `indices` to a list; in batch `number`, they start at position `start`.

        A dataset that reads several samples together may return `fewer`, but one at least. Only here is the
        user's dataset called, with none of our code between it and the loop.

        Raises
        ------
        SampleError
            The dataset raised; the error names the sample, and its cause is the dataset's exception.
        """
        draw, first = current_draw(), len(samples)
        many, images = self.fetch_many, self.collation.images
        dataset, rest = self.dataset, indices
        # Masks and boxes wait until all images are made: code and data that alternate push each other out of
        # the processor's caches, which took a tenth longer.
        waits = images is not None and bool(images.along)
        try:
            if many is not None:
                try:
                    found = self.read_together(lambda asked: _listed(many(asked)), [*indices], start)
                    if len(found) != len(indices) and not (fewer and 0 < len(found) < len(indices)):
                        problem = f"__getitems__ returned {len(found)} samples for {len(indices)} indices"
                        raise SampleError(problem)
                    samples += found
                    if images is not None:
                        for row, (index, sample) in enumerate(zip(indices, samples, strict=True)):
                            samples[row] = self.make_images(start + row, images.begin, sample, draw, index)
                    rest = ()
                except SampleError:
                    if not self.collation.skips:
                        raise
                    samples.clear()  # from here one by one, to leave out those that raise
            for position, index in enumerate(rest, start):
                draw.index, draw.generator = index, None
                if index is None:
                    raise SampleError(_NO_INDEX, index=position)
                try:
                    sample = dataset[index]
                except Exception as error:
                    if not (self.collation.skips and is_about_data(error)):
                        raise self.failure(error, number, position, index) from error
                    sample = LeftOut(f"dataset index {index}: {describe_error(error)}")
                if images is not None:
                    sample = self.make_images(position, images.begin, sample, draw, index)
                samples.append(sample)
        except SampleError:
            if waits:  # an earlier sample's error comes first
                self._finish_images(samples, first, start)
            raise
        if waits:
            self._finish_images(samples, first, start)

    def _finish_images(self, samples: list[Any], first: int, start: int) -> None:
        """Finish what `ImageStage.begin` has begun of the samples from number `first` on, at `start`."""
        assert self.collation.images is not None
        begun = samples[first:]
        del samples[first:]
        for position, sample in enumerate(begun, start):
            samples.append(self.make_images(position, self.collation.images.finish, sample))

    def read_together(self, many: Callable[[list[Any]], Any], indices: list[Any], start: int = 0) -> Any:
        """Return what `many` makes of indices in one call; its draws belong to no single sample."""
        if None in indices:
            raise SampleError(_NO_INDEX, index=start + indices.index(None))
        draw = current_draw()
        draw.index = draw.generator = None
        try:
            return many(indices)
        except Exception as error:
            asked_for = reprlib.repr(indices)  # abridged to the first few
            problem = f"__getitems__ raised {describe_error(error)} for the indices {asked_for}"
            raise caused_by(error, SampleError(problem)) from error

    def make_images(self, position: int, make: Callable[..., Any], sample: Any, *given: Any) -> Any:
        """Return what a method of `ImageStage` makes of a sample; or a `LeftOut`."""
        if isinstance(sample, LeftOut):
            return sample
        try:
            return make(sample, *given)
        except SampleError as error:
            if self.collation.skips and isinstance(error, DecodeError):
                return LeftOut(describe_error(error))
            error.index = position
            raise

    def failure(self, error: Exception, number: int, position: int | None, index: object) -> SampleError:
        """Return the error to raise for an exception of the dataset."""
        part = self.source.name_part(index)
        part = part and f"the sample is from {part}"
        problem = f"the dataset raised {describe_error(error)}"
        if isinstance(error, IndexError) and isinstance(index, int | np.integer):
            count = len(self.source.dataset) if isinstance(self.source.dataset, Sized) else None
            if count is not None and not -count <= index < count:
                problem = f"the sampler's index {index} is out of range for {count} samples"
                # A process has the dataset as it was when the process started.
                part = part if self.worker is None or index < 0 else _GROWN
        problem = f"{problem}; {part}" if part else problem
        failure = SampleError(problem, batch=number, index=position, dataset_index=index, worker=self.worker)
        return caused_by(error, failure)

    def locate(
        self, error: SampleError, number: int, gaps: Gaps | None, indices: Sequence[Any] | None = None
    ) -> None:
        """Add the batch, the worker, the sample's position and its dataset index to an error."""
        # The writer counts rows, but users count samples: if samples are left out, the two differ.
        if gaps is not None:
            gaps.locate(error)
        error.batch, error.worker = number, self.worker
        if self.collation.images is not None and error.field in self.collation.images.found:
            error.problem = error.problem.replace(IF_IT_VARIES, IF_IMAGES)
        if indices is None or error.index is None or error.dataset_index is not None:
            return
        [error.dataset_index] = plain_indices(indices[error.index : error.index + 1])
        # Chained datasets of different shapes are a common cause, and only their names show which.
        part, first = map(self.source.name_part, (error.dataset_index, indices[0]))
        if part:
            error.problem += f"; the sample is from {part}"
            error.problem += f", the batch's first from {first}" if first != part else ""


def _listed(samples: Any) -> list[Any]:
    """Return what `__getitems__` has returned as a list; of a dict or table, those would be the names."""
    if isinstance(samples, Mapping | str) or hasattr(samples, "columns"):
        raise TypeError(f"it returned a {type(samples).__name__}, and not a list of samples")
    return [*samples]


class SampleBatch(BatchBuilder):
    """A batch of a dataset's samples; the classes below define how they get into its slot."""

    takes_arrays = False

    def __init__(self, assembler: Assembler, number: int, indices: Indices, reserve: Reserve) -> None:
        self._assembler = assembler
        self.number = number
        self._indices: Any = indices
        if not self.takes_arrays and isinstance(indices, np.ndarray):
            self._indices = indices.tolist()  # datasets expect Python integers, not NumPy's
        self._reserve = reserve
        self.gaps: Gaps | None = None

    def locate(self, error: SampleError) -> None:
        """Add the batch and the sample to an error that one of the other methods has raised."""
        self._assembler.locate(error, self.number, self.gaps, self._indices)


class BatchRows:
    """The rows of a batch in its slot, where `count` samples of a schema are written."""

    def __init__(
        self, collation: Collation, schema: Schema, count: int, number: int, reserve: Reserve
    ) -> None:
        self.tree, self._table = schema.tree, schema.rows(count)
        self.objects, layout = object_columns(self.tree, count), self._table.layout
        objects = self.objects.values()
        self.staged = begin_batch(collation, layout, schema.levels, number, reserve, self.tree, objects)
        self.views = self.staged.slot.views(layout)

    def write(self, samples: Iterable[Any], row: int = 0) -> int:
        """Write samples into the rows from `row` on; return the row after the last."""
        table, views, tree, objects = self._table, self.views, self.tree, self.objects
        if isinstance(samples, list) and (table.in_columns or objects or (tree.depth and not tree.is_flat)):
            columns = array_columns(tree, samples, row, objects)
            if columns is not None:
                table.write_columns(views, columns, row, row + len(samples))
                return row + len(samples)
        return table.write(views, array_leaves(tree, samples, row, objects), row)


class RowBatch(SampleBatch):
    """Samples of fixed size: each is written into its row as soon as the first one has settled the schema.

    No thread waits for another: a part that comes before the batch's first sample keeps what it has fetched.
    """

    def __init__(self, assembler: Assembler, number: int, indices: Indices, reserve: Reserve) -> None:
        super().__init__(assembler, number, indices, reserve)
        self._schema = assembler.schemas.declared
        # Until the schema is settled, a sample is assumed to be as large as those of the last batch.
        known = self._schema or next(iter(assembler.schemas.recent), None)
        self._chunk = known.chunk if known else 1
        self._early: list[tuple[int, list[Any]]] = []
        self._first: Any = None  # the sample that settled the schema
        self._refused: SampleError | None = None  # why the samples cannot be written into rows
        self._placing = threading.Lock()
        self._placed: BatchRows | None = None

    def fetch(self, start: int, stop: int) -> None:
        """Fetch samples `start` to `stop` of the batch; the part that begins at 0 settles the schema."""
        assembler, indices, number = self._assembler, self._indices, self.number
        # `__getitems__` is called once per part, because its purpose is to read samples together.
        at_once = assembler.fetch_many is not None
        # PyTorch makes a batch of what there is.
        fewer = at_once and assembler.collation.fallback is not None and stop - start == len(indices)
        samples: list[Any] = []  # those that were fetched, but not written yet
        row = position = start  # of the next sample to write, and of the next one to fetch
        while position < stop:
            end = stop if at_once else min(position + self._chunk, stop)
            try:
                assembler.fetch(samples, indices[position:end], number, position, fewer=fewer)
            except SampleError:
                self._write(samples, row)  # of several errors, the one of the earliest sample is raised
                raise
            if fewer:
                self._indices = indices[: len(samples)]
            position = end
            if self._write(samples, row):
                row, samples = end, []
        # No thread waits for the batch's first sample, which may be the slowest to read. What came before it
        # is written by `finish`, in the thread that ends last.
        if samples:
            self._early.append((row, samples))

    def _write(self, samples: list[Any], row: int) -> bool:
        """Write the next samples of a part; return False if they must wait for others of the batch."""
        if self._refused is not None:
            return False
        collation = self._assembler.collation
        try:
            if self._schema is None:
                if row or not samples:
                    return False
                self._first = samples[0]
                self._schema = self._assembler.find_schema(samples)
                assumed, self._chunk = self._chunk, self._schema.chunk
                # PyTorch reads a batch before it copies any sample, so a buffer that a dataset returns for
                # each of them has the last one's values in every row.
                if collation.fallback is not None and assumed < len(self._indices) <= self._chunk:
                    return False
            with self._placing:  # the part that arrives first reserves the slot
                placed = self._placed
                if placed is None:
                    schema, count = self._schema, len(self._indices)
                    placed = BatchRows(collation, schema, count, self.number, self._reserve)
                    self._placed, self._chunk = placed, schema.chunk
            placed.write(samples, row)
        except SampleError as error:
            if collation.fallback is None:
                raise
            self._refused = error
            return False
        return True

    def finish(self) -> StagedBatch:
        """Return the staged batch."""
        # In the batch's order, so that of several bad samples the first one is named.
        for row, samples in sorted(self._early, key=itemgetter(0)):
            self._write(samples, row)
        if self._refused is not None:
            return self._fall_back(self._refused)
        if self._placed is None:
            raise caused_by(IndexError("no samples"), SampleError("the batch has no samples"))
        return complete(self._assembler.collation, self._placed.staged, self._indices)

    def _fall_back(self, refused: SampleError) -> StagedBatch:
        """Return the batch that the framework's own function makes of the samples."""
        samples: list[Any] = [None] * len(self._indices)
        slot: Slot | None = None
        if self._placed is not None:
            tree, slot = self._placed.tree, self._placed.staged.slot
            firsts = tree.flatten(self._first)
            for row in range(len(samples)):
                rest = iter(self._placed.views)
                samples[row] = tree.build(
                    [
                        _as_it_was(next(rest)[row], first)
                        if leaf.is_array
                        else self._placed.objects[field][row]
                        for field, (leaf, first) in enumerate(zip(tree.leaves, firsts, strict=True))
                    ]
                )
        # The refused samples, and those after them, have not been written.
        for row, part in self._early:
            samples[row : row + len(part)] = part
        return self._assembler.fall_back(samples, self.number, self._reserve, refused, slot)


def _as_it_was(value: Any, first: Any) -> Any:
    """Return a value that was written into its row in the form that the batch's first sample had."""
    if is_tensor(first):
        return tensor_over(np.array(value))
    array = np.array(value)
    if isinstance(first, np.ndarray | np.generic):
        # A NumPy number is not an array, nor is NumPy's float64 Python's float: PyTorch collates each
        # differently.
        return array if isinstance(first, np.ndarray) else array[()]
    return value.item() if isinstance(first, int | float | complex) else array[()]


class BlockBatch(SampleBatch):
    """Samples of a dataset that keeps them in columns, and hands over blocks of them."""

    takes_arrays = True

    def __init__(self, assembler: Assembler, number: int, indices: Indices, reserve: Reserve) -> None:
        super().__init__(assembler, number, indices, reserve)
        self._blocks: dict[int, Block] = {}
        if assembler.source.own_order is not None:
            self.nbytes = 0  # one thread at a time reads a window, so one takes the whole batch

    def fetch(self, start: int, stop: int) -> None:
        """Take samples `start` to `stop` of the batch."""
        indices = self._indices[start:stop]
        take = self._assembler.take_block
        assert take is not None
        try:
            self._blocks[start] = take(indices)
        except Exception as error:
            asked = reprlib.repr(plain_indices(indices))  # abridged to the first few
            problem = f"the dataset raised {describe_error(error)} for indices {asked}"
            raise caused_by(error, SampleError(problem)) from error

    def finish(self) -> StagedBatch:
        """Return the staged batch."""
        block = self._blocks[0]
        if len(self._blocks) > 1:  # parts arrive in any order; a block holds them in the batch's
            block = Block([part for start in sorted(self._blocks) for part in self._blocks[start].parts])
        found = self._assembler.stage_block(block, self.number, self._reserve, self._indices)
        if found is not None:
            return found
        # The columns do not match the schema. Sample by sample, they are converted, or the one that does not
        # fit is found.
        by_sample = self._assembler.by_sample(self._assembler, self.number, self._indices, self._reserve)
        by_sample.fetch(0, len(self._indices))
        return by_sample.finish()


class KeptBatch(SampleBatch):
    """Samples that are kept until the last one has arrived, because until then their positions are unknown.

    They go to the user's ``collate_fn``, or have fields of varying length, or some are left out because their
    images cannot be decoded.
    """

    def __init__(self, assembler: Assembler, number: int, indices: Indices, reserve: Reserve) -> None:
        super().__init__(assembler, number, indices, reserve)
        self.samples: Any = [None] * len(indices)
        self._regions: list[tuple[Array, Column]] = []
        self._bad: dict[int, str] | None = None
        self._staged: StagedBatch | None = None

    def fetch(self, start: int, stop: int) -> None:
        """Fetch samples `start` to `stop` of the batch."""
        many, collation = self._assembler.fetch_many, self._assembler.collation
        as_it_is = collation.as_returned and collation.whole and not (collation.skips or collation.images)
        if many is not None and as_it_is and stop - start == len(self.samples):
            # A PyTorch dataset may return a whole batch, in any form that its collate_fn takes.
            self.samples = self._assembler.read_together(many, [*self._indices])
            return
        samples: list[Any] = []
        self._assembler.fetch(samples, self._indices[start:stop], self.number, start, fewer=False)
        # Each part has its own rows, and assigning a list to a slice is one step for Python's threads.
        self.samples[start:stop] = samples

    def lay_out(self) -> int:
        """Reserve the slot, write all but the pixels of encoded images, and return how many samples have any.

        Where an image lies depends on the sizes of those before it, so its position is known only after all
        headers have been read. Decoding is then divided again, and no thread keeps pixels of one image while
        it decodes another.
        """
        assembler, collation = self._assembler, self._assembler.collation
        samples = self.samples
        if collation.skips:
            self.gaps, self._bad = self.gaps or Gaps(samples), {}
            samples = self.gaps.take(samples)
        if collation.whole:
            self._staged = assembler.stage_whole(samples, self.number, self._reserve)
            return 0
        schema = assembler.schemas.find(samples)
        objects = object_columns(schema.tree, len(samples))
        columns = split_columns(array_leaves(schema.tree, samples, 0, objects), schema.fields, collation.pads)
        where = self.number, self._reserve
        self._staged, self._regions = stage_columns(columns, schema, collation, *where, objects.values())
        return len(samples) if self._regions else 0

    def write(self, start: int, stop: int) -> None:
        """Decode the images of samples `start` to `stop` into the slot; raise `DecodeError` for one."""
        for view, column in self._regions:
            column.write(view, start, stop, self._bad)

    def finish(self) -> StagedBatch:
        """Return the staged batch, without the samples that are left out."""
        if self._staged is None:  # there was nothing to divide among threads
            self.write(0, self.lay_out())
        staged, keys, collation = self._staged, self._indices, self._assembler.collation
        assert staged is not None
        if self._bad:
            assert self.gaps is not None
            self.gaps.drop(self._bad)
            # Where each image lies depends on those before it, so the batch is laid out and decoded again.
            # That is rare: an image with a bad header was left out earlier.
            self._reserve, self._staged = lambda _: staged.slot, None
            return self.finish()
        if self.gaps is not None:
            staged.skipped = self.gaps.reasons
        # What a collate_fn returns belongs to the user, and has no fields to transform.
        if collation.whole:
            return staged
        # Items without a transform that asks for keys have none.
        return complete(collation, staged, self.gaps.take(keys) if self.gaps is not None and keys else keys)
