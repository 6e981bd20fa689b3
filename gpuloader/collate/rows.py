"""The rows of a batch: the fields that samples have, and how a sample is written into its row of a slot."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.collate.packing import Packer, exact_types, list_packers, number_packers
from gpuloader.fields.convert import Conversion, as_numbers, convert, convert_alike, convert_dtype
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.staging.layout import FieldLayout, Layout, arrange
from gpuloader.staging.ring import Views

_SAMPLE_TYPES = (tuple, list)
_UNFIT = (TypeError, ValueError, OverflowError, NotImplementedError, RuntimeWarning, struct.error)

IN_FEEDS = (
    "if its length varies, declare the field in feed_list with lod_level=1, or make batches of samples of "
    "equal length (bucketing)"
)
"""The ways out of samples of different shapes in one batch, with a feed_list and for readers."""

Target = tuple[int, Any, Sequence[slice | int], Any, frozenset[type], dict[type, Packer], Any]
"""Where one field's samples are written: (field, region, places, numbers, kinds, packers, memory).

Each of these writes sample i, or raises one of `_UNFIT` if the sample does not fit:
``region[places[i]] = array``; ``numbers[i] = number``, if the number's type is one of `kinds`; and
``packers[type(value)](memory, i, value)``, for other numbers and for lists.
"""


class CheckedRows:
    """The rows of a field whose samples have more than one dimension, or a dtype without a buffer format.

    An array of exactly the row's dtype and shape is written; anything else raises TypeError. NumPy would
    broadcast or convert it silently, but that decision is up to `SampleRows.convert`.
    """

    def __init__(self, rows: Array) -> None:
        self._rows = rows
        self._shape = rows.shape[1:]

    def __setitem__(self, index: int, value: Array) -> None:
        if value.dtype == self._rows.dtype and value.shape == self._shape:
            self._rows[index] = value
        else:
            raise TypeError


class SampleRows:
    """The fields of a stream of samples, either declared or inferred from each batch's first sample.

    Parameters
    ----------
    feeds : sequence of FeedSpec or None
        The fields; None infers them from the first sample of each batch.
    strict : bool
        Whether to refuse values that would have to be reshaped, or that their field cannot hold exactly.
        Meant for fields that were inferred from a sample, not declared; implied if `feeds` is None.
    """

    def __init__(self, feeds: Sequence[FeedSpec] | None, *, strict: bool = False) -> None:
        self._feeds = feeds
        self._infers = feeds is None
        self._strict = strict or self._infers
        self.conversion: Conversion = convert_alike if strict else convert
        if self._infers:
            self.conversion = functools.partial(convert_alike, advice=IN_FEEDS)
        self._open = feeds is None or any(None in feed.sample_shape for feed in feeds)
        self._shapes: list[tuple[int, ...]] = []
        self.layout = arrange(())
        self.count = -1
        self._places: list[RowPlaces] = []
        self.ragged = feeds is not None and any(feed.lod_level for feed in feeds)
        self.levels: tuple[int, ...] = tuple(feed.lod_level for feed in feeds or ())
        if feeds is not None and not self._open and not self.ragged:
            self._shapes = [tuple(size or 0 for size in feed.sample_shape) for feed in feeds]

    @property
    def feeds(self) -> Sequence[FeedSpec]:
        """One spec per field; empty until the first sample if the fields are inferred."""
        return self._feeds or ()

    def begin(self, first: Any) -> None:
        """Infer what is still open, the fields or their free dimensions, from a batch's first sample."""
        if self._infers:
            self._infer(fields_of(first, None))
        elif self._open and not self.ragged:
            values = fields_of(first, self._feeds)
            shapes = [self.convert(index, 0, value).shape for index, value in enumerate(values)]
            if shapes != self._shapes:
                self._shapes, self.count = shapes, -1

    def _infer(self, values: Sequence[Any]) -> None:
        """Take the fields from the values of a sample, unless they are like those of the batch before."""
        arrays = [_locate(as_numbers, 0, str(index), value) for index, value in enumerate(values)]
        if len(arrays) == len(self.feeds) and all(
            array.shape == feed.sample_shape and array.dtype == feed.dtype
            for array, feed in zip(arrays, self.feeds, strict=True)
        ):
            return
        self._feeds = [
            FeedSpec(str(index), (None, *array.shape), array.dtype) for index, array in enumerate(arrays)
        ]
        self.levels = (0,) * len(arrays)
        self._shapes, self.count = [array.shape for array in arrays], -1

    def convert(self, field: int, index: int, value: Any) -> Array:
        """Return one value of sample `index` converted to its field; the `SampleError` names both."""
        feed = self.feeds[field]
        conversion = convert_dtype if feed.keeps_shapes else self.conversion
        return _locate(conversion, index, feed.name, value, feed.dtype, feed.sample_shape)

    def arrange(self, count: int) -> Layout:
        """Return the layout of a batch of `count` dense samples."""
        if count != self.count:
            self.layout = self.layout_of(count)
            self.count = count
            self._places = [_row_places(field, self._strict) for field in self.layout.fields]
        return self.layout

    def layout_of(self, count: int) -> Layout:
        """Return the layout of a batch of `count` dense samples without arranging for it."""
        dtypes = [feed.dtype for feed in self.feeds]
        return arrange(
            tuple(((count, *shape), dtype) for shape, dtype in zip(self._shapes, dtypes, strict=True))
        )

    def targets(self, views: list[Array]) -> list[Target]:
        """Return where each field's samples are written, given the views of a slot.

        An array of at most one dimension is assigned to a memoryview, which accepts only an array of its own
        format and length. Numbers and lists are packed by `struct`, which accepts only the right number of
        them, each within the field's range. Both check in C, in less time than NumPy needs to assign a row.
        """
        prepared = views.prepared if isinstance(views, Views) else None
        if prepared is not None and prepared[0] is self._places:
            found: list[Target] = prepared[1]
            return found
        targets = [
            _target(field, rows, places)
            for field, (rows, places) in enumerate(zip(views, self._places, strict=True))
        ]
        if isinstance(views, Views):
            views.prepared = self._places, targets
        return targets

    def write(self, views: list[Array], samples: Iterable[Any], start: int = 0) -> int:
        """Write samples into the rows of `views`, starting at row `start`; return the row after the last."""
        targets = self.targets(views)
        if len(targets) == 1:
            return self._write_single(views, targets[0], samples, start)
        fields = len(targets)
        regions = [(target[1], target[2], target) for target in targets]
        array = np.ndarray
        index = start - 1
        for index, sample in enumerate(samples, start):
            if (type(sample) is not tuple and not isinstance(sample, _SAMPLE_TYPES)) or len(sample) != fields:
                fields_of(sample, self.feeds, index)
            # No strict=True: here it would cost a tenth of the time that a whole sample takes.
            for (region, places, target), value in zip(regions, sample):  # noqa: B905
                if type(value) is array:
                    try:
                        region[places[index]] = value
                    except _UNFIT:
                        self._convert_and_write(views[target[0]], target[0], index, value)
                else:
                    self._write_other(views, target, index, value)
        return index + 1

    def _write_single(self, views: list[Array], target: Target, samples: Iterable[Any], start: int) -> int:
        """Write samples of one field, as `write` does."""
        _, region, places, *_ = target
        array, index = np.ndarray, start - 1
        for index, sample in enumerate(samples, start):
            if type(sample) in _SAMPLE_TYPES and len(sample) == 1:
                value = sample[0]
                if type(value) is array:
                    try:
                        region[places[index]] = value
                        continue
                    except _UNFIT:
                        pass
            value = fields_of(sample, self.feeds, index)[0]
            self._write_other(views, target, index, value)
        return index + 1

    def _write_other(self, views: list[Array], target: Target, index: int, value: Any) -> None:
        """Write one value that is not an array, or is one that has to be converted."""
        field, region, places, numbers, kinds, packers, memory = target
        kind = type(value)
        try:
            if kind in kinds:
                numbers[index] = value
            elif kind in packers:
                packers[kind](memory, index, value)
            elif kind is np.memmap:
                region[places[index]] = value
            else:
                raise TypeError
        except _UNFIT:
            self._convert_and_write(views[field], field, index, value)

    def _convert_and_write(self, rows: Array, field: int, index: int, value: Any) -> None:
        array = self.convert(field, index, value)
        expected = rows.shape[1:]
        if array.shape != expected:  # of a field with free dimensions
            raise SampleError(
                f"expected shape {expected} as in the batch's first sample, got {array.shape}; {IN_FEEDS}",
                index=index,
                field=self.feeds[field].name,
            )
        rows[index] = array


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The parts of a field's `Target` that do not depend on the slot.

    Attributes
    ----------
    flat : bool
        Whether a sample has at most one dimension, so that it is written through a flat view.
    places : sequence
        The position of each sample in the region.
    kinds : frozenset of type
        The types of numbers that are assigned as they are.
    packers : dict of type to callable
        How to write values of other types; those that are missing, too, have to be converted.
    numbers_only : bool
        Whether no array is accepted as it is, so that one of a single number is not taken for that number.
    """

    flat: bool
    places: Sequence[slice | int]
    kinds: frozenset[type] = frozenset()
    packers: dict[type, Packer] = dataclasses.field(default_factory=dict)
    numbers_only: bool = False


def _row_places(field: FieldLayout, strict: bool) -> RowPlaces:
    count, elements = field.shape[0], math.prod(field.shape[1:])
    # Structured dtypes have no buffer format, nor do those of other packages, such as bfloat16.
    if len(field.shape) > 2 or not count or not elements or field.dtype.isbuiltin != 1:
        return RowPlaces(False, range(count))
    places = [slice(start, start + elements) for start in range(0, count * elements, elements)]
    single = len(field.shape) == 1
    kinds: frozenset[type] = frozenset()
    packers: dict[type, Packer] = {}
    if elements == 1 and (single or not strict):
        kinds = exact_types(field.dtype, strict=strict)
        packers |= number_packers(field.dtype, strict=strict)
    if not (single and strict):
        packers |= list_packers(field.dtype, elements, strict=strict)
    return RowPlaces(True, places, kinds, packers, single and strict)


def _target(field: int, rows: Array, row: RowPlaces) -> Target:
    if not row.flat:
        return field, CheckedRows(rows), row.places, None, row.kinds, row.packers, None
    flat = rows.reshape(-1)
    numbers = flat.data
    region = numbers.toreadonly() if row.numbers_only else numbers
    memory = flat.view(np.uint8).data if row.packers else None
    return field, region, row.places, numbers, row.kinds, row.packers, memory


def fields_of(sample: Any, feeds: Sequence[FeedSpec] | None, index: int = 0) -> Sequence[Any]:
    """Return a sample's values; raise `SampleError` unless it is a tuple or list with one value per field."""
    if not isinstance(sample, list | tuple):
        raise SampleError(
            f"expected a tuple with one value per field, got {type(sample).__name__}", index=index
        )
    if feeds is not None and len(sample) != len(feeds):
        names = ", ".join(feed.name for feed in feeds)
        raise SampleError(f"expected {len(feeds)} fields ({names}), got {len(sample)}", index=index)
    if not sample:
        raise SampleError("expected one value per field, got an empty tuple", index=index)
    return sample


def _locate(function: Any, index: int, field: str, *arguments: Any) -> Array:
    """Call `function`; add the sample and the field to a `SampleError` it raises."""
    try:
        result: Array = function(*arguments)
    except SampleError as error:
        error.index, error.field = index, field
        raise
    return result
