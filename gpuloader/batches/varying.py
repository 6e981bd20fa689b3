"""Batches whose samples are kept until the last one is there, because a field varies in length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuloader.batches.columns import RegionColumn, lay_out, split_columns
from gpuloader.batches.left_out import Gaps
from gpuloader.batches.rows import SampleRows
from gpuloader.batches.schema import Collation, Schema, room_for
from gpuloader.batches.stream import StagedBatch
from gpuloader.batches.tree import ObjectColumns, all_leaves
from gpuloader.fields.spec import Array
from gpuloader.staging.arena import check_available
from gpuloader.staging.ring import Slot

# Batches that may be far smaller than their size allows: memory grows with the samples that arrive.
#
# The number of samples of a reader or an iterable dataset is unknown. Until one batch has been full, a large
# batch is therefore written into memory that doubles, and copied into a slot of its own size.

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


Settle = Callable[[Sequence[Any]], Schema]
"""Returns the schema of a batch, given its samples; raises `SampleError`."""


class Varying:
    """A batch that has a slot, with everything written but the pixels of encoded pictures.

    Several threads may call `write` at once, each for its own samples. `finish` is called once, after all
    of them.

    Parameters
    ----------
    settle : callable
        Settles the schema of the samples.
    collation : Collation
        How samples become a batch.
    samples : sequence
        The batch's samples.
    number : int
        The batch's position in the epoch.
    reserve : callable
        Reserves a slot of at least the given number of bytes.
    gaps : Gaps or None
        Notes the samples with pictures that cannot be decoded, which are left out; None raises for them.

    Raises
    ------
    SampleError
        A value does not fit its field; the error names sample and field.
    """

    def __init__(
        self,
        settle: Settle,
        collation: Collation,
        samples: Sequence[Any],
        number: int,
        reserve: Callable[[int], Slot],
        gaps: Gaps | None = None,
    ) -> None:
        self.samples = samples
        self._again = settle, collation, number
        self._gaps = gaps
        self._bad: list[int] | None = None if gaps is None else []
        schema = settle(samples)
        leaves = list(all_leaves(schema.tree, samples))
        kinds = [leaf.is_array for leaf in schema.tree.leaves]
        arrays = [[value for value, staged in zip(one, kinds, strict=True) if staged] for one in leaves]
        columns = split_columns(arrays, SampleRows(schema.feeds, strict=not schema.declared), collation.pads)
        layout = lay_out(columns)
        slot = reserve(room_for(collation, schema.tree, schema.levels, layout))
        self._regions = []
        for view, column in zip(slot.views(layout), columns, strict=True):
            if isinstance(column, RegionColumn):
                self._regions.append((view, column))
            else:
                column.write(view)
        objects = tuple([one[field] for one in leaves] for field, staged in enumerate(kinds) if not staged)
        self._staged = StagedBatch(slot, layout, schema.levels, number, schema.tree, objects)

    @property
    def unwritten(self) -> int:
        """The number of samples whose pixels `write` has to write."""
        return len(self.samples) if self._regions else 0

    def write(self, start: int, stop: int) -> None:
        """Decode the pictures of samples `start` to `stop` into the slot; raise `PictureError` for one."""
        for view, column in self._regions:
            column.write_rows(view, start, stop, self._bad)

    def finish(self) -> StagedBatch:
        """Return the staged batch, without the samples that are left out."""
        if not self._bad:
            return self._staged
        assert self._gaps is not None
        bad = set(self._bad)
        self._gaps.drop(bad)
        self._gaps.check()
        self.samples = [sample for row, sample in enumerate(self.samples) if row not in bad]
        settle, collation, number = self._again
        slot = self._staged.slot
        left = Varying(settle, collation, self.samples, number, lambda _: slot, self._gaps)
        left.write(0, left.unwritten)
        return left.finish()
