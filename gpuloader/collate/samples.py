"""Stages samples: the reader yields them one by one or in lists; each is a tuple with one value per field."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any

from gpuloader.base.errors import SampleError
from gpuloader.collate.columns import lay_out, split_columns
from gpuloader.collate.gaps import shorten
from gpuloader.collate.gradual import AT_ONCE, copy_rows, write_gradually
from gpuloader.collate.rows import SampleRows
from gpuloader.collate.stream import StagedBatch, fill_slot
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter

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
