"""The rows of a batch: the fields that samples have, and how a sample is written into its row of a slot."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.fields.spec import Array, Conversion, FeedSpec, as_numbers, convert, convert_alike
from gpuloader.staging.layout import FieldLayout, Layout, arrange

_PACKABLE = "bBhHiIqQefd"
_SAMPLE_TYPES = (tuple, list)
_UNFIT = (TypeError, ValueError, OverflowError, NotImplementedError, struct.error)

Target = tuple[Any, Sequence[slice | int], Any, Callable[..., None] | None, int]
"""Where one field's samples are written: (region, places, numbers, pack, nbytes).

Each of these writes sample i, or raises if the sample does not fit: ``region[places[i]] = array``;
``numbers[i] = number``, if a sample is one number; ``pack(i * nbytes, *values)``, for a list of numbers.
"""


class CheckedRows:
    """The rows of a field whose samples have more than one dimension, or a dtype without a buffer format.

    An array of exactly the row's dtype and shape is written; anything else raises TypeError. NumPy would
    broadcast or convert it silently, but that decision is up to `SampleRows.convert`.
    """

    def __init__(self, rows: Array) -> None:
        self._rows = rows
        self._shape = rows.shape[1:]

    def __setitem__(self, index: int, value: Any) -> None:
        if type(value) is np.ndarray and value.dtype == self._rows.dtype and value.shape == self._shape:
            self._rows[index] = value
        else:
            raise TypeError


class SampleRows:
    """The fields of a stream of samples, either declared or inferred from the first sample.

    Parameters
    ----------
    feeds : sequence of FeedSpec or None
        The fields; None infers them from the first sample.
    strict : bool
        Whether to refuse values that would have to be reshaped or would lose their fraction. Meant for
        fields that were inferred from a sample, not declared.
    """

    def __init__(self, feeds: Sequence[FeedSpec] | None, *, strict: bool = False) -> None:
        self._feeds = feeds
        self.conversion: Conversion = convert_alike if strict else convert
        self._strict = strict
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
        if self._feeds is None:
            values = fields_of(first, None)
            arrays = [_locate(as_numbers, 0, str(index), value) for index, value in enumerate(values)]
            self._feeds = [
                FeedSpec(str(index), (None, *array.shape), array.dtype) for index, array in enumerate(arrays)
            ]
            self.levels = (0,) * len(arrays)
            self._shapes = [array.shape for array in arrays]
            self._open = False
        elif self._open and not self.ragged:
            values = fields_of(first, self._feeds)
            shapes = [self.convert(index, 0, value).shape for index, value in enumerate(values)]
            if shapes != self._shapes:
                self._shapes, self.count = shapes, -1

    def convert(self, field: int, index: int, value: Any) -> Array:
        """Return one value of sample `index` converted to its field; the `SampleError` names both."""
        feed = self.feeds[field]
        return _locate(self.conversion, index, feed.name, value, feed.dtype, feed.sample_shape)

    def arrange(self, count: int) -> Layout:
        """Return the layout of a batch of `count` dense samples."""
        if count != self.count:
            dtypes = [feed.dtype for feed in self.feeds]
            self.layout = arrange(
                tuple(((count, *shape), dtype) for shape, dtype in zip(self._shapes, dtypes, strict=True))
            )
            self.count = count
            self._places = [_row_places(field, self._strict) for field in self.layout.fields]
        return self.layout

    def targets(self, views: list[Array]) -> list[Target]:
        """Return where each field's samples are written, given the views of a slot.

        A sample of at most one dimension is assigned to a memoryview, which accepts only an array of its own
        format and length, or packed by `struct`, which accepts only the right number of real numbers. Both
        check in C, in less time than NumPy needs to assign a row.
        """
        return [_target(rows, places) for rows, places in zip(views, self._places, strict=True)]

    def write(self, views: list[Array], samples: Iterable[Any], start: int = 0) -> int:
        """Write samples into the rows of `views`, starting at row `start`; return the row after the last."""
        targets = self.targets(views)
        fields = len(targets)
        index = start - 1
        for index, sample in enumerate(samples, start):
            try:
                if not isinstance(sample, _SAMPLE_TYPES) or len(sample) != fields:
                    raise TypeError
                # No strict=True: here it would cost a tenth of the time that a whole sample takes.
                for (region, places, numbers, pack, nbytes), value in zip(targets, sample):  # noqa: B905
                    kind = type(value)
                    if kind is list and pack is not None:
                        pack(index * nbytes, *value)
                    elif numbers is not None and (kind is not np.ndarray or not value.ndim):
                        numbers[index] = value
                    else:
                        region[places[index]] = value
            except _UNFIT:
                self._convert_and_write(views, index, sample)
        return index + 1

    def _convert_and_write(self, views: list[Array], index: int, sample: Any) -> None:
        for field, value in enumerate(fields_of(sample, self.feeds, index)):
            array = self.convert(field, index, value)
            expected = views[field].shape[1:]
            if array.shape != expected:
                raise SampleError(
                    f"expected shape {expected} as in the batch's first sample, got {array.shape}",
                    index=index,
                    field=self.feeds[field].name,
                )
            views[field][index] = array


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The parts of a field's `Target` that do not depend on the slot.

    Attributes
    ----------
    flat : bool
        Whether a sample has at most one dimension, so that it is written through a flat view.
    places : sequence
        The position of each sample in the region.
    is_number : bool
        Whether a sample is one real number.
    packer : struct.Struct or None
        Writes a sample from a list of Python numbers.
    nbytes : int
        The size of one sample.
    numbers_only : bool
        Whether arrays and lists of one number are left to `convert_alike`, which refuses them.
    """

    flat: bool
    places: Sequence[slice | int]
    is_number: bool
    packer: struct.Struct | None
    nbytes: int
    numbers_only: bool = False


def _row_places(field: FieldLayout, strict: bool) -> RowPlaces:
    count, elements = field.shape[0], math.prod(field.shape[1:])
    nbytes = elements * field.dtype.itemsize
    no_buffer = (
        field.dtype.isbuiltin == 2
    )  # dtypes of other packages, such as bfloat16, have no buffer format
    if len(field.shape) > 2 or not count or not elements or no_buffer:
        return RowPlaces(False, range(count), False, None, nbytes)
    places = [slice(start, start + elements) for start in range(0, count * elements, elements)]
    single = len(field.shape) == 1
    # A memoryview accepts any object as a boolean, so booleans take the slower way.
    is_number = elements == 1 and field.dtype.kind in "iuf" and (single or not strict)
    code = "q" if field.dtype == np.int64 else "Q" if field.dtype == np.uint64 else field.dtype.char
    numbers_only = single and strict
    packer = struct.Struct(f"{elements}{code}") if code in _PACKABLE and not numbers_only else None
    return RowPlaces(True, places, is_number, packer, nbytes, numbers_only)


def _target(rows: Array, row: RowPlaces) -> Target:
    if not row.flat:
        return CheckedRows(rows), row.places, None, None, row.nbytes
    flat = rows.reshape(-1)
    pack = functools.partial(row.packer.pack_into, flat.view(np.uint8).data) if row.packer else None
    region = flat.data.toreadonly() if row.numbers_only else flat.data
    return region, row.places, flat.data if row.is_number else None, pack, row.nbytes


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
