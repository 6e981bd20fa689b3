"""Stages samples: the reader yields them one by one or in lists; each is a tuple with one value per field."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from gpuloader.batches.columns import lay_out, split_columns
from gpuloader.batches.left_out import shorten
from gpuloader.batches.rows import SampleRows
from gpuloader.batches.stream import StagedBatch, fill_slot, write_arrays
from gpuloader.batches.varying import AT_ONCE, copy_rows, write_gradually
from gpuloader.errors import SampleError
from gpuloader.fields.convert import as_numbers, fit, fit_if_alike
from gpuloader.fields.ragged import Ragged, as_ragged
from gpuloader.fields.spec import Array, FeedSpec, describe
from gpuloader.staging.layout import Layout, arrange
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter

# Stages ready-made batches: the reader yields lists of arrays that share their first dimension.

_NO_BATCH = object()


class BatchStager:
    """Stages the batches that a batch generator yields.

    Dtypes stay as they are. With feeds, every array must fit its feed's shape. Without feeds, each batch may
    have other arrays than the one before.
    """

    def __init__(self, feeds: Sequence[FeedSpec] | None, ring: Ring, meter: Meter) -> None:
        self._feeds = feeds
        self._ring = ring
        self._meter = meter
        self._layout = arrange(())
        self._levels: tuple[int, ...] = ()

    def __call__(self, items: Iterator[Any], number: int) -> StagedBatch | None:
        """Read the next item and stage it; return None at the end."""
        begun = perf_counter_ns()
        item: Any = next(items, _NO_BATCH)
        if item is _NO_BATCH:
            return None
        arrays = item if self._is_like_last(item) else self._check(item)
        slot = fill_slot(partial(write_arrays, arrays), self._layout, self._ring, self._meter, begun)
        return StagedBatch(slot, self._layout, self._levels, number)

    def _is_like_last(self, item: Any) -> bool:
        fields = self._layout.fields
        if not (type(item) is list or type(item) is tuple) or len(item) != len(fields):
            return False
        for value, field in zip(item, fields):  # noqa: B905 - strict= costs time
            if type(value) is not np.ndarray or value.dtype is not field.dtype or value.shape != field.shape:
                return False
        return bool(fields)

    def _check(self, item: Any) -> list[Array]:
        values = [as_ragged(value) for value in self._check_fields(item)]
        levels = tuple(len(value.row_splits) if isinstance(value, Ragged) else 0 for value in values)
        arrays: list[Array] = []
        counts: dict[str, int] = {}
        for index, value in enumerate(values):
            name = self._name(index)
            try:
                pieces = _check_ragged(value) if isinstance(value, Ragged) else [self._dense(index, value)]
                self._check_level(index, levels[index])
            except SampleError as error:
                error.field = name
                raise
            if not self._is_loose(index, value):
                counts[name] = len(value) if isinstance(value, Ragged) else len(pieces[0])
            arrays += pieces
        if len(set(counts.values())) > 1:
            raise SampleError(f"all fields of a batch must have the same number of samples, got {counts}")
        self._levels = levels
        self._layout = _arrange(arrays)
        return arrays

    def _check_fields(self, item: Any) -> Sequence[Any]:
        if not isinstance(item, list | tuple):
            hint = "; yield its values in feed_list order" if isinstance(item, dict) else ""
            raise SampleError(f"expected a list or tuple of arrays, got {type(item).__name__}{hint}")
        if not item:
            raise SampleError("expected one array per field, got an empty batch")
        if self._feeds is not None and len(item) != len(self._feeds):
            names = ", ".join(feed.name for feed in self._feeds)
            raise SampleError(f"expected {len(self._feeds)} fields ({names}), got {len(item)}")
        return item

    def _dense(self, index: int, value: Any) -> Array:
        array = as_numbers(value)
        if array.ndim == 0:
            raise SampleError(f"expected an array with a batch dimension, got the number {array}")
        if self._feeds is None:
            return array
        feed = self._feeds[index]
        fitted = fit_if_alike if feed.keeps_shapes else fit
        try:
            return fitted(array, (len(array), *feed.sample_shape))
        except SampleError:
            expected, got = describe((None, *feed.sample_shape)), describe(array.shape)
            raise SampleError(f"expected shape {expected}, got {got}") from None

    def _is_loose(self, index: int, value: Any) -> bool:
        """Return whether a value holds the steps of a ragged feed without their division into sequences."""
        return self._feeds is not None and self._feeds[index].lod_level > 0 and not isinstance(value, Ragged)

    def _check_level(self, index: int, level: int) -> None:
        if level and self._feeds is not None and self._feeds[index].lod_level != level:
            expected = self._feeds[index].lod_level
            raise SampleError(
                f"expected a field of lod_level {expected}, got level {level}; "
                "yield gpuloader.Ragged for a ragged feed, an array for a dense one"
            )

    def _name(self, index: int) -> str:
        return str(index) if self._feeds is None else self._feeds[index].name


def _check_ragged(value: Ragged) -> list[Array]:
    return [as_numbers(value.values), *(as_numbers(splits) for splits in value.row_splits)]


def _arrange(arrays: list[Array]) -> Layout:
    return arrange(tuple((array.shape, array.dtype) for array in arrays))


_END = object()


class _Stager:
    """Base class of the two stagers of samples: holds their fields, and writes samples into slots."""

    def __init__(self, feeds: Sequence[FeedSpec] | None, ring: Ring, meter: Meter) -> None:
        self._rows = SampleRows(feeds)
        self._ring = ring
        self._meter = meter

    def _stage_dense(
        self, samples: Iterable[Any], size: int, number: int, begun: int, *, drop_last: bool = False
    ) -> StagedBatch | None:
        """Write at most `size` samples into a slot; return None if there are fewer and `drop_last` is set."""
        layout = self._rows.arrange(size)
        fetched = perf_counter_ns()
        slot = self._ring.acquire(layout.nbytes)
        ready = perf_counter_ns()
        try:
            count = self._rows.write(slot.views(layout), samples)
        except BaseException:
            self._ring.release(slot)
            raise
        if count < size:
            if drop_last:
                self._ring.release(slot)
                return None
            layout = shorten(layout, count)
        self._meter.staged(begun, fetched, ready, layout.nbytes)
        return StagedBatch(slot, layout, self._rows.levels, number)

    def _stage_ragged(self, samples: Sequence[Any], number: int, begun: int) -> StagedBatch:
        """Write samples that have a field of varying length into a slot."""
        columns = split_columns(samples, self._rows)
        layout = lay_out(columns)

        def write(views: list[Array]) -> None:
            for view, column in zip(views, columns, strict=True):
                column.write(view)

        slot = fill_slot(write, layout, self._ring, self._meter, begun)
        return StagedBatch(slot, layout, self._rows.levels, number)


class SampleListStager(_Stager):
    """Stages the batches of a reader that yields lists of samples, such as `gpuloader.batch`."""

    def __call__(self, items: Iterator[Any], number: int) -> StagedBatch | None:
        """Read the next list and stage it; return None at the end."""
        begun = perf_counter_ns()
        samples = next(items, _END)
        if samples is _END:
            return None
        if not isinstance(samples, list | tuple):
            raise SampleError(f"expected a list of samples, got {type(samples).__name__}")
        if not samples:
            raise SampleError("expected a list of samples, got an empty one")
        self._rows.begin(samples[0])
        if self._rows.ragged:
            return self._stage_ragged(samples, number, begun)
        return self._stage_dense(samples, len(samples), number, begun)


class SampleStager(_Stager):
    """Stages single samples, `batch_size` at a time; each is written before the next is read.

    So a reader may reuse one buffer for all samples. Samples with a field of varying length are copied and
    kept until their batch is complete, because only then is the position of each one known.
    """

    def __init__(
        self,
        feeds: Sequence[FeedSpec] | None,
        ring: Ring,
        meter: Meter,
        batch_size: int,
        *,
        drop_last: bool,
    ) -> None:
        super().__init__(feeds, ring, meter)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._has_been_full = False

    def __call__(self, items: Iterator[Any], number: int) -> StagedBatch | None:
        """Read a batch of samples into a slot; return None at the end."""
        begun = perf_counter_ns()
        first = next(items, _END)
        if first is _END:
            return None
        self._rows.begin(first)
        samples = itertools.chain((first,), itertools.islice(items, self._batch_size - 1))
        if self._rows.ragged:
            kept = [copy.deepcopy(sample) for sample in samples]
            if len(kept) < self._batch_size and self._drop_last:
                return None
            return self._stage_ragged(kept, number, begun)
        is_known = self._has_been_full or self._rows.count == self._batch_size
        if not is_known and self._rows.layout_of(self._batch_size).nbytes > AT_ONCE:
            return self._stage_gradually(samples, number, begun)
        return self._stage_dense(samples, self._batch_size, number, begun, drop_last=self._drop_last)

    def _stage_gradually(self, samples: Iterator[Any], number: int, begun: int) -> StagedBatch | None:
        """Write at most a full batch of samples into memory that grows with them, and then into a slot."""
        held, count = write_gradually(self._arranged, samples, self._batch_size)
        self._has_been_full = count == self._batch_size
        if not self._has_been_full and self._drop_last:
            return None
        layout = self._rows.layout_of(count)
        slot = fill_slot(lambda views: copy_rows(held, views), layout, self._ring, self._meter, begun)
        return StagedBatch(slot, layout, self._rows.levels, number)

    def _arranged(self, count: int) -> SampleRows:
        self._rows.arrange(count)
        return self._rows
