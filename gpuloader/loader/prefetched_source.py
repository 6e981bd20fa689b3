"""One pass over the iterable that `prefetch` wraps, and the states of that iterable on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuloader.base.once import Steady, refuse_read
from gpuloader.collate.stream import StagedBatch, close_items
from gpuloader.loader.spent import OF_BATCHES


@dataclass(frozen=True, slots=True)
class Moment:
    """What was true of the iterable right after it yielded a batch.

    Attributes
    ----------
    own : object
        The iterable's own state; None if it has none.
    is_last : bool
        Whether the iterable has announced that batch as its last one.
    """

    own: Any
    is_last: bool


_NOTHING = Moment(None, False)


def has_state(batches: Any) -> bool:
    """Return whether an iterable can return its state and resume from it.

    >>> has_state([1, 2])
    False
    """
    # Accelerate's loaders have the methods, whether or not the loader inside has.
    inside = getattr(batches, "base_dataloader", batches)
    methods = ("state_dict", "load_state_dict")
    return all(callable(getattr(one, name, None)) for one in (batches, inside) for name in methods)


class PrefetchedSource:
    """One pass over an iterable of batches: the reader of an epoch, as `stage_all` takes it.

    The iterator is made by the thread that asks for the first batch, because loaders start their worker
    processes then. Batches may be read by another thread, and further ahead than the user is. So each
    batch takes along what was true of the iterable when it was read.

    Loaders prepared by Accelerate announce their last batch to the whole program. That must not happen before
    the user has received it, so it is taken back when the batch is read, and repeated by `delivered`. Such a
    loader is to be read by the thread that asks for batches.

    Parameters
    ----------
    batches : iterable
        What is read.
    stateful : bool
        Whether to ask the iterable for its state after every batch.

    Attributes
    ----------
    announces : bool
        Whether the iterable announces its last batch.

    Raises
    ------
    ReaderError
        The iterable is a generator that has been read already.
    """

    def __init__(self, batches: Any, *, stateful: bool) -> None:
        refuse_read(batches, "the iterable of batches is", OF_BATCHES)
        self._batches = batches
        self._stateful = stateful
        self.announces = hasattr(batches, "end_of_dataloader") and hasattr(batches, "gradient_state")
        self._is_last = False
        self._items = Steady.of(iter(batches))

    def __call__(self) -> Iterator[Any]:
        """Return the iterator of the pass."""
        return self._read_to_last() if self.announces else self._items

    def _read_to_last(self) -> Iterator[Any]:
        """Yield the batches up to the announced last one, behind which the iterable would end its pass."""
        try:
            for batch in self._items:
                self._is_last = self._batches.end_of_dataloader
                self._batches.end_of_dataloader = False
                yield batch
                if self._is_last:
                    return
        finally:
            if not self._is_last:
                close_items(self._items)

    def state_dict(self) -> Moment:
        """Return what is true of the iterable now; called right after each batch was read."""
        if not (self._stateful or self._is_last):
            return _NOTHING
        return Moment(self._batches.state_dict() if self._stateful else None, self._is_last)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the iterable has had its state since the user loaded it."""

    def delivered(self, staged: StagedBatch) -> None:
        """Reduce the state of a batch to the iterable's own, because the user has received it."""
        moment: Moment = staged.state
        staged.state = moment.own
        if moment.is_last:
            self._batches.end_of_dataloader = True

    def finish(self) -> None:
        """Let the iterable end its pass; called when the user has received every batch."""
        if self._is_last:
            next(self._items, None)
