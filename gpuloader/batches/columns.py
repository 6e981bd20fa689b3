"""Columns: the fields of a batch whose samples have all been fetched but not yet written.

Where a sample of varying length lies in the batch depends on the lengths of all samples before it. So the
samples are kept until the last one is there. Their bytes are still written once, straight into the slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.batches.rows import IN_FEEDS, SampleRows, fields_of
from gpuloader.errors import PictureError, SampleError
from gpuloader.fields.image_regions import Encoded, Region, join_geometry
from gpuloader.fields.ragged import split_rows
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.staging.layout import Layout, arrange


@dataclass(frozen=True, slots=True)
class Column:
    """One array of a batch, still in parts.

    Attributes
    ----------
    shape : tuple of int
        The shape of the whole array.
    dtype : numpy.dtype
        The dtype of the array and of every part.
    parts : sequence of numpy.ndarray
        The parts to write, in order.
    joined : bool
        Whether the parts are concatenated along the first dimension. If False, each part is one row.
    fill : float or None
        The value that fills up rows shorter than the longest; None if all rows have the same length.

    Examples
    --------
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
    """The pixels of a field of regions; pictures are decoded as they are written.

    Attributes
    ----------
    regions : sequence of Region or Encoded
        The regions, one per sample; there are no other parts.
    splits : numpy.ndarray
        Where each region begins and ends in the array.
    name : str
        The name of the field, for errors.
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


def lay_out(columns: Sequence[Column]) -> Layout:
    """Return the layout of the columns in a slot."""
    return arrange(tuple((column.shape, column.dtype) for column in columns))


def split_columns(
    samples: Sequence[Any], rows: SampleRows, pads: Mapping[str, float] | None = None
) -> list[Column]:
    """Return one column per dense or padded field, and several per ragged field: values, then row splits.

    Parameters
    ----------
    samples : sequence
        The samples, each a tuple or list with one value per field.
    rows : SampleRows
        The fields.
    pads : mapping or None
        The ragged fields of level 1 to pad, with their fill values.

    Raises
    ------
    SampleError
        A value does not fit its field; the error names sample and field.
    """
    values = [fields_of(sample, rows.feeds, index) for index, sample in enumerate(samples)]
    columns: list[Column] = []
    for field, feed in enumerate(rows.feeds):
        column = [sample[field] for sample in values]
        if not feed.lod_level:
            dense = [rows.convert(field, index, value) for index, value in enumerate(column)]
            columns.append(_stacked(dense, feed))
            continue
        if column and isinstance(column[0], Region):
            columns += _region_columns(column, feed)
            continue
        if column and isinstance(column[0], Encoded):
            columns += _encoded_columns(column, feed)
            continue
        try:
            parts, splits = split_rows(column, feed.dtype, feed.sample_shape, feed.lod_level, rows.conversion)
        except SampleError as error:
            error.field = feed.name
            raise
        _check_steps(parts, splits, feed)
        if pads is not None and feed.name in pads:
            columns.append(_padded(parts, feed, pads[feed.name]))
        else:
            columns.append(_joined(parts, feed))
            columns += [Column(split.shape, split.dtype, [split], joined=True) for split in splits]
    return columns


def _region_columns(regions: list[Region], feed: FeedSpec) -> list[Column]:
    """Return the three arrays of a field of regions: pixels, row splits and geometry."""
    splits = np.cumsum([0, *(region.shape[0] for region in regions)], dtype=np.int64)
    _check_steps([np.empty((0, *region.step)) for region in regions], (splits,), feed)
    shape = int(splits[-1]), *regions[0].step
    pixels = RegionColumn(shape, feed.dtype, (), regions=regions, splits=splits, name=feed.name)
    return [pixels, *map(_whole, (splits, join_geometry(regions)))]


def _encoded_columns(pictures: list[Encoded], feed: FeedSpec) -> list[Column]:
    """Return the four arrays of a field of pictures that a device decodes; see `Encoded`."""
    shapes = [one.code.shape for one in pictures]
    _check_steps([np.empty((0, *one.step)) for one in pictures], (np.empty(0),), feed)
    splits = np.cumsum([0, *(height * width for height, width, _ in shapes)], dtype=np.int64)
    starts = np.cumsum([0, *(one.nbytes for one in pictures)], dtype=np.int64)
    codes = RegionColumn((int(starts[-1]),), feed.dtype, (), regions=pictures, splits=starts, name=feed.name)
    room = np.empty((splits[-1], *pictures[0].step, 0), np.uint8)
    return [codes, *map(_whole, (splits, join_geometry(pictures), room))]


def _whole(array: Array) -> Column:
    return Column(array.shape, array.dtype, [array], joined=True)


def _stacked(samples: list[Array], feed: FeedSpec) -> Column:
    for index, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            raise SampleError(
                f"expected shape {samples[0].shape} as in the batch's first sample, got {sample.shape}; "
                f"{IN_FEEDS}",
                index=index,
                field=feed.name,
            )
    shape = samples[0].shape if samples else _empty_step(feed)
    return Column((len(samples), *shape), feed.dtype, samples)


def _check_steps(parts: list[Array], splits: tuple[Array, ...], feed: FeedSpec) -> None:
    for position, part in enumerate(parts):
        if part.shape[1:] != parts[0].shape[1:]:
            sample = position if len(splits) == 1 else np.searchsorted(splits[0], position, "right") - 1
            raise SampleError(
                f"expected steps of shape {parts[0].shape[1:]} as in the batch's first sequence, "
                f"got {part.shape[1:]}",
                index=int(sample),
                field=feed.name,
            )


def _joined(parts: list[Array], feed: FeedSpec) -> Column:
    step = parts[0].shape[1:] if parts else _empty_step(feed)
    return Column((sum(map(len, parts)), *step), feed.dtype, parts, joined=True)


def _padded(parts: list[Array], feed: FeedSpec, fill: float) -> Column:
    step = parts[0].shape[1:] if parts else _empty_step(feed)
    longest = max(map(len, parts), default=0)
    return Column((len(parts), longest, *step), feed.dtype, parts, fill=fill)


def _empty_step(feed: FeedSpec) -> tuple[int, ...]:
    return tuple(size or 0 for size in feed.sample_shape)
