"""The base of datasets in shards (files, row groups): order, division, shuffling and resuming.

Streams read such a dataset, one per worker of each rank. A stream's samples depend only on the dataset's
seed, the epoch and the stream's number, so reading can resume anywhere in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gpuloader.checks import check_count
from gpuloader.order.order import Shuffled, check_whole
from gpuloader.order.randomness import current_draw, mixed_seed
from gpuloader.order.worker_info import find_share
from gpuloader.sources.block import Rows
from gpuloader.sources.dataset import IterableDataset, S


class Piece(Protocol):
    """Consecutive samples of a shard, as they were read: a list or an Arrow table."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, rows: slice, /) -> Any:
        """Return a slice of the samples."""


P = TypeVar("P", bound=Piece)
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Reached:
    """The position of a stream; its state holds these fields by name."""

    shard: int = 0  # in which the current window begins, as a position in the stream's order of the epoch
    sample: int = 0  # of that shard, with which the window begins
    window: int = 0  # the window's number
    taken: int = 0  # samples of the window already yielded


@dataclass(frozen=True, slots=True)
class Stream:
    """One of several streams that share the shards of a dataset; its state holds these fields by name."""

    number: int
    count: int  # of streams
    ranks: int
    epoch: int  # of the loader that reads; 0 without a loader

    @classmethod
    def current(cls) -> Stream:
        """Return the stream of the calling thread, which belongs to its worker and rank."""
        number, count = find_share()
        _, workers = find_share(of_ranks=False)
        draw = current_draw()
        return cls(number, count, count // workers, 0 if draw.seed is None else draw.epoch)


class ShardDataset(IterableDataset[S], Generic[S, P, W]):
    """The base of datasets in shards: divides them among streams, shuffles, and keeps the state.

    Without shuffling, samples come in the order of the shards. With shuffling, each epoch draws a new order
    of the shards. With a buffer as well, samples are shuffled in windows: the buffer is filled, emptied in
    random order, and filled again.

    Parameters
    ----------
    shuffle : bool
        Whether to read the shards in an order drawn from the seed and the epoch.
    shuffle_buffer : int or None
        Samples per window; None keeps the samples of a shard in order.
    seed : int
        The seed of all orders. Must be the same on all ranks, which divide the shards by it.

    Raises
    ------
    ValueError
        A number is out of range, or a buffer is given without shuffling.
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
        """The number of shards."""
        raise NotImplementedError

    def _read(self, shard: int, skip: int) -> Iterator[P]:
        """Yield the samples of a shard after the first `skip`."""
        raise NotImplementedError

    def _gather(self, pieces: Sequence[P]) -> W:
        """Return the samples of consecutive pieces in a form that rows can be taken from."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest pass over the dataset, as plain data.

        A loader calls this after each batch and stores the result in its own state.
        """
        stream, reached = self._come or (Stream.current(), Reached())
        # Flat, because it is made and copied after each batch.
        return {**_fields(stream), **_fields(reached), **self._order_by()}

    def _order_by(self) -> dict[str, Any]:
        """Return what the order of samples depends on, other than the stream and the epoch."""
        return {
            "shards": self.shards,
            "shuffle": self._shuffle,
            "shuffle_buffer": self._buffer,
            "seed": self._seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume where `state` was taken, without repeating samples.

        The current window of the shuffle buffer is read again, or else the rest of the shard.

        Raises
        ------
        ValueError
            This is not the state of a dataset in shards, or the order of that dataset was another one.
        """
        try:
            stream = Stream(**{name: state[name] for name in Stream.__slots__})
            reached = Reached(**{name: state[name] for name in Reached.__slots__})
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not the state of a dataset in shards: {state}") from error
        for name, here in self._order_by().items():
            if state.get(name) != here:
                raise ValueError(
                    f"the state is of a dataset with {name}={state.get(name)!r}, this one has {here!r}, "
                    "so its samples are in another order"
                )
        self._resumed = stream, reached

    def _takes(self, size: int) -> Iterator[list[tuple[W, Rows]]]:
        """Yield `size` samples at a time, at last perhaps fewer, as rows of what `_gather` returned.

        Raises
        ------
        ValueError
            The state to resume from is that of another stream, or a rank would have nothing to read.
        """
        stream, reached = Stream.current(), Reached()
        if stream.ranks > max(self.shards, 1):
            raise ValueError(
                f"{stream.ranks} ranks cannot share {self.shards} shards: write smaller row groups or more "
                "files, or make the loader divide the samples with shard='auto'"
            )
        if self._resumed is not None:
            (resumed, reached), self._resumed = self._resumed, None
            if (resumed.number, resumed.count) != (stream.number, stream.count):
                raise ValueError(
                    f"the state is of stream {resumed.number} of {resumed.count}, this is stream "
                    f"{stream.number} of {stream.count}; resume with the same number of ranks and workers"
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
            pieces.clear()  # so that only the gathered samples are held while the next window is read
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
        """Return where to resume after the first `at` samples of a window."""
        if self._buffer is None:
            return Reached(start.shard, start.sample + at)
        return Reached(start.shard, start.sample, start.window, at)

    def _order(self, stream: Stream) -> list[int]:
        """Return the stream's shards, in the order of its epoch."""
        shards: Any = range(self.shards)
        if self._shuffle:
            shards = Shuffled(self.shards, self._seed, stream.epoch).slice(0, self.shards).tolist()
        return list(shards[stream.number :: stream.count])

    def _windows(self, order: Sequence[int], reached: Reached) -> Iterator[tuple[Reached, list[P]]]:
        """Yield where each window begins, and its samples; only the first may be partly taken already."""
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
        """Yield the samples of the stream's shards from a position on, and where each piece begins."""
        for shard in range(first, len(order)):
            sample = skip
            for piece in self._read(order[shard], skip):
                yield shard, sample, piece
                sample += len(piece)
            skip = 0


def _fields(one: Stream | Reached) -> dict[str, int]:
    return {name: getattr(one, name) for name in one.__slots__}
