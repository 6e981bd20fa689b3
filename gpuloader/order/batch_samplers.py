"""`BucketSampler`: batches of samples of similar length, so that padding wastes little."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.checks import check_count, check_flags
from gpuloader.errors import BadType, BadValue
from gpuloader.order.order import (
    Computed,
    IndexArray,
    InOrder,
    Mapped,
    Order,
    Shard,
    Shuffled,
    as_plain,
    check_whole,
    iterate,
)
from gpuloader.order.permutation import BUCKETED, derive_key, sort_hashes
from gpuloader.order.randomness import draw_seed
from gpuloader.order.ranks import find_rank
from gpuloader.order.samplers import RandomSampler, Sampler, SequenceSampler, check_sized, open_sampler

# Batch samplers, which yield the indices of each batch of an epoch, as in Paddle's ``paddle.io``.


class BatchSampler(Sampler[list[int]]):
    """A sampler that groups indices into batches.

    Parameters
    ----------
    dataset : sized, optional
        The dataset whose indices to group. Pass either this or `sampler`.
    sampler : iterable of int, optional
        The indices to group.
    shuffle : bool
        Whether to shuffle the dataset's indices.
    batch_size : int
        Samples per batch, 1 or more.
    drop_last : bool
        Whether to drop a shorter last batch.

    Raises
    ------
    TypeError
        The dataset has no length, the sampler is not iterable, or a flag is not a boolean.
    ValueError
        Both or neither of `dataset` and `sampler` are given, `shuffle` is combined with a sampler, or the
        batch size is not an integer of 1 or more.

    Notes
    -----
    PyTorch's ``BatchSampler(sampler, batch_size, drop_last)`` works as well if the first argument has no
    `__getitem__`: a number cannot be a sampler, and a map-style dataset always has `__getitem__`.

    Examples
    --------
    >>> list(BatchSampler("abcde", batch_size=2))
    [[0, 1], [2, 3], [4]]
    >>> list(BatchSampler(sampler=[4, 2, 0], batch_size=2, drop_last=True))
    [[4, 2]]
    """

    def __init__(
        self,
        dataset: Sized | Iterable[int] | None = None,
        sampler: Iterable[int] | int | None = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        check_flags(shuffle=shuffle, drop_last=drop_last)
        given = sampler
        if isinstance(sampler, int | np.integer) and not isinstance(sampler, bool):
            # A list or a map-style dataset may be meant as Paddle's `dataset`, with a misplaced number.
            if dataset is None or hasattr(dataset, "__getitem__") or batch_size != 1:
                raise BadType(
                    f"sampler must be an iterable of indices, got {sampler!r}; for PyTorch's order of "
                    "arguments with a list of indices, pass sampler= and batch_size= by name"
                )
            batch_size, drop_last, shuffle = int(sampler), drop_last or shuffle, False
            dataset, given = None, dataset
        if (dataset is None) == (given is None):
            raise BadValue(f"pass either dataset or sampler, got {'neither' if dataset is None else 'both'}")
        if given is None:
            source = check_sized("dataset", dataset)
            self.sampler: Iterable[int] = RandomSampler(source) if shuffle else SequenceSampler(source)
        elif shuffle:
            raise BadValue("shuffle must be False if a sampler is given: the sampler determines the order")
        elif not isinstance(given, Iterable):
            raise BadType(f"sampler must be an iterable of indices, got {type(given).__name__}")
        else:
            self.sampler = given
        super().__init__()
        self.shuffle = bool(shuffle)
        self.batch_size = check_count("batch_size", batch_size)
        self.drop_last = bool(drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return _group(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"the sampler, of type {type(self.sampler).__name__}, has no length")
        return _count_batches(len(self.sampler), self.batch_size, self.drop_last)

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return an epoch's indices, all batches concatenated, or None if only `__iter__` knows them.

        The parameters are those of `Sampler.order`.
        """
        if type(self).__iter__ is not BatchSampler.__iter__ or not isinstance(self.sampler, Sampler):
            return None
        return self.sampler.order(seed, epoch)


class DistributedBatchSampler(BatchSampler):
    """A sampler of one rank's batches; all ranks get equally many samples, and together all of them.

    The ranks take turns, batch by batch. The remainder at the end is split evenly among them. To make it
    divisible, samples from the start of the dataset are repeated, as often as necessary.

    Parameters
    ----------
    dataset : sized
        The map-style dataset.
    batch_size : int
        Samples per batch of one rank, 1 or more.
    num_replicas : int, optional
        The world size. By default, a process group of torch.distributed or the launcher's environment
        variables determine it whenever an epoch begins, else it is 1.
    rank : int, optional
        This process's rank, from 0. By default, found in the same way.
    shuffle : bool
        Whether to shuffle the dataset differently in every epoch, but identically on all ranks.
    drop_last : bool
        Whether to drop a shorter last batch on every rank.
    seed : int
        Seed of the shuffle, from 0 to 2**64 - 1. It must be the same on all ranks, so the loader's seed is
        ignored.

    Raises
    ------
    TypeError
        The dataset has no length, or a flag is not a boolean.
    ValueError
        A number is out of range, or, when an epoch begins, the environment is inconsistent.

    See Also
    --------
    gpuloader.order.ranks.find_rank : lists the environment variables.

    Examples
    --------
    >>> list(DistributedBatchSampler("abcdefg", batch_size=2, num_replicas=2, rank=1))
    [[2, 3], [6, 0]]
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        # As in Paddle, only the other samplers refuse to shuffle an empty dataset.
        is_empty = isinstance(dataset, Sized) and not len(dataset)
        super().__init__(dataset, None, False if is_empty else shuffle, batch_size, drop_last)
        self.dataset = dataset
        self._count = None if num_replicas is None else check_count("num_replicas", num_replicas)
        self._rank = None if rank is None else check_whole("rank", rank, self._count or 2**31)
        self.seed = check_whole("seed", seed, 2**64)
        self.epoch = 0
        self._has_epoch = False

    @property
    def nranks(self) -> int:
        """The world size: the one that was passed, or else the launcher's."""
        return find_rank()[1] if self._count is None else self._count

    @property
    def local_rank(self) -> int:
        """The rank of this process: the one that was passed, or else the launcher's."""
        return check_whole("rank", find_rank()[0] if self._rank is None else self._rank, self.nranks)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which overrides the loader's epoch count from then on.

        Raises
        ------
        ValueError
            The epoch is not an integer of 0 or more.
        """
        self.epoch = check_whole("epoch", epoch, 2**64)
        self._has_epoch = True

    def __iter__(self) -> Iterator[list[int]]:
        order = self._share(self.epoch)
        # As in Paddle: without `set_epoch`, every epoch is shuffled differently.
        self.epoch += self.shuffle
        return _group(iterate(order), self.batch_size, self.drop_last)

    @property
    def num_samples(self) -> int:
        """Samples per epoch on one rank, before `drop_last` drops any."""
        return -(-len(self.dataset) // self.nranks)

    @property
    def total_size(self) -> int:
        """Samples per epoch on all ranks together, repeated ones included."""
        return self.num_samples * self.nranks

    def __len__(self) -> int:
        return _count_batches(len(self._share(0)), self.batch_size, self.drop_last)

    def order(self, seed: int, epoch: int) -> Order | None:  # noqa: ARG002
        """Return this rank's indices of the epoch set with `set_epoch`, or else of `epoch`.

        Returns None if a subclass overrides `__iter__`.
        """
        if type(self).__iter__ is not DistributedBatchSampler.__iter__:
            return None
        return self._share(self.epoch if self._has_epoch else epoch)

    def _share(self, epoch: int) -> Shard:
        count = len(self.dataset)
        base = Shuffled(count, self.seed, epoch) if self.shuffle else InOrder(count)
        return Shard(base, self.batch_size, self.nranks, self.local_rank, self.drop_last)


def _group(indices: Iterable[int], size: int, drop_last: bool) -> Iterator[list[int]]:
    left = open_sampler(indices)
    while batch := list(itertools.islice(left, size)):
        if len(batch) == size or not drop_last:
            yield batch


def _count_batches(count: int, size: int, drop_last: bool) -> int:
    return count // size if drop_last else -(-count // size)


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
    _sorted: tuple[int, IndexArray] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def at(self, positions: IndexArray) -> IndexArray:
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

    def _sort(self, number: int, whole: int) -> IndexArray:
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
