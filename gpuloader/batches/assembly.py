"""Assembles batches of a map-style dataset: each sample is written into its slot as soon as it is fetched."""

from __future__ import annotations

import itertools
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from gpuloader.batches.blocks import BlockAssembly, find_take_block, fits
from gpuloader.batches.left_out import Gaps, shorten
from gpuloader.batches.schema import CachedSchema, Collation, Schema, SchemaCache, complete, room_for
from gpuloader.batches.stream import StagedBatch
from gpuloader.batches.tree import ObjectColumns, array_leaves, object_columns
from gpuloader.batches.varying import Varying
from gpuloader.batches.whole import stage_whole
from gpuloader.errors import PictureError, SampleError, describe_error
from gpuloader.fields.convert import IF_IT_VARIES, IF_PICTURES
from gpuloader.fields.spec import Array, Indices
from gpuloader.order.randomness import current_draw
from gpuloader.sources.block import Block
from gpuloader.sources.describing import Source
from gpuloader.staging.layout import Layout
from gpuloader.staging.ring import Slot

Reserve = Callable[[int], Slot]
"""Reserves a slot of at least the given number of bytes; called once per batch."""


class Assembler:
    """Assembles the batches of one dataset; each process has one, which its threads share.

    The first sample of a batch settles the batch's schema, even if another one is fetched earlier. So the
    batches do not depend on which worker was faster.

    Parameters
    ----------
    source : Source
        The dataset, and how it is read.
    collation : Collation
        How samples become a batch.
    worker : int or None
        The number of the worker process this runs in, for error messages; None outside of workers.
    """

    def __init__(self, source: Source, collation: Collation, worker: int | None = None) -> None:
        self.source = source
        self.dataset = source.dataset
        # A gradient leads back to tensors of the process that computed it.
        self.collation = collation if worker is None else replace(collation, keeps_gradients=False)
        self.worker = worker
        self.keeps = collation.keeps  # computed once, because it is asked for every batch
        self.schemas = SchemaCache(collation)
        self._take_block = find_take_block(source, collation)
        self._fetch_many = source.read_many

    @property
    def reads_columns(self) -> bool:
        """Whether batches are read in columns, which runs no Python code of the user's."""
        return self._take_block is not None

    def settle(self, samples: Sequence[Any]) -> CachedSchema:
        """Return the schema of a batch, given its first sample, and its others if they have been fetched.

        Raises
        ------
        SampleError
            The first sample has no schema; the error names the sample.
        """
        try:
            return self.schemas.find(samples)
        except SampleError as error:
            if error.index is None:
                error.index = 0
            raise

    def find_schema(self, block: Block) -> Schema | None:
        """Return the schema that a block's first sample settles; None if its columns differ."""
        for known in self.schemas.recent:
            if fits(block, known.schema):
                return known.schema
        samples = iter(block)
        schema = self.settle(list(samples) if self.keeps else [next(samples)]).schema
        return schema if fits(block, schema) else None

    def begin(self, number: int, indices: Indices, reserve: Reserve) -> Assembly | BlockAssembly:
        """Begin batch `number`, of the samples at `indices`; the caller then fetches its parts."""
        # Datasets expect Python integers, not NumPy's.
        keys: Sequence[Any] = indices.tolist() if isinstance(indices, np.ndarray) else indices
        assembly = Assembly(self, number, keys, reserve)
        if self._take_block is None:
            return assembly
        return BlockAssembly(self, self._take_block, assembly, number, keys, reserve)

    def assemble(self, number: int, indices: Indices, reserve: Reserve) -> StagedBatch:
        """Fetch and stage batch `number` in the calling thread.

        Raises
        ------
        SampleError
            The dataset raised, or a sample does not fit its field; the error names batch, sample and index.
        """
        assembly = self.begin(number, indices, reserve)
        assembly.fetch(0, len(indices))
        return assembly.finish()

    def samples(
        self, indices: Sequence[Any], number: int, start: int, bad: list[int] | None = None
    ) -> Iterator[Any]:
        """Yield the samples at `indices`; in batch `number`, they start at position `start`.

        A list `bad` receives the positions of samples with pictures that cannot be decoded, which are left
        out then.

        Raises
        ------
        SampleError
            The dataset raised; the error names the sample, and its cause is the dataset's exception.
        """
        many = self._fetch_many
        draw = current_draw()
        if many is not None and self.collation.batched:
            draw.index = draw.generator = None
            if None in indices:
                raise self._no_index(number, start + list(indices).index(None))
            try:
                samples = list(many(list(indices)))
            except Exception as error:
                asked = reprlib.repr(list(indices))  # abridged to the first few
                problem = f"__getitems__ raised {describe_error(error)} for the indices {asked}"
                raise SampleError(problem, batch=number, worker=self.worker) from error
            if len(samples) != len(indices):
                problem = f"__getitems__ returned {len(samples)} samples for {len(indices)} indices"
                raise SampleError(problem, batch=number, worker=self.worker)
            yield from self.with_pictures(samples, indices, start, bad)
            return
        dataset = self.dataset
        for position, index in enumerate(indices, start):
            draw.index, draw.generator = index, None
            if index is None:
                raise self._no_index(number, position)
            try:
                sample = dataset[index]
            except PictureError as error:
                if bad is None:
                    raise self.failure(error, number, position, index) from error
                bad.append(position)
                continue
            except Exception as error:
                raise self.failure(error, number, position, index) from error
            yield from self.with_pictures((sample,), (index,), position, bad)

    def with_pictures(
        self, samples: Iterable[Any], keys: Iterable[Any], start: int, bad: list[int] | None = None
    ) -> Iterator[Any]:
        """Yield samples with their pictures made, if the collation makes any.

        Parameters
        ----------
        samples : iterable
            The samples.
        keys : iterable
            The index of each sample, or what stands for it.
        start : int
            The position of the first one in the batch.
        bad : list of int or None
            Receives the positions of samples with pictures that cannot be decoded, which are left out then.

        Raises
        ------
        SampleError
            A picture cannot be made; the error names its position.
        """
        stage = self.collation.pictures
        if stage is None:
            yield from samples
            return
        draw = current_draw()
        for position, (key, sample) in enumerate(zip(keys, samples, strict=False), start):
            try:
                made = stage.make(sample, draw, key)
            except SampleError as error:
                if bad is not None and isinstance(error, PictureError):
                    bad.append(position)
                    continue
                error.index = position - len(bad or ())  # the row; `Gaps.locate` makes a position of it
                raise
            yield made

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

    @contextmanager
    def locate(self, number: int, indices: Sequence[Any] | None = None) -> Iterator[None]:
        """Add the batch, the worker and the dataset index to a `SampleError` raised within the block."""
        try:
            yield
        except SampleError as error:
            error.batch, error.worker = number, self.worker
            if self.collation.pictures is not None and error.field in self.collation.pictures.found:
                error.problem = error.problem.replace(IF_IT_VARIES, IF_PICTURES)
            if indices is not None and error.index is not None and error.dataset_index is None:
                error.dataset_index = indices[error.index]
                error.problem += self._describe_parts(indices, error.index)
            raise

    def _describe_parts(self, indices: Sequence[Any], position: int) -> str:
        """Return which of several chained datasets a sample is from, and the batch's first if another."""
        part, first = self.source.name_part(indices[position]), self.source.name_part(indices[0])
        if not part:
            return ""
        return f"; the sample is from {part}" + (f", the batch's first from {first}" if first != part else "")


class Assembly:
    """One batch that is being written into a slot.

    Several threads may call `fetch` at once, each for its own part. `finish` is called once, after all of
    them. Samples of fixed size are written as they arrive, once the batch's first one has settled the schema;
    earlier ones are kept. No thread waits for another.
    """

    def __init__(self, assembler: Assembler, number: int, indices: Sequence[Any], reserve: Reserve) -> None:
        self._assembler = assembler
        self.number = number
        self._indices = indices
        self._reserve = reserve
        self._known = assembler.schemas.declared
        self._kept: list[Any] = []
        self._early: list[tuple[int, list[Any]]] = []
        self._layout: Layout | None = None
        self._slot: Slot | None = None
        self._placing = threading.Lock()
        self._objects: ObjectColumns = {}
        self._gaps = Gaps(len(indices)) if assembler.collation.skips else None
        self._varying: Varying | None = None

    def fetch(self, start: int, stop: int) -> None:
        """Fetch samples `start` to `stop` of the batch; the part that begins at 0 settles the schema."""
        assembler, gaps = self._assembler, self._gaps
        bad = None if gaps is None else gaps.begin(start, stop)
        samples = assembler.samples(self._indices[start:stop], self.number, start, bad)
        with assembler.locate(self.number, self._indices), _counting(gaps):
            if assembler.keeps:
                self._keep(samples, start)
            elif self._known is not None:
                self._write(self._known, samples, start)
            elif not start:
                self._settle_and_write(samples)
            else:
                self._write_when_settled(samples, start)

    def _settle_and_write(self, samples: Iterator[Any]) -> None:
        """Write the first part of the batch, whose first sample settles the schema."""
        first = tuple(itertools.islice(samples, 1))
        if first:  # otherwise all samples of the part were left out, and the next part settles the schema
            self._known = self._assembler.settle(first)
            self._write(self._known, itertools.chain(first, samples), 0)

    def _write_when_settled(self, samples: Iterator[Any], start: int) -> None:
        """Write a part of the batch; keep its samples until the first part has settled the schema."""
        early: list[Any] = []
        for sample in samples:
            early.append(sample)
            if self._known is not None:
                self._write(self._known, itertools.chain(early, samples), start)
                return
        self._early.append((start, early))

    def _keep(self, samples: Iterable[Any], start: int) -> None:
        with self._placing:
            if not self._kept:
                self._kept = [None] * len(self._indices)
        # A list first: Python locks `_kept` while it takes the items of an iterator, here the dataset's.
        found = list(samples)
        self._kept[start : start + len(found)] = found

    def _write(self, known: CachedSchema, samples: Iterator[Any], start: int) -> None:
        table = known.rows(len(self._indices))
        views = self._place(known.schema, table.layout)
        table.write(views, array_leaves(known.schema.tree, samples, start, self._objects), start)

    def _place(self, schema: Schema, layout: Layout) -> list[Array]:
        """Return the views of the batch's slot; the part that arrives first reserves it."""
        with self._placing:
            if self._slot is None:
                collation = self._assembler.collation
                self._slot = self._reserve(room_for(collation, schema.tree, schema.levels, layout))
                self._layout = layout
                self._objects = object_columns(schema.tree, len(self._indices))
        return self._slot.views(layout)

    def lay_out(self) -> int:
        """Reserve the slot, if pictures are still to be decoded into it; return for how many samples.

        Called once, after all calls of `fetch`. Several threads may then call `write` at once, each for its
        own samples, and `finish` is called after all of them.
        """
        if not self._assembler.collation.stages_regions:
            return 0
        with self._assembler.locate(self.number, self._indices), _counting(self._gaps):
            self._varying = self._lay_out()
            return self._varying.unwritten

    def write(self, start: int, stop: int) -> None:
        """Decode the pictures of samples `start` to `stop` into the slot that `lay_out` has reserved."""
        assert self._varying is not None
        with self._assembler.locate(self.number, self._indices):
            self._varying.write(start, stop)

    def _lay_out(self) -> Varying:
        assembler = self._assembler
        return Varying(
            lambda samples: assembler.settle(samples).schema,
            assembler.collation,
            self._close_up(),
            self.number,
            self._reserve,
            self._gaps,
        )

    def _close_up(self) -> list[Any]:
        """Return the samples that were kept, without those that were left out."""
        gaps = self._gaps
        if gaps is None or not gaps.count:
            return self._kept
        gaps.check()
        return gaps.close_up(self._kept) if self._kept else []

    def finish(self) -> StagedBatch:
        """Return the staged batch."""
        assembler, collation, number = self._assembler, self._assembler.collation, self.number
        gaps = self._gaps
        with assembler.locate(number, self._indices), _counting(gaps):
            if collation.whole:
                staged = stage_kept(collation, self._close_up(), number, self._reserve)
            else:
                staged = self._finish_varying() if assembler.keeps else self._finish_rows()
                keys = self._indices if gaps is None or not gaps.count else gaps.keys(self._indices)
                staged = complete(collation, staged, keys)
            staged.skipped = 0 if gaps is None else gaps.count
            return staged

    def _finish_varying(self) -> StagedBatch:
        varying = self._varying
        if varying is None:
            varying = self._lay_out()
            varying.write(0, varying.unwritten)
        return varying.finish()

    def _finish_rows(self) -> StagedBatch:
        """Write the samples that came before the schema was settled, and close the gaps between parts."""
        if self._gaps is not None and self._gaps.count:
            self._gaps.check()
        parts = sorted((part for part in self._early if part[1]), key=itemgetter(0))
        if self._known is None:
            self._known = self._assembler.settle(parts[0][1][:1])
        for start, early in parts:
            self._write(self._known, iter(early), start)
        assert self._slot is not None
        assert self._layout is not None
        objects, layout, schema = tuple(self._objects.values()), self._layout, self._known.schema
        gaps = self._gaps
        if gaps is not None and gaps.count:
            for view in self._slot.views(layout):
                gaps.close_up(view)
            objects = tuple(gaps.close_up(column) for column in objects)
            layout = shorten(layout, gaps.left)
        return StagedBatch(self._slot, layout, schema.levels, self.number, schema.tree, objects)


def _counting(gaps: Gaps | None) -> AbstractContextManager[None]:
    """Turn the rows in errors raised within the block into positions, which count the samples left out."""
    return nullcontext() if gaps is None else gaps.locate()


def stage_kept(collation: Collation, samples: list[Any], number: int, reserve: Reserve) -> StagedBatch:
    """Stage the result of the user's ``collate_fn``, or the single sample of an unbatched loader."""
    value: Any = samples if collation.batched else samples[0]
    if collation.function is not None:
        draw = current_draw()
        draw.index = draw.generator = None
        try:
            value = collation.function(value)
        except Exception as error:
            raise SampleError(f"collate_fn raised {describe_error(error)}") from error
    return stage_whole(value, collation, number, reserve)
