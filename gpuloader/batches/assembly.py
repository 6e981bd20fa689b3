"""One batch of a dataset: its samples are fetched in a plain loop, and handed to what writes them.

An `Assembler` holds what lasts: the dataset, the collation, and the schemas of recent batches. It begins an
`Assembly` for each batch, whose life is always the same, with any number of threads:

    begin ── fetch(start, stop), once for each part ── [lay_out ── write, once for each part] ── finish

The collation chooses how the batch comes into its slot. Rows: the samples of fixed size are written as they
arrive, once the batch's first sample has settled the schema. Columns: a dataset that keeps its samples in
columns is asked for blocks of them. Kept: if a field varies in length, or a ``collate_fn`` wants the samples,
all of them wait for the last one.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from gpuloader.batches.columns import KeptBatch, fits, stage_block
from gpuloader.batches.kept import BatchSignature, stage_whole
from gpuloader.batches.schema import Collation, SchemaCache
from gpuloader.batches.staged import LEFT_OUT, Gaps, Reserve, StagedBatch, complete, needed_nbytes
from gpuloader.batches.tree import ObjectColumns, array_leaves, object_columns
from gpuloader.errors import PictureError, SampleError, describe_error
from gpuloader.fields.convert import IF_IMAGES, IF_IT_VARIES
from gpuloader.fields.spec import Indices
from gpuloader.order.randomness import Draw, current_draw
from gpuloader.sources.block import Block, Part
from gpuloader.sources.describing import Source
from gpuloader.staging.arena import Layout
from gpuloader.staging.ring import Slot


class Assembler:
    """Assembles the batches of one dataset; each process has one, which its threads share.

    The first sample of a batch settles the batch's schema, even if another one is fetched earlier. So the
    batches do not depend on which worker was faster. `worker` is the number of the worker process this runs
    in, for error messages; None outside of workers.
    """

    def __init__(self, source: Source, collation: Collation, worker: int | None = None) -> None:
        self.source = source
        self.dataset = source.dataset
        # A gradient leads back to tensors of the process that computed it.
        self.collation = collation if worker is None else replace(collation, keeps_gradients=False)
        self.worker = worker
        # A batch that samples may be left out of waits too: only its end shows where each row goes.
        self.keeps = collation.keeps or collation.skips
        self.schemas = SchemaCache(collation)
        self._signature: BatchSignature | None = None
        # A collate_fn, declared feeds and images want whole samples, so columns would gain nothing.
        by_sample = collation.whole or collation.feeds is not None or collation.images is not None
        self.take_block = None if by_sample else source.take_block
        self.fetch_many = source.read_many if collation.batched else None

    @property
    def reads_columns(self) -> bool:
        """Whether batches are read in columns, which runs no Python code of the user's."""
        return self.take_block is not None

    def begin(self, number: int, indices: Indices, reserve: Reserve) -> Assembly:
        """Begin batch `number`, of the samples at `indices`; the caller then fetches its parts."""
        return Assembly(self, number, indices, reserve)

    def assemble(self, number: int, indices: Indices, reserve: Reserve) -> StagedBatch:
        """Fetch and stage batch `number` in the calling thread.

        Raises
        ------
        SampleError
            The dataset raised, or a sample does not fit its field; the error names batch, sample and index.
        """
        assembly = Assembly(self, number, indices, reserve)
        assembly.fetch(0, len(indices))
        return assembly.finish()

    def stage_block(self, block: Block, number: int, reserve: Reserve) -> StagedBatch | None:
        """Stage a block of samples; return None if its columns are not what its first sample asks for."""
        schema = next((known for known in self.schemas.recent if fits(block, known)), None)
        if schema is None:
            samples = iter(block)
            schema = self.schemas.find(list(samples) if self.collation.keeps else [next(samples)])
            if not fits(block, schema):
                return None
        return stage_block(block, schema, self.collation, number, reserve)

    def stage_whole(self, samples: list[Any], number: int, reserve: Reserve) -> StagedBatch:
        """Stage the result of the user's ``collate_fn``, or the single sample of an unbatched loader."""
        collation = self.collation
        value: Any = samples if collation.batched else samples[0]
        if collation.function is not None:
            # It runs for the whole batch, so what it draws belongs to no sample either.
            draw = current_draw()
            draw.index = draw.generator = None
            try:
                value = collation.function(value)
            except Exception as error:
                raise SampleError(f"collate_fn raised {describe_error(error)}") from error
        # Threads may replace the signature meanwhile; it only saves time.
        staged, self._signature = stage_whole(value, collation, number, reserve, self._signature)
        return staged

    def fetch(self, samples: list[Any], indices: Sequence[Any], number: int, start: int) -> None:
        """Append the samples at `indices` to a list; in batch `number`, they start at position `start`.

        This is where the user's dataset is called, with nothing of ours between it and the loop.

        Raises
        ------
        SampleError
            The dataset raised; the error names the sample, and its cause is the dataset's exception.
        """
        draw = current_draw()
        many, make = self.fetch_many, self.collation.images
        if many is not None:
            # It reads many samples in one call, so what it draws belongs to none of them.
            draw.index = draw.generator = None
            self._fetch_many(many, samples, [*indices], number, start)
            if make is not None:
                for row, (index, sample) in enumerate(zip(indices, samples, strict=True)):
                    samples[row] = self.make_images(sample, draw, index, start + row)
            return
        dataset = self.dataset
        for position, index in enumerate(indices, start):
            draw.index, draw.generator = index, None
            if index is None:
                raise self._no_index(number, position)
            try:
                sample = dataset[index]
            except Exception as error:
                # Only images are left out. Any other exception may be a bug, and must not pass in silence.
                if not (self.collation.skips and isinstance(error, PictureError)):
                    raise self.failure(error, number, position, index) from error
                sample = LEFT_OUT
            if make is not None:
                sample = self.make_images(sample, draw, index, position)
            samples.append(sample)

    def _fetch_many(
        self,
        many: Callable[[list[Any]], Any],
        samples: list[Any],
        indices: list[Any],
        number: int,
        start: int,
    ) -> None:
        if None in indices:
            raise self._no_index(number, start + indices.index(None))
        asked = len(indices)  # the dataset may change its list
        try:
            found = [*many(indices)]
        except Exception as error:
            shown = reprlib.repr(indices)  # abridged to the first few
            problem = f"__getitems__ raised {describe_error(error)} for the indices {shown}"
            raise SampleError(problem, batch=number, worker=self.worker) from error
        if len(found) != asked:
            problem = f"__getitems__ returned {len(found)} samples for {asked} indices"
            raise SampleError(problem, batch=number, worker=self.worker)
        samples += found

    def make_images(self, sample: Any, draw: Draw, key: object, position: int) -> Any:
        """Return a sample with its images made, or `LEFT_OUT`; `key` stands for its index."""
        assert self.collation.images is not None
        if sample is LEFT_OUT:
            return sample
        try:
            return self.collation.images.make(sample, draw, key)
        except SampleError as error:
            if self.collation.skips and isinstance(error, PictureError):
                return LEFT_OUT
            error.index = position
            raise

    def _no_index(self, number: int, position: int) -> SampleError:
        # NumPy and others take None for a new dimension, so the sample would be another one.
        return SampleError(
            "the sampler yielded None instead of an index", batch=number, index=position, worker=self.worker
        )

    def failure(self, error: Exception, number: int, position: int | None, index: object) -> SampleError:
        """Return the error to raise for an exception of the dataset."""
        part = self.source.name_part(index)
        return SampleError(
            f"the dataset raised {describe_error(error)}{part and f'; the sample is from {part}'}",
            batch=number,
            index=position,
            dataset_index=index,
            worker=self.worker,
        )

    def locate(
        self, error: SampleError, number: int, gaps: Gaps | None, indices: Sequence[Any] | None = None
    ) -> None:
        """Add the batch, the worker, the sample's position and its dataset index to an error."""
        # The writer counts rows, and users count samples: with samples left out, these are two numbers.
        if gaps is not None:
            gaps.locate(error)
        error.batch, error.worker = number, self.worker
        if self.collation.images is not None and error.field in self.collation.images.found:
            error.problem = error.problem.replace(IF_IT_VARIES, IF_IMAGES)
        if indices is None or error.index is None or error.dataset_index is not None:
            return
        error.dataset_index = indices[error.index]
        # Two chained datasets of different shapes are a common cause, and only their names tell which.
        part, first = self.source.name_part(error.dataset_index), self.source.name_part(indices[0])
        if part:
            error.problem += f"; the sample is from {part}"
            error.problem += f", the batch's first from {first}" if first != part else ""


class Assembly:
    """One batch that is being written into a slot.

    Several threads may call `fetch` at once, each for its own part. No thread waits for another: a part that
    comes before the batch's first sample keeps what it has fetched. `lay_out` and `finish` are called once,
    after all calls of `fetch`, and all calls of `write` come in between.
    """

    def __init__(self, assembler: Assembler, number: int, indices: Indices, reserve: Reserve) -> None:
        self._assembler = assembler
        self.number = number
        # Datasets expect Python integers, not NumPy's.
        self._indices: Sequence[Any] = indices.tolist() if isinstance(indices, np.ndarray) else indices
        self._reserve = reserve
        self._schema = assembler.schemas.declared
        self._by_block = assembler.take_block is not None
        self._blocks: dict[int, Sequence[Part]] = {}
        self._kept: list[Any] = []
        self._early: list[tuple[int, list[Any]]] = []
        self._layout: Layout | None = None
        self._slot: Slot | None = None
        self._placing = threading.Lock()
        self._objects: ObjectColumns = {}
        self._gaps: Gaps | None = None
        self._batch: KeptBatch | None = None

    def fetch(self, start: int, stop: int) -> None:
        """Fetch samples `start` to `stop` of the batch; the part that begins at 0 settles the schema."""
        if self._by_block:
            self._fetch_block(start, stop)
            return
        assembler, indices = self._assembler, self._indices
        # Chunks are for samples that are written as they come. Kept samples have nothing to wait for, and
        # `__getitems__` is asked once for a part, because reading samples together is what it is for.
        at_once = assembler.keeps or assembler.fetch_many is not None
        samples: list[Any] = []  # those that were fetched, but not written yet
        row = position = start  # of the next sample to write, and of the next one to fetch
        try:
            while position < stop:
                # Until the schema is settled, the size of a sample is taken to be that of the last batch.
                known = self._schema or next(iter(assembler.schemas.recent), None)
                end = stop if at_once else min(position + (known.chunk if known else 1), stop)
                try:
                    assembler.fetch(samples, indices[position:end], self.number, position)
                except SampleError:
                    self._write(samples, row)  # of several errors, the one of the earliest sample is raised
                    raise
                position = end
                if self._write(samples, row):
                    row, samples = end, []
            # No thread waits for the batch's first sample, which may be the slowest to read. What came before
            # it is written by `finish`, in the thread that ends last.
            if samples:
                self._early.append((row, samples))
        except SampleError as error:
            assembler.locate(error, self.number, None, indices)
            raise

    def _write(self, samples: list[Any], row: int) -> bool:
        """Write the next samples of a part; return False if they must wait for the batch's first sample."""
        collation = self._assembler.collation
        if self._assembler.keeps:
            with self._placing:
                if not self._kept:
                    self._kept = [None] * len(self._indices)
            # Each part has its own rows, and assigning a list to a slice is one step for Python's threads.
            self._kept[row : row + len(samples)] = samples
            return True
        schema = self._schema
        if schema is None:
            if row or not samples:
                return False
            schema = self._schema = self._assembler.schemas.find(samples)
        table = schema.rows(len(self._indices))
        layout = table.layout
        with self._placing:  # the part that arrives first reserves the slot
            if self._slot is None:
                nbytes = layout.nbytes
                if collation.programmer is not None:
                    nbytes = needed_nbytes(collation, schema.tree, schema.levels, layout)
                self._slot = self._reserve(nbytes)
                self._layout = layout
                self._objects = object_columns(schema.tree, len(self._indices))
        views = self._slot.views(layout)
        table.write(views, array_leaves(schema.tree, samples, row, self._objects), row)
        return True

    def _fetch_block(self, start: int, stop: int) -> None:
        indices = self._indices[start:stop]
        take = self._assembler.take_block
        assert take is not None
        try:
            block = take(indices)
        except Exception as error:
            asked = reprlib.repr(list(indices))  # abridged to the first few
            problem = f"take_block raised {describe_error(error)} for the indices {asked}"
            raise SampleError(problem, batch=self.number, worker=self._assembler.worker) from error
        with self._placing:
            self._blocks[start] = block.parts

    def lay_out(self) -> int:
        """Reserve the slot, if images are still to be decoded into it; return for how many samples.

        Several threads may then call `write` at once, each for its own samples.
        """
        if not self._assembler.collation.stages_regions:
            return 0
        # Where an image lies depends on the sizes of those before it, so its place is known only when all
        # headers have been read. Decoding is then divided again, and no thread keeps pixels of one image
        # while it decodes another.
        try:
            self._batch = self._make_kept_batch()
        except SampleError as error:
            self._assembler.locate(error, self.number, self._gaps, self._indices)
            raise
        return self._batch.unwritten

    def write(self, start: int, stop: int) -> None:
        """Decode the images of samples `start` to `stop` into the slot that `lay_out` has reserved."""
        assert self._batch is not None
        try:
            self._batch.write(start, stop)
        except SampleError as error:
            self._assembler.locate(error, self.number, None, self._indices)
            raise

    def finish(self) -> StagedBatch:
        """Return the staged batch."""
        assembler, collation = self._assembler, self._assembler.collation
        try:
            if self._by_block:
                # Parts arrive in any order; a block holds them in the batch's.
                block = Block([part for start in sorted(self._blocks) for part in self._blocks[start]])
                found = assembler.stage_block(block, self.number, self._reserve)
                if found is not None:
                    return complete(collation, found, self._indices)
            else:
                if not assembler.keeps:
                    staged = self._finish_rows()
                elif collation.whole:
                    staged = assembler.stage_whole(self._close_up(), self.number, self._reserve)
                else:
                    batch = self._batch
                    if batch is None:  # there was nothing to divide among threads
                        batch = self._make_kept_batch()
                        batch.write(0, batch.unwritten)
                    staged = batch.finish()
                gaps, keys = self._gaps, self._indices
                if gaps is not None:
                    staged.skipped, keys = gaps.count, gaps.take(keys)
                # What a collate_fn returns is the user's, and has no fields to transform.
                if collation.programmer is not None and not collation.whole:
                    staged = complete(collation, staged, keys)
                return staged
        except SampleError as error:
            assembler.locate(error, self.number, self._gaps, self._indices)
            raise
        # The columns are not those of the schema. Sample by sample they are converted, or one of them is
        # found that does not fit.
        self._by_block = False
        self.fetch(0, len(self._indices))
        return self.finish()

    def _close_up(self) -> list[Any]:
        """Return the samples that were kept, without those that were left out."""
        if not self._assembler.collation.skips:
            return self._kept
        self._gaps = Gaps(self._kept)
        return self._gaps.take(self._kept)

    def _make_kept_batch(self) -> KeptBatch:
        assembler = self._assembler
        return KeptBatch(
            assembler.schemas.find,
            assembler.collation,
            self._close_up(),
            self.number,
            self._reserve,
            self._gaps,
        )

    def _finish_rows(self) -> StagedBatch:
        """Write the samples that came before the schema was settled."""
        # In the batch's order, so that of several bad samples the first one is named.
        for row, samples in sorted(self._early, key=itemgetter(0)):
            self._write(samples, row)
        schema, slot, layout = self._schema, self._slot, self._layout
        assert schema is not None
        assert slot is not None
        assert layout is not None
        objects = tuple(self._objects.values())
        return StagedBatch(slot, layout, schema.levels, self.number, schema.tree, objects)
