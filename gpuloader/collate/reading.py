"""Describes what to read from a dataset; the description is the same for threads and worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuloader.collate.assembly import Assembler
from gpuloader.collate.form import Collation
from gpuloader.collate.items import ItemAssembler, ItemState, ItemStream
from gpuloader.collate.shares import ShareStream
from gpuloader.order.division import Division


@dataclass(frozen=True)  # no slots: the error for an attribute that cannot be pickled finds it in __dict__
class Reading:
    """What to read from a dataset, and how samples become batches.

    Attributes
    ----------
    dataset : object
        The dataset, map-style or iterable.
    collation : Collation
        How samples become a batch.
    size : int or None
        Samples per batch; None if a batch sampler decides. Always set for an iterable dataset.
    iterable : bool
        Whether the dataset is iterable and has no indices.
    drop_last : bool
        Whether to drop a shorter last batch; used for iterable datasets only.
    division : Division or None
        The rank whose part of each step to read; None reads everything.
    """

    dataset: Any
    collation: Collation
    size: int | None
    iterable: bool = False
    drop_last: bool = False
    division: Division | None = None

    def make_assembler(self, worker: int | None = None) -> Assembler:
        """Return an assembler, which reads samples into slots; `worker` is the worker's number, if any."""
        kind = ItemAssembler if self.iterable else Assembler
        return kind(self.dataset, self.collation, worker)

    def open_stream(
        self, assembler: Assembler, reached: ItemState, *, keep_state: bool = True
    ) -> ItemStream | ShareStream:
        """Return one worker's pass over an iterable dataset: over all its items, or over one rank's part.

        Parameters
        ----------
        assembler : Assembler
            An assembler from `make_assembler`.
        reached : ItemState
            Where the pass begins. If the items are divided among ranks, only its `base` is used.
        keep_state : bool
            Whether batches carry the dataset's own state.
        """
        assert isinstance(assembler, ItemAssembler)
        assert self.size is not None
        if self.division is None:
            return ItemStream(
                assembler, self.size, drop_last=self.drop_last, reached=reached, keep_state=keep_state
            )
        return ShareStream(assembler, self.size, self.division, drop_last=self.drop_last, base=reached.base)
