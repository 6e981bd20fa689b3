"""Blocks into slots: column by column, every value copied once, no object made of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from gpuloader.collate.columns import Column
from gpuloader.collate.finish import room_for
from gpuloader.collate.form import Collation, Form
from gpuloader.collate.stream import StagedBatch
from gpuloader.collate.structure import Branch, Leaf
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.sources.block import Block, Rows, row_parts
from gpuloader.staging.layout import arrange
from gpuloader.staging.ring import Slot


def fits(block: Block, form: Form) -> bool:
    """Return whether a block's columns are the fields of the form, so that they can be copied as they lie.

    Where they are not, its samples are staged one by one, which converts them, or says what is wrong.
    """
    root = form.structure.root
    if form.declared or not isinstance(root, Branch) or root.keys != block.names:
        return False
    feeds = iter(form.feeds)
    for child in root.children:
        if not isinstance(child, Leaf):
            return False
        feed = next(feeds) if child.is_array else None
        if not all(_holds(column, feed) for column, _ in block.pieces(child.name)):
            return False
    return True


def _holds(column: Any, feed: FeedSpec | None) -> bool:
    if feed is None:
        return not isinstance(column, np.ndarray | Ragged)
    if isinstance(column, Ragged):
        return (
            feed.lod_level == 1
            and column.values.dtype == feed.dtype
            and column.values.shape[1:] == feed.sample_shape
        )
    return (
        isinstance(column, np.ndarray)
        and not feed.lod_level
        and column.dtype == feed.dtype
        and column.shape[1:] == feed.sample_shape
    )


@dataclass(frozen=True, slots=True)
class DenseColumn:
    """A field whose samples are all of one shape, in pieces of arrays.

    Attributes
    ----------
    shape : tuple of int
        Of the whole field.
    dtype : numpy.dtype
        Of its elements.
    pieces : list
        Arrays, each with the rows that count.

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
    pieces: list[tuple[Array, Rows]]

    def write(self, target: Array) -> None:
        """Write the field into an array of its shape and dtype, every element once."""
        start = 0
        for array, rows in self.pieces:
            count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            part = target[start : start + count]
            if isinstance(rows, slice):
                np.copyto(part, array[rows])
            else:
                # The rows are known to be there; the mode that says so to NumPy spares it a buffer.
                array.take(rows, 0, part, "clip")
            start += count


def stage_block(
    block: Block, form: Form, collation: Collation, number: int, reserve: Callable[[int], Slot]
) -> StagedBatch:
    """Write a block that `fits` into a slot.

    Parameters
    ----------
    block : Block
        The samples of one batch.
    form : Form
        Of all batches.
    collation : Collation
        Which fields are padded, and what transforms will need.
    number : int
        Of the batch.
    reserve : callable
        Gives a slot of at least so many bytes.
    """
    columns: list[DenseColumn | Column] = []
    objects: list[list[Any]] = []
    feeds = iter(form.feeds)
    for leaf in form.structure.leaves:
        pieces = block.pieces(leaf.name)
        if not leaf.is_array:
            objects.append([value for column, rows in pieces for value in column.take(rows)])
            continue
        feed = next(feeds)
        if feed.lod_level:
            columns += _varying(pieces, feed, collation.pads or {})
        else:
            shape = (len(block), *pieces[0][0].shape[1:])
            columns.append(DenseColumn(shape, feed.dtype, pieces))
    layout = arrange(tuple((column.shape, column.dtype) for column in columns))
    slot = reserve(room_for(collation, form.structure, form.levels, layout))
    for view, column in zip(slot.views(layout), columns, strict=True):
        column.write(view)
    return StagedBatch(slot, layout, form.levels, number, form.structure, tuple(objects))


def _varying(pieces: list[tuple[Any, Rows]], feed: FeedSpec, pads: Mapping[str, float]) -> list[Column]:
    """Return a field of varying length as columns: padded, or its values and its row splits."""
    rows = [part for column, chosen in pieces for part in row_parts(column, chosen)]
    lengths = [len(row) for row in rows]
    step = pieces[0][0].values.shape[1:]
    if feed.name in pads:
        shape = (len(rows), max(lengths, default=0), *step)
        return [Column(shape, feed.dtype, rows, fill=pads[feed.name])]
    splits = np.array([0, *accumulate(lengths)], np.int64)
    values = Column((int(splits[-1]), *step), feed.dtype, rows, joined=True)
    return [values, Column(splits.shape, splits.dtype, [splits], joined=True)]
