"""The base of datasets in shards (files, row groups): order, division, shuffling and resuming.

Streams read such a dataset, one per worker of each rank. A stream's samples depend only on the dataset's
seed, the epoch and the stream's number, so reading can resume anywhere in it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

from gpuloader.checks import check_count
from gpuloader.order.order import Shuffled, check_whole
from gpuloader.order.randomness import current_draw, mixed_seed
from gpuloader.order.worker_info import find_share
from gpuloader.sources.block import Rows
from gpuloader.sources.dataset import IterableDataset, S
from gpuloader.sources.files import remote_files
from gpuloader.sources.readers.parallel import start_reading
from gpuloader.system.platforms import after_fork
from gpuloader.system.threads import at_exit, exit_first

AHEAD, AHEAD_NBYTES = 16, 32 << 20
"""How many parts of remote files to read at a time, and how many stored bytes they may have together.

A server's response time to small requests hardly depends on their size, so many should be in progress.
"""

_OTHER_RANKS = (
    "one rank's state does not tell where other ranks are in these files; pass load_state_dict a list of the "
    "states of all ranks, or make the loader divide the samples with shard='auto'"
)

PIECES_AHEAD = 2
"""Decoded pieces of each part, of about 1 MiB, to hold until they are consumed."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The position of a stream; its state holds these fields by name."""

    shard: int = 0  # where the current window begins, as a position in the stream's order of the epoch
    sample: int = 0  # the sample of that shard with which the window begins
    window: int = 0  # the window's number
    taken: int = 0  # samples of the window already yielded


@dataclass(frozen=True, slots=True)
class Stream:
    """One of several streams that share the shards of a dataset; its state holds these fields by name."""

    number: int
    count: int  # the number of streams
    ranks: int
    epoch: int  # that of the loader that reads; 0 without a loader

    @classmethod
    def current(cls) -> Stream:
        """Return the stream of the calling thread, given by its worker and rank."""
        number, count = find_share()
        _, workers = find_share(of_ranks=False)
        draw = current_draw()
        return cls(number, count, count // workers, 0 if draw.seed is None else draw.epoch)


class Left(NamedTuple):
    """What a reader still has to read: from its own stream, or from streams of others that it continues."""

    reader: tuple[int, int]  # its number, and the number of readers on all ranks
    streams: Sequence[tuple[Stream, Reached]]


# Not frozen, because one is made for every block.
@dataclass(slots=True)
class _Run:
    """Samples of a block that lie in one window: where they end, and what comes after them."""

    count: int  # in the block, as far as their end
    at: int  # in the window, likewise
    start: Reached  # where the window begins
    order: Sequence[int]  # the shards of its stream
    state: Mapping[str, Any]  # that of the reader, but for where it is in this stream


@dataclass(kw_only=True, eq=False, repr=False)
class ShardDataset(IterableDataset[S]):
    """The base of datasets in shards: divides them among streams, shuffles, and keeps the state.

    Without shuffling, samples come in the order of the shards. With shuffling, each epoch draws a new order
    of the shards. With a buffer as well, samples are shuffled in windows: the buffer is filled, emptied in
    random order, and filled again.

    The fields are the parameters that all these datasets share; `ParquetDataset` describes them.

    Raises
    ------
    ValueError
        A number is out of range, or a buffer is given without shuffling.
    """

    urls: remote_files.Paths = field(kw_only=False)
    shuffle: bool = False
    shuffle_buffer: int | None = None
    seed: int = 0
    attempts: int = remote_files.ATTEMPTS
    timeout: float = remote_files.TIMEOUT
    storage_options: dict[str, Any] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_size: int | None = None

    def __post_init__(self) -> None:
        if self.shuffle_buffer is not None:
            if not self.shuffle:
                raise ValueError("shuffle_buffer needs shuffle=True")
            check_count("shuffle_buffer", self.shuffle_buffer)
        self.seed = check_whole("seed", self.seed, 2**64)
        self._tries = remote_files.Tries.of(
            self.attempts, self.timeout, self.storage_options, self.cache_dir, self.cache_size
        )
        names = [one for url in remote_files.as_urls(self.urls) for one in self._expand(url)]
        self._urls = remote_files.find_files(names, self._pattern, self._tries)
        self._resumed: Left | None = None
        self._come: Left | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of earlier releases have these under other names.
        renamed = {"_shuffle": "shuffle", "_buffer": "shuffle_buffer", "_seed": "seed"}
        vars(self).update({"_counts": {}} | {renamed.get(name, name): one for name, one in state.items()})

    def _expand(self, url: str) -> list[str]:
        """Return what a name stands for, whose files need not exist."""
        return [url]

    _pattern: ClassVar[str]  # of the files in a folder
    _listed: ClassVar[str] = "_urls"  # which attribute lists the shards
    _counts: dict[int, int] = field(default_factory=dict, init=False)  # samples of shards, as far as known
    _urls: Sequence[str] = field(default=(), init=False)
    _block: Sequence[_Run] = field(default=(), init=False)  # the runs of the latest block

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(getattr(self, self._listed))

    def _read(self, shards: Sequence[int], skip: int) -> Iterator[Any]:
        """Yield the samples of shards that are read together, after the first `skip`."""
        raise NotImplementedError

    def _together(self, order: Sequence[int], first: int) -> int:  # noqa: ARG002 - for the subclass
        """Return how many shards of `order`, starting at position `first`, to read together."""
        return 1

    def _nbytes(self, shard: int) -> int:  # noqa: ARG002 - for the subclass
        """Return the approximate number of bytes held while a shard is read."""
        return AHEAD_NBYTES // 2

    def _gather(self, pieces: Sequence[Any]) -> Any:
        """Return the samples of consecutive pieces in a form that rows can be taken from."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest pass over the dataset, as plain data.

        A loader calls this after each batch and stores the result in its own state.
        """
        return self._state_within(None)

    def _state_within(self, taken: int | None) -> dict[str, Any]:
        """Return the position after the first `taken` samples of the latest block; None means all of them."""
        left = self._come or _begin(Stream.current())
        for run in self._block if taken is not None else self._block[-1:]:
            if taken is None or taken <= run.count:
                at = run.at if taken is None else run.at - (run.count - taken)
                return {**run.state, **self._behind(run.order, run.start, at)}
        return self._to_state(left)

    def _to_state(self, left: Left) -> dict[str, Any]:
        # Flat, because it is copied after each batch.
        (stream, reached), *rest = left.streams
        state = {**asdict(stream), **asdict(reached), **self._order_by()}
        if rest or left.reader != (stream.number, stream.count):
            state["reader"] = list(left.reader)
            state["rest"] = [{**asdict(one), **asdict(at)} for one, at in rest]
        return state

    def _order_by(self) -> dict[str, Any]:
        """Return what the order of samples depends on besides the stream and the epoch."""
        return {name: getattr(self, name) for name in ("shards", "shuffle", "shuffle_buffer", "seed")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume where `state` was taken, without repeating samples.

        With a shuffle buffer, the current window is read again, otherwise the rest of the shard.

        Raises
        ------
        ValueError
            This is not the state of a dataset in shards, or that dataset had a different order.
        """
        self._resumed = self._from_state(state)

    def _from_state(self, state: Mapping[str, Any]) -> Left:
        try:
            parts = state, *state.get("rest", ())
            streams = [(_from_fields(Stream, one), _from_fields(Reached, one)) for one in parts]
            number, count = state.get("reader", (streams[0][0].number, streams[0][0].count))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is not the state of a dataset in shards: {state}") from error
        for name, here in self._order_by().items():
            if state.get(name) != here:
                raise ValueError(
                    f"the state is of a dataset with {name}={state.get(name)!r}, this one has {here!r}, "
                    "so its samples are in a different order"
                )
        return Left((number, count), streams)

    def _divide_states(
        self, states: Sequence[Any], workers: int, known: int = 1, mixed: tuple[int, int] | None = None
    ) -> list[dict[str, Any] | None] | None:
        """Return the states with which others continue where the workers of one rank, or of all, stopped.

        `states` are those of a rank's workers or, if more ranks are `known`, of all ranks' in the order of
        their streams: empty for a worker that has not begun, None for one that has nothing left. The result
        follows the same rule. It is for `workers` of this rank; if there were other ranks, or all are known,
        for those of all ranks, in the order of their streams. Returns None if each worker continues with its
        own. `mixed`, from a mix, is how many of them share what is left, the others having ended, and the
        number of ranks until now.

        Raises
        ------
        ValueError
            The states say nothing about other ranks, which have divided the shards with them.
        """
        found = [self._from_state(state) if state else None for state in states]
        here, each, alone = Stream.current(), len(states) // known, known == 1
        own, epoch = here.number % here.ranks, here.epoch
        _, ranks = mixed or (0, here.ranks if alone else known)
        rank = own if ranks == here.ranks else 0
        for at, one in enumerate(found):
            if one is not None:
                number, count = one.reader
                rank, ranks, epoch = number % (count // each), count // each, one.streams[0][0].epoch
                if not alone and one.reader != (at, len(states)):
                    raise ValueError(
                        f"state {at % known} of {known} is that of rank {rank} of {ranks}: pass the states "
                        "of all ranks, in the order of the ranks"
                    )
        if alone and (ranks, rank, each) == (here.ranks, own, workers):
            return None
        if mixed is None and not any(found) and None not in states:  # an epoch that nobody has begun
            return [{}] * workers
        owners = range(own, own + 1) if alone and ranks == here.ranks else range(ranks)
        if mixed and alone and owners != range(rank, rank + 1):
            # Which streams of a mix come when also depends on their lengths on each rank.
            raise ValueError(_OTHER_RANKS)
        left: list[tuple[Stream, Reached]] = []
        for owner in owners:
            teller = rank if alone else owner
            for worker in range(each):
                theirs = Stream(teller + worker * ranks, each * ranks, ranks, epoch)
                at = worker if alone else theirs.number
                streams = [(theirs, Reached())] if (one := found[at]) is None else one.streams
                if states[at] is None:
                    streams = [(theirs, Reached(len(self._order(theirs))))]
                if owner != teller:
                    stream = Stream(owner + worker * ranks, each * ranks, ranks, epoch)
                    streams = [(stream, self._after(stream, streams))]
                left += streams
        left = [(one, at) for one, at in left if one.number + one.count * at.shard < self.shards]
        first_reader, step = (own, here.ranks) if alone and ranks == here.ranks else (0, 1)
        readers = mixed[0] if mixed else here.ranks * workers // step
        shares: list[list[tuple[Stream, Reached]]] = [[] for _ in range(readers)]
        for turn, (stream, reached) in enumerate(left):
            if self.shuffle_buffer is not None:  # a window stays whole
                shares[turn % readers].append((stream, reached))
                continue
            for part in range(readers):
                first = stream.number + stream.count * (reached.shard + part)
                if first < self.shards:
                    rest = Stream(first, stream.count * readers, here.ranks, epoch)
                    begin = Reached(sample=0 if part else reached.sample)
                    shares[(turn + part) % readers].append((rest, begin))
        of_all = here.ranks * workers
        return [
            self._to_state(Left((first_reader + reader * step, of_all), share)) if share else None
            for reader, share in enumerate(shares)
        ]

    def _after(self, stream: Stream, others: Sequence[tuple[Stream, Reached]]) -> Reached:
        """Return where a stream is once as much of it has been read as of another rank's."""
        if len(self._counts) < self.shards or len(others) > 1:
            raise ValueError(_OTHER_RANKS)
        ((theirs, reached),) = others
        taken = sum(self._counts[shard] for shard in self._order(theirs)[: reached.shard])
        taken += reached.sample + reached.taken
        order = self._order(stream)
        window, within = divmod(taken, self.shuffle_buffer) if self.shuffle_buffer else (0, 0)
        if taken >= sum(self._counts[shard] for shard in order):
            return Reached(len(order))
        return Reached(*self._locate(order, 0, taken - within), window, within)

    def _takes(self, size: int) -> Iterator[list[tuple[Any, Rows]]]:
        """Yield `size` samples at a time, perhaps fewer at the end, as rows of what `_gather` returned.

        Raises
        ------
        ValueError
            The state to resume from belongs to another stream, or a rank would have nothing to read.
        """
        own = Stream.current()
        if own.ranks > max(self.shards, 1):
            raise ValueError(
                f"{own.ranks} ranks cannot share {self.shards} shards: write smaller row groups, more files "
                "or larger text files, or make the loader divide the samples with shard='auto'"
            )
        left, self._resumed = self._resumed or _begin(own), None
        if left.reader != (own.number, own.count):
            raise ValueError(
                "the state is of stream {} of {}, this is stream {} of {}; load it into a loader, which can "
                "continue with other workers and ranks".format(*left.reader, own.number, own.count)
            )
        self._come, self._block = left, ()
        held: list[tuple[Any, Rows]] = []
        runs: list[_Run] = []
        count = 0
        for behind, (stream, reached) in enumerate(left.streams):
            shards = self._order(stream)
            state = self._to_state(Left(left.reader, left.streams[behind:]))
            for start, pieces in self._windows(shards, reached):
                length = sum(map(len, pieces))
                order = None
                if self.shuffle_buffer is not None:
                    order = Shuffled(length, mixed_seed(self.seed, start.window), stream.epoch)
                samples, at = self._gather(pieces), start.taken
                pieces.clear()  # so that only the gathered samples are held while the next window is read
                while at < length:
                    stop = min(at + size - count, length)
                    held.append((samples, slice(at, stop) if order is None else order.slice(at, stop)))
                    count, at = count + stop - at, stop
                    runs.append(_Run(count, at, start, shards, state))
                    if count == size:
                        self._block = runs
                        yield held
                        held, runs, count = [], [], 0
                del samples
        if held:
            self._block = runs
            yield held

    def _behind(self, order: Sequence[int], start: Reached, at: int) -> dict[str, int]:
        """Return the fields of a `Reached` after the first `at` samples of a window, as every state does."""
        if self.shuffle_buffer is None:
            shard, sample = self._locate(order, start.shard, start.sample + at)
            return {"shard": shard, "sample": sample, "window": 0, "taken": 0}
        return {"shard": start.shard, "sample": start.sample, "window": start.window, "taken": at}

    def _locate(self, order: Sequence[int], shard: int, sample: int) -> tuple[int, int]:
        """Return the shard, as a position in `order`, in which `sample` samples counted from `shard` end."""
        while sample > (count := self._counts.get(order[shard], sample)):
            shard, sample = shard + 1, sample - count
        return shard, sample

    def _order(self, stream: Stream) -> list[int]:
        """Return the stream's shards, in the order of its epoch."""
        shards: Any = range(self.shards)
        if self.shuffle:
            shards = Shuffled(self.shards, self.seed, stream.epoch).slice(0, self.shards).tolist()
        return list(shards[stream.number :: stream.count])

    def _windows(self, order: Sequence[int], reached: Reached) -> Iterator[tuple[Reached, list[Any]]]:
        """Yield where each window begins, and its samples; only the first may be partly consumed already."""
        window, taken = reached.window, reached.taken
        held: list[Any] = []
        room, start = self.shuffle_buffer or 0, (reached.shard, reached.sample)
        for shard, sample, piece in self._pieces(order, *start):
            if self.shuffle_buffer is None:
                yield Reached(shard, sample), [piece]
                continue
            at = 0
            while at < len(piece):
                if not held:
                    first, behind = self._locate(order, shard, sample + at + 1)
                    start = first, behind - 1
                held.append(piece[at : at + room])
                at, room = at + len(held[-1]), room - len(held[-1])
                if not room:
                    yield Reached(*start, window, taken), held
                    window, taken, held, room = window + 1, 0, [], self.shuffle_buffer
        if held:
            yield Reached(*start, window, taken), held

    def _pieces(self, order: Sequence[int], first: int, skip: int) -> Iterator[tuple[int, int, Any]]:
        """Yield the samples of the stream's shards from a position on, and where each piece begins.

        If shards are read together, the beginning is a number of samples after the start of the first one.
        Shards that are known to have no samples are left out. Threads read the next shards of remote files
        ahead.
        """
        remote = any(map(remote_files.is_remote, self._urls))
        begun: deque[tuple[int, int, int, Iterator[Any]]] = deque()
        try:
            while begun or first < len(order):
                while first < len(order):
                    if self._counts.get(order[first]) == 0:  # nothing to read
                        first += 1
                        continue
                    stop = first + self._together(order, first)
                    nbytes = sum(map(self._nbytes, order[first:stop]))
                    held = sum(one[2] for one in begun)
                    if begun and (not remote or len(begun) == AHEAD or held + nbytes > AHEAD_NBYTES):
                        break
                    read = partial(self._read, order[first:stop], skip)
                    pieces = start_reading(partial(_in_turn, read), PIECES_AHEAD) if remote else read()
                    begun.append((first, skip, nbytes, pieces))
                    first, skip = stop, 0
                if begun:  # nothing is if the last shards have no samples
                    at, sample, _, pieces = begun[0]
                    for piece in pieces:
                        yield at, sample, piece
                        sample += len(piece)
                    begun.popleft()
        finally:
            begun.clear()  # ends their threads, although an error's traceback keeps this frame alive


_READS = set[Any]()
"""A lock for each thread that reads ahead; the thread holds it while it reads."""


def _in_turn(read: Callable[[], Any]) -> Iterator[Any]:
    """Yield the pieces of a read in a thread; the interpreter's exit waits for it and then stops it."""
    _end_before_exit()
    lock = threading.Lock()
    _READS.add(lock)
    pieces = read()
    try:
        while True:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece
    finally:
        with lock:
            pieces.close()
        _READS.discard(lock)


@cache
def _end_before_exit() -> None:
    """Let no thread read a remote file while the interpreter exits."""
    # Arrow calls back into Python for the bytes of a remote file. A thread that did so after the interpreter
    # has gone would abort the process. This runs after loops have ended, and before fsspec ends its sessions.
    at_exit(_stop_reads)
    exit_first()


def _stop_reads() -> None:
    for lock in list(_READS):
        lock.acquire(timeout=remote_files.LONGEST_WAIT)


after_fork(_READS.clear)  # a child does not have these threads


def _begin(stream: Stream) -> Left:
    return Left((stream.number, stream.count), [(stream, Reached())])


def _from_fields(kind: Any, fields: Mapping[str, Any]) -> Any:
    return kind(**{name: fields[name] for name in kind.__slots__})
