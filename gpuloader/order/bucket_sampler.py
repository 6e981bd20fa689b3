"""`BucketSampler`: batches of samples of similar length, so that padding wastes little."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.base.checks import check_count, check_flags
from gpuloader.base.errors import BadValue
from gpuloader.order.batch_sampler import BatchSampler
from gpuloader.order.computed import Computed, Indices, as_plain
from gpuloader.order.generators import draw_seed
from gpuloader.order.order import InOrder, Mapped, Order, Shuffled, iterate
from gpuloader.order.permutation import BUCKETED, derive_key, sort_hashes
from gpuloader.order.sampler import Sampler, check_sized

_AT_ONCE = 1024  # samples to load with one call when lengths are measured


class BucketSampler(BatchSampler):
    """A batch sampler whose batches hold samples of similar length, in random order.

    Every epoch shuffles all samples and takes `pool` batches' worth of them at a time. It sorts these by
    length, cuts them into batches and shuffles the batches. Padding then costs little, and both the samples
    of a batch and the order of the batches still differ from epoch to epoch. The samples that do not fill a
    batch are chosen at random, not by their length.

    The order depends only on the seed, the epoch, the lengths, `batch_size` and `pool`. So a loader can
    resume in the middle of it, on another number of ranks too, but not with another batch size.

    Parameters
    ----------
    source : array-like or sized
        The length of every sample, 0 or more, such as a number of tokens or of seconds; or, with `key`, the
        map-style dataset itself. A loader checks that there is one for each sample of its dataset.
    batch_size : int
        Samples per batch, 1 or more. With `shard`, per batch of one rank.
    key : callable or None
        Returns the length of a sample of the dataset. All samples are loaded once, when the sampler is made.
    shuffle : bool
        False sorts all samples by length, the shortest first, in every epoch.
    drop_last : bool
        Whether to drop a smaller last batch.
    pool : int
        Batches to sort together, 1 or more. More of them make lengths more similar and batches less random.

    Raises
    ------
    TypeError
        The dataset has no length, `key` is not callable, or a flag is not a boolean.
    ValueError
        A length is not a finite number, or a number is out of range.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> words = [np.ones(length) for length in (9, 1, 8, 2, 9, 1)]
    >>> sampler = BucketSampler([len(word) for word in words], batch_size=2)
    >>> loader = DataLoader(words, places="cpu", batch_sampler=sampler, pad={"0": 0}, seed=1)
    >>> [batch.shape for batch in loader]
    [(2, 9), (2, 1), (2, 8)]
    >>> sorted(len(batch) for batch in BucketSampler(words, 4, key=len))
    [2, 4]
    """

    sampler: Sampler[int]

    def __init__(
        self,
        source: ArrayLike | Sized,
        batch_size: int,
        *,
        key: Callable[[Any], float] | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        pool: int = 100,
    ) -> None:
        check_flags(shuffle=shuffle)
        lengths = _as_lengths(source if key is None else _measure(source, key))
        size, pool = check_count("batch_size", batch_size), check_count("pool", pool)
        sampler = _Buckets(lengths, size, pool, shuffle)
        super().__init__(sampler=sampler, batch_size=size, drop_last=drop_last)

    @property
    def lengths(self) -> NDArray[Any]:
        """The length of every sample."""
        assert isinstance(self.sampler, _Buckets)
        return self.sampler.lengths


class _Buckets(Sampler[int]):
    """The indices of a `BucketSampler`, one by one."""

    def __init__(self, lengths: NDArray[Any], batch_size: int, pool: int, shuffle: bool) -> None:
        super().__init__(lengths)
        self.lengths = lengths
        self._batch_size = batch_size
        self._pool = pool
        self._sorted = None if shuffle else np.argsort(lengths, kind="stable")

    def __iter__(self) -> Iterator[int]:
        return iterate(self.order(draw_seed(), 0))

    def order(self, seed: int, epoch: int) -> Order:
        """Return the indices of an epoch, batch after batch."""
        if self._sorted is not None:
            return Mapped(InOrder(len(self.lengths)), self._sorted)
        base = Shuffled(len(self.lengths), seed, epoch)
        return Bucketed(base, self.lengths, self._batch_size, self._pool)


@dataclass(frozen=True, eq=False)
class Bucketed(Computed):
    """The indices of `base`, rearranged so that those of a batch belong to samples of similar length.

    Computing an entry takes the time of sorting one pool; see `BucketSampler`.

    Examples
    --------
    >>> lengths = np.array([9, 1, 8, 2, 9, 1])
    >>> lengths[Bucketed(Shuffled(6, seed=1, epoch=0), lengths, 2, pool=3).slice(0, 6)].tolist()
    [9, 9, 1, 1, 2, 8]
    """

    base: Shuffled
    lengths: NDArray[Any]
    batch_size: int
    pool: int
    _sorted: tuple[int, Indices] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
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

    def _sort(self, number: int, whole: int) -> Indices:
        """Return the indices of a pool, batch after batch."""
        kept, pool = self._sorted
        if kept != number:
            size = self.batch_size * self.pool
            drawn = self.base.slice(number * size, min((number + 1) * size, whole))
            ascending = drawn[np.argsort(self.lengths[drawn], kind="stable")]
            batches = ascending.reshape(-1, self.batch_size)
            key = derive_key(self.base.seed, self.base.epoch, BUCKETED, number)
            pool = batches[sort_hashes(len(batches), key).view(np.int64)].reshape(-1)
            object.__setattr__(self, "_sorted", (number, pool))
        return pool


def _measure(dataset: Any, key: Callable[[Any], float]) -> list[float]:
    if not callable(key):
        raise TypeError(f"key must be callable, got {type(key).__name__}")
    count = len(check_sized("a dataset whose samples are measured", dataset))
    many = getattr(dataset, "__getitems__", None)
    if many is None:
        return [key(dataset[index]) for index in range(count)]
    starts = range(0, count, _AT_ONCE)
    return [
        key(sample) for start in starts for sample in many(list(range(start, min(start + _AT_ONCE, count))))
    ]


def _as_lengths(lengths: Any) -> NDArray[Any]:
    expected = "lengths must be a list of numbers, one per sample"
    try:
        array = as_plain(lengths, np.float64)
    except ValueError as error:
        raise ValueError(f"{expected}: {error}; for a dataset, pass key=len or a function like it") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        got = f"{type(lengths).__name__} of dtype {array.dtype} and shape {array.shape}"
        raise ValueError(f"{expected}, got {got}; for a dataset, pass key=len or a function like it")
    if bad := np.flatnonzero(~((array >= 0) & (array < np.inf))).tolist():
        raise BadValue(f"lengths must be finite and 0 or more, got {array[bad[0]]} at index {bad[0]}")
    array = array.copy()
    array.flags.writeable = False
    return array
