"""The loop that stages a reader's batches: read, stage, add the batch to errors, close the reader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.tree import Tree
from gpuloader.errors import BadValue, LoaderError, QueueClosed, SampleError, describe_error, note_batch
from gpuloader.fields.spec import Array
from gpuloader.order.samplers import skip
from gpuloader.sources.readers.decorators import Reader, iterate
from gpuloader.staging.layout import Layout
from gpuloader.staging.ring import Ring, Slot
from gpuloader.system.rereading import read_for
from gpuloader.watch.stats import Meter


@dataclass(frozen=True, slots=True)
class Apart:
    """An array of a batch that is not in the slot, because a device can copy it from where it lies.

    Attributes
    ----------
    bytes : numpy.ndarray
        The array's page-locked memory, uint8, which it keeps.
    address : int
        Start address of that memory.
    offset : int
        Where the array lies in the device slot, in bytes.
    """

    bytes: NDArray[np.uint8]
    address: int
    offset: int


@dataclass(slots=True)  # not frozen: that would make creating one slower than all its later handling
class StagedBatch:
    """A batch in a slot; not changed once it has been handed on.

    Attributes
    ----------
    slot : Slot
        The slot with the batch's bytes. The holder of the batch must return the slot to the ring.
    layout : Layout
        Where each array lies in the slot.
    levels : tuple of int
        One lod_level per field; a ragged field takes 1 + lod_level arrays of the layout.
    number : int
        The batch's position in the epoch, from 0.
    tree : Tree or None
        How the fields make up the batch that the user receives; None means a tuple.
    objects : tuple of list
        The fields of the tree that are not arrays; each list has one value per sample.
    state : object
        The source's own state after this batch, if it has one.
    apart : tuple of Apart
        The arrays that a device copies from elsewhere.
    in_slot : int or None
        The bytes that it copies from the slot; None means the whole layout.
    skipped : int
        The number of samples left out, because their pictures cannot be decoded.
    """

    slot: Slot
    layout: Layout
    levels: tuple[int, ...]
    number: int
    tree: Tree | None = None
    objects: tuple[Any, ...] = ()
    state: Any = None
    apart: tuple[Apart, ...] = ()
    in_slot: int | None = None
    skipped: int = 0


Stager = Callable[[Iterator[Any], int], StagedBatch | None]
"""Reads and stages the batch of the given number; returns None at the end of the reader."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The point of a reader's epoch at which to resume.

    Attributes
    ----------
    batches : int
        Batches the user has already received.
    items : int
        Items the reader yields per batch.
    state : object
        What the reader's own ``state_dict`` returned after those batches. With it, no item is read again.
    """

    batches: int = 0
    items: int = 1
    state: Any = None


def stage_all(
    reader: Reader, stage: Stager, reached: Reached | None = None, owner: object = None
) -> Iterator[StagedBatch]:
    """Yield the staged batches of one epoch of the loader `owner`; reads in the thread that iterates.

    Raises
    ------
    SampleError
        A value does not fit its field; the error names the batch.
    ValueError
        The reader is not the one that the point to resume at belongs to.
    BaseException
        Whatever the reader raised, with a note that names the batch.
    """
    reached = reached or Reached()
    own_state: Callable[[], Any] | None = getattr(reader, "state_dict", None)
    place = _Place(owner)
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
        close_items(items)


def close_items(items: object) -> None:
    """Close an iterator that can be closed, such as a generator."""
    close = getattr(items, "close", None)
    if callable(close):
        close()


def _open(reader: Reader, reached: Reached) -> Iterator[Any]:
    """Start a reader after the batches the user has received: load its state, or skip the earlier items."""
    if reached.state is not None:
        check_takes_state(reader)
        reader.load_state_dict(reached.state)  # type: ignore[attr-defined]
        return iterate(reader)
    items = iterate(reader)
    skip(items, reached.batches * reached.items, reached.items, "the reader")
    return items


def check_takes_state(reader: object) -> None:
    """Raise `ValueError` unless a reader can load its own state."""
    if not callable(getattr(reader, "load_state_dict", None)):
        raise BadValue(
            "the state holds the own state of another reader, but this reader has no load_state_dict; "
            "resume with a reader of the same kind"
        )


class _Place:
    """A context that adds the current batch's number to every exception raised within it."""

    __slots__ = ("_outer", "_owner", "number")

    def __init__(self, owner: object) -> None:
        self.number = 0
        self._owner = owner
        self._outer: object = None

    def __enter__(self) -> None:
        self._outer = read_for(self._owner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        read_for(self._outer)
        if error is None:
            return
        if isinstance(error, SampleError):
            error.batch = self.number
        elif isinstance(error, QueueClosed):  # the reader's own would end the epoch without an error
            raise LoaderError(
                f"the reader raised {describe_error(error)} while it produced batch {self.number}"
            ) from error
        elif not isinstance(error, LoaderError | GeneratorExit | KeyboardInterrupt):
            note_batch(error, self.number)


def write_arrays(arrays: Sequence[Array], views: Sequence[Array]) -> None:
    """Write arrays into as many views of a slot, which have their shapes and dtypes; others may follow.

    >>> view = np.zeros(2)
    >>> write_arrays([np.ones(2)], [view]); view
    array([1., 1.])
    """
    for array, view in zip(arrays, views):  # noqa: B905 - see above
        view[...] = array  # np.copyto takes longer for small arrays


def fill_slot(
    write: Callable[[list[Array]], None],
    layout: Layout,
    ring: Ring,
    meter: Meter,
    begun: int,
    room: int | None = None,
) -> Slot:
    """Wait for a free slot and return it filled.

    Parameters
    ----------
    write : callable
        Writes the batch, given the slot's views.
    layout : Layout
        The batch's layout in the slot.
    ring : Ring
        The slots.
    meter : Meter
        Receives the times of reading, waiting and writing.
    begun : int
        When the reader was asked for the batch, in nanoseconds of `time.perf_counter_ns`.
    room : int or None
        The bytes that the slot must have, if that is more than the layout's.
    """
    fetched = perf_counter_ns()
    slot = ring.acquire(layout.nbytes if room is None else room)
    ready = perf_counter_ns()
    try:
        write(slot.views(layout))
    except BaseException:
        ring.release(slot)
        raise
    meter.staged(begun, fetched, ready, layout.nbytes)
    return slot
