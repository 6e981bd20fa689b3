"""Orders: the sequence of dataset indices in an epoch, as values that can be sliced anywhere.

An order is a function of its fields alone. It does not depend on workers, speed, the position of a resume or
NumPy's version. A slice costs time in proportion to its length. An order pickles only its fields, not what it
has computed.

    InOrder                     0, 1, 2, ...
    Shuffled, Repeated          a random permutation, and several in succession
    Drawn, Weighted             random indices, with equal or individual probabilities
    Mapped                      the entries of a list, at the positions of another order
    Windowed                    chunks in random order, a few of them shuffled together
    Bucketed                    another order, with samples of similar length in each batch
    Mixed                       several datasets, each with its share of any stretch of the epoch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.errors import BadValue
from gpuloader.foreign import is_tensor, tensor_array
from gpuloader.order import randomness
from gpuloader.order.randomness import SORTED_AT_MOST, derive_key, hash_positions, sort_hashes

IndexArray = NDArray[np.int64]

_CHUNK = 4096
"""Entries computed at a time; at about this size, the overhead of NumPy's calls equals their work."""


def as_plain(values: Any) -> NDArray[Any]:
    """Return values as an array, without a copy where possible; tensors of dtypes NumPy lacks as float64."""
    return tensor_array(values.detach(), np.dtype(np.float64)) if is_tensor(values) else np.asarray(values)


def as_indices(name: str, indices: ArrayLike) -> IndexArray:
    """Return `indices` as an int64 array, or raise `TypeError` if they are not a list of integers.

    >>> as_indices("indices", range(3))
    array([0, 1, 2])
    """
    expected = f"{name} must be a list of integers"
    if isinstance(indices, range):  # NumPy reads a range number by number
        indices = np.arange(indices.start, indices.stop, indices.step)
    try:
        array = np.asarray(indices)
    except ValueError as error:
        raise TypeError(f"{expected}: {error}") from None
    if array.ndim != 1:
        raise TypeError(f"{expected}, got {type(indices).__name__} of shape {array.shape}")
    if array.dtype == np.bool_:
        raise TypeError(f"{expected}, got a boolean mask; pass numpy.flatnonzero(mask)")
    if array.size and (array.dtype.kind not in "iu" or array.max() > np.iinfo(np.int64).max):
        raise TypeError(f"{expected} that fit into int64, got {type(indices).__name__} of {array.dtype}")
    return array.astype(np.int64, copy=False)


def check_whole(name: str, value: object, limit: int) -> int:
    """Return `value` as an int, or raise `ValueError` unless it is an integer from 0 to below `limit`.

    >>> check_whole("rank", 1, limit=2)
    1
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < limit:
        most = "2**64 - 1" if limit == 2**64 else limit - 1
        raise BadValue(f"{name} must be an integer from 0 to {most}, got {value!r}")
    return int(value)


# Half of what a 64-bit integer holds, so that a sum of two positions never overflows.
_COUNTS, _WORDS = 2**62 + 1, 2**64
_LIMITS = {"count": _COUNTS, "draws": _COUNTS, "seed": _WORDS, "epoch": _WORDS}


class Computed:
    """Base class of orders whose entries are computed from their positions.

    An order keeps the chunk that it computed last, and a table if it needs one.
    """

    # Any thread may slice an order. Both are replaced atomically, so at worst two threads compute the same
    # entries. A lock would cost more, and a fork could copy it while it is held.
    _kept: NDArray[Any] | None = None
    _chunk: tuple[int, IndexArray] = (-1, np.empty(0, np.int64))

    draws: Any  # the number of entries

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            if name in vars(self):
                setattr(self, name, check_whole(name, vars(self)[name], limit))

    def __len__(self) -> int:
        return int(self.draws)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> IndexArray:
        """Return the indices from position `start` to before `stop`."""
        check_slice(self, start, stop)
        if start == stop:
            return np.empty(0, np.int64)
        (kept, chunk), first = self._chunk, start // _CHUNK * _CHUNK
        if stop > first + _CHUNK:
            return self.at(np.arange(start, stop))
        # A few entries take as long as a chunk, whose other entries the next slices will ask for.
        if kept != first:
            chunk = self.at(np.arange(first, min(first + _CHUNK, len(self))))
            # Slices share it, so a user's function that writes to its indices must fail here.
            chunk.flags.writeable = False
            self._chunk = first, chunk
        return chunk[start - first : stop - first]


def check_slice(order: Sized, start: int, stop: int) -> None:
    """Raise `IndexError` unless ``0 <= start <= stop <= len(order)``."""
    if not 0 <= start <= stop <= len(order):
        raise IndexError(f"an order of {len(order)} indices has no slice {start}:{stop}")


class Order(Protocol):
    """A finite sequence of dataset indices that can be sliced anywhere."""

    def __len__(self) -> int:
        """Return the number of indices."""

    def slice(self, start: int, stop: int) -> range | IndexArray:
        """Return the indices from position `start` to before `stop`; callers must not write to them."""


@dataclass(unsafe_hash=True)
class InOrder:
    """The indices 0, 1, 2, … below `count`.

    >>> InOrder(10).slice(3, 6)
    range(3, 6)
    """

    count: int

    def __post_init__(self) -> None:
        self.count = check_whole("count", self.count, _COUNTS)

    def __len__(self) -> int:
        return self.count

    def at(self, positions: IndexArray) -> IndexArray:
        """Return `positions`."""
        return positions

    def slice(self, start: int, stop: int) -> range:
        """Return the indices from position `start` to before `stop`."""
        if not 0 <= start <= stop <= self.count:
            check_slice(self, start, stop)
        return range(start, stop)


@dataclass(eq=False, repr=False)
class Shuffled(Computed):
    """The first `draws` entries (all if None) of a random permutation of ``range(count)``.

    >>> Shuffled(5, seed=0, epoch=0).slice(0, 5).tolist()
    [1, 0, 4, 2, 3]
    """

    count: int
    seed: int
    epoch: int
    draws: int | None = None

    def __post_init__(self) -> None:
        if self.draws is None:
            self.draws = self.count
        super().__post_init__()
        check_whole("draws", self.draws, self.count + 1)

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        # Sorted once, a short permutation is a table that costs nothing to read. A long one would take
        # seconds and 8 bytes per sample, on every rank, so only the requested entries are computed.
        if self.count <= SORTED_AT_MOST:
            return self._table()[positions]
        key = derive_key(self.seed, self.epoch, randomness.PERMUTED)
        return randomness.permute(positions.astype(np.uint64), self.count, key).view(np.int64)

    def slice(self, start: int, stop: int) -> IndexArray:
        """Return the entries from position `start` to before `stop`."""
        if self.count > SORTED_AT_MOST:
            return super().slice(start, stop)
        if not 0 <= start <= stop <= self.draws:  # type: ignore[operator]
            check_slice(self, start, stop)
        return self._table()[start:stop]

    def _table(self) -> IndexArray:
        if (table := self._kept) is None:
            key = derive_key(self.seed, self.epoch, randomness.SORTED)
            table = sort_hashes(self.count, key).view(np.int64)
            table.flags.writeable = False
            self._kept = table
        return table


@dataclass(eq=False, repr=False)
class _Counted(Computed):
    """Without a docstring, the decorator would make one from the signature, which takes milliseconds."""

    count: int
    draws: int
    seed: int
    epoch: int


class Repeated(_Counted):
    """The first `draws` entries of several random permutations of ``range(count)`` in succession.

    >>> Repeated(3, draws=8, seed=0, epoch=0).slice(0, 8).tolist()
    [1, 0, 2, 0, 2, 1, 1, 2]
    """

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        turns, within = np.divmod(positions, self.count)
        found = np.empty_like(within)
        for turn in np.unique(turns).tolist():
            here = turns == turn
            # The first permutation is that of a sampler that draws no more samples than there are.
            seed = derive_key(self.seed, turn, randomness.REPEATED) if turn else self.seed
            found[here] = Shuffled(self.count, seed, self.epoch).at(within[here])
        return found


class Drawn(_Counted):
    """`draws` indices below `count`, drawn uniformly and independently (with replacement).

    >>> Drawn(3, draws=8, seed=0, epoch=0).slice(0, 8).tolist()
    [0, 1, 0, 2, 2, 2, 1, 2]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws and not self.count:
            raise ValueError(f"cannot draw {self.draws} indices: there are no samples")

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        key = derive_key(self.seed, self.epoch, randomness.DRAWN)
        hashes = hash_positions(positions.astype(np.uint64), key)
        # The remainder favors small indices by less than count / 2**64; no epoch is long enough to show that.
        return (hashes % np.uint64(self.count)).view(np.int64)


@dataclass(eq=False, repr=False)
class Weighted(Computed):
    """`draws` indices, each drawn with a probability proportional to its weight.

    >>> Weighted([0, 1, 0, 1], draws=2, replacement=False, seed=0, epoch=0).slice(0, 2).tolist()
    [1, 3]
    """

    weights: NDArray[np.float64]
    draws: int
    replacement: bool
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights = as_weights(self.weights, self.draws, self.replacement)

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        if self.replacement:
            return np.searchsorted(self._table(), self._uniform(positions), side="right")
        return self._table()[positions]

    def _table(self) -> NDArray[Any]:
        """Return the upper bound of each weight in their sum; without replacement, the indices drawn."""
        if (table := self._kept) is not None:
            return table
        chosen = np.flatnonzero(self.weights)
        if self.replacement:
            # cumsum adds one weight after another. A pairwise sum may round differently on another machine.
            table = np.cumsum(self.weights)
            table /= table[-1]
            # Rounding may leave the last bound below 1, and a weight of 0 after it must never be drawn.
            table[chosen[-1] :] = np.inf
        else:
            # Draw exponential variables whose rates are the weights: the smallest ones belong to the indices
            # drawn (Efraimidis and Spirakis 2006). Logarithms sort the same and do not overflow.
            waits = np.log(-np.log(self._uniform(chosen))) - np.log(self.weights[chosen])
            table = chosen[np.argsort(waits, kind="stable")[: self.draws]]
        self._kept = table
        return table

    def _uniform(self, positions: IndexArray) -> NDArray[np.float64]:
        """Return a number strictly between 0 and 1 for each position."""
        key = derive_key(self.seed, self.epoch, randomness.WEIGHTED)
        hashes = hash_positions(positions.astype(np.uint64), key)
        # 52 bits and a half: exact as a float, and never 0, which has no logarithm.
        return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def as_weights(
    weights: ArrayLike, draws: int, replacement: bool, *, zero: bool = True
) -> NDArray[np.float64]:
    """Return `weights` as an array, or raise `ValueError` if `draws` indices cannot be drawn from it.

    `zero` allows weights of 0.

    >>> as_weights([1, 3], draws=5, replacement=True)
    array([1., 3.])
    """
    try:
        # NumPy 2 warns if it is asked to copy a PyTorch tensor, so it first gets a view.
        array = np.array(as_plain(weights), np.float64)
    except (TypeError, ValueError) as error:
        raise BadValue(f"weights must be a list of numbers, got {type(weights).__name__}: {error}") from None
    if array.ndim != 1:
        got = f"{type(weights).__name__} of shape {array.shape}"
        raise BadValue(f"weights must be a list of numbers, got {got}")
    if bad := np.flatnonzero(~((array >= 0 if zero else array > 0) & (array < np.inf))).tolist():
        least = "0 or more" if zero else "above 0"
        raise BadValue(f"weights must be finite and {least}, got {array[bad[0]]} at index {bad[0]}")
    positive = int(np.count_nonzero(array))
    if draws > (0 if not positive else draws if replacement else positive):
        how = "with" if replacement else "without"
        raise BadValue(f"cannot draw {draws} indices {how} replacement: {positive} weights are above 0")
    # Overflowing sums would make every bound infinite, and always draw the first sample.
    if positive and array.max() > np.finfo(np.float64).max / array.size:
        raise BadValue("the sum of the weights may exceed the range of float64; scale the weights down")
    array.flags.writeable = False
    return array


@dataclass(eq=False, repr=False)
class Mapped(Computed):
    """The entries of `indices` at the positions in `base`.

    >>> Mapped(InOrder(3), [20, 40, 60]).slice(1, 3)
    array([40, 60])
    """

    base: InOrder | Shuffled | Windowed
    indices: IndexArray

    def __post_init__(self) -> None:
        self.indices = as_indices("indices", self.indices)

    def __len__(self) -> int:
        return len(self.base)

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        return self.indices[self.base.at(positions)]


@dataclass(eq=False, repr=False)
class Windowed(Computed):
    """The indices of chunks of these sizes: the chunks in random order, and each `window` of them shuffled.

    >>> order = Windowed(np.array([4, 4, 4, 2]), window=2, seed=0, epoch=0)
    >>> order.slice(0, 8).tolist(), order.slice(8, 14).tolist()
    ([2, 4, 5, 7, 1, 6, 3, 0], [11, 13, 12, 9, 10, 8])
    """

    sizes: IndexArray
    window: int
    seed: int
    epoch: int
    _latest: tuple[int, Any] = (-1, None)

    def __post_init__(self) -> None:
        self.draws = int(self.sizes.sum())
        super().__post_init__()

    @cached_property
    def _chunks(self) -> tuple[IndexArray, IndexArray]:
        """In the epoch's order, where each chunk ends, and how far its indices are from its positions."""
        turns = shuffle_chunks(len(self.sizes), self.seed, self.epoch)
        ends = np.cumsum(self.sizes[turns])
        return ends, np.cumsum(self.sizes)[turns] - ends

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        ends, shifts = self._chunks
        stops = np.append(ends[self.window - 1 :: self.window], self.draws)
        windows = np.searchsorted(stops, positions, side="right")
        placed = np.empty(len(positions), np.int64)
        for number in np.unique(windows).tolist():
            here, start = windows == number, int(stops[number - 1]) if number else 0
            if (kept := self._latest)[0] != number:
                key = derive_key(self.seed, randomness.WINDOWED, number + 1)
                kept = self._latest = number, Shuffled(int(stops[number]) - start, key, self.epoch)
            placed[here] = kept[1].at(positions[here] - start) + start
        return placed + shifts[np.searchsorted(ends, placed, side="right")]


def shuffle_chunks(count: int, seed: int, epoch: int) -> IndexArray:
    """Return the order in which an epoch visits chunks; what reads windows of them needs it, too."""
    return Shuffled(count, derive_key(seed, randomness.WINDOWED), epoch).slice(0, count)


@dataclass(eq=False, repr=False)
class Bucketed(Computed):
    """The indices of `base`, rearranged so that each batch has samples of similar length.

    Computing an entry takes the time of sorting one pool; see `BucketSampler`.

    >>> lengths = np.array([9, 1, 8, 2, 9, 1])
    >>> lengths[Bucketed(Shuffled(6, seed=1, epoch=0), lengths, 2, pool=3).slice(0, 6)].tolist()
    [9, 9, 1, 1, 2, 8]
    """

    base: Shuffled
    lengths: NDArray[Any]
    batch_size: int
    pool: int
    _sorted: tuple[int, IndexArray] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        # Samples that do not fill a batch are the last of the shuffled order, so they are chosen at random
        # and not by length.
        whole, size = len(self) - len(self) % self.batch_size, self.batch_size * self.pool
        found = np.empty(len(positions), np.int64)
        pools = np.where(positions < whole, positions // size, -1)
        for number in np.unique(pools).tolist():
            here = pools == number
            if number < 0:
                found[here] = self.base.at(positions[here])
            else:
                found[here] = self._sort(number, whole)[positions[here] - number * size]
        return found

    def _sort(self, number: int, whole: int) -> IndexArray:
        """Return the indices of a pool, batch after batch."""
        kept, pool = self._sorted
        if kept != number:
            size = self.batch_size * self.pool
            drawn = self.base.slice(number * size, min((number + 1) * size, whole))
            # Stable, so that samples of equal length keep their random order on every machine.
            ascending = drawn[np.argsort(self.lengths[drawn], kind="stable")]
            batches = ascending.reshape(-1, self.batch_size)
            key = derive_key(self.base.seed, self.base.epoch, randomness.BUCKETED, number)
            pool = batches[sort_hashes(len(batches), key).view(np.int64)].reshape(-1)
            self._sorted = number, pool
        return pool


# Spreads several sequences evenly over one: each is present in any stretch in proportion to its length.


def interleave(counts: Sequence[int], start: int, stop: int) -> tuple[IndexArray, IndexArray]:
    """Return positions `start` to `stop` of the sequence that spreads `counts[i]` entries of each i evenly.

    Entry k of the n entries of i has the time (k + 1/2) / n; all entries are sorted by time, and then by i.
    The cost is proportional to ``stop - start``, wherever `start` is. Returns the owner of each position, and
    how many earlier positions have the same owner. Each count must be below 2**52.

    >>> owners, ranks = interleave([2, 4], 0, 6)
    >>> owners.tolist(), ranks.tolist()
    ([1, 0, 1, 1, 0, 1], [0, 0, 1, 2, 1, 3])
    """
    total, slack = sum(counts), len(counts)
    if start >= stop:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # Up to time t, an owner has t * count entries, give or take a half. So these times enclose the positions,
    # with a margin for rounding.
    first = [_count_before(count, (start - slack) / total) for count in counts]
    last = [_count_before(count, (stop + slack) / total) for count in counts]
    owners = np.repeat(np.arange(len(counts)), np.subtract(last, first))
    ranks = np.concatenate([np.arange(begin, end) for begin, end in zip(first, last, strict=True)])
    order = np.lexsort((owners, (ranks + 0.5) / np.asarray(counts, np.int64)[owners]))
    chosen = order[start - sum(first) : stop - sum(first)]
    return owners[chosen], ranks[chosen]


def _count_before(count: int, time: float) -> int:
    """Return how many of an owner's entries have an earlier time; rounding may include one with this time."""
    return min(max(round(time * count), 0), count)


AT_END = ("stop", "repeat", "drop")
_BLOCK = 4096  # samples among which the datasets are shuffled
_MOST = 2**52  # the most samples of an epoch: `interleave` needs positions to be exact as 64-bit floats


class Stage(NamedTuple):
    """A part of an epoch, from position `start` on, that reads `counts[i]` samples of each dataset i.

    `begins[i]` of them were read earlier.
    """

    start: int
    begins: tuple[int, ...]
    counts: tuple[int, ...]


def plan_stages(sizes: Sequence[int], weights: Sequence[float], at_end: str) -> tuple[Stage, ...]:
    """Return the stages of an epoch over datasets of these lengths; `at_end` as for a `MixDataset`.

    An epoch of 2**52 samples or more raises `ValueError`.

    >>> [stage.counts for stage in plan_stages([4, 9], [1, 1], "stop")]
    [(4, 4)]
    >>> [stage.counts for stage in plan_stages([4, 9], [1, 1], "repeat")]
    [(9, 9)]
    >>> [stage.counts for stage in plan_stages([4, 9], [1, 1], "drop")]
    [(4, 4), (0, 5)]
    """
    # Read at a speed proportional to its weight, a dataset ends at the time size / weight.
    ends = [size / weight for size, weight in zip(sizes, weights, strict=True)]
    times = {"stop": [min(ends)], "repeat": [max(ends)], "drop": sorted(set(ends))}[at_end]
    if sum(weights) * times[-1] >= _MOST:
        raise ValueError(
            f"an epoch would have {sum(weights) * times[-1]:.1e} samples: the weights are too far from the "
            "datasets' lengths"
        )
    stages: list[Stage] = []
    read, start = (0,) * len(sizes), 0
    for time in times:
        reached = tuple(map(partial(_count_read, time, at_end), sizes, weights))
        counts = tuple(after - before for after, before in zip(reached, read, strict=True))
        if any(counts):
            stages.append(Stage(start, read, counts))
        read, start = reached, start + sum(counts)
    return tuple(stages)


def _count_read(time: float, at_end: str, size: int, weight: float) -> int:
    """Return how many samples of a dataset an epoch has read by a given time."""
    if at_end == "repeat":
        # At least one full pass, although rounding may reduce the share of the dataset that ends last.
        return max(round(weight * time), size)
    return size if size / weight <= time else min(round(weight * time), size)


@dataclass(eq=False, repr=False)
class Mixed(Computed):
    """The indices of an epoch in the concatenation of several datasets, mixed in proportion to their weights.

    Every block of 4,096 samples has each dataset in proportion, in random order. A repeated dataset is read
    in full before its next pass, and each pass has a new order.

    >>> Mixed((2, 6), (1.0, 1.0), "repeat", shuffle=False, seed=0, epoch=0).slice(0, 12).tolist()
    [0, 2, 1, 3, 0, 4, 1, 5, 0, 6, 1, 7]
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    at_end: str
    shuffle: bool
    seed: int
    epoch: int
    _block: tuple[tuple[int, int], IndexArray] = ((-1, -1), np.empty(0, np.int64))

    def __len__(self) -> int:
        last = self._stages[-1]
        return last.start + sum(last.counts)

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return plan_stages(self.sizes, self.weights, self.at_end)

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        # Block by block, because a block is shuffled as a whole. The latest one is kept, because most slices
        # lie in it.
        starts = np.array([stage.start for stage in self._stages])
        stages = np.searchsorted(starts, positions, side="right") - 1
        blocks, within = np.divmod(positions - starts[stages], _BLOCK)
        found = np.empty(len(positions), np.int64)
        for stage, block in np.unique(np.stack([stages, blocks], axis=1), axis=0).tolist():
            here = (stages == stage) & (blocks == block)
            found[here] = self._mix(stage, block)[within[here]]
        return found

    def _mix(self, number: int, block: int) -> IndexArray:
        """Return the entries of a block of a stage."""
        kept, entries = self._block
        if kept == (number, block):
            return entries
        stage = self._stages[number]
        start, end = block * _BLOCK, sum(stage.counts)
        owners, ranks = interleave(stage.counts, start, min(start + _BLOCK, end))
        shuffled = owners
        if self.shuffle:
            key = derive_key(self.seed, self.epoch, randomness.MIXED, number, block)
            shuffled = owners[sort_hashes(len(owners), key).view(np.int64)]
        entries = np.empty(len(owners), np.int64)
        offset = 0
        for owner, size in enumerate(self.sizes):
            # Each dataset's samples keep their relative order, so one pass over it follows another.
            turns = ranks[owners == owner] + stage.begins[owner]
            entries[shuffled == owner] = offset + self._read(owner, turns)
            offset += size
        self._block = (number, block), entries
        return entries

    def _read(self, owner: int, ranks: IndexArray) -> IndexArray:
        """Return the indices of the dataset's samples read in these turns, in ascending order."""
        size = self.sizes[owner]
        passes, within = np.divmod(ranks, size)
        if not self.shuffle or size == 1:
            return within
        # Every pass has a new permutation: the same one again would repeat which samples are neighbors.
        for turn in np.unique(passes).tolist():
            here = slice(*np.searchsorted(passes, [turn, turn + 1]).tolist())
            kept = self._latest.get(owner)
            if kept is None or kept[0] != turn:
                seed = derive_key(self.seed, randomness.MIXED, owner, turn)
                kept = self._latest[owner] = turn, Shuffled(size, seed, self.epoch)
            within[here] = kept[1].at(within[here])
        return within

    @cached_property
    def _latest(self) -> dict[int, tuple[int, Shuffled]]:
        """For each dataset, the latest pass read and its order."""
        return {}


def iterate(order: Order) -> Iterator[int]:
    """Yield the indices of `order` one by one, as Python integers.

    >>> list(iterate(InOrder(3)))
    [0, 1, 2]
    """
    for start in range(0, len(order), _CHUNK):
        part = order.slice(start, min(start + _CHUNK, len(order)))
        yield from part if isinstance(part, range) else part.tolist()


# A batch as a stretch of an order: a first and a last position. Indices are looked up on request.


@dataclass(slots=True, eq=False, repr=False)
class Stretch:
    """The samples at positions `first` to `last` of an order; the last one is repeated up to `count` samples.

    >>> Stretch(Shuffled(5, seed=0, epoch=0), first=3, last=4, count=3).indices().tolist()
    [2, 3, 3]
    """

    order: Order
    first: int
    last: int
    count: int

    def indices(self) -> IndexArray:
        """Return the dataset indices of the samples."""
        # The order is evaluated only here. A device that holds the order itself never asks.
        part = self.order.slice(self.first, self.last + 1)
        found = np.arange(part.start, part.stop) if isinstance(part, range) else part
        return found if len(found) == self.count else found[np.minimum(np.arange(self.count), len(found) - 1)]
