"""Columns: each field of a batch is written in one go, from samples or from where a source keeps it.

Where a sample of varying length lies in the batch depends on the lengths of all samples before it. So the
samples are kept until the last one has arrived, and `split_columns` makes columns from them. A source whose
samples lie in columns hands over a `Block`, and `block_columns` takes every value without turning a row into
a Python object. Either way, `stage_columns` writes the bytes once, straight into the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from gpuloader.batches.rows import IN_FEEDS, SampleRows, fields_of
from gpuloader.batches.schema import NUMBERS, Collation, Fitting, Schema
from gpuloader.batches.staged import Reserve, StagedBatch, begin_batch
from gpuloader.batches.tree import Branch, Leaf, is_object
from gpuloader.errors import DecodeError, SampleError, describe_error, unlike_first
from gpuloader.fields import ragged
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.sources.block import Block, Chunked, PlainObjects, Rows, first_piece, take_each
from gpuloader.sources.images.regions import Encoded, Region
from gpuloader.staging import arrange


class Column(NamedTuple):
    """One array of a batch, still in parts: `write` writes every element once, into a prepared array.

    >>> column = np.arange(6).reshape(3, 2)
    >>> pieces = [(column, slice(2, 3)), (column, np.array([1, 0]))]
    >>> target = np.zeros((3, 2), int)
    >>> Column((3, 2), column.dtype, partial(_take, pieces)).write(target)
    >>> target.tolist()
    [[4, 5], [2, 3], [0, 1]]
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    write: Callable[..., None]
    in_parts: bool = False  # whether it is written in parts, by `_write_regions`


def _write_regions(
    regions: Sequence[Region | Encoded],
    splits: Array,
    name: str,
    target: Array,
    start: int = 0,
    stop: int | None = None,
    bad: dict[int, str] | None = None,
) -> None:
    """Decode the regions of samples `start` to `stop` into the array of field `name`, where `splits` says.

    The dict `bad` receives the numbers of those that cannot be decoded, and why. Without it, failures raise
    `DecodeError`.
    """
    for row in range(len(regions))[start:stop]:
        try:
            regions[row].write(target[splits[row] : splits[row + 1]])
        except DecodeError as error:
            if bad is None:
                error.index, error.field = row, error.field or name
                raise
            bad[row] = describe_error(error)


def _join(parts: Sequence[Array], target: Array) -> None:
    if parts:
        np.concatenate(parts, out=target)


def _stack(rows: Sequence[Array], target: Array) -> None:
    for index, row in enumerate(rows):
        target[index] = row


_LONG = 4096  # bytes per row from which copying each row takes less time than a mask over all rows


def _pad(parts: Sequence[Array], lengths: Array, pad: ragged.Padding, target: Array) -> None:
    """Write rows of these lengths, which lie one after another in the parts, and fill up the short ones.

    >>> target = np.zeros((2, 3), int)
    >>> _pad([np.array([1, 2, 3, 4])], np.array([3, 1]), ragged.Padding(-1), target)
    >>> target
    array([[ 1,  2,  3],
           [ 4, -1, -1]])
    """
    is_short = target.nbytes <= len(target) * _LONG
    if parts and (is_short or [*map(len, parts)] != lengths.tolist()):
        values = _concatenate(parts)
        if is_short:
            target[...] = pad.value
            target[ragged.find_inside(pad, lengths, target.shape[1])] = values
            return
        parts = np.split(values, np.cumsum(lengths)[:-1])
    for row, part in zip(target, parts, strict=True):
        short = len(row) - len(part)
        if pad.side == "left":
            row[:short], row[short:] = pad.value, part
        else:
            row[: len(part)], row[len(part) :] = part, pad.value


def _take(pieces: Sequence[tuple[Any, Any]], target: Array) -> None:
    """Write rows of arrays, or of `Chunked` columns of arrays, one after another."""
    start = 0
    for array, rows in pieces:
        chosen = array[rows] if isinstance(rows, slice) else rows
        part = target[start : start + len(chosen)]
        if isinstance(array, Chunked):
            # Joining the pieces first would copy every row again, and keep a second column in memory.
            for position, (piece, row) in enumerate(array.find(rows)):
                part[position] = piece[row]
        elif isinstance(rows, slice) or array.dtype != part.dtype:
            # A declared dtype of the column, not this cast, decides what may change; `fits` compared it.
            np.copyto(part, chosen if isinstance(rows, slice) else array[rows], "unsafe")
        else:
            # All rows exist. Without mode "clip", NumPy would buffer the result to check them first.
            array.take(rows, 0, part, "clip")
        start += len(chosen)


def _whole(array: Array) -> Column:
    return Column(array.shape, array.dtype, partial(np.copyto, src=array))


def _sequences(
    parts: list[Array],
    lengths: Array,
    splits: Iterable[Array] | None,
    step: tuple[int, ...],
    feed: FeedSpec,
    pad: ragged.Padding | None,
) -> tuple[list[Column], list[Column]]:
    """Return the columns of a field of varying length: padded, with its extras, or values and row splits.

    `lengths` are those of the samples; without `splits`, the parts have the one level that they describe.
    """
    if pad is None:
        values = Column((int(lengths.sum()), *step), feed.dtype, partial(_join, parts))
        return [values, *map(_whole, splits or [ragged.splits_of(lengths)])], []
    shape = (len(lengths), ragged.round_up(int(lengths.max(initial=0)), pad.multiple), *step)
    padded = Column(shape, feed.dtype, partial(_pad, parts, lengths, pad))
    return [padded], _extra_columns(pad, lengths[:, None], shape)


def _count(sequences: Sequence[Array]) -> Array:
    return np.array([*map(len, sequences)], np.int64)


def _concatenate(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


# Columns of samples that were kept.


def split_columns(
    samples: Iterable[Any], rows: SampleRows, pads: Mapping[str, ragged.Padding] | None = None
) -> list[Column]:
    """Return one column per dense or padded field, and several per ragged field: values, then row splits.

    `pads` says how to pad the ragged fields of level 1 that it names. Their lengths and masks come last.

    Raises
    ------
    SampleError
        A value does not fit its field; the error names sample and field.
    """
    values = [*map(fields_of, samples, repeat(rows.feeds), count())]
    columns: list[Column] = []
    extras: list[Column] = []
    pads = pads or {}
    for field, feed in enumerate(rows.feeds):
        column = [*map(itemgetter(field), values)]
        if not feed.lod_level:
            columns.append(_dense_column(column, rows, field))
            continue
        try:
            if column and isinstance(column[0], Region | Encoded):
                columns += _image_columns(column, feed)
                continue
            pad = pads.get(feed.name)
            if pad is not None and pad.axes != (0,):
                padded, *more = _padded_columns(column, rows, feed, pad)
                columns, extras = [*columns, padded], [*extras, *more]
                continue
            of_feed = feed.dtype, feed.sample_shape, feed.lod_level
            parts, splits = ragged.split_rows(column, *of_feed, rows.conversion)
        except SampleError as error:
            error.field = feed.name
            raise
        step = parts[0].shape[1:] if parts else _sizes(feed)
        made, more = _sequences(parts, _count(parts), splits, step, feed, pad)
        columns, extras = columns + made, extras + more
    return [*columns, *extras]


def _padded_columns(values: list[Any], rows: SampleRows, feed: FeedSpec, pad: ragged.Padding) -> list[Column]:
    """Return the columns of a field that is padded along axes other than its first."""
    parts = []
    for index, value in enumerate(values):
        try:
            parts.append(rows.conversion(value, feed.dtype, (None, *feed.sample_shape)))
        except SampleError as error:
            error.index = index
            raise
    shapes = [part.shape for part in parts]
    shape = (len(parts), *ragged.settle_shape(pad, shapes))
    sizes = np.array([[one[axis] for axis in pad.axes] for one in shapes], np.int64)
    column = Column(shape, feed.dtype, partial(ragged.write_padded, pad, parts))
    return [column, *_extra_columns(pad, sizes, tuple(shape[axis + 1] for axis in (-1, *pad.axes)))]


def _extra_columns(pad: ragged.Padding, sizes: Array, shape: tuple[int, ...]) -> list[Column]:
    """Return the lengths and the mask of a padded field; its padded axes begin its `shape`."""
    columns = []
    if pad.lengths is not None:
        of_lengths = sizes.shape if len(pad.axes) > 1 else sizes.shape[:1]
        columns.append(_whole(sizes.reshape(of_lengths)))
    if pad.mask is not None:
        write = partial(ragged.write_mask, pad, sizes)
        columns.append(Column(shape[: len(pad.axes) + 1], np.dtype(bool), write))
    return columns


def _dense_column(column: list[Any], rows: SampleRows, field: int) -> Column:
    """Return a dense field's column, written along with the others, because its samples are here already."""
    feed, parts = rows.feeds[field], list[Array]()
    # Labels are Python numbers of one type, which NumPy converts in one call. Integers may be too large.
    if len(feed.shape) == 1 and {*map(NUMBERS.get, map(type, column))} == {feed.dtype}:
        numbers = np.array(column)
        if numbers.dtype == feed.dtype:
            return _whole(numbers)
    for index, value in enumerate(column):
        parts.append(rows.convert(field, index, value))
        expected, got = parts[0].shape, parts[-1].shape
        if got != expected:
            raise unlike_first(f"shape {expected}", got, IN_FEEDS, index=index, field=feed.name)
    shape = parts[0].shape if parts else _sizes(feed)
    return Column((len(parts), *shape), feed.dtype, partial(_stack, parts))


def _image_columns(images: list[Any], feed: FeedSpec) -> list[Column]:
    """Return the three arrays of a field of `Region`, or the four of one of `Encoded`."""
    encoded, step = isinstance(images[0], Encoded), images[0].step
    numbers, pixels, nbytes = [], [0], [0]
    for index, one in enumerate(images):
        ragged.check_step(step, one.step, index)
        numbers.append(one.geometry)
        height, width = one.code.shape[:2] if encoded else (one.shape[0], 1)
        pixels.append(pixels[-1] + height * width)
        nbytes.append(nbytes[-1] + one.nbytes if encoded else 0)
    splits, geometry = np.array(pixels, np.int64), np.stack(numbers)
    shape: tuple[int, ...] = (pixels[-1], *step)
    if not encoded:
        write = partial(_write_regions, images, splits, feed.name)
        return [Column(shape, feed.dtype, write, in_parts=True), _whole(splits), _whole(geometry)]
    write = partial(_write_regions, images, np.array(nbytes, np.int64), feed.name)
    column = Column((nbytes[-1],), feed.dtype, write, in_parts=True)
    # The last array has no bytes. Its shape carries the number of pixels, for whoever allocates them on the
    # device. From then on, the field looks like a field of regions.
    return [column, _whole(splits), _whole(geometry), _whole(np.empty((*shape, 0), np.uint8))]


def _sizes(feed: FeedSpec) -> tuple[int, ...]:
    return tuple(size or 0 for size in feed.sample_shape)


def stage_columns(
    columns: Sequence[Column],
    schema: Schema,
    collation: Collation,
    number: int,
    reserve: Reserve,
    objects: Iterable[list[Any]],
) -> tuple[StagedBatch, list[tuple[Array, Column]]]:
    """Write columns into a slot; return the batch, and the columns of regions, which the caller writes."""
    layout = arrange(tuple(map(attrgetter("shape", "dtype"), columns)))
    staged = begin_batch(collation, layout, schema.batch_levels, number, reserve, schema.batch_tree, objects)
    regions = []
    for view, column in zip(staged.slot.views(layout), columns, strict=True):
        # Decoding takes longer than everything else here, and threads share it.
        if column.in_parts:
            regions.append((view, column))
        else:
            column.write(view)
    return staged, regions


# Columns of blocks.


def fits(block: Block, schema: Schema) -> bool:
    """Return whether a block's columns match the schema's fields, so that they can be copied as they are.

    The caller stages the samples of other blocks one by one. That converts them, or raises an error that
    names the sample and the field.
    """
    part = block.parts[0]
    # Rows of a table are flat dicts. Anything beyond that in the schema requires samples.
    root = schema.tree.root
    if schema.declared or not isinstance(root, Branch) or root.kind is not dict or root.keys != block.names:
        return False
    # The field of a column without a name, such as pandas' index in a CSV file, has a name of its own.
    if "" in block.names:
        return False
    feeds = iter(schema.feeds)
    for child in root.children:
        if not isinstance(child, Leaf):
            return False
        feed = next(feeds) if child.is_array else None
        pieces = block.pieces(child.name)
        holds = all(_holds(column, rows, feed, dtype) for column, rows, dtype in pieces)
        if not holds or (feed is None and not is_object(_find_first(pieces))):
            return False
    columns: Mapping[str, Any] = part.columns
    if not part.dtypes and all(isinstance(one, np.ndarray | PlainObjects) for one in columns.values()):
        arrays = [columns[leaf.name] for leaf in schema.tree.leaves if leaf.is_array]
        objects = [columns[leaf.name] for leaf in schema.tree.leaves if not leaf.is_array]
        schema.fitting = Fitting(columns, arrays, objects)
    return True


def stage_fitting(
    block: Block, schema: Schema, collation: Collation, number: int, reserve: Reserve
) -> StagedBatch | None:
    """Stage a block that has rows of just the columns that fitted last, as most have; None for any other."""
    part, fitting = block.parts[0], schema.fitting
    if fitting is None or part.columns is not fitting.columns or part.dtypes or len(block.parts) > 1:
        return None
    rows = part.rows
    objects = [column.take(rows) for column in fitting.objects]
    layout = schema.lay_out(len(block))
    staged = begin_batch(collation, layout, schema.levels, number, reserve, schema.tree, objects)
    in_order = isinstance(rows, slice)
    for view, array in zip(staged.slot.views(layout), fitting.arrays):  # noqa: B905 - strict= costs time
        if in_order:
            view[...] = array[rows]
        else:
            array.take(rows, 0, view, "clip")  # these rows have just been checked
    return staged


def _holds(column: Any, rows: Rows, feed: FeedSpec | None, dtype: np.dtype[Any] | None) -> bool:
    """Return whether rows of a column, converted to a dtype if one is given, match a field."""
    piece = first_piece(column)
    if feed is None or not isinstance(piece, np.ndarray | ragged.Ragged):
        return feed is None and not isinstance(piece, np.ndarray | ragged.Ragged)
    values = piece.values if isinstance(piece, ragged.Ragged) else piece
    if (dtype or values.dtype) != feed.dtype:
        return False
    if isinstance(piece, ragged.Ragged) == bool(feed.lod_level):
        return bool(values.shape[1:] == feed.sample_shape)
    # Lists may all have the length of a dense field, although their type does not say so.
    return not feed.lod_level and all(part.shape == feed.sample_shape for part in take_each(column, rows))


def _find_first(pieces: list[tuple[Any, Rows, np.dtype[Any] | None]]) -> Any:
    """Return the value of a column of objects in the block's first sample."""
    # One row only: taking a whole column of text for this would cost as much as staging the column.
    for column, rows, _ in pieces:
        first = slice(rows.start, min(rows.start + 1, rows.stop)) if isinstance(rows, slice) else rows[:1]
        if values := take_each(column, first):
            return values[0]
    return None


def block_columns(
    block: Block, schema: Schema, pads: Mapping[str, ragged.Padding]
) -> tuple[list[Column], list[list[Any]]]:
    """Return the columns of a block that `fits`: those of its arrays, and those of all other values."""
    columns: list[Column] = []
    extras: list[Column] = []
    objects: list[list[Any]] = []
    feeds, count = iter(schema.feeds), len(block)
    for leaf in schema.tree.leaves:
        pieces = [(column, rows) for column, rows, _ in block.pieces(leaf.name)]
        if not leaf.is_array:
            objects.append([value for column, rows in pieces for value in take_each(column, rows)])
            continue
        feed = next(feeds)
        if feed.lod_level:
            parts: list[Array] = []
            lengths: list[Array] = []
            for column, chosen in pieces:
                if isinstance(column, ragged.Ragged) and isinstance(chosen, slice) and not chosen.step:
                    ends = column.row_splits[0][chosen.start : chosen.stop + 1]
                    parts.append(column.values[ends[0] : ends[-1]])
                    lengths.append(ends[1:] - ends[:-1])
                else:
                    rows = take_each(column, chosen)
                    parts += rows
                    lengths.append(_count(rows))
            pad = pads.get(feed.name)
            made, more = _sequences(parts, _concatenate(lengths), None, _sizes(feed), feed, pad)
            columns, extras = columns + made, extras + more
        elif any(isinstance(first_piece(column), ragged.Ragged) for column, _ in pieces):
            # Lists that all have the length of a dense field.
            rows = [row for column, chosen in pieces for row in take_each(column, chosen)]
            columns.append(Column((count, *rows[0].shape), feed.dtype, partial(_stack, rows)))
        else:
            columns.append(Column((count, *_sizes(feed)), feed.dtype, partial(_take, pieces)))
    return [*columns, *extras], objects
