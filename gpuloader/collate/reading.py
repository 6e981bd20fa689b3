"""What a loader reads of a dataset: the same whoever fetches it, a thread here or a process elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuloader.collate.assembly import Assembler
from gpuloader.collate.form import Collation
from gpuloader.collate.items import ItemAssembler, ItemState, ItemStream
from gpuloader.collate.shares import ShareStream
from gpuloader.order.division import Division


@dataclass(frozen=True)  # without slots: an error about what cannot be pickled names it by its attributes
class Reading:
    """What a loader reads of a dataset, and how samples become batches.

    Attributes
    ----------
    dataset : object
        Map-style, or iterable.
    collation : Collation
        How samples become a batch.
    size : int or None
        Samples in a batch; None if a batch sampler decides. Always known for an iterable dataset.
    iterable : bool
        Whether the dataset has no indices.
    drop_last : bool
        For an iterable dataset: whether to leave out a shorter last batch.
    division : Division or None
        Which rank's part of each step to read; None: all of it.
    """

    dataset: Any
    collation: Collation
    size: int | None
    iterable: bool = False
    drop_last: bool = False
    division: Division | None = None

    def make_assembler(self, worker: int | None = None) -> Assembler:
        """Return what reads the dataset's samples into slots, for worker number `worker` if there is one."""
        kind = ItemAssembler if self.iterable else Assembler
        return kind(self.dataset, self.collation, worker)

    def open_stream(
        self, assembler: Assembler, reached: ItemState, *, keep_state: bool = True
    ) -> ItemStream | ShareStream:
        """Return one worker's pass over an iterable dataset: over all its items, or over one rank's.

        Parameters
        ----------
        assembler : Assembler
            From `make_assembler`.
        reached : ItemState
            Where the pass begins; only its `base` counts if the items are divided among ranks.
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
