"""The state of a loader: the user's position in an epoch, small enough for JSON, to resume from later."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from gpuloader.batches.items import ItemState
from gpuloader.batches.staged import StagedBatch
from gpuloader.errors import ReaderError, SampleError
from gpuloader.fetch.contract import interrupted
from gpuloader.order.batching import Batching
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.order.samplers import Sampler
from gpuloader.order.torch_order import TorchOrder
from gpuloader.order.worker_info import ask_ranks
from gpuloader.sources.describing import READ_ONCE, Source
from gpuloader.system.iterators import find_kept, may_start_over

_COUNTED, _POSITIONED = 1, 2
"""Versions of a state: one counts the batches of its epoch, whatever they hold, the other the samples."""

_MOST_BEYOND = 1 << 22
"""The most batches in one run beyond the first missing one; a damaged state may say anything."""


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Position:
    """The part of an epoch that the user has received; batches read ahead do not count."""

    seed: int | None  # None for readers, which determine their own order
    epoch: int
    # All batches below `batches` were received, and with in_order=False those in `beyond` as well. Numbers,
    # not a count: the first missing batch may be missing for long while one worker holds it.
    batches: int = 0
    beyond: set[int] = field(default_factory=set)
    # For an iterable dataset: where each worker is after its last received batch, how many workers read in
    # turn, and whose batch is next. What it yields depends on their number, so a state keeps that number.
    workers: dict[int, ItemState] = field(default_factory=dict)
    readers: int | None = None
    turn: int = 0
    persists: bool = False  # whether `seed` is that of PyTorch's persistent workers, kept for later epochs
    # How many workers hold a copy of a map-style dataset with a state of its own, kept in `workers`. 0 if
    # this process reads it, None if no such state is kept.
    copies: int | None = None
    own: Any = None  # the source's own state after the last received batch
    # Samples per batch, and parts per batch. A part counts as a batch, so a count of batches is valid only
    # for these two numbers.
    size: int | None = None
    shards: int = 1
    ended: bool = False  # so that the next loop begins the next epoch
    failed: list[int] = field(default_factory=list)  # batches that have raised since the last one received
    # With a `step`, the samples that all ranks together take per step, the state is a position in the epoch,
    # valid for any batch size and number of ranks: `base` is the position of batch 0, and `total` the end, if
    # known. Without a `step` it is a count of batches.
    step: int | None = None
    base: int = 0
    total: int | None = None
    dealt: bool = False  # `step`, `base` and `total` count the batches of a batch sampler that ranks share
    ranks: int | None = None  # how many ranks the user's sampler divides the dataset among
    order_size: int | None = None  # the batch size, or the chunks of a window, if the order depends on it
    torch_order: TorchOrder | None = None  # the epoch's order, if a PyTorch sampler draws it

    @property
    def taken(self) -> int | None:
        """Samples, or batches if `dealt`, that all ranks have taken; None if the batches cannot tell."""
        if self.step is not None:
            taken = self.base + self.batches // self.shards * self.step
        elif self.size is not None and self.shards == 1 and self.readers is None:
            taken = self.batches * self.size
        else:
            return None
        return taken if self.total is None else min(taken, self.total)

    def describe(self) -> str:
        """Return what the state counts, phrased for an error message."""
        beyond = f", and batches of {self.size} beyond them" if self.beyond else ""
        if self.step is not None:
            return f"{self.taken} samples{beyond}"
        of = "" if self.readers is None else f", of an iterable dataset with {max(self.readers, 1)} readers"
        return f"batches of {self.size} samples per place, {self.shards} per step{of}{beyond}"

    def received(self, staged: StagedBatch) -> None:
        """Record that the user has received a batch."""
        if self.readers is not None:
            self.batches += 1  # the numbers have gaps once a worker runs out of items
        else:
            beyond = self.beyond
            while self.failed:  # the loop has continued without them
                beyond.add(self.failed.pop())
            if staged.number == self.batches:  # as nearly always
                self.batches += 1
            else:
                beyond.add(staged.number)
            while self.batches in beyond:  # as always, in order
                beyond.remove(self.batches)
                self.batches += 1
        state = staged.state
        if isinstance(state, ItemState):
            self.workers[state.worker] = state
            self.turn = (state.worker + 1) % (self.readers or 1)
        elif state is not None and self.step is None:  # its own state means nothing with other batches
            self.own = state

    def missed(self, error: SampleError) -> None:
        """Record that the user has received an error instead of a batch."""
        # Until the next batch, a state is that before the error: a loop that resumes reads the batch again.
        if error.batch is not None:
            self.failed.append(error.batch)

    @property
    def is_divided(self) -> bool:
        """Whether workers have divided what was left, so that counting their batches is not enough."""
        return self.readers is not None and sum(one.batches for one in self.workers.values()) != self.batches

    def can_divide(self, dataset: Any, *, alone: bool) -> bool:
        """Return whether other workers and ranks can continue in a dataset's files from here.

        `alone` says whether each of them has a dataset of its own.
        """
        # Several threads share one dataset, which does not know the position of each.
        if self.batches and not alone:
            return False
        tell = all(one.state is not None or one.ended or not one.batches for one in self.workers.values())
        return self.readers is not None and hasattr(dataset, "_divide_states") and tell

    def divide(self, dataset: Any, readers: int, *, alone: bool, ranks: Sequence[Position] = ()) -> None:
        """Let `readers` workers of this rank, as it is now, continue from here, if they can.

        `ranks` are the positions of all ranks that there were until now, if they are known.
        """
        if not self.can_divide(dataset, alone=alone):
            return
        outer = exchange_draw(Draw(self.seed, self.epoch))  # the order of the files depends on the epoch
        try:
            begun = zip(*[one._list_begun(self.epoch) for one in ranks or (self,)], strict=True)
            states = dataset._divide_states([*itertools.chain(*begun)], readers, len(ranks) or 1)
        finally:
            exchange_draw(outer)
        if states and len(states) > readers:  # those of the workers of all ranks
            rank, count = ask_ranks()
            states = states[rank::count]
        for worker, state in enumerate(states or ()):
            self.readers, self.turn = readers, 0
            self.workers[worker] = ItemState(worker, 0, state or None, ended=state is None)

    def _list_begun(self, epoch: int) -> list[Any]:
        """Return the own states of this rank's workers in an epoch, as `_divide_states` takes them."""
        begun = [self.workers.get(worker, ItemState(worker, 0)) for worker in range(self.readers or 0)]
        return [None if one.ended or self.epoch > epoch else one.state or {} for one in begun]

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data, which `read_state` reads."""
        state: dict[str, Any]
        known = {"ranks": self.ranks, "order_batch_size": self.order_size}  # left out if None
        if self.step is not None and not self.dealt:
            state = {"version": _POSITIONED, "epoch": self.epoch, "seed": self.seed, "position": self.taken}
            if self.beyond:
                # Relative to the position: another loader may number its batches in another way.
                beyond = sorted(number - self.batches for number in self.beyond)
                state |= {"batch_size": self.size, "beyond": _shorten(beyond)}
        else:
            batches = self.taken if self.dealt else self.batches
            state = {"version": _COUNTED, "epoch": self.epoch, "batches": batches}
            known |= {"seed": self.seed, "batch_size": self.size, "source": self.own}
            if self.shards > 1:
                state["shards"] = self.shards
            if self.beyond:
                state["beyond"] = _shorten(sorted(self.beyond))
            if self.readers is not None:
                state["turn"] = self.turn
                reached = [self.workers.get(worker, ItemState(worker, 0)) for worker in range(self.readers)]
                state["workers"] = [[one.batches, one.state, *[True] * one.ended] for one in reached]
        if self.copies is not None:
            state["dataset"] = [self.copies, [[one.worker, one.state] for one in self.workers.values()]]
        state |= {name: value for name, value in known.items() if value is not None}
        if self.torch_order is not None:
            state["drawn"] = self.torch_order.origin
        return state


def read_state(state: object) -> Position:
    """Return the position that `Position.to_json` wrote; raise `TypeError` or `ValueError` for anything else.

    >>> read_state({"version": 1, "epoch": 2, "batches": 5, "seed": 7}).batches
    5
    >>> read_state({"version": 2, "epoch": 2, "position": 320, "seed": 7}).taken
    320
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a state must be a dict, as state_dict() returns it, got {type(state).__name__}")
    version = state.get("version")
    if version not in (_COUNTED, _POSITIONED):
        raise ValueError(
            f"the state has version {version!r}, expected {_COUNTED} or {_POSITIONED}: it was not made by "
            "a loader's state_dict(), or was made by a later release"
        )
    try:
        read = Position(
            None if state.get("seed") is None else _count(state["seed"], 2**64),
            _count(state["epoch"], 2**64),
            beyond=_lengthen(state.get("beyond", ())),
            size=_count_or_none(state, "batch_size"),
            order_size=_count_or_none(state, "order_batch_size"),
            ranks=_count_or_none(state, "ranks"),
        )
        if (drawn := state.get("drawn")) is not None:
            read.torch_order = TorchOrder(drawn if isinstance(drawn, str) else _count(drawn, 2**63))
        read.persists = state.get("persists") is True
        copies, own = state.get("dataset", (None, ()))
        read.copies = None if copies is None else _count(copies)
        read.workers = {_count(worker): ItemState(worker, 0, one) for worker, one in own}
        if read.copies == 0:
            read.workers[0]  # this process's, which the next epoch begins with
        if version == _POSITIONED:
            read.seed = None if state["seed"] is None else read.seed
            read.step, read.base = 1, _count(state["position"])
            return read
        workers = state.get("workers")
        read.batches, read.shards = _count(state["batches"]), _count(state.get("shards", 1))
        read.readers = None if workers is None else len(workers)
        read.turn = _count(state.get("turn", 0), len(workers or ()) or 1)
        read.own = state.get("source")
        for worker, (batches, own, *ended) in enumerate(workers or ()):
            read.workers[worker] = ItemState(worker, _count(batches), own, ended=ended == [True])
        return read
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state is damaged ({type(error).__name__}: {error}): {dict(state)}") from error


def _shorten(numbers: list[int]) -> list[Any]:
    """Return ascending numbers, with runs of three or more as pairs of their first and last.

    While one worker holds the oldest batch, any number of later ones may be delivered. These form runs
    between the batches in progress, so the state stays small.

    >>> _shorten([2, 4, 5, 7, 8, 9])
    [2, 4, 5, [7, 9]]
    """
    found: list[Any] = []
    for _, run in itertools.groupby(enumerate(numbers), lambda entry: entry[1] - entry[0]):
        first, *more = (number for _, number in run)
        found += [[first, more[-1]]] if len(more) > 1 else [first, *more]
    return found


def _lengthen(entries: Any) -> set[int]:
    """Return the numbers that `_shorten` has shortened."""
    found: set[int] = set()
    for entry in entries:
        first, last = entry if isinstance(entry, list | tuple) else (entry, entry)
        # A damaged state could let this set fill the memory.
        if _count(last) - _count(first) > _MOST_BEYOND:
            raise ValueError(f"expected fewer batches beyond the first missing one, got {entry}")
        found.update(range(first, last + 1))
    return found


def _count_or_none(state: Mapping[str, Any], name: str) -> int | None:
    return None if state.get(name) is None else _count(state[name])


def _count(value: Any, limit: int | None = None) -> int:
    # A checkpoint library may return NumPy's integers.
    number = -1 if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number < 0:
        raise ValueError(f"expected a whole number of 0 or more, got {value!r}")
    if limit is not None and number >= limit:
        raise ValueError(f"expected a whole number below {limit}, got {value}")
    return number


# The end of an epoch, and the error for an epoch that is empty because an earlier one has read its source.

OF_BATCHES = "pass a loader, a list, or an object whose __iter__ makes a new iterator"
_OF_SAMPLERS = "pass a list, or an object whose __iter__ makes a new iterator"
_OF_CLASSES = "make a new iterator in every call, for example by writing __iter__ with yield"
_OF_READERS = "make a new iterator in every call, for example by writing the reader with yield"
_READ = "and an earlier epoch has read it"


def end_epoch(position: Position, find_spent: Callable[[], str], *, was_divided: bool = False) -> None:
    """Record that an epoch is over.

    `find_spent` returns what can be read only once and what to do instead, or '' if the source starts over.
    It is called only for later epochs without any batch, because it begins two more passes.

    Raises
    ------
    LoaderError
        A batch was lost. `was_divided` is what `Position.is_divided` was when the epoch began.
    ReaderError
        The epoch had no samples, because its source was spent.
    """
    # A Ctrl-C between two lines of this package can drop a batch that is being handed over, and a loop that
    # catches it may continue. Only the numbers of the other batches show that one is missing.
    if (position.beyond and not position.failed) or (position.is_divided and not was_divided):
        raise interrupted()
    position.ended = True
    if position.torch_order is not None:
        position.torch_order.draw_until(math.inf)
    read = position.batches or position.beyond or position.failed or position.base
    if not position.epoch or read or position.own is not None:
        return
    if problem := find_spent():
        raise ReaderError(f"epoch {position.epoch} has no samples, because {problem}") from None


def find_spent(source: Source, batching: Batching, *, drops: bool) -> str:
    """Return which part of a loader's source can be read only once; see `end_epoch`.

    `drops` says that the epoch may have had samples, but too few for a step.
    """
    if batching.iterable:
        found = (find_once("the dataset", one.dataset, READ_ONCE, drops) for one in (source, *source.chained))
        return next(filter(None, found), "")
    # From the outermost sampler inwards: the first spent one is the one to name.
    for what, one in () if batching.given is None else batching.given.inside:
        if getattr(type(one), "__iter__", None) is Sampler.__iter__:
            break  # it only computes its order
        if problem := find_once(what, one, _OF_SAMPLERS, drops):
            return problem
        generator = getattr(one, "generator", None)
        drawn = f"the generator of {what}"
        if isinstance(generator, Iterator) and (problem := find_once(drawn, generator, _OF_SAMPLERS, drops)):
            return problem
    return ""


def find_spent_reader(reader: Callable[[], Any]) -> str:
    """Return that a reader returns the same iterator in every call, if that is so; see `find_spent`."""
    kept = find_kept(reader)
    if kept is None or may_start_over(kept):  # there may have been too few items for a step
        return ""
    return f"the reader returns the same {type(kept).__name__} every time, {_READ}: {_OF_READERS}"


def find_once(what: str, source: Any, instead: str, drops: bool) -> str:
    """Return that a source is an iterator, or returns the same one every time; empty if it starts over."""
    kind = type(source).__name__
    kept = find_kept(lambda: iter(source))
    if kept is None or (drops and may_start_over(kept)):
        return ""
    if kept is source:
        return f"{what} is a {kind}, which can be read only once, {_READ}: {instead}"
    return f"{kind}.__iter__ returns the same {type(kept).__name__} every time, {_READ}: {_OF_CLASSES}"
