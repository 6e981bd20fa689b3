"""Assembles batches of a map-style dataset whose samples lie in columns, without making the samples."""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gpuloader.base.errors import SampleError, describe_error
from gpuloader.collate.blocks import stage_block
from gpuloader.collate.finish import complete
from gpuloader.collate.form import Collation, Form
from gpuloader.collate.stream import StagedBatch
from gpuloader.sources.array_rows import own_method
from gpuloader.sources.block import Block, Part
from gpuloader.staging.ring import Slot

TakeBlock = Callable[[Sequence[Any]], Block]


class Settler(Protocol):
    """The part of an `Assembler` that batches in columns need."""

    collation: Collation
    worker: int | None

    def find_form(self, block: Block) -> Form | None:
        """Return the form that a block's first sample settles; None if its columns are not of that form."""

    def locate(self, number: int, indices: Sequence[Any] | None = None) -> AbstractContextManager[None]:
        """Add the batch, the worker and the dataset index to a `SampleError` raised within the block."""


class ByRow(Protocol):
    """An assembly that reads the samples of a batch one by one."""

    def fetch(self, start: int, stop: int) -> None:
        """Fetch samples `start` to `stop` of the batch."""

    def finish(self) -> StagedBatch:
        """Return the staged batch."""


def find_take_block(dataset: object, collation: Collation) -> TakeBlock | None:
    """Return a dataset's method that reads samples in columns, or None if it has none or cannot use it."""
    if collation.whole or collation.feeds is not None or collation.pictures is not None:
        return None
    take: TakeBlock | None = own_method(dataset, "take_block")
    return take


class BlockAssembly:
    """One batch that is read in columns; has the methods of an `Assembly`.

    Parameters
    ----------
    settler : Assembler
        Settles the form of the batch.
    take : callable
        The dataset's ``take_block``.
    by_row : Assembly
        The same batch, to be read sample by sample if its columns do not match the form. That converts the
        samples, or explains which of them does not fit.
    number : int
        The batch's position in the epoch.
    indices : sequence
        The indices of its samples.
    reserve : callable
        Reserves a slot of at least the given number of bytes.
    """

    def __init__(
        self,
        settler: Settler,
        take: TakeBlock,
        by_row: ByRow,
        number: int,
        indices: Sequence[Any],
        reserve: Callable[[int], Slot],
    ) -> None:
        self._settler = settler
        self._take = take
        self._by_row = by_row
        self.number = number
        self._indices = indices
        self._reserve = reserve
        self._parts: dict[int, Sequence[Part]] = {}
        self._placing = threading.Lock()

    def fetch(self, start: int, stop: int) -> None:
        """Read samples `start` to `stop` of the batch."""
        indices = self._indices[start:stop]
        try:
            block = self._take(indices)
        except Exception as error:
            asked = reprlib.repr(list(indices))  # abridged to the first few
            problem = f"take_block raised {describe_error(error)} for the indices {asked}"
            raise SampleError(problem, batch=self.number, worker=self._settler.worker) from error
        with self._placing:
            self._parts[start] = block.parts

    def finish(self) -> StagedBatch:
        """Return the staged batch."""
        settler = self._settler
        block = Block([part for start in sorted(self._parts) for part in self._parts[start]])
        with settler.locate(self.number, self._indices):
            form = settler.find_form(block)
            if form is not None:
                staged = stage_block(block, form, settler.collation, self.number, self._reserve)
                return complete(settler.collation, staged, self._indices)
        self._by_row.fetch(0, len(self._indices))
        return self._by_row.finish()
