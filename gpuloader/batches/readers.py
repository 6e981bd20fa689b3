"""Batches of a reader: one loop reads, stages, names the batch in errors, and closes the reader at the end.

`stage_all` is the loop. What a reader yields determines how one batch is staged: `SampleStager` takes single
samples, `SampleListStager` lists of samples, and `BatchStager` ready batches: arrays that share their first
dimension. Samples are tuples with one value per field, whether the fields are declared or not; they are
staged like the items of an iterable dataset. The reader's own exceptions reach the user unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from gpuloader.batches.items import ItemAssembler
from gpuloader.batches.schema import Collation
from gpuloader.batches.staged import END, Reserve, StagedBatch, write_arrays
from gpuloader.errors import BadValue, LoaderError, QueueClosed, SampleError, describe_error
from gpuloader.fields.convert import as_numbers, fit, fit_if_alike
from gpuloader.fields.ragged import Ragged, as_ragged
from gpuloader.fields.spec import Array, FeedSpec, describe
from gpuloader.sources.describing import Source
from gpuloader.sources.readers.decorators import Reader, iterate
from gpuloader.staging import Ring, Slot, arrange
from gpuloader.system.iterators import close_iterator, skip
from gpuloader.system.threads import this_thread
from gpuloader.watch.meter import Meter

Stager = Callable[[Iterator[Any], int, Reserve], StagedBatch | None]
"""Reads and stages the batch of the given number; returns None at the end of the reader.

If it has reserved a slot but returns no batch, the caller releases the slot.
"""


class ReadSoFar(NamedTuple):
    """The point of a reader's epoch at which to resume.

    The user has received `batches`, of `items` items each. `state` is what the reader's own ``state_dict``
    returned after them; with it, no item is read again.
    """

    batches: int = 0
    items: int = 1
    state: Any = None


def stage_all(
    reader: Reader, stage: Stager, ring: Ring, meter: Meter, reached: ReadSoFar, owner: object
) -> Iterator[StagedBatch]:
    """Yield the staged batches of one epoch of the loader `owner`; reads in the thread that iterates.

    Raises
    ------
    SampleError
        A value does not fit its field; the error names the batch.
    ValueError
        The point to resume at belongs to a different reader.
    BaseException
        Whatever the reader raised, with a note that names the batch.
    """
    own_state: Callable[[], Any] | None = getattr(reader, "state_dict", None)
    items: Iterator[Any] | None = None
    slots: list[Slot] = []  # those of the current batch, until it is handed on
    number = fetched = ready = 0

    def reserve(nbytes: int) -> Slot:
        nonlocal fetched, ready
        fetched = perf_counter_ns()
        slots.append(ring.acquire(nbytes))
        ready = perf_counter_ns()
        return slots[-1]

    try:
        while True:
            # Set for each batch, because loops over other loaders may run between two of them.
            outer, this_thread.reads_for = this_thread.reads_for, owner
            try:
                if items is None:
                    items, number = _open(reader, reached), reached.batches
                begun = perf_counter_ns()
                staged = stage(items, number, reserve)
                if staged is None:
                    return
                meter.staged(begun, fetched, ready, staged.layout.nbytes)
                # Now, because the reader will be ahead of this batch when the user asks for a state.
                if own_state is not None:
                    staged.state = own_state()
            except BaseException as error:
                _name_batch(error, number)
                raise
            finally:
                this_thread.reads_for = outer
            slots.clear()
            yield staged
            number += 1
    finally:
        for slot in slots:
            ring.release(slot)
        close_iterator(items)


def _open(reader: Reader, reached: ReadSoFar) -> Iterator[Any]:
    """Start a reader after the batches the user has received: load its state, or skip the earlier items."""
    if reached.state is not None:
        check_takes_state(reader)
        reader.load_state_dict(reached.state)  # type: ignore[attr-defined]
        return iterate(reader)
    items = iterate(reader)
    skip(items, reached.batches * reached.items, reached.items, "the reader")
    return items


def _name_batch(error: BaseException, number: int) -> None:
    """Add the current batch's number to an error."""
    if isinstance(error, SampleError):
        error.batch = number
    elif isinstance(error, QueueClosed):  # the reader's own would silently end the epoch
        problem = f"the reader raised {describe_error(error)} while it produced batch {number}"
        raise LoaderError(problem) from error
    # A Ctrl-C is not the reader's doing, and the loader's own errors already name the batch.
    elif not isinstance(error, LoaderError | GeneratorExit | KeyboardInterrupt):
        note = f"gpuloader: raised by the reader while it produced batch {number} of the epoch"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def check_takes_state(reader: object) -> None:
    """Raise `ValueError` unless a reader can load its own state."""
    if not callable(getattr(reader, "load_state_dict", None)):
        raise BadValue(
            "the state holds the own state of another reader, but this reader has no load_state_dict; "
            "resume with a reader of the same kind"
        )


# Samples, one by one or in lists.


class SampleStager:
    """Stages single samples, `batch_size` at a time; each is written before the next is read.

    So a reader may reuse one buffer for all samples. Samples with a field of varying length are copied and
    kept until their batch is complete, because until then the position of each one is unknown.
    """

    def __init__(self, feeds: Sequence[FeedSpec] | None, batch_size: int, *, drop_last: bool = False) -> None:
        self._assembler = _make_assembler(feeds)
        self._size = batch_size
        self._least = batch_size if drop_last else 1

    def __call__(self, items: Iterator[Any], number: int, reserve: Reserve) -> StagedBatch | None:
        """Read a batch of samples into a slot; return None at the end."""
        if self._assembler.keeps:
            # Copied, because the reader may fill the same buffer again with its next sample.
            items = map(copy.deepcopy, items)
        return self._assembler.stage(items, number, self._size, self._least, reserve)


class SampleListStager:
    """Stages the batches of a reader that yields lists of samples, such as `gpuloader.batch`."""

    def __init__(self, feeds: Sequence[FeedSpec] | None) -> None:
        self._assembler = _make_assembler(feeds)

    def __call__(self, items: Iterator[Any], number: int, reserve: Reserve) -> StagedBatch | None:
        """Read the next list and stage it; return None at the end."""
        samples = next(items, END)
        if samples is END:
            return None
        if not isinstance(samples, list | tuple):
            raise SampleError(f"expected a list of samples, got {type(samples).__name__}")
        if not samples:
            raise SampleError("expected a list of samples, got an empty one")
        size = len(samples)
        return self._assembler.stage(iter(samples), number, size, size, reserve)


def _make_assembler(feeds: Sequence[FeedSpec] | None) -> ItemAssembler:
    collation = Collation(None if feeds is None else tuple(feeds), flat=True)
    return ItemAssembler(Source(None, iterable=True), collation)


# Ready batches.


class BatchStager:
    """Stages the batches that a batch generator yields.

    Dtypes stay as they are. With feeds, every array must fit its feed's shape. Without feeds, each batch may
    have different arrays. Without `copies`, the reader's own arrays are delivered.
    """

    def __init__(self, feeds: Sequence[FeedSpec] | None, *, copies: bool = True) -> None:
        self._feeds = feeds
        self._copies = copies
        self._layout = arrange(())
        self._levels: tuple[int, ...] = ()

    def __call__(self, items: Iterator[Any], number: int, reserve: Reserve) -> StagedBatch | None:
        """Read the next item and stage it; return None at the end."""
        item: Any = next(items, END)
        if item is END:
            return None
        # Most readers yield batches of one kind, so their fields and their layout are worked out once.
        arrays = item if self._is_like_last(item) else self._check(item)
        slot = reserve(self._layout.nbytes if self._copies else 0)
        staged = StagedBatch(slot, self._layout, self._levels, number)
        if self._copies:
            write_arrays(arrays, slot.views(self._layout))
        else:
            staged.own = list(arrays)
        return staged

    def _is_like_last(self, item: Any) -> bool:
        fields = self._layout.fields
        if not (type(item) is list or type(item) is tuple) or len(item) != len(fields):
            return False
        for value, field in zip(item, fields):  # noqa: B905 - strict= costs time
            if type(value) is not np.ndarray or value.dtype is not field.dtype or value.shape != field.shape:
                return False
        return bool(fields)  # at first there is no earlier batch to compare with

    def _check(self, item: Any) -> list[Array]:
        """Return the arrays of a batch, and keep its layout and its levels for the batches to come."""
        feeds = self._feeds
        if not isinstance(item, list | tuple):
            hint = "; yield its values in feed_list order" if isinstance(item, dict) else ""
            raise SampleError(f"expected a list or tuple of arrays, got {type(item).__name__}{hint}")
        if not item:
            raise SampleError("expected one array per field, got an empty batch")
        if feeds is not None and len(item) != len(feeds):
            names = ", ".join(feed.name for feed in feeds)
            raise SampleError(f"expected {len(feeds)} fields ({names}), got {len(item)}")
        arrays: list[Array] = []
        levels: list[int] = []
        counts: dict[str, int] = {}
        for index, given in enumerate(item):
            feed = None if feeds is None else feeds[index]
            name = str(index) if feed is None else feed.name
            value = as_ragged(given)  # for example Paddle's LoDTensor
            try:
                pieces = self._check_value(value, feed)
            except SampleError as error:
                error.field = name
                raise
            arrays += pieces
            levels.append(len(pieces) - 1)
            # The steps of a ragged feed may come without their division into sequences, and then say nothing
            # about the number of samples.
            if isinstance(value, Ragged):
                counts[name] = len(value)
            elif feed is None or not feed.lod_level:
                counts[name] = len(pieces[0])
        if len(set(counts.values())) > 1:
            raise SampleError(f"all fields of a batch must have the same number of samples, got {counts}")
        self._levels = tuple(levels)
        self._layout = arrange(tuple((array.shape, array.dtype) for array in arrays))
        return arrays

    def _check_value(self, value: Any, feed: FeedSpec | None) -> list[Array]:
        """Return the arrays of one field: its values, and the row splits of a ragged one."""
        if isinstance(value, Ragged):
            pieces = [as_numbers(value.values), *map(as_numbers, value.row_splits)]
            level = len(pieces) - 1
            if level and feed is not None and feed.lod_level != level:
                raise SampleError(
                    f"expected a field of lod_level {feed.lod_level}, got level {level}; "
                    "yield gpuloader.Ragged for a ragged feed, an array for a dense one"
                )
            return pieces
        array = as_numbers(value)
        if array.ndim == 0:
            raise SampleError(f"expected an array with a batch dimension, got the number {array}")
        if feed is None:
            return [array]
        shape = feed.sample_shape
        try:
            return [(fit_if_alike if feed.keeps_shapes else fit)(array, (len(array), *shape))]
        except SampleError:
            expected, got = describe((None, *shape)), describe(array.shape)
            raise SampleError(f"expected shape {expected}, got {got}") from None
