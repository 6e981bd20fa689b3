"""A batch in its slot: what is known about it, what its transforms need, how samples are left out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.schema import Collation
from gpuloader.batches.tree import Tree
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array, Indices
from gpuloader.order.order import Stretch
from gpuloader.sources.images.regions import Encoded
from gpuloader.sources.skipping import LeftOut
from gpuloader.staging import HostBytes, Layout, Slot

Reserve = Callable[[int], Slot]
"""Reserves a slot of at least the given number of bytes; called once per batch."""
END = object()
"""What `next` returns instead of an item when there are no more."""
_TUPLE = Tree.flat(())


# Not frozen: that would make creating one slower than all its later handling.
@dataclass(slots=True, eq=False, repr=False)
class StagedBatch:
    """A batch in a slot; not changed once it has been handed on. Its holder must return the slot to the ring.

    Attributes
    ----------
    layout, levels : Layout, tuple of int
        Where each array lies in the slot, and the lod_level of each field; a ragged field takes 1 + level
        arrays.
    number : int
        The batch's position in the epoch, from 0.
    tree, objects : Tree, tuple of list
        How the fields make up the batch that the user receives; one without fields means a tuple. The fields
        that are not arrays have one value per sample.
    state : object
        The source's own state after this batch, if it has one.
    apart, in_slot : tuple of pairs, int or None
        The arrays in pinned memory that a device copies from where they lie, each with its offset in the
        device slot, in bytes; and the bytes that it copies from the slot, None for the whole layout.
    skipped : sequence of str
        The reasons for leaving out samples.
    own : list of numpy.ndarray or None
        The arrays that the user gets on a host instead of those in the slot, which then holds no bytes of
        them.
    """

    slot: Slot
    layout: Layout
    levels: tuple[int, ...]
    number: int
    tree: Tree = _TUPLE
    objects: tuple[Any, ...] = ()
    state: Any = None
    apart: tuple[tuple[HostBytes, int], ...] = ()
    in_slot: int | None = None
    skipped: Sequence[str] = ()
    own: list[Array] | None = None


class BatchBuilder(Protocol):
    """One batch that is being written into a slot.

    Several threads may call `fetch` at the same time, each for its own part of the samples. At the end, one
    thread calls `finish`. Before that it may call `lay_out`; if that returns a number of samples, several
    threads call `write` for them, each for its own part. `nbytes` is how much `fetch` copies, if it does
    nothing else; None if that is unknown.
    """

    nbytes: int | None = None

    def fetch(self, start: int, stop: int) -> None:
        """Fetch samples `start` to `stop` of the batch, and write what can be written already."""

    def lay_out(self) -> int:
        """Reserve the slot, if that had to wait for all samples; return how many are still to be written."""
        return 0

    def write(self, start: int, stop: int) -> None:  # noqa: ARG002
        """Write samples `start` to `stop` into the slot that `lay_out` has reserved."""
        return

    def finish(self) -> StagedBatch:
        """Return the staged batch."""

    def locate(self, error: SampleError) -> None:
        """Add the batch and the sample to an error that one of the other methods has raised."""


def write_arrays(arrays: Sequence[Array], views: Sequence[Array]) -> None:
    """Write arrays into the first views of a slot, which have their shapes and dtypes; more views may follow.

    >>> view = np.zeros(2)
    >>> write_arrays([np.ones(2)], [view]); view
    array([1., 1.])
    """
    for array, view in zip(arrays, views):  # noqa: B905 - more may follow
        view[...] = array  # np.copyto takes longer for small arrays


# Transforms: memory for their results, their random draws, and on a CPU place their work.


def begin_batch(
    collation: Collation,
    layout: Layout,
    levels: tuple[int, ...],
    number: int,
    reserve: Reserve,
    tree: Tree,
    objects: Iterable[Any] = (),
) -> StagedBatch:
    """Return batch `number`, yet to be written, in a slot with space for what its transforms need."""
    needed = layout
    if collation.programmer is not None:
        program = collation.programmer.program(tree.array_names, levels, layout)
        needed = program.whole if collation.on_host else program.copied
    return StagedBatch(reserve(needed.nbytes), layout, levels, number, tree, tuple(objects))


def complete(collation: Collation, staged: StagedBatch, keys: Indices | Stretch) -> StagedBatch:
    """Write the transforms' random draws for the samples with these keys; on a CPU place, run the transforms.

    Raises
    ------
    SampleError
        A transform does not accept its field.
    """
    programmer = collation.programmer
    if programmer is None:
        return staged
    program = programmer.program(staged.tree.array_names, staged.levels, staged.layout)
    # On a CPU place the results lie behind the fields in the slot; on a GPU they are in the device's slot.
    arrays = staged.slot.views(program.whole if collation.on_host else program.copied)
    if program.checked:  # before a kernel meets what it cannot report, such as a label out of range
        program.check(arrays)
    if program.drawn:
        programmer.fill_draws(program, arrays, keys)
    if collation.on_host:
        program.run_on_host(arrays)
        staged.layout, staged.levels = program.delivered, program.levels
    else:
        staged.layout = program.copied
    return staged


# Samples that are left out: while a batch is written, and after it was staged.


class Gaps:
    """The positions of the samples that remain in a batch after others were left out.

    >>> gaps = Gaps(["a", LeftOut("bad"), "c", "d"])
    >>> gaps.take("abcd")
    ['a', 'c', 'd']
    >>> gaps.drop({0: "worse"})
    >>> gaps.take("abcd"), gaps.reasons
    (['c', 'd'], ['bad', 'worse'])
    """

    def __init__(self, samples: Sequence[Any]) -> None:
        self._size = len(samples)
        bad = {at: sample.reason for at, sample in enumerate(samples) if isinstance(sample, LeftOut)}
        self._left, self.reasons = [*range(self._size)], list[str]()
        self.drop(bad)

    def take(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of the remaining samples, given one for each position."""
        return [values[position] for position in self._left]

    def drop(self, rows: Mapping[int, str]) -> None:
        """Leave out more samples, given their numbers among the remaining ones, and the reasons."""
        self._left = [position for row, position in enumerate(self._left) if row not in rows]
        self.reasons += rows.values()
        _refuse_empty(len(self._left), self._size, self.reasons)

    def locate(self, error: SampleError) -> None:
        """Turn the row that an error names into the sample's position."""
        if error.index is not None and error.dataset_index is None:
            error.index = self._left[error.index]


def _refuse_empty(left: int, size: int, reasons: Sequence[str]) -> None:
    if not left:
        raise SampleError(
            f"none of the batch's {size} samples can be read, so on_bad='skip' leaves nothing (the first: "
            f"{reasons[0]}); check the dataset, or use larger batches (with "
            "shuffle='chunks': a larger shuffle_buffer)"
        )


def leave_out(staged: StagedBatch, count: int, bad: Mapping[int, str]) -> None:
    """Leave samples out of a batch of `count`, by position, with reasons: its rows move up within the slot.

    The bytes of `Encoded` images stay where they are; only their pixels are counted again. Random numbers
    that were drawn for the whole batch stay the same.

    Raises
    ------
    SampleError
        No sample is left.
    """
    fields = list(staged.layout.fields)
    views: list[Array] = staged.slot.views(staged.layout)
    rows = np.array([row for row in range(count) if row not in bad], np.int64)
    _refuse_empty(len(rows), count, [*bad.values()])
    # All rows are taken first and then written: source and target overlap within the slot.
    changed: list[Array | None] = []
    first = 0
    for level in staged.levels:
        arrays = views[first : first + 1 + level]
        first += 1 + level
        changed += _take_encoded(arrays, rows) if level == Encoded.level else _take_ragged(arrays, rows)
    changed += [view[rows] for view in views[first:]]  # random draws
    for number, (view, array) in enumerate(zip(views, changed, strict=True)):
        if array is not None:
            fields[number] = fields[number]._replace(shape=array.shape)
            view.reshape(-1)[: array.size] = array.reshape(-1)
    staged.layout = Layout(tuple(fields), staged.layout.nbytes, staged.layout.turned)
    staged.objects = tuple([column[row] for row in rows.tolist()] for column in staged.objects)
    staged.skipped = [*staged.skipped, *bad.values()]


def _take_encoded(arrays: list[Array], rows: NDArray[np.int64]) -> list[Array | None]:
    """Return the images of some rows; None for the bytes, which stay where they are."""
    _, splits, geometry, decoded = arrays
    ends = np.concatenate([[0], np.cumsum(np.diff(splits)[rows])]).astype(np.int64)
    return [None, ends, geometry[rows], np.empty((int(ends[-1]), *decoded.shape[1:]), decoded.dtype)]


def _take_ragged(arrays: list[Array], rows: NDArray[np.int64]) -> list[Array | None]:
    """Return some rows of a dense field, or of a field of sequences."""
    values, *levels = arrays
    taken: list[Array | None] = []
    for splits in levels:
        parts = [np.arange(splits[row], splits[row + 1], dtype=np.int64) for row in rows.tolist()]
        taken.append(np.cumsum([0, *map(len, parts)], dtype=np.int64))
        rows = np.concatenate(parts) if parts else rows[:0]
    return [values[rows], *taken]
