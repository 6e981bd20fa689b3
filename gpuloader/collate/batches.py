"""Stages ready-made batches: the reader yields lists of arrays that share their first dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.collate.stream import StagedBatch, fill_slot, write_arrays
from gpuloader.fields.convert import as_numbers, fit, fit_if_alike
from gpuloader.fields.ragged import Ragged, as_ragged
from gpuloader.fields.spec import Array, FeedSpec, describe
from gpuloader.staging.layout import Layout, arrange
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter

_END = object()


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
        item: Any = next(items, _END)
        if item is _END:
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
