"""Batches whose samples are kept until the last one is there, because a field varies in length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuloader.collate.columns import RegionColumn, lay_out, split_columns
from gpuloader.collate.finish import room_for
from gpuloader.collate.form import Collation, Form
from gpuloader.collate.gaps import Gaps
from gpuloader.collate.leaves import all_leaves
from gpuloader.collate.rows import SampleRows
from gpuloader.collate.stream import StagedBatch
from gpuloader.staging.ring import Slot

Settle = Callable[[Sequence[Any]], Form]
"""Returns the form of a batch, given its samples; raises `SampleError`."""


class Varying:
    """A batch that has a slot, with everything written but the pixels of encoded pictures.

    Several threads may call `write` at once, each for its own samples. `finish` is called once, after all
    of them.

    Parameters
    ----------
    settle : callable
        Settles the form of the samples.
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
        form = settle(samples)
        leaves = list(all_leaves(form.structure, samples))
        kinds = [leaf.is_array for leaf in form.structure.leaves]
        arrays = [[value for value, staged in zip(one, kinds, strict=True) if staged] for one in leaves]
        columns = split_columns(arrays, SampleRows(form.feeds, strict=not form.declared), collation.pads)
        layout = lay_out(columns)
        slot = reserve(room_for(collation, form.structure, form.levels, layout))
        self._regions = []
        for view, column in zip(slot.views(layout), columns, strict=True):
            if isinstance(column, RegionColumn):
                self._regions.append((view, column))
            else:
                column.write(view)
        objects = tuple([one[field] for one in leaves] for field, staged in enumerate(kinds) if not staged)
        self._staged = StagedBatch(slot, layout, form.levels, number, form.structure, objects)

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
