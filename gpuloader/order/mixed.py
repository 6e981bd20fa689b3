"""The order of a mix of datasets: each has its share of every few thousand samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuloader.order.order import Computed, IndexArray, Order, Shuffled, iterate
from gpuloader.order.permutation import MIXED, derive_key, sort_hashes
from gpuloader.order.randomness import draw_seed
from gpuloader.order.samplers import Sampler

# Spread several sequences evenly over one: any stretch of it has each in proportion to its length.


def interleave(counts: Sequence[int], start: int, stop: int) -> tuple[IndexArray, IndexArray]:
    """Return positions `start` to `stop` of the sequence that spreads `counts[i]` entries of each i evenly.

    Entry k of the n entries of i has the time (k + 1/2) / n; all entries are sorted by time, and then by i.
    The cost is proportional to ``stop - start``, wherever `start` is.

    Parameters
    ----------
    counts : sequence of int
        How many entries each owner has, each below 2**52.
    start, stop : int
        The positions, at most the sum of the counts.

    Returns
    -------
    tuple of ndarray
        For each position, its owner, and how many earlier positions have the same owner.

    Examples
    --------
    >>> owners, ranks = interleave([2, 4], 0, 6)
    >>> owners.tolist(), ranks.tolist()
    ([1, 0, 1, 1, 0, 1], [0, 0, 1, 2, 1, 3])
    """
    total, slack = sum(counts), len(counts)
    if start >= stop:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # Up to time t, an owner has t * count entries, give or take a half. So these times enclose the positions,
    # with room to spare for what rounding does.
    first = [_count_before(count, (start - slack) / total) for count in counts]
    last = [_count_before(count, (stop + slack) / total) for count in counts]
    owners = np.repeat(np.arange(len(counts)), np.subtract(last, first))
    ranks = np.concatenate([np.arange(begin, end) for begin, end in zip(first, last, strict=True)])
    order = np.lexsort((owners, _times(ranks, np.asarray(counts, np.int64)[owners])))
    chosen = order[start - sum(first) : stop - sum(first)]
    return owners[chosen], ranks[chosen]


def _times(ranks: IndexArray, counts: IndexArray) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return (ranks + 0.5) / counts


def _count_before(count: int, time: float) -> int:
    """Return how many of an owner's entries have an earlier time; rounding may add one that has this time."""
    return min(max(round(time * count), 0), count)


AT_END = ("stop", "repeat", "drop")
_BLOCK = 4096  # samples among which the datasets are shuffled
_MOST = 2**52


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an epoch in which the same datasets take part.

    Attributes
    ----------
    start : int
        The position in the epoch at which it begins.
    begins : tuple of int
        How many samples of each dataset were read before it.
    counts : tuple of int
        How many samples of each dataset it reads.
    """

    start: int
    begins: tuple[int, ...]
    counts: tuple[int, ...]


def plan_stages(sizes: Sequence[int], weights: Sequence[float], at_end: str) -> tuple[Stage, ...]:
    """Return the stages of an epoch.

    Parameters
    ----------
    sizes : sequence of int
        The datasets' lengths, 1 or more.
    weights : sequence of float
        The datasets' weights, above 0.
    at_end : str
        What happens when a dataset has been read: 'stop' ends the epoch; 'repeat' reads it again until the
        last of them has been read; 'drop' leaves the others to go on in proportion.

    Raises
    ------
    ValueError
        The epoch would have 2**52 samples or more.

    Examples
    --------
    >>> [stage.counts for stage in plan_stages([4, 9], [1, 1], "stop")]
    [(4, 4)]
    >>> [stage.counts for stage in plan_stages([4, 9], [1, 1], "repeat")]
    [(9, 9)]
    >>> [stage.counts for stage in plan_stages([4, 9], [1, 1], "drop")]
    [(4, 4), (0, 5)]
    """
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
        reached = tuple(
            _reached(size, weight, time, at_end) for size, weight in zip(sizes, weights, strict=True)
        )
        counts = tuple(after - before for after, before in zip(reached, read, strict=True))
        if any(counts):
            stages.append(Stage(start, read, counts))
        read, start = reached, start + sum(counts)
    return tuple(stages)


def _reached(size: int, weight: float, time: float, at_end: str) -> int:
    """Return how many samples of a dataset an epoch has read at a time."""
    if at_end == "repeat":
        return max(round(weight * time), size)
    return size if size / weight <= time else min(round(weight * time), size)


@dataclass(frozen=True)
class Mixed(Computed):
    """The indices of an epoch in the concatenation of several datasets, mixed in proportion to their weights.

    Every block of 4,096 samples has each dataset in proportion, in random order. A dataset that is repeated
    is read in full before its next pass, each pass in another order.

    Examples
    --------
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
            key = derive_key(self.seed, self.epoch, MIXED, number, block)
            shuffled = owners[sort_hashes(len(owners), key).view(np.int64)]
        entries = np.empty(len(owners), np.int64)
        offset = 0
        for owner, size in enumerate(self.sizes):
            # A dataset's samples keep their order among each other, so that one pass over it follows another.
            turns = ranks[owners == owner] + stage.begins[owner]
            entries[shuffled == owner] = offset + self._read(owner, turns)
            offset += size
        object.__setattr__(self, "_block", ((number, block), entries))
        return entries

    def _read(self, owner: int, ranks: IndexArray) -> IndexArray:
        """Return the indices of the samples of a dataset that are read in these turns, in ascending order."""
        size = self.sizes[owner]
        passes, within = np.divmod(ranks, size)
        if not self.shuffle or size == 1:
            return within
        for turn in np.unique(passes).tolist():
            here = slice(*np.searchsorted(passes, [turn, turn + 1]).tolist())
            within[here] = self._permutation(owner, turn).at(within[here])
        return within

    def _permutation(self, owner: int, turn: int) -> Shuffled:
        """Return the order of a dataset's samples in one pass over it."""
        kept = self._latest.get(owner)
        if kept is None or kept[0] != turn:
            seed = derive_key(self.seed, MIXED, owner, turn)
            kept = self._latest[owner] = turn, Shuffled(self.sizes[owner], seed, self.epoch)
        return kept[1]

    @cached_property
    def _latest(self) -> dict[int, tuple[int, Shuffled]]:
        """The pass that each dataset was last read in, and its order."""
        return {}


class MixSampler(Sampler[int]):
    """A sampler of the indices of several datasets, mixed; see `gpuloader.MixDataset`.

    >>> list(MixSampler([2, 4], [1, 2], "stop", shuffle=False))
    [2, 0, 3, 4, 1, 5]
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], at_end: str, *, shuffle: bool) -> None:
        super().__init__()
        self._terms = tuple(sizes), tuple(weights), at_end, shuffle
        self._length = len(self.order(0, 0))

    def __len__(self) -> int:
        return self._length

    def mixes_like(self, other: object) -> bool:
        """Return whether another sampler mixes datasets of the same lengths in the same way, shuffled or not.

        >>> MixSampler([2], [1], "stop", shuffle=True).mixes_like(MixSampler([2], [1], "stop", shuffle=False))
        True
        """
        return isinstance(other, MixSampler) and other._terms[:-1] == self._terms[:-1]

    def __iter__(self) -> Iterator[int]:
        return iterate(self.order(draw_seed(), 0))

    def order(self, seed: int, epoch: int) -> Order:
        """Return the indices of an epoch, in the concatenation of the datasets."""
        return Mixed(*self._terms, seed, epoch)
