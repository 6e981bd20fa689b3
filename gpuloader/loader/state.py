"""The state of a loader: how far its user has come, small and JSON-able, so that an epoch can go on later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuloader.collate.items import ItemState
from gpuloader.collate.stream import StagedBatch

_COUNTED, _POSITIONED = 1, 2
"""Versions: how far an epoch has come is counted in batches, of whatever they hold, or in samples."""

T = TypeVar("T")


@dataclass(slots=True)
class Progress:
    """How much of an epoch the user has received; prefetched batches do not count.

    Attributes
    ----------
    seed : int or None
        The loader's; None for readers, which have an order of their own.
    epoch : int
        From 0.
    batches : int
        All batches with a smaller number were received.
    beyond : set of int
        Others that were, where batches are delivered as they come.
    workers : dict
        Of an iterable dataset: worker to how far it had come with the last batch received from it.
    crew : int or None
        Of an iterable dataset: how many workers read it, in turn.
    turn : int
        Which of them gives the next batch.
    own : object
        The source's own state behind the last batch received, where it has one.
    size : int or None
        Samples a batch; what is counted in batches is for that size alone.
    shards : int
        Into how many parts batches are cut; a part counts as a batch here.
    ended : bool
        Whether the epoch is over, so that the next one is next.
    step : int or None
        Samples that all ranks together take at a step: the state is then a position in the epoch, for any
        batch size and any number of ranks. None: it is a number of batches.
    base : int
        Position in the epoch where batch 0 begins, below `step`.
    total : int or None
        Samples of the epoch, where that is known.
    """

    seed: int | None
    epoch: int
    batches: int = 0
    beyond: set[int] = field(default_factory=set)
    workers: dict[int, ItemState] = field(default_factory=dict)
    crew: int | None = None
    turn: int = 0
    own: Any = None
    size: int | None = None
    shards: int = 1
    ended: bool = False
    step: int | None = None
    base: int = 0
    total: int | None = None

    @property
    def position(self) -> int | None:
        """How many samples of the epoch all ranks have taken; None where batches say nothing of that."""
        if self.step is not None:
            taken = self.base + self.batches // self.shards * self.step
        elif self.size is not None and self.shards == 1 and self.crew is None:
            taken = self.batches * self.size
        else:
            return None
        return taken if self.total is None else min(taken, self.total)

    def describe(self) -> str:
        """Return in words what the state counts."""
        if self.step is not None:
            beyond = f", and batches of {self.size} beyond them" if self.beyond else ""
            return f"{self.position} samples{beyond}"
        crew = "" if self.crew is None else f", of an iterable dataset read by {max(self.crew, 1)} in turn"
        return f"batches of {self.size} samples a place, {self.shards} a step{crew}"

    def end(self) -> None:
        """Count the end of the epoch."""
        self.ended = True

    def received(self, staged: StagedBatch) -> None:
        """Count a batch."""
        if self.crew is not None:
            self.batches += 1  # whose numbers have gaps, where a worker's items came to their end
        elif staged.number == self.batches:
            self.batches += 1
            while self.beyond and self.batches in self.beyond:
                self.beyond.remove(self.batches)
                self.batches += 1
        else:
            self.beyond.add(staged.number)
        state = staged.state
        if state is None:
            return
        if isinstance(state, ItemState):
            self.workers[state.worker] = state
            self.turn = (state.worker + 1) % (self.crew or 1)
        elif self.step is None:
            self.own = state

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data; see `from_json`."""
        if self.step is not None:
            return self._to_position()
        state: dict[str, Any] = {"version": _COUNTED, "epoch": self.epoch, "batches": self.batches}
        if self.seed is not None:
            state["seed"] = self.seed
        if self.size is not None:
            state["batch_size"] = self.size
        if self.shards > 1:
            state["shards"] = self.shards
        if self.beyond:
            state["beyond"] = sorted(self.beyond)
        if self.crew is not None:
            state["turn"] = self.turn
            reached = [self.workers.get(worker, ItemState(worker, 0)) for worker in range(self.crew)]
            state["workers"] = [[one.batches, one.state, *([True] if one.ended else [])] for one in reached]
        if self.own is not None:
            state["source"] = self.own
        return state

    def _to_position(self) -> dict[str, Any]:
        state: dict[str, Any] = {"version": _POSITIONED, "epoch": self.epoch, "seed": self.seed}
        state["position"] = self.position
        if self.beyond:
            state["batch_size"] = self.size
            state["beyond"] = [number - self.batches for number in sorted(self.beyond)]
        return state


class Course:
    """Which epoch is next, and how far the user of the latest one has come.

    Parameters
    ----------
    fresh : callable
        Takes the number of an epoch; gives its progress before the first batch.
    """

    def __init__(self, fresh: Callable[[int], Progress]) -> None:
        self._fresh = fresh
        self._latest: Progress | None = None
        self._resumed: Progress | None = None
        self._next = 0

    def begin(self, open_epoch: Callable[[Progress], T]) -> T:
        """Open the next epoch, or the one that is resumed; nothing has happened if that fails."""
        progress = self._resumed or self._fresh(self._next)
        opened = open_epoch(progress)
        self._resumed, self._latest, self._next = None, progress, progress.epoch + 1
        return opened

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the next one: from its start, unless it is the one to be resumed."""
        if self._resumed is None or self._resumed.epoch != epoch:
            self._resumed = None
        self._latest, self._next = None, epoch

    def resume(self, progress: Progress) -> None:
        """Go on from there when an epoch next begins."""
        self._resumed = progress

    def state(self) -> dict[str, Any]:
        """Return as plain data where a loader that goes on from here has to begin."""
        progress = self._resumed or self._latest
        if progress is None or progress.ended:
            progress = self._fresh(self._next)
        return progress.to_json()


def read_state(state: object) -> Progress:
    """Return what `Progress.to_json` wrote.

    Raises
    ------
    TypeError
        The state is not a dict.
    ValueError
        It is not one of a loader, or of a version that this package does not know.

    Examples
    --------
    >>> read_state({"version": 1, "epoch": 2, "batches": 5, "seed": 7}).batches
    5
    >>> read_state({"version": 2, "epoch": 2, "position": 320, "seed": 7}).position
    320
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a state must be a dict, as state_dict() returns it, got {type(state).__name__}")
    version = state.get("version")
    if version not in (_COUNTED, _POSITIONED):
        raise ValueError(
            f"the state has version {version!r}, expected {_COUNTED} or {_POSITIONED}: it was not made by "
            "state_dict() of a loader, or by a later release"
        )
    try:
        if version == _POSITIONED:
            return _read_position(state)
        workers = state.get("workers")
        return Progress(
            None if state.get("seed") is None else _count(state["seed"], 2**64),
            _count(state["epoch"], 2**64),
            _count(state["batches"]),
            {_count(number) for number in state.get("beyond", ())},
            {
                worker: ItemState(worker, _count(batches), own, ended=ended == [True])
                for worker, (batches, own, *ended) in enumerate(workers or ())
            },
            None if workers is None else len(workers),
            _count(state.get("turn", 0), len(workers or ()) or 1),
            state.get("source"),
            None if state.get("batch_size") is None else _count(state["batch_size"]),
            _count(state.get("shards", 1)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state is damaged ({type(error).__name__}: {error}): {dict(state)}") from error


def _read_position(state: Mapping[str, Any]) -> Progress:
    size = state.get("batch_size")
    return Progress(
        _count(state["seed"], 2**64),
        _count(state["epoch"], 2**64),
        beyond={_count(number) for number in state.get("beyond", ())},
        size=None if size is None else _count(size),
        step=1,
        base=_count(state["position"]),
    )


def _count(value: Any, limit: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"expected a whole number of 0 or more, got {value!r}")
    if limit is not None and value >= limit:
        raise ValueError(f"expected a whole number below {limit}, got {value}")
    return value
