"""Columns: each field of a batch is written in one go, from samples or from where a source keeps it.

Where a sample of varying length lies in the batch depends on the lengths of all samples before it. So the
samples are kept until the last one is there, and `split_columns` makes columns of them; a `KeptBatch` is such
a batch. A source whose samples lie in columns hands over a `Block` of them, and `stage_block` copies every
value without making a row a Python object. Either way the bytes are written once, straight into the slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from gpuloader.batches.rows import IN_FEEDS, SampleRows, fields_of
from gpuloader.batches.schema import Collation, Schema
from gpuloader.batches.staged import Gaps, Reserve, StagedBatch, needed_nbytes
from gpuloader.batches.tree import Branch, Leaf, all_leaves, is_object
from gpuloader.errors import PictureError, SampleError
from gpuloader.fields.ragged import Ragged, split_rows
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.sources.block import Block, Chunked, Rows, row_parts, take_values
from gpuloader.sources.images.regions import Encoded, Region, join_geometry
from gpuloader.staging.arena import Layout, arrange


@dataclass(frozen=True, slots=True)
class Column:
    """One array of a batch, still in parts.

    The parts are concatenated along the first dimension if `joined`. If not, each part is one row, and `fill`
    fills up rows shorter than the longest; None if all rows have the same length.

    >>> parts = [np.array([1, 2, 3]), np.array([4])]
    >>> Column((4,), np.dtype("int64"), parts, joined=True).array()
    array([1, 2, 3, 4])
    >>> Column((2, 3), np.dtype("int64"), parts, fill=-1).array()
    array([[ 1,  2,  3],
           [ 4, -1, -1]])
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: Sequence[Array]
    joined: bool = False
    fill: float | None = None

    def write(self, target: Array) -> None:
        """Write the column into an array of its shape and dtype, every element once."""
        if self.joined:
            if self.parts:
                np.concatenate(self.parts, out=target)
            return
        for index, part in enumerate(self.parts):
            if self.fill is None:
                target[index] = part
            else:
                target[index, : len(part)] = part
                target[index, len(part) :] = self.fill

    def array(self) -> Array:
        """Return the column as a new array."""
        target = np.empty(self.shape, self.dtype)
        self.write(target)
        return target


@dataclass(frozen=True, slots=True)
class RegionColumn(Column):
    """The pixels of a field of regions, which are decoded as they are written; there are no other parts.

    `splits` says where each region begins and ends in the array; `name` is the field's, for errors.
    """

    regions: Sequence[Region | Encoded] = ()
    splits: Array = dataclasses.field(default_factory=lambda: np.zeros(1, np.int64))
    name: str = ""

    def write(self, target: Array) -> None:
        """Write all regions into an array of the column's shape and dtype."""
        self.write_rows(target, 0, len(self.regions))

    def write_rows(self, target: Array, start: int, stop: int, bad: list[int] | None = None) -> None:
        """Write the regions of samples `start` to `stop` into the whole column's array.

        A list `bad` receives the numbers of those that cannot be decoded. Without it, they raise
        `PictureError`.
        """
        for row in range(start, stop):
            try:
                self.regions[row].write(target[self.splits[row] : self.splits[row + 1]])
            except PictureError as error:
                if bad is None:
                    error.index, error.field = row, error.field or self.name
                    raise
                bad.append(row)


@dataclass(frozen=True, slots=True)
class TakenColumn:
    """A field of samples of one shape, taken from rows of arrays, or of `Chunked` columns of arrays.

    >>> column = np.arange(6).reshape(3, 2)
    >>> target = np.zeros((3, 2), int)
    >>> TakenColumn((3, 2), column.dtype, [(column, slice(2, 3)), (column, np.array([1, 0]))]).write(target)
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
                # A declared dtype of the column, not this cast, decides what may change; `fits` compared it.
                np.copyto(part, array[rows], "unsafe")
            elif isinstance(array, Chunked):
                # Joining the pieces first would copy every row once more, and keep a second column in memory.
                for position, (piece, row) in enumerate(array.find(rows)):
                    part[position] = piece[row]
            elif array.dtype != part.dtype:
                part[...] = array[rows]
            else:
                # All rows exist. Without mode "clip", NumPy would buffer the result to check them first.
                array.take(rows, 0, part, "clip")
            start += count


def lay_out(columns: Sequence[Column | TakenColumn]) -> Layout:
    """Return the layout of the columns in a slot."""
    return arrange(tuple((column.shape, column.dtype) for column in columns))


# Columns of samples that were kept.


def split_columns(
    samples: Sequence[Any], rows: SampleRows, pads: Mapping[str, float] | None = None
) -> list[Column]:
    """Return one column per dense or padded field, and several per ragged field: values, then row splits.

    `pads` names the ragged fields of level 1 to pad, with their fill values.

    Raises
    ------
    SampleError
        A value does not fit its field; the error names sample and field.
    """
    values = []
    for index, sample in enumerate(samples):
        values.append(fields_of(sample, rows.feeds, index))
    columns: list[Column] = []
    for field, feed in enumerate(rows.feeds):
        column = [sample[field] for sample in values]
        if not feed.lod_level:
            columns.append(_stack(column, rows, field))
        elif column and isinstance(column[0], Region | Encoded):
            columns += _image_columns(column, feed)
        else:
            columns += _split_column(column, rows, feed, pads or {})
    return columns


def _whole(array: Array) -> Column:
    return Column(array.shape, array.dtype, [array], joined=True)


def _stack(column: list[Any], rows: SampleRows, field: int) -> Column:
    """Return a dense field: it waits for the others, because its samples are here already."""
    feed, parts = rows.feeds[field], list[Array]()
    for index, value in enumerate(column):
        parts.append(rows.convert(field, index, value))
        if parts[-1].shape != parts[0].shape:
            raise SampleError(
                f"expected shape {parts[0].shape} as in the batch's first sample, got {parts[-1].shape}; "
                f"{IN_FEEDS}",
                index=index,
                field=feed.name,
            )
    shape = parts[0].shape if parts else _sizes(feed)
    return Column((len(parts), *shape), feed.dtype, parts)


def _image_columns(images: list[Any], feed: FeedSpec) -> list[Column]:
    """Return the three arrays of a field of `Region`, or the four of one of `Encoded`."""
    encoded = isinstance(images[0], Encoded)
    steps, pixels, nbytes = [], [0], [0]
    for one in images:
        steps.append(one.step)
        height, width = one.code.shape[:2] if encoded else (one.shape[0], 1)
        pixels.append(pixels[-1] + height * width)
        nbytes.append(nbytes[-1] + one.nbytes if encoded else 0)
    _check_steps(steps, None, feed)
    splits, geometry = np.array(pixels, np.int64), join_geometry(images)
    shape: tuple[int, ...] = (pixels[-1], *steps[0])
    if not encoded:
        column = RegionColumn(shape, feed.dtype, (), regions=images, splits=splits, name=feed.name)
        return [column, _whole(splits), _whole(geometry)]
    starts = np.array(nbytes, np.int64)
    column = RegionColumn((nbytes[-1],), feed.dtype, (), regions=images, splits=starts, name=feed.name)
    # The last array has no bytes. Its shape carries the number of pixels to whoever allocates them on the
    # device, and from there on the field looks like one of regions.
    return [column, _whole(splits), _whole(geometry), _whole(np.empty((*shape, 0), np.uint8))]


def _check_steps(steps: list[tuple[int, ...]], splits: tuple[Array, ...] | None, feed: FeedSpec) -> None:
    for position, step in enumerate(steps):
        if step != steps[0]:
            # With two levels, the sample is the one whose sequences include this one.
            two = splits is not None and len(splits) > 1
            sample = np.searchsorted(splits[0], position, "right") - 1 if two and splits else position
            raise SampleError(
                f"expected steps of shape {steps[0]} as in the batch's first sequence, got {step}",
                index=int(sample),
                field=feed.name,
            )


def _split_column(
    column: list[Any], rows: SampleRows, feed: FeedSpec, pads: Mapping[str, float]
) -> list[Column]:
    try:
        parts, splits = split_rows(column, feed.dtype, feed.sample_shape, feed.lod_level, rows.conversion)
    except SampleError as error:
        error.field = feed.name
        raise
    steps = [part.shape[1:] for part in parts]
    _check_steps(steps, splits, feed)
    return _sequence_columns(parts, splits, steps[0] if steps else _sizes(feed), feed, pads)


def _sequence_columns(
    parts: list[Array],
    splits: Sequence[Array],
    step: tuple[int, ...],
    feed: FeedSpec,
    pads: Mapping[str, float],
) -> list[Column]:
    """Return a field of varying length as columns: one padded column, or its values and its row splits."""
    lengths = [*map(len, parts)]
    if feed.name in pads:
        shape = (len(parts), max(lengths, default=0), *step)
        return [Column(shape, feed.dtype, parts, fill=pads[feed.name])]
    return [Column((sum(lengths), *step), feed.dtype, parts, joined=True), *map(_whole, splits)]


def _sizes(feed: FeedSpec) -> tuple[int, ...]:
    return tuple(size or 0 for size in feed.sample_shape)


class KeptBatch:
    """A batch of kept samples that has a slot, with everything written but the pixels of encoded images.

    Several threads may call `write` at once, each for its own samples. `finish` is called once, after all
    of them. `settle` returns the schema of some samples. `gaps` notes the samples with images that cannot
    be decoded, which are left out; None raises for them.

    Raises
    ------
    SampleError
        A value does not fit its field; the error names sample and field.
    """

    def __init__(
        self,
        settle: Callable[[Sequence[Any]], Schema],
        collation: Collation,
        samples: Sequence[Any],
        number: int,
        reserve: Reserve,
        gaps: Gaps | None = None,
    ) -> None:
        self.samples = samples
        self._again = settle, collation
        self._gaps = gaps
        self._bad: list[int] | None = None if gaps is None else []
        schema = settle(samples)
        staged = [leaf.is_array for leaf in schema.tree.leaves]
        arrays: list[list[Any]] = []
        objects: list[list[Any]] = [[] for is_staged in staged if not is_staged]
        for leaves in all_leaves(schema.tree, samples):
            arrays.append([])
            columns_left = iter(objects)
            for value, is_staged in zip(leaves, staged, strict=True):
                (arrays[-1] if is_staged else next(columns_left)).append(value)
        columns = split_columns(arrays, SampleRows(schema.feeds, strict=not schema.declared), collation.pads)
        layout = lay_out(columns)
        slot = reserve(needed_nbytes(collation, schema.tree, schema.levels, layout))
        self._regions = []
        for view, column in zip(slot.views(layout), columns, strict=True):
            # Decoding takes longer than all else here, and threads share it.
            if isinstance(column, RegionColumn):
                self._regions.append((view, column))
            else:
                column.write(view)
        self._staged = StagedBatch(slot, layout, schema.levels, number, schema.tree, tuple(objects))

    @property
    def unwritten(self) -> int:
        """The number of samples whose pixels `write` has to write."""
        return len(self.samples) if self._regions else 0

    def write(self, start: int, stop: int) -> None:
        """Decode the images of samples `start` to `stop` into the slot; raise `PictureError` for one."""
        for view, column in self._regions:
            column.write_rows(view, start, stop, self._bad)

    def finish(self) -> StagedBatch:
        """Return the staged batch, without the samples that are left out."""
        if not self._bad:
            return self._staged
        assert self._gaps is not None
        bad = set(self._bad)
        self._gaps.drop(bad)
        self.samples = [sample for row, sample in enumerate(self.samples) if row not in bad]
        # Where each image lies depends on those before it, so the batch is laid out and decoded again. That
        # is rare: an image whose header is bad was left out before it came here.
        slot = self._staged.slot
        left = KeptBatch(*self._again, self.samples, self._staged.number, lambda _: slot, self._gaps)
        left.write(0, left.unwritten)
        return left.finish()


# Columns of blocks.


def fits(block: Block, schema: Schema) -> bool:
    """Return whether a block's columns match the schema's fields, so that they can be copied as they are.

    The caller stages the samples of other blocks one by one. That converts them, or raises an error that
    names the sample and the field.
    """
    # Rows of a table are flat dicts. Whatever the schema asks beyond that needs samples.
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
    # One row only: taking a whole column of text for it would cost as much as staging the column.
    for column, rows, _ in pieces:
        first = slice(rows.start, min(rows.start + 1, rows.stop)) if isinstance(rows, slice) else rows[:1]
        if values := take_values(column, first):
            return values[0]
    return None


def stage_block(
    block: Block, schema: Schema, collation: Collation, number: int, reserve: Reserve
) -> StagedBatch:
    """Write a block that `fits` into a slot, as batch `number`."""
    columns: list[TakenColumn | Column] = []
    objects: list[list[Any]] = []
    feeds = iter(schema.feeds)
    for leaf in schema.tree.leaves:
        pieces = [(column, rows) for column, rows, _ in block.pieces(leaf.name)]
        if not leaf.is_array:
            objects.append([value for column, rows in pieces for value in take_values(column, rows)])
            continue
        feed = next(feeds)
        if feed.lod_level:
            rows = [part for column, chosen in pieces for part in row_parts(column, chosen)]
            splits = np.array([0, *accumulate(map(len, rows))], np.int64)
            columns += _sequence_columns(rows, [splits], _sizes(feed), feed, collation.pads or {})
        elif any(_is_ragged(column) for column, _ in pieces):
            # Lists that all have the length of a dense field.
            rows = [row for column, chosen in pieces for row in row_parts(column, chosen)]
            columns.append(Column((len(block), *rows[0].shape), feed.dtype, rows))
        else:
            columns.append(TakenColumn((len(block), *_sizes(feed)), feed.dtype, pieces))
    layout = lay_out(columns)
    slot = reserve(needed_nbytes(collation, schema.tree, schema.levels, layout))
    for view, column in zip(slot.views(layout), columns, strict=True):
        column.write(view)
    return StagedBatch(slot, layout, schema.levels, number, schema.tree, tuple(objects))


def _is_ragged(column: Any) -> bool:
    return isinstance(column.piece(0) if isinstance(column, Chunked) else column, Ragged)
