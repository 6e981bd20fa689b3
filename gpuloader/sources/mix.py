"""`MixDataset`: datasets mixed in proportion to their weights, by index or as streams."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gpuloader.checks import check_word
from gpuloader.errors import BadType
from gpuloader.order.order import AT_END, as_weights
from gpuloader.order.randomness import MIXED, Draw, current_draw, derive_key, exchange_draw, sort_hashes
from gpuloader.order.samplers import MixSampler, Sampler
from gpuloader.order.worker_info import ask_ranks
from gpuloader.sources.array_rows import own_method
from gpuloader.sources.dataset import ConcatDataset, IterableDataset, MapStyle, S, is_iterable


class MixDataset(ConcatDataset[S]):
    """Several datasets, mixed in proportion to their weights: map-style ones, or streams.

    **Streams** are iterable datasets, such as Parquet, tar and Hugging Face's. They take turns: of every
    1,024 samples, each has its share, in random order. Every worker mixes its own parts of the streams.
    Streams can resume mid-epoch; one that cannot tell its position is read again up to there. If all are
    datasets in files, other workers and ranks can continue. A repeated stream that shuffles draws a new
    order for each pass. The rest of this text is about map-style datasets.

    A loader reads a mix in the order of its `default_sampler`: among every 4,096 samples, each dataset has
    its share. With ``shuffle=True`` these are in random order, and every pass over a dataset has a new random
    order. The order depends only on the seed and the epoch, so a loader can resume mid-epoch, and ranks can
    divide it.

    As a map-style dataset, it holds the samples of its datasets one after another, like `ConcatDataset`;
    ``len(loader)`` is the length of an epoch. Only its own order honors the weights, so other datasets,
    `random_split` and loaders with a sampler refuse a mix: split or concatenate before you mix. PyTorch's
    DataLoader ignores the weights unless it gets ``sampler=mix.default_sampler(shuffle=True)``.

    Parameters
    ----------
    datasets : sequence of map-style datasets, or of iterable ones
        One or more non-empty datasets. Their samples must have the same fields.
    weights : array-like
        One number above 0 per dataset; they need not sum to 1.
    at_end : str, or list of str for streams
        What happens when a dataset has been read to its end. 'stop' ends the epoch, so only part of the other
        datasets is read; with `shuffle`, a different part every epoch. 'repeat' reads it again, until all
        have been read at least once. 'drop' continues with the others, so every sample is read once. For
        streams, a list gives each its own word: the epoch ends when one with 'stop' has ended, or all have.

    Raises
    ------
    TypeError
        Some datasets are map-style and some iterable, or one is itself a `MixDataset` of map-style ones.
    ValueError
        There are no datasets, one is empty, there is not one weight above 0 for each, or `at_end` is unknown.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> mix = MixDataset([["a", "b"], "stuvwxyz"], weights=[1, 2])
    >>> len(mix), [letters for letters in DataLoader(mix, places="cpu", batch_size=3)]
    (10, [['s', 'a', 't'], ['u', 'b', 'v']])
    >>> mix = MixDataset([["a", "b"], "stuvwxyz"], [1, 2], at_end="repeat")
    >>> "".join(letter for (letter,) in DataLoader(mix, places="cpu"))
    'satubvwaxybz'
    >>> class Letters(IterableDataset[str]):
    ...     def __init__(self, letters):
    ...         self.letters = letters
    ...
    ...     def __iter__(self):
    ...         return iter(self.letters)
    >>> streams = MixDataset([Letters("ab"), Letters("stuv")], [1, 1], at_end=["repeat", "stop"])
    >>> [letters for letters in DataLoader(streams, places="cpu", batch_size=4, seed=1)]
    [['s', 'a', 't', 'b'], ['u', 'v', 'a']]
    """

    _instead_of_a_mix = "mix all datasets at once, each with the product of its weights"

    def __new__(
        cls, datasets: Iterable[Any] = (), weights: ArrayLike = (), *, at_end: str | Sequence[str] = "stop"
    ) -> Any:
        """Return an empty mix, which pickle creates without arguments, or a mix of streams."""
        if isinstance(datasets, list | tuple) and any(map(_is_stream, datasets)):
            return MixedStreams(datasets, weights, at_end)
        return super().__new__(cls)

    def __init__(self, datasets: Iterable[MapStyle[S]], weights: ArrayLike, *, at_end: str = "stop") -> None:
        super().__init__(datasets)
        self.weights = as_weights(weights, 0, replacement=True, zero=False)
        check_word("at_end", at_end, AT_END)
        self.at_end = at_end
        if len(self.weights) != len(self.datasets):
            raise ValueError(
                f"weights must be one number per dataset: {len(self.datasets)}, got {len(self.weights)}"
            )
        sizes = np.diff(self.cumulative_sizes, prepend=0)
        if not sizes.all():
            raise ValueError(f"dataset {sizes.argmin()} is empty; leave it out of the mix")
        # Computed here, because it raises if the epoch would be too long.
        self.default_sampler(shuffle=False)

    def __repr__(self) -> str:
        weights = ", ".join(f"{weight:g}" for weight in self.weights[:8])
        more = ", …" if len(self.weights) > 8 else ""
        epoch = len(self.default_sampler(shuffle=False))
        return (
            f"<{type(self).__name__}: {len(self):,} samples of {len(self.datasets)} datasets with the "
            f"weights {weights}{more}; {epoch:,} per epoch, at_end={self.at_end!r}>"
        )

    def default_sampler(self, shuffle: bool) -> Sampler[int]:
        """Return the sampler with which loaders read the mix, unless they are given a different one.

        `shuffle` shuffles each dataset, and the datasets among each other.

        >>> list(MixDataset(["ab", "cd"], [1, 1]).default_sampler(shuffle=False))
        [0, 2, 1, 3]
        """
        sizes = np.diff(self.cumulative_sizes, prepend=0).tolist()
        return MixSampler(sizes, self.weights.tolist(), self.at_end, shuffle=shuffle)


# Streams, mixed by weight.

_TURNS, _BLOCK = 1024, 64
"""Turns within which each stream has its share, and samples to take from a stream in columns at a time."""

_END = object()
_NOT_BEGUN = [0, False, None, 0]  # the state of a stream, with the fields of `_Reading`


def _is_stream(dataset: object) -> bool:
    # Those of Hugging Face derive from PyTorch's class only while they are iterated.
    return is_iterable(dataset) or (not hasattr(dataset, "__getitem__") and isinstance(dataset, Iterable))


class MixedStreams(IterableDataset[S]):
    """Iterable datasets in turns, in proportion to their weights; made and described by `MixDataset`."""

    _leaves_out: ClassVar[bool] = True

    def __init__(self, datasets: Sequence[Any], weights: ArrayLike, at_end: str | Sequence[str]) -> None:
        for position, one in enumerate(datasets):
            if not _is_stream(one):
                raise BadType(
                    f"dataset {position} must be iterable like the others, got the map-style "
                    f"{type(one).__name__}: mix map-style datasets with each other, or iterable ones"
                )
        self.datasets: list[Any] = []
        for one in datasets:  # one that is listed twice is read at two positions
            self.datasets.append(copy.copy(one) if any(one is other for other in self.datasets) else one)
        self.weights = as_weights(weights, 0, replacement=True, zero=False)
        self.at_end = [at_end] * len(datasets) if isinstance(at_end, str) else list(at_end)
        for word in self.at_end:
            check_word("at_end", word, AT_END)
        for name, given in (("weights", self.weights), ("at_end", self.at_end)):
            if len(given) != len(datasets):
                raise ValueError(f"{name} must be one per dataset: {len(datasets)}, got {len(given)}")
        self._resumed: tuple[int, list[Any]] | None = None
        self._reached: tuple[int, list[_Reading]] = 0, []
        self._ranks = 1  # that divided the streams in the latest pass

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reached": (0, [])}  # a pass that has begun reads iterators of this process

    def __iter__(self) -> Iterator[S]:
        drawn, streams = self._resumed or (0, [_NOT_BEGUN] * len(self.datasets))
        self._resumed = None
        _, self._ranks = ask_ranks()
        readings = [_Reading(one, *at) for one, at in zip(self.datasets, streams, strict=True)]
        draw = current_draw()
        of_turns, turns = None, []
        try:
            while not all(one.gone for one in readings):
                key = drawn // _TURNS, [one.gone for one in readings]
                if key != of_turns:
                    of_turns, turns = key, self._take_turns(draw.seed or 0, draw.epoch, *key)
                which = turns[drawn % _TURNS]
                reading = readings[which]
                item = reading.take()
                if item is not _END:
                    drawn += 1
                    self._reached = drawn, readings
                    yield item
                    continue
                empty = reading.end()
                # A worker may have no share of a stream; it continues with the others.
                reading.gone = empty or self.at_end[which] == "drop"
                stops = self.at_end[which] == "stop" and not empty
                if stops or all(one.passes for one in readings):
                    return
        finally:
            for one in readings:
                one.items = None  # ends what reads them, although the state stays

    def _take_turns(self, seed: int, epoch: int, block: int, gone: list[bool]) -> list[int]:
        """Return whose turn it is in a block of turns; every stream has its share, in random order."""
        key = derive_key(seed, epoch, MIXED, block)
        # Offset by part of a turn, so that a share of less than one turn per block appears in some blocks.
        points = (sort_hashes(_TURNS, key).view(np.int64) + (derive_key(key) >> 11) / 2**53) / _TURNS
        ends = np.cumsum(np.where(gone, 0.0, self.weights))
        turns: list[int] = np.searchsorted(ends / ends[-1], points, side="right").tolist()
        return turns

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest pass: the turns taken, and where each stream is."""
        drawn, readings = self._reached
        return {"drawn": drawn, "ranks": self._ranks, "streams": [one.state_dict() for one in readings]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume at a state; raise `ValueError` if it is not that of as many streams."""
        self._resumed = (int(state["drawn"]), self._streams_of(state))

    def _streams_of(self, state: Mapping[str, Any]) -> list[Any]:
        streams = state.get("streams")
        if not isinstance(streams, list) or len(streams) not in (0, len(self.datasets)):
            raise ValueError(f"this is not the state of a mix of {len(self.datasets)} streams: {state}")
        return streams or [_NOT_BEGUN] * len(self.datasets)

    @property
    def _divide_states(self) -> Callable[..., Any]:
        """Divides what is left among other workers, as for files; exists only if all streams can do so."""
        if not all(hasattr(one, "_divide_states") for one in self.datasets):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute '_divide_states'")
        return self._divide

    def _divide(
        self, states: Sequence[Any], workers: int, known: int = 1, mixed: tuple[int, int] | None = None
    ) -> Any:
        begun = [None if one is None else self._streams_of(one or {"streams": []}) for one in states]
        _, here = ask_ranks()
        ranks = next((one.get("ranks", here) for one in states if one), known if known > 1 else here)
        readers, ranks = mixed or (workers * (1 if known == 1 and ranks == here else here), ranks)
        ends = readers
        while True:
            count = ends
            how = workers, known, (count, ranks)
            found = [self._share(at, begun, *how) for at in range(len(self.datasets))]
            shares = [one for one in found if one is not None]
            if len(shares) < len(found):
                return None
            # A stream with 'stop' ends the epoch of the workers that have a part of it. If there are too few
            # parts, the other workers have ended, and leave what is left of all streams to these.
            ended = [sum(not one[1] for one in share) for share in shares]
            stops = [number for number, word in zip(ended, self.at_end, strict=True) if word == "stop"]
            ends = min(filter(None, stops), default=count)
            if ends == count:
                break
        drawn = sum(state.get("drawn", 0) for state in states if state) // count
        left: list[dict[str, Any] | None] = [None] * readers
        for worker, streams in enumerate(zip(*shares, strict=True)):
            if any(state for *_, state, _ in streams):
                left[worker] = {"drawn": drawn, "ranks": here, "streams": list(streams)}
        return left

    def _share(
        self, at: int, begun: Sequence[Any], workers: int, known: int, mixed: tuple[int, int]
    ) -> list[Any] | None:
        """Return the states with which the workers continue a stream, or None for their own."""
        streams = [None if one is None or one[at][1] else one[at] for one in begun]
        passes = min((one[0] for one in streams if one), default=None)
        if passes is None:  # nothing is left of it
            return [[1, True, None, 0]] * mixed[0]
        # A worker that repeats it already has nothing left of the pass that others have not completed.
        latest = [one if one and one[0] == passes else None for one in streams]
        if any(one and one[3] for one in latest):
            raise ValueError("the state of a mix of an earlier release is for as many workers; use as many")
        left = [one and (one[2] or {}) for one in latest]
        outer = exchange_draw(_draw_of(passes))
        try:
            found = self.datasets[at]._divide_states(left, workers, known, mixed)
        finally:
            exchange_draw(outer)
        over = [passes + 1, self.at_end[at] != "repeat", None, 0]
        return found and [[passes, False, state, 0] if state else over for state in found]


def _draw_of(passes: int) -> Draw:
    """Return the draw of a later pass over a stream, which shuffles again."""
    draw = current_draw()
    again = Draw(draw.seed, draw.epoch + (passes << 32))
    again.index, again.skips = draw.index, draw.skips
    return again


@dataclass(eq=False, repr=False)
class _Reading:
    """How far a stream has been read, and its next items."""

    dataset: Any
    passes: int = 0  # completed passes
    gone: bool = False  # whether it is not read again
    state: Any = None  # its own, from before the `taken` items of the pass; None at the start of a pass
    taken: int = 0
    items: Iterator[Any] | None = None
    tells: bool = False  # whether its own state is that after the items taken

    def take(self) -> Any:
        """Return the next item, or `_END`."""
        if self.items is None:
            # The stream may look up the epoch only when it is asked for its first item.
            outer = exchange_draw(_draw_of(self.passes))
            try:
                items = itertools.islice(self._read(), self.taken, None)
                self.items = itertools.chain(list(itertools.islice(items, 1)), items)
            finally:
                exchange_draw(outer)
        item = next(self.items, _END)
        self.taken += item is not _END
        return item

    def _read(self) -> Iterator[Any]:
        """Yield the items of a pass, starting at the stream's own state."""
        keeps = callable(getattr(self.dataset, "load_state_dict", None))
        if self.state is not None:
            self.dataset.load_state_dict(self.state)
        blocks = own_method(self.dataset, "iter_blocks", overriding={"__iter__"})
        if blocks is None:
            for item in self.dataset:
                self.tells = keeps
                yield item
            return
        for block in blocks(_BLOCK):
            yield from block
            if keeps:
                self.state, self.taken = copy.deepcopy(self.dataset.state_dict()), 0

    def end(self) -> bool:
        """Record the end of a pass; return whether it had no items."""
        empty = self.state is None and not self.taken
        self.passes, self.state, self.taken, self.items, self.tells = self.passes + 1, None, 0, None, False
        return empty

    def state_dict(self) -> list[Any]:
        """Return the fields from which to create it again, without the dataset."""
        state, taken = self.state, self.taken
        if self.tells:
            state, taken = self.dataset.state_dict(), 0
        elif taken and self.items is not None and hasattr(self.dataset, "_state_within"):
            state, taken = self.dataset._state_within(taken), 0
        return [self.passes, self.gone, state, taken]
