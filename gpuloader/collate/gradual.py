"""Batches that may be far smaller than their size allows: memory grows with the samples that arrive.

The number of samples of a reader or an iterable dataset is unknown. Until one batch has been full, a large
batch is therefore written into memory that doubles, and copied into a slot of its own size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from gpuloader.collate.leaves import ObjectColumns
from gpuloader.collate.rows import SampleRows
from gpuloader.fields.spec import Array
from gpuloader.staging.arena import check_available
from gpuloader.staging.ring import Slot

AT_ONCE = 64 << 20
"""Bytes up to which a slot for a full batch is reserved before its samples have arrived."""

_FIRST_NBYTES = 1 << 20


def write_gradually(
    rows: Callable[[int], SampleRows], samples: Iterator[Any], size: int, objects: ObjectColumns | None = None
) -> tuple[list[Array], int]:
    """Write samples into memory that grows with them.

    Parameters
    ----------
    rows : callable
        Returns the row table for a number of samples, with its layout arranged.
    samples : iterator
        The samples.
    size : int
        The most samples to write.
    objects : dict or None
        The columns of fields that are not arrays, which are extended by None for each sample to come.

    Returns
    -------
    list of ndarray
        One array per field, with one row per sample.
    int
        The number of samples.

    Raises
    ------
    StagingMemoryError
        A full batch is larger than the memory that there is.
    SampleError
        A sample does not fit its field.
    """
    table = rows(1)
    check_available(table.layout_of(size).nbytes)
    room = min(max(_FIRST_NBYTES // max(table.layout_of(1).nbytes, 1), 1), size)
    count, held = 0, list[Array]()
    while True:
        table = rows(room)
        memory = np.empty(max(table.layout.nbytes, 1), np.uint8)
        views = Slot(memory, memory, in_ring=False).views(table.layout)
        copy_rows(held, views)
        for column in (objects or {}).values():
            column += [None] * (room - len(column))
        count = table.write(views, itertools.islice(samples, room - count), count)
        held = [view[:count] for view in views]
        if count < room or room == size:
            return held, count
        room = min(2 * room, size)


def copy_rows(held: Iterable[Array], views: Iterable[Array]) -> None:
    """Copy rows to the beginning of other arrays.

    >>> target = np.zeros(3)
    >>> copy_rows([np.ones(2)], [target])
    >>> target
    array([1., 1., 0.])
    """
    for rows, view in zip(held, views, strict=False):
        view[: len(rows)] = rows
