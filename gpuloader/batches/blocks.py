"""Stages blocks column by column: every value is copied once, and no row becomes a Python object."""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from gpuloader.batches.columns import Column
from gpuloader.batches.schema import Collation, Schema, complete, is_object, room_for
from gpuloader.batches.stream import StagedBatch
from gpuloader.batches.tree import Branch, Leaf
from gpuloader.errors import SampleError, describe_error
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.sources.block import Block, Chunked, Part, Rows, row_parts, take_values
from gpuloader.sources.describing import Source, TakeBlock
from gpuloader.staging.layout import arrange
from gpuloader.staging.ring import Slot


def fits(block: Block, schema: Schema) -> bool:
    """Return whether a block's columns match the schema's fields, so that they can be copied as they are.

    The caller stages the samples of other blocks one by one. That converts them, or raises an error that
    names the sample and the field.
    """
    root = schema.tree.root
    if schema.declared or not isinstance(root, Branch) or root.kind is not dict or root.keys != block.names:
        return False
    feeds = iter(schema.feeds)
    for child in root.children:
        if not isinstance(child, Leaf):
            return False
        feed = next(feeds) if child.is_array else None
        pieces = block.pieces(child.name)
        if not all(_holds(column, rows, feed, dtype) for column, rows, dtype in pieces):
            return False
        if feed is None and not is_object(_find_first(pieces)):
            return False
    return True


def _holds(column: Any, rows: Rows, feed: FeedSpec | None, dtype: np.dtype[Any] | None) -> bool:
    """Return whether rows of a column, converted to a dtype if one is given, match a field."""
    piece = column.piece(0) if isinstance(column, Chunked) else column
    if feed is None or not isinstance(piece, np.ndarray | Ragged):
        return feed is None and not isinstance(piece, np.ndarray | Ragged)
    values = piece.values if isinstance(piece, Ragged) else piece
    if (dtype or values.dtype) != feed.dtype:
        return False
    if isinstance(piece, Ragged) == bool(feed.lod_level):
        return bool(values.shape[1:] == feed.sample_shape)
    # Lists may all have the length of a dense field, though their type does not say so.
    return not feed.lod_level and all(part.shape == feed.sample_shape for part in row_parts(column, rows))


def _find_first(pieces: list[tuple[Any, Rows, np.dtype[Any] | None]]) -> Any:
    """Return the value of a column of objects in the block's first sample."""
    for column, rows, _ in pieces:
        first = slice(rows.start, min(rows.start + 1, rows.stop)) if isinstance(rows, slice) else rows[:1]
        if values := take_values(column, first):
            return values[0]
    return None


@dataclass(frozen=True, slots=True)
class DenseColumn:
    """A field whose samples all have one shape, gathered from one array or several.

    Attributes
    ----------
    shape : tuple of int
        The shape of the whole field.
    dtype : numpy.dtype
        The dtype of its elements.
    pieces : list of tuple
        The arrays, or `Chunked` columns of arrays, each with the rows to take from it.

    Examples
    --------
    >>> column = np.arange(6).reshape(3, 2)
    >>> target = np.zeros((3, 2), int)
    >>> DenseColumn((3, 2), column.dtype, [(column, slice(2, 3)), (column, np.array([1, 0]))]).write(target)
    >>> target.tolist()
    [[4, 5], [2, 3], [0, 1]]
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: list[tuple[Any, Rows]]

    def write(self, target: Array) -> None:
        """Write the field into an array of its shape and dtype, every element once."""
        start = 0
        for array, rows in self.pieces:
            count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            part = target[start : start + count]
            if isinstance(rows, slice):
                np.copyto(part, array[rows], "unsafe")
            elif isinstance(array, Chunked):
                for position, (piece, row) in enumerate(array.find(rows)):
                    part[position] = piece[row]
            elif array.dtype != part.dtype:
                part[...] = array[rows]
            else:
                # All rows exist. Without mode "clip", NumPy would buffer the result to check them first.
                array.take(rows, 0, part, "clip")
            start += count


def stage_block(
    block: Block, schema: Schema, collation: Collation, number: int, reserve: Callable[[int], Slot]
) -> StagedBatch:
    """Write a block that `fits` into a slot.

    Parameters
    ----------
    block : Block
        The samples of one batch.
    schema : Schema
        The schema that the block's first sample settles.
    collation : Collation
        Which fields to pad, and how much room the transforms need.
    number : int
        The batch's position in the epoch.
    reserve : callable
        Reserves a slot of at least the given number of bytes.
    """
    columns: list[DenseColumn | Column] = []
    objects: list[list[Any]] = []
    feeds = iter(schema.feeds)
    for leaf in schema.tree.leaves:
        pieces = [(column, rows) for column, rows, _ in block.pieces(leaf.name)]
        if not leaf.is_array:
            objects.append([value for column, rows in pieces for value in take_values(column, rows)])
            continue
        feed = next(feeds)
        if feed.lod_level:
            columns += _varying(pieces, feed, collation.pads or {})
        elif any(_is_ragged(column) for column, _ in pieces):
            rows = [row for column, chosen in pieces for row in row_parts(column, chosen)]
            columns.append(Column((len(block), *rows[0].shape), feed.dtype, rows))
        else:
            columns.append(DenseColumn((len(block), *_sizes(feed)), feed.dtype, pieces))
    layout = arrange(tuple((column.shape, column.dtype) for column in columns))
    slot = reserve(room_for(collation, schema.tree, schema.levels, layout))
    for view, column in zip(slot.views(layout), columns, strict=True):
        column.write(view)
    return StagedBatch(slot, layout, schema.levels, number, schema.tree, tuple(objects))


def _is_ragged(column: Any) -> bool:
    return isinstance(column.piece(0) if isinstance(column, Chunked) else column, Ragged)


def _sizes(feed: FeedSpec) -> tuple[int, ...]:
    return tuple(size or 0 for size in feed.sample_shape)


def _varying(pieces: list[tuple[Any, Rows]], feed: FeedSpec, pads: Mapping[str, float]) -> list[Column]:
    """Return a field of varying length as columns: one padded column, or its values and its row splits."""
    rows = [part for column, chosen in pieces for part in row_parts(column, chosen)]
    lengths = [len(row) for row in rows]
    step = _sizes(feed)
    if feed.name in pads:
        shape = (len(rows), max(lengths, default=0), *step)
        return [Column(shape, feed.dtype, rows, fill=pads[feed.name])]
    splits = np.array([0, *accumulate(lengths)], np.int64)
    values = Column((int(splits[-1]), *step), feed.dtype, rows, joined=True)
    return [values, Column(splits.shape, splits.dtype, [splits], joined=True)]


# Assembles batches of a map-style dataset whose samples lie in columns, without making the samples.


class Settler(Protocol):
    """The part of an `Assembler` that batches in columns need."""

    collation: Collation
    worker: int | None

    def find_schema(self, block: Block) -> Schema | None:
        """Return the schema that a block's first sample settles; None if its columns differ."""

    def locate(self, number: int, indices: Sequence[Any] | None = None) -> AbstractContextManager[None]:
        """Add the batch, the worker and the dataset index to a `SampleError` raised within the block."""


class ByRow(Protocol):
    """An assembly that reads the samples of a batch one by one."""

    def fetch(self, start: int, stop: int) -> None:
        """Fetch samples `start` to `stop` of the batch."""

    def finish(self) -> StagedBatch:
        """Return the staged batch."""


def find_take_block(source: Source, collation: Collation) -> TakeBlock | None:
    """Return a dataset's method that reads samples in columns, or None if it has none or cannot use it."""
    if collation.whole or collation.feeds is not None or collation.pictures is not None:
        return None
    return source.take_block


class BlockAssembly:
    """One batch that is read in columns; has the methods of an `Assembly`.

    Parameters
    ----------
    settler : Assembler
        Settles the schema of the batch.
    take : callable
        The dataset's ``take_block``.
    by_row : Assembly
        The same batch, to be read sample by sample if its columns do not match the schema. That converts the
        samples, or explains which of them does not fit.
    number : int
        The batch's position in the epoch.
    indices : sequence
        The indices of its samples.
    reserve : callable
        Reserves a slot of at least the given number of bytes.
    """

    def __init__(
        self,
        settler: Settler,
        take: TakeBlock,
        by_row: ByRow,
        number: int,
        indices: Sequence[Any],
        reserve: Callable[[int], Slot],
    ) -> None:
        self._settler = settler
        self._take = take
        self._by_row = by_row
        self.number = number
        self._indices = indices
        self._reserve = reserve
        self._parts: dict[int, Sequence[Part]] = {}
        self._placing = threading.Lock()

    def fetch(self, start: int, stop: int) -> None:
        """Read samples `start` to `stop` of the batch."""
        indices = self._indices[start:stop]
        try:
            block = self._take(indices)
        except Exception as error:
            asked = reprlib.repr(list(indices))  # abridged to the first few
            problem = f"take_block raised {describe_error(error)} for the indices {asked}"
            raise SampleError(problem, batch=self.number, worker=self._settler.worker) from error
        with self._placing:
            self._parts[start] = block.parts

    def finish(self) -> StagedBatch:
        """Return the staged batch."""
        settler = self._settler
        block = Block([part for start in sorted(self._parts) for part in self._parts[start]])
        with settler.locate(self.number, self._indices):
            schema = settler.find_schema(block)
            if schema is not None:
                staged = stage_block(block, schema, settler.collation, self.number, self._reserve)
                return complete(settler.collation, staged, self._indices)
        self._by_row.fetch(0, len(self._indices))
        return self._by_row.finish()
