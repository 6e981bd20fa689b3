"""The rows of a batch: the fields that samples have, and how a sample is written into its row of a slot."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.collate.targets import UNFIT, RowPlaces, Target, make_target, row_places
from gpuloader.fields.convert import IF_A_LIST, Conversion, as_numbers, convert, convert_alike, convert_dtype
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.staging.layout import Layout, arrange
from gpuloader.staging.ring import Views

_SAMPLE_TYPES = (tuple, list)

IN_FEEDS = (
    "if its length varies, declare the field in feed_list with lod_level=1, or make batches of samples of "
    "equal length (bucketing)"
)
"""The ways out of samples of different shapes in one batch, with a feed_list and for readers."""


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
        if self._are_alike(values):
            return
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

    def _are_alike(self, values: Sequence[Any]) -> bool:
        """Return whether all values are arrays or numbers of NumPy that look like the batch before."""
        if len(values) != len(self.feeds):
            return False
        for value, feed in zip(values, self.feeds):  # noqa: B905  both are equally long
            if type(value) is not np.ndarray and not isinstance(value, np.generic):
                return False
            if value.dtype != feed.dtype or value.shape != feed.sample_shape:
                return False
        return True

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
            self._places = [row_places(field, self._strict) for field in self.layout.fields]
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
            make_target(field, rows, places)
            for field, (rows, places) in enumerate(zip(views, self._places, strict=True))
        ]
        if isinstance(views, Views):
            views.prepared = self._places, targets
        return targets

    def write(self, views: list[Array], samples: Iterable[Any], start: int = 0) -> int:
        """Write samples into the rows of `views`, starting at row `start`; return the row after the last."""
        targets = self.targets(views)
        fields = len(targets)
        if fields == 1:
            return self._write_single(views, targets[0], samples, start)
        if fields == 2:
            return self._write_pairs(views, targets, samples, start)
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
                    except UNFIT:
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
                    except UNFIT:
                        pass
            value = fields_of(sample, self.feeds, index)[0]
            self._write_other(views, target, index, value)
        return index + 1

    def _write_pairs(
        self, views: list[Array], targets: list[Target], samples: Iterable[Any], start: int
    ) -> int:
        """Write samples of two fields, such as an image and its label, as `write` does."""
        (_, one_region, one_places, *_), (_, two_region, two_places, two_numbers, two_kinds, *_) = targets
        array, index = np.ndarray, start - 1
        for index, sample in enumerate(samples, start):
            if type(sample) not in _SAMPLE_TYPES or len(sample) != 2:
                sample = fields_of(sample, self.feeds, index)
            one, two = sample
            if type(one) is array:
                try:
                    one_region[one_places[index]] = one
                except UNFIT:
                    self._convert_and_write(views[0], 0, index, one)
            else:
                self._write_other(views, targets[0], index, one)
            kind = type(two)
            if kind not in two_kinds and kind is not array:
                self._write_other(views, targets[1], index, two)
                continue
            try:
                if kind is array:
                    two_region[two_places[index]] = two
                else:
                    two_numbers[index] = two
            except UNFIT:
                self._convert_and_write(views[1], 1, index, two)
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
        except UNFIT:
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


def fields_of(sample: Any, feeds: Sequence[FeedSpec] | None, index: int = 0) -> Sequence[Any]:
    """Return a sample's values; raise `SampleError` unless it is a tuple or list with one value per field."""
    if not isinstance(sample, list | tuple):
        raise SampleError(
            f"expected a tuple with one value per field, got {type(sample).__name__}", index=index
        )
    if feeds is not None and len(sample) != len(feeds):
        names = [feed.name for feed in feeds]
        advice = f"; {IF_A_LIST}" if names == [*map(str, range(len(names)))] else ""  # not declared
        problem = f"expected {len(feeds)} fields ({', '.join(names)}), got {len(sample)}{advice}"
        raise SampleError(problem, index=index)
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
