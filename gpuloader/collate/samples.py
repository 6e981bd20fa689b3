"""Samples: the reader yields them one by one or in lists; each is a tuple with one value a field."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Any

from gpuloader.base.errors import SampleError
from gpuloader.collate.columns import lay_out, split_columns
from gpuloader.collate.rows import SampleRows
from gpuloader.collate.stream import StagedBatch
from gpuloader.fields.spec import FeedSpec
from gpuloader.staging.layout import FieldLayout, Layout
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter

_END = object()


class SampleListStager:
    """Stages what a reader of sample lists yields, `gpuloader.batch` for one."""

    def __init__(self, feeds: Sequence[FeedSpec] | None, ring: Ring, meter: Meter) -> None:
        self._rows = SampleRows(feeds)
        self._ring = ring
        self._meter = meter

    def __call__(self, items: Iterator[Any], number: int) -> StagedBatch | None:
        """Read the next list and stage it; None at the end."""
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
            return stage_ragged(samples, self._rows, number, self._ring, self._meter, begun)
        layout = self._rows.arrange(len(samples))
        fetched = perf_counter_ns()
        slot = self._ring.acquire(layout.nbytes)
        ready = perf_counter_ns()
        try:
            self._rows.write(slot.views(layout), samples)
        except BaseException:
            self._ring.release(slot)
            raise
        self._meter.staged(begun, fetched, ready, layout.nbytes)
        return StagedBatch(slot, layout, self._rows.levels, number)


class SampleStager:
    """Stages single samples, `batch_size` at a time, each written before the next is read.

    So a reader that fills the same buffer for every sample is safe. Ragged samples are kept aside until
    their batch is complete, since only then is it known where each lies: they are copied to be kept.
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
        self._rows = SampleRows(feeds)
        self._ring = ring
        self._meter = meter
        self._batch_size = batch_size
        self._drop_last = drop_last

    def __call__(self, items: Iterator[Any], number: int) -> StagedBatch | None:
        """Read a batch of samples into a slot; None at the end."""
        begun = perf_counter_ns()
        first = next(items, _END)
        if first is _END:
            return None
        self._rows.begin(first)
        if self._rows.ragged:
            return self._collect(first, items, number, begun)
        layout = self._rows.arrange(self._batch_size)
        fetched = perf_counter_ns()
        slot = self._ring.acquire(layout.nbytes)
        ready = perf_counter_ns()
        try:
            rest = itertools.islice(items, self._batch_size - 1)
            count = self._rows.write(slot.views(layout), itertools.chain((first,), rest))
        except BaseException:
            self._ring.release(slot)
            raise
        if count < self._batch_size:
            if self._drop_last:
                self._ring.release(slot)
                return None
            layout = shorten(layout, count)
        self._meter.staged(begun, fetched, ready, layout.nbytes)
        return StagedBatch(slot, layout, self._rows.levels, number)

    def _collect(self, first: Any, items: Iterator[Any], number: int, begun: int) -> StagedBatch | None:
        samples = [copy.deepcopy(first)]
        samples += [copy.deepcopy(sample) for sample in itertools.islice(items, self._batch_size - 1)]
        if len(samples) < self._batch_size and self._drop_last:
            return None
        return stage_ragged(samples, self._rows, number, self._ring, self._meter, begun)


def stage_ragged(
    samples: Sequence[Any], rows: SampleRows, number: int, ring: Ring, meter: Meter, begun: int
) -> StagedBatch:
    """Stage samples of which some field varies in length."""
    columns = split_columns(samples, rows)
    layout = lay_out(columns)
    fetched = perf_counter_ns()
    slot = ring.acquire(layout.nbytes)
    ready = perf_counter_ns()
    try:
        for view, column in zip(slot.views(layout), columns, strict=True):
            column.write(view)
    except BaseException:
        ring.release(slot)
        raise
    meter.staged(begun, fetched, ready, layout.nbytes)
    return StagedBatch(slot, layout, rows.levels, number)


def shorten(layout: Layout, count: int) -> Layout:
    """Return the layout of a batch of only `count` samples in a slot laid out for more of them."""
    fields = tuple(
        FieldLayout(field.offset, (count, *field.shape[1:]), field.dtype) for field in layout.fields
    )
    if not fields:
        return layout
    last = fields[-1]
    return Layout(fields, last.offset + math.prod(last.shape) * last.dtype.itemsize)
