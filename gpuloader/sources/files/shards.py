"""Shards: in which order they are read, by whom, from where on, and how their samples are shuffled.

A dataset in shards (files, row groups) is read by streams: one a worker of each rank. A stream's samples are
a function of the dataset's seed, the epoch and the stream's number alone, so reading can go on anywhere in
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gpuloader.base.checks import check_count
from gpuloader.order.computed import check_whole
from gpuloader.order.order import Shuffled
from gpuloader.order.randomness import current_draw, mixed_seed
from gpuloader.order.ranks import find_rank
from gpuloader.order.worker_info import get_worker_info
from gpuloader.sources.block import Rows
from gpuloader.sources.dataset_base import IterableDataset, S


class Piece(Protocol):
    """Consecutive samples of a shard, as they were read: a list, or a table of Arrow."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Return some of them."""


P = TypeVar("P", bound=Piece)
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a stream has come.

    Attributes
    ----------
    shard : int
        Which of the stream's shards, in the order of the epoch, the present window begins in.
    sample : int
        Which of that shard's samples it begins with.
    window : int
        Its number.
    taken : int
        Samples of it that were given.
    """

    shard: int = 0
    sample: int = 0
    window: int = 0
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """One of several readers that share the shards of a dataset.

    Attributes
    ----------
    number, count : int
        Which of how many.
    ranks : int
        How many ranks they are of.
    epoch : int
        Of the loader that reads; 0 where none does.
    """

    number: int
    count: int
    ranks: int
    epoch: int

    @classmethod
    def current(cls) -> Stream:
        """Return the stream that the calling thread reads: its worker's, of its rank."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rank, ranks = find_rank() if info is None else (info.rank, info.world_size)
        draw = current_draw()
        # A rank's shards are the same however many workers it has.
        number = rank + worker * ranks
        return cls(number, ranks * workers, ranks, 0 if draw.seed is None else draw.epoch)


class ShardDataset(IterableDataset[S], Generic[S, P, W]):
    """The base of datasets in shards: who reads which of them, the shuffle buffer, and the state.

    Without shuffling the samples come in the order of the shards. With it the order of the shards is drawn
    anew for each epoch, and with a buffer their samples are shuffled in windows: the buffer is filled, given
    in an order drawn at random, and filled again.

    Parameters
    ----------
    shuffle : bool
        Read the shards in an order drawn from seed and epoch.
    shuffle_buffer : int or None
        Samples a window; None: the samples of a shard stay in their order.
    seed : int
        Of all orders; the same on all ranks, which divide the shards by it.

    Raises
    ------
    ValueError
        A number is out of range, or there is a buffer without shuffling.
    """

    def __init__(self, *, shuffle: bool, shuffle_buffer: int | None, seed: int) -> None:
        if shuffle_buffer is not None:
            if not shuffle:
                raise ValueError("shuffle_buffer needs shuffle=True")
            check_count("shuffle_buffer", shuffle_buffer)
        self._shuffle = bool(shuffle)
        self._buffer = shuffle_buffer
        self._seed = check_whole("seed", seed, 2**64)
        self._resumed: tuple[Stream, Reached] | None = None
        self._come: tuple[Stream, Reached] | None = None

    @property
    def shards(self) -> int:
        """How many shards there are."""
        raise NotImplementedError

    def _read(self, shard: int, skip: int) -> Iterator[P]:
        """Yield the samples of a shard behind the first `skip`."""
        raise NotImplementedError

    def _gather(self, pieces: Sequence[P]) -> W:
        """Return the samples of consecutive pieces as what rows are taken from."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return how far the latest pass over the dataset has come, as plain data.

        A loader asks for it behind each batch and keeps it in a state of its own.
        """
        stream, reached = self._come or (Stream.current(), Reached())
        # Flat: it is made, and copied, behind each batch.
        return {**_fields(stream), **_fields(reached), **self._order_by()}

    def _order_by(self) -> dict[str, Any]:
        """Return what the order of samples depends on, beside stream and epoch."""
        return {
            "shards": self.shards,
            "shuffle": self._shuffle,
            "shuffle_buffer": self._buffer,
            "seed": self._seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass go on where `state` was taken: what was given is not given again.

        The window of the shuffle buffer that was being given is read again, or the rest of the row group.

        Raises
        ------
        ValueError
            This is no state of a dataset in shards, or of one that was read in another order.
        """
        try:
            stream = Stream(**{name: state[name] for name in Stream.__slots__})
            reached = Reached(**{name: state[name] for name in Reached.__slots__})
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no state of a dataset in shards: {state}") from error
        for name, here in self._order_by().items():
            if state.get(name) != here:
                raise ValueError(
                    f"the state is of a dataset with {name}={state.get(name)!r}, this one has {here!r}, "
                    "so its samples come in another order"
                )
        self._resumed = stream, reached

    def _takes(self, size: int) -> Iterator[list[tuple[W, Rows]]]:
        """Yield `size` samples at a time, the last time fewer, as rows of what `_gather` returned.

        Raises
        ------
        ValueError
            The state to go on from is of another stream, or a rank would have nothing to read.
        """
        stream, reached = Stream.current(), Reached()
        if stream.ranks > max(self.shards, 1):
            raise ValueError(
                f"{stream.ranks} ranks cannot share {self.shards} shards: write smaller row groups, or more "
                "files, or have the loader divide the samples by shard='auto'"
            )
        if self._resumed is not None:
            (resumed, reached), self._resumed = self._resumed, None
            if (resumed.number, resumed.count) != (stream.number, stream.count):
                raise ValueError(
                    f"the state is of stream {resumed.number} of {resumed.count}, this is stream "
                    f"{stream.number} of {stream.count}; resume with as many ranks and workers"
                )
            stream = resumed
        self._come = stream, reached
        held: list[tuple[W, Rows]] = []
        count = 0
        for start, pieces in self._windows(self._order(stream), reached):
            length = sum(map(len, pieces))
            order = None
            if self._buffer is not None:
                order = Shuffled(length, mixed_seed(self._seed, start.window), stream.epoch)
            samples, at = self._gather(pieces), start.taken
            pieces.clear()  # so that no more than this is held while the next window is read
            while at < length:
                stop = min(at + size - count, length)
                held.append((samples, slice(at, stop) if order is None else order.slice(at, stop)))
                count, at = count + stop - at, stop
                if count == size:
                    self._come = stream, self._behind(start, at)
                    yield held
                    held, count = [], 0
            del samples
        if held:
            self._come = stream, self._behind(start, at)
            yield held

    def _behind(self, start: Reached, at: int) -> Reached:
        """Return where to go on once the first `at` samples of a window were given."""
        if self._buffer is None:
            return Reached(start.shard, start.sample + at)
        return Reached(start.shard, start.sample, start.window, at)

    def _order(self, stream: Stream) -> list[int]:
        """Return the stream's shards in the order of its epoch."""
        shards: Any = range(self.shards)
        if self._shuffle:
            shards = Shuffled(self.shards, self._seed, stream.epoch).slice(0, self.shards).tolist()
        return list(shards[stream.number :: stream.count])

    def _windows(self, order: Sequence[int], reached: Reached) -> Iterator[tuple[Reached, list[P]]]:
        """Yield where each window begins, and its samples; only of the first some may have been taken."""
        window, taken = reached.window, reached.taken
        held: list[P] = []
        room, start = self._buffer or 0, (reached.shard, reached.sample)
        for shard, sample, piece in self._pieces(order, *start):
            if self._buffer is None:
                yield Reached(shard, sample), [piece]
                continue
            at = 0
            while at < len(piece):
                if not held:
                    start = shard, sample + at
                part = piece[at : at + room]
                held.append(part)
                at, room = at + len(part), room - len(part)
                if not room:
                    yield Reached(*start, window, taken), held
                    window, taken, held, room = window + 1, 0, [], self._buffer
        if held:
            yield Reached(*start, window, taken), held

    def _pieces(self, order: Sequence[int], first: int, skip: int) -> Iterator[tuple[int, int, P]]:
        """Yield the samples of the stream's shards from a position on, with where each piece begins."""
        for shard in range(first, len(order)):
            sample = skip
            for piece in self._read(order[shard], skip):
                yield shard, sample, piece
                sample += len(piece)
            skip = 0


def _fields(one: Stream | Reached) -> dict[str, int]:
    return {name: getattr(one, name) for name in one.__slots__}
