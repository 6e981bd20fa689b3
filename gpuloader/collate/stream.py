"""The loop every kind of reader shares: read, stage, say where an error happened, close the reader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns
from types import TracebackType
from typing import Any

import numpy as np

from gpuloader.base.errors import LoaderError, SampleError, note_batch
from gpuloader.collate.structure import Structure
from gpuloader.fields.spec import Array
from gpuloader.sources.readers.contract import Reader, iterate
from gpuloader.staging.layout import Layout
from gpuloader.staging.ring import Ring, Slot
from gpuloader.watch.stats import Meter


@dataclass(slots=True)  # not frozen: that would take longer to make than the rest of its way
class StagedBatch:
    """A batch that lies in a slot; not changed once it is on its way.

    Attributes
    ----------
    slot : Slot
        Where its bytes are; whoever holds the batch must see that the slot returns to the ring.
    layout : Layout
        Where each array lies in the slot.
    levels : tuple of int
        One lod_level a field; a ragged field takes 1 + lod_level arrays of the layout.
    number : int
        Position in the epoch, from 0.
    structure : Structure or None
        How the fields make up what the user gets; None: a tuple of them.
    objects : tuple of list
        The fields of the structure that are no arrays, one value a sample.
    state : object
        The source's own state behind this batch, where it has one.
    """

    slot: Slot
    layout: Layout
    levels: tuple[int, ...]
    number: int
    structure: Structure | None = None
    objects: tuple[Any, ...] = ()
    state: Any = None


Stager = Callable[[Iterator[Any], int], StagedBatch | None]
"""Reads and stages the batch of the given number; None at the end of the reader."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Where in a reader's epoch to begin.

    Attributes
    ----------
    batches : int
        Batches the user has already received.
    items : int
        What the reader yields for one of them.
    state : object
        What the reader's own ``state_dict`` said behind them; nothing is then read again.
    """

    batches: int = 0
    items: int = 1
    state: Any = None


def stage_all(reader: Reader, stage: Stager, reached: Reached | None = None) -> Iterator[StagedBatch]:
    """Yield the batches of one epoch, staged; runs in whatever thread iterates it.

    Raises
    ------
    SampleError
        Something does not fit its field; names the batch.
    BaseException
        Whatever the reader raised, with a note that names the batch.
    """
    reached = reached or Reached()
    own_state: Callable[[], Any] | None = getattr(reader, "state_dict", None)
    place = _Place()
    with place:
        items = _open(reader, reached)
    try:
        for number in itertools.count(reached.batches):
            place.number = number
            with place:
                staged = stage(items, number)
                if staged is not None and own_state is not None:
                    staged.state = own_state()
            if staged is None:
                return
            yield staged
    finally:
        close = getattr(items, "close", None)
        if callable(close):
            close()


def _open(reader: Reader, reached: Reached) -> Iterator[Any]:
    """Start a reader behind what the user has received: by its own state, or by reading up to there."""
    if reached.state is not None:
        reader.load_state_dict(reached.state)  # type: ignore[attr-defined]
        return iterate(reader)
    items = iterate(reader)
    skipped = reached.batches * reached.items
    next(itertools.islice(items, skipped, skipped), None)
    return items


class _Place:
    """Tells every exception that passes through it which batch it concerns."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SampleError):
            error.batch = self.number
        elif error is not None and not isinstance(error, LoaderError | GeneratorExit):
            note_batch(error, self.number)


def write_batch(arrays: list[Array], layout: Layout, ring: Ring, meter: Meter, begun: int) -> Slot:
    """Write whole arrays into a free slot, waiting for one; `begun` is when the reader was asked for them."""
    fetched = perf_counter_ns()
    slot = ring.acquire(layout.nbytes)
    ready = perf_counter_ns()
    try:
        for view, array in zip(slot.views(layout), arrays, strict=True):
            np.copyto(view, array)
    except BaseException:
        ring.release(slot)
        raise
    meter.staged(begun, fetched, ready, layout.nbytes)
    return slot
