"""Leaves samples out of a batch that has been staged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuloader.collate.gaps import refuse_empty
from gpuloader.collate.stream import StagedBatch
from gpuloader.fields.encoded import Encoded
from gpuloader.fields.spec import Array
from gpuloader.staging.layout import Layout


def leave_out(staged: StagedBatch, count: int, bad: Collection[int]) -> None:
    """Leave the samples at these positions out of a batch of `count`: its rows move up within the slot.

    The bytes of `Encoded` pictures stay where they are; only their pixels are counted anew. Random numbers
    that were drawn once for the whole batch stay the same.

    Raises
    ------
    SampleError
        No sample is left.
    """
    fields = list(staged.layout.fields)
    views: list[Array] = staged.slot.views(staged.layout)
    rows = np.array([row for row in range(count) if row not in bad], np.int64)
    refuse_empty(len(rows), count)
    changed: list[Array | None] = []
    first = 0
    for level in staged.levels:
        arrays = views[first : first + 1 + level]
        first += 1 + level
        changed += _take_encoded(arrays, rows) if level == Encoded.level else _take_ragged(arrays, rows)
    changed += [view[rows] for view in views[first:]]  # random draws
    for number, (view, array) in enumerate(zip(views, changed, strict=True)):
        if array is not None:
            fields[number] = replace(fields[number], shape=array.shape)
            view.reshape(-1)[: array.size] = array.reshape(-1)
    staged.layout = Layout(tuple(fields), staged.layout.nbytes, staged.layout.turned)
    staged.objects = tuple([column[row] for row in rows.tolist()] for column in staged.objects)
    staged.skipped += len(bad)


def _take_encoded(arrays: list[Array], rows: NDArray[np.int64]) -> list[Array | None]:
    _, splits, geometry, room = arrays
    counts = np.diff(splits)[rows]
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return [None, ends, geometry[rows], np.empty((int(ends[-1]), *room.shape[1:]), room.dtype)]


def _take_ragged(arrays: list[Array], rows: NDArray[np.int64]) -> list[Array | None]:
    """Return some rows of a dense field, or of one of sequences."""
    values, *levels = arrays
    taken: list[Array | None] = []
    for splits in levels:
        parts = [np.arange(splits[row], splits[row + 1], dtype=np.int64) for row in rows.tolist()]
        taken.append(np.cumsum([0, *map(len, parts)], dtype=np.int64))
        rows = np.concatenate(parts) if parts else rows[:0]
    return [values[rows], *taken]
