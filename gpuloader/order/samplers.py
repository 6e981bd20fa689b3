"""Samplers, which determine the samples of an epoch and their order, as in Paddle's ``paddle.io``.

A loader asks a sampler for its `order`, which depends only on seed and epoch. The seed is the loader's, or
one drawn from the sampler's own generator when the sampler is made. Outside a loader, each iteration of a
random sampler draws a new seed from that generator, or from NumPy's global random state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.checks import check_count, check_flags, check_function
from gpuloader.errors import BadType, BadTypeOrValue, BadValue, LoaderError, QueueClosed, describe_error
from gpuloader.foreign import is_torch_generator
from gpuloader.order import order as orders
from gpuloader.order.dividing import ALONE, Division, Share
from gpuloader.order.order import IndexArray, InOrder, Mapped, Order, Repeated, Shuffled, check_whole
from gpuloader.order.randomness import BUCKETED, GeneratorLike, derive_key, draw_seed, sort_hashes
from gpuloader.order.worker_info import find_rank
from gpuloader.system.iterators import Steady, group

I = TypeVar("I", covariant=True)  # noqa: E741 - a sampler's index
T = TypeVar("T")


class Sampler(Generic[I]):
    """Base class of samplers; a subclass yields the indices of an epoch from `__iter__`.

    ``Sampler[int]`` annotates a sampler of integers.

    Parameters
    ----------
    data_source : sized, optional
        The dataset; its length is the sampler's length, unless a subclass overrides `__len__`.

    Examples
    --------
    >>> class Backwards(Sampler[int]):
    ...     def __iter__(self):
    ...         return iter(range(len(self) - 1, -1, -1))
    >>> list(Backwards("abc"))
    [2, 1, 0]
    """

    data_source: Sized | None = None

    def __init__(self, data_source: Sized | None = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[I]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__, which yields indices")

    def __len__(self) -> int:
        # A TypeError, because `list` asks for the length and then does without it.
        if self.data_source is None:
            raise TypeError(
                f"{type(self).__name__} has no data_source to take a length from: pass one, or define __len__"
            )
        return len(self.data_source)

    def order(self, seed: int, epoch: int) -> Order | None:  # noqa: ARG002
        """Return the indices of an epoch, from 0, as an order; None if only `__iter__` knows them.

        The seed is the loader's, from 0 to 2**64 - 1.
        """
        return None


class SequenceSampler(Sampler[int]):
    """A sampler of the indices 0, 1, 2, … of `data_source`, a dataset with a length, in order.

    Examples
    --------
    >>> list(SequenceSampler("abc"))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = check_sized("data_source", data_source)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def order(self, seed: int, epoch: int) -> Order | None:  # noqa: ARG002
        """Return the indices in order, or None if a subclass overrides `__iter__`."""
        # Otherwise a user's own `__iter__` would never run, although it is the point of the class.
        return InOrder(len(self)) if type(self).__iter__ is SequenceSampler.__iter__ else None


class _Seeded(Sampler[int]):
    """A sampler whose order follows from a seed: the loader's, or one drawn from its own generator."""

    generator: GeneratorLike = None
    _seed: int | None = None

    def _seed_from(self, generator: GeneratorLike) -> None:
        self.generator = generator
        # Drawn once, here: a seed per epoch would depend on how often the loader asks for an order.
        self._seed = None if generator is None else draw_seed(generator)

    def __iter__(self) -> Iterator[int]:
        # Outside a loader, each iteration draws a seed.
        yield from orders.iterate(self._draw(draw_seed(self.generator), 0))

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the indices of an epoch, or None if the generator or a subclass's `__iter__` yields them."""
        # An iterator and a NumPy generator yield different indices each time they are asked.
        drawn = self.generator is not None and self._seed is None
        if drawn or type(self).__iter__ not in (_Seeded.__iter__, RandomSampler.__iter__):
            return None
        return self._draw(seed if self._seed is None else self._seed, epoch)

    def _draw(self, seed: int, epoch: int) -> Order:
        raise NotImplementedError


class RandomSampler(_Seeded):
    """A sampler of random indices of a dataset, which must not be empty, as in PyTorch and Paddle.

    Parameters
    ----------
    data_source : sized
        The dataset.
    replacement : bool
        Whether an index may be drawn again before all others have been drawn.
    num_samples : int, optional
        Indices per epoch, 1 or more; None means the dataset's length. Without replacement, a larger number
        draws one permutation of the dataset after another.
    generator : torch.Generator, iterator, numpy.random.Generator or numpy.random.RandomState, optional
        A ``torch.Generator`` provides the sampler's seed, drawn once when the sampler is made, instead of the
        loader's. From an iterator of indices, each epoch takes the next ones until it ends. A NumPy generator
        draws the indices of each epoch itself.

    Examples
    --------
    >>> sorted(RandomSampler("abc"))
    [0, 1, 2]
    >>> list(RandomSampler("abc", generator=iter([2, 0, 1])))
    [2, 0, 1]
    """

    data_source: Sized

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Iterator[int] | GeneratorLike = None,
    ) -> None:
        self.data_source = check_sized("data_source", data_source)
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be True or False, got {replacement!r}")
        if is_torch_generator(generator):
            self._seed_from(generator)
        elif isinstance(generator, Iterator | np.random.Generator | np.random.RandomState | None):
            self.generator = generator
        else:
            raise TypeError(
                "generator must be a torch.Generator, an iterator of indices, a numpy.random.Generator or a "
                f"numpy.random.RandomState, got {type(generator).__name__}"
            )
        self.replacement = replacement
        self._num_samples = None if num_samples is None else check_count("num_samples", num_samples)
        # Raised here, where the mistake is, not in the first loop.
        if not len(data_source):
            raise ValueError(
                f"num_samples={self.num_samples}, but the data source is empty: there is nothing to shuffle; "
                "check what fills the dataset"
            )

    @property
    def num_samples(self) -> int:
        """Number of indices per epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        generator = self.generator
        if generator is None or self._seed is not None:
            return super().__iter__()
        if isinstance(generator, Iterator):
            # As in Paddle, it continues where the previous epoch stopped.
            return itertools.islice(generator, self.num_samples)
        if not self.replacement:
            count = len(self.data_source)
            turns = range(0, self.num_samples, max(count, 1))
            drawn = itertools.chain.from_iterable(generator.permutation(count).tolist() for _ in turns)
            return itertools.islice(drawn, self.num_samples)
        draw = generator.integers if isinstance(generator, np.random.Generator) else generator.randint
        return iter(draw(len(self.data_source), size=self.num_samples).tolist())

    def _draw(self, seed: int, epoch: int) -> Order:
        count, draws = len(self.data_source), self.num_samples
        if self.replacement:
            return orders.Drawn(count, draws, seed, epoch)
        return Shuffled(count, seed, epoch, draws) if draws <= count else Repeated(count, draws, seed, epoch)


class WeightedRandomSampler(_Seeded):
    """A sampler of random indices, each drawn with a probability proportional to its weight.

    Parameters
    ----------
    weights : array-like
        One weight per sample of the dataset, 0 or more; they need not sum to 1.
    num_samples : int
        Number of indices per epoch, 1 or more.
    replacement : bool
        Whether an index may be drawn repeatedly. If not, at least `num_samples` weights must be above 0.
    generator : torch.Generator, numpy.random.Generator or numpy.random.RandomState, optional
        Provides the sampler's seed, drawn once when the sampler is made. None uses the loader's seed.

    Examples
    --------
    >>> list(WeightedRandomSampler([0, 1, 0], num_samples=3))
    [1, 1, 1]
    """

    def __init__(
        self, weights: ArrayLike, num_samples: int, replacement: bool = True, generator: GeneratorLike = None
    ) -> None:
        if not isinstance(replacement, bool):
            raise BadTypeOrValue(f"replacement must be True or False, got {replacement!r}")
        self.num_samples = check_count("num_samples", num_samples)
        self.replacement = replacement
        self.weights: NDArray[np.float64] = orders.as_weights(weights, self.num_samples, replacement)
        self._seed_from(generator)

    def __len__(self) -> int:
        return self.num_samples

    def _draw(self, seed: int, epoch: int) -> Order:
        return orders.Weighted(self.weights, self.num_samples, self.replacement, seed, epoch)


class SubsetRandomSampler(_Seeded):
    """A sampler of the given indices, possibly none, in random order.

    A PyTorch or NumPy generator provides the sampler's seed, drawn once when the sampler is made. Without
    one, the sampler uses the loader's seed.

    Examples
    --------
    >>> sorted(SubsetRandomSampler([7, 3, 5]))
    [3, 5, 7]
    """

    def __init__(self, indices: Sequence[int] | NDArray[np.integer], generator: GeneratorLike = None) -> None:
        self.indices = orders.as_indices("indices", indices)
        self._seed_from(generator)

    def __len__(self) -> int:
        return len(self.indices)

    def _draw(self, seed: int, epoch: int) -> Order:
        return Mapped(Shuffled(len(self.indices), seed, epoch), self.indices)


class MixSampler(_Seeded):
    """A sampler of the indices of several datasets, mixed; see `gpuloader.MixDataset`.

    >>> list(MixSampler([2, 4], [1, 2], "stop", shuffle=False))
    [2, 0, 3, 4, 1, 5]
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], at_end: str, *, shuffle: bool) -> None:
        # Equal arguments mean the same proportions, and a dataset's own order promises just that.
        self._terms = tuple(sizes), tuple(weights), at_end, shuffle
        self._length = len(self._draw(0, 0))

    def __len__(self) -> int:
        return self._length

    def mixes_like(self, other: object) -> bool:
        """Return whether another sampler mixes datasets of these lengths in the same way, shuffled or not."""
        return isinstance(other, MixSampler) and other._terms[:-1] == self._terms[:-1]

    def _draw(self, seed: int, epoch: int) -> Order:
        return orders.Mixed(*self._terms, seed, epoch)


class ChunkSampler(_Seeded):
    """A sampler of chunks of these sizes, for ``shuffle="chunks"``; `listed` has the indices chunk by chunk.

    >>> sorted(ChunkSampler(np.array([2, 1]), window=1, listed=np.array([7, 8, 4])))
    [4, 7, 8]
    """

    def __init__(self, sizes: IndexArray, window: int, listed: IndexArray | None = None) -> None:
        super().__init__(range(int(sizes.sum())))
        self.window, self._sizes, self._listed = window, sizes, listed

    def _draw(self, seed: int, epoch: int) -> Order:
        order = orders.Windowed(self._sizes, self.window, seed, epoch)
        return order if self._listed is None else Mapped(order, self._listed)


def make_sampler(dataset: Sized, shuffle: bool) -> Sampler[int]:
    """Return the sampler that a loader makes for a dataset."""
    return RandomSampler(dataset) if shuffle else SequenceSampler(dataset)


def check_sized(name: str, value: object) -> Sized:
    """Return `value`, or raise `TypeError` if it has no length."""
    if not isinstance(value, Sized):
        raise BadType(f"{name} must have a length, got {type(value).__name__}, which defines no __len__")
    len(value)  # an iterable dataset raises its own explanation
    return value


def check_length(sampler: object) -> Sized:
    """Return `sampler`, or raise `TypeError` if it has no length."""
    if not isinstance(sampler, Sized):
        raise TypeError(f"the sampler, of type {type(sampler).__name__}, has no length")
    return sampler


# Samplers of batches.


class BatchSampler(Sampler[list[int]]):
    """A sampler that groups indices into batches.

    PyTorch's ``BatchSampler(sampler, batch_size, drop_last)`` works as well if the first argument has no
    `__getitem__`: a number cannot be a sampler, and a map-style dataset always has `__getitem__`.

    Parameters
    ----------
    dataset : sized, optional
        The dataset whose indices to group. Pass either this or `sampler`.
    sampler : iterable of int, optional
        The indices to group.
    shuffle : bool
        Whether to shuffle the dataset's indices; excludes `sampler`.
    batch_size : int
        Samples per batch, 1 or more.
    drop_last : bool
        Whether to drop a shorter last batch.

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
            # A list or map-style dataset may be meant as Paddle's `dataset`, with a misplaced number.
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
            self.sampler: Iterable[int] = make_sampler(check_sized("dataset", dataset), shuffle)
        elif shuffle:
            raise BadValue("shuffle must be False if a sampler is given: the sampler determines the order")
        elif not isinstance(given, Iterable):
            raise BadType(f"sampler must be an iterable of indices, got {type(given).__name__}")
        else:
            self.sampler = given
        self.shuffle = bool(shuffle)
        self.batch_size = check_count("batch_size", batch_size)
        self.drop_last = bool(drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        yield from group(open_sampler(self.sampler), self.batch_size, self.drop_last)

    def __len__(self) -> int:
        return ALONE.count(len(check_length(self.sampler)), self.batch_size, drop_last=self.drop_last)

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return an epoch's indices, all batches concatenated, or None if only `__iter__` knows them."""
        # All batches concatenated are the sampler's own order, so a resume may cut them into another size.
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
    num_replicas, rank : int, optional
        The world size, and this process's rank, from 0. By default, a process group of torch.distributed or
        the launcher's environment variables determine them whenever an epoch begins; otherwise they are 1 and
        0.
    shuffle : bool
        Whether to shuffle the dataset differently in every epoch, but identically on all ranks.
    drop_last : bool
        Whether to drop a shorter last batch on every rank.
    seed : int
        Seed of the shuffle, from 0 to 2**64 - 1. It must be the same on all ranks, so the loader's seed is
        ignored.

    Raises
    ------
    ValueError
        A number is out of range, or, when an epoch begins, the environment is inconsistent.

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
        """The world size: the one that was passed, otherwise the launcher's."""
        return find_rank()[1] if self._count is None else self._count

    @property
    def local_rank(self) -> int:
        """The rank of this process: the one that was passed, otherwise the launcher's."""
        return check_whole("rank", find_rank()[0] if self._rank is None else self._rank, self.nranks)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, 0 or more, which overrides the loader's epoch count from then on."""
        self.epoch = check_whole("epoch", epoch, 2**64)
        self._has_epoch = True

    def __iter__(self) -> Iterator[list[int]]:
        order = self._share(self.epoch)
        # As in Paddle: without `set_epoch`, every epoch is shuffled differently.
        self.epoch += self.shuffle
        return group(orders.iterate(order), self.batch_size, self.drop_last)

    @property
    def num_samples(self) -> int:
        """Samples per epoch on one rank, before `drop_last` drops any."""
        return -(-len(self.dataset) // self.nranks)

    @property
    def total_size(self) -> int:
        """Samples per epoch on all ranks together, repeated ones included."""
        return self.num_samples * self.nranks

    def __len__(self) -> int:
        return ALONE.count(len(self._share(0)), self.batch_size, drop_last=self.drop_last)

    def order(self, seed: int, epoch: int) -> Order | None:  # noqa: ARG002
        """Return this rank's indices of the epoch set with `set_epoch`, otherwise of `epoch`."""
        if type(self).__iter__ is not DistributedBatchSampler.__iter__:
            return None
        return self._share(self.epoch if self._has_epoch else epoch)

    def _share(self, epoch: int) -> Share:
        count = len(self.dataset)
        base = Shuffled(count, self.seed, epoch) if self.shuffle else InOrder(count)
        # 'repeat', as in Paddle and PyTorch: all ranks get equally many samples, without masks.
        division = Division(self.local_rank, self.nranks, "repeat")
        return Share(base, 0, self.batch_size, division, self.drop_last)


_AT_ONCE = 1024  # samples to load per call while lengths are measured


class BucketSampler(BatchSampler):
    """A batch sampler whose batches hold samples of similar length, in random order.

    Every epoch shuffles all samples and takes `pool` batches' worth of them at a time. It sorts these by
    length, cuts them into batches and shuffles the batches. Padding then costs little, and both the samples
    of a batch and the order of the batches still differ from epoch to epoch. The samples that do not fill a
    batch are chosen at random, not by their length.

    With `max_tokens`, batches have a budget instead of a number of samples: many short ones or few long ones.
    The samples are sorted by length and divided into groups of similar length. Every epoch shuffles each
    group, cuts it into batches and shuffles all batches, so every epoch has equally many batches.

    The order depends only on the seed, the epoch, the lengths and these arguments. So a loader can resume
    mid-epoch, even with a different number of ranks, but not with another batch size or budget.

    Parameters
    ----------
    source : array-like or sized
        The length of every sample, 0 or more, such as a number of tokens or of seconds; or, with `key`, the
        map-style dataset itself. A loader checks that each sample of its dataset has a length.
    batch_size : int or None
        Samples per batch, 1 or more. With `shard`, per batch of one rank. With `max_tokens`, the most
        samples of a batch; None sets no limit.
    max_tokens : int, float or None
        The most that a padded batch may hold: its samples times its greatest length.
    key : callable or None
        Returns the length of a sample of the dataset. All samples are loaded once, when the sampler is made.
    shuffle : bool
        False sorts all samples by length, the shortest first, in every epoch.
    drop_last : bool
        Whether to drop a smaller last batch. With `max_tokens`, it is the rest of the last group, that of the
        shortest samples.
    pool : int
        Batches to sort together, 1 or more. More make lengths more similar and batches less random. With
        `max_tokens`, the number of groups; there are more if lengths within a group differ by over a tenth.

    Raises
    ------
    ValueError
        A number is out of range, or a sample alone exceeds `max_tokens`.

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
    >>> sorted(len(batch) for batch in BucketSampler(words, max_tokens=9, key=len))
    [1, 1, 1, 3]
    """

    sampler: Sampler[int]
    max_tokens: float | None = None

    def __init__(
        self,
        source: ArrayLike | Sized,
        batch_size: int | None = None,
        *,
        max_tokens: float | None = None,
        key: Callable[[Any], float] | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        pool: int = 100,
    ) -> None:
        check_flags(shuffle=shuffle)
        if batch_size is None and max_tokens is None:
            raise BadValue("pass batch_size, the samples per batch, or max_tokens, the budget of a batch")
        lengths = _as_lengths(source if key is None else _measure(source, key))
        pool = check_count("pool", pool)
        size = 0 if batch_size is None else check_count("batch_size", batch_size)
        self.max_tokens = max_tokens
        sampler: _Buckets | Budgeted
        if max_tokens is None:
            sampler = _Buckets(lengths, size, pool, shuffle)
        else:
            sampler = Budgeted(lengths, max_tokens, size, pool, shuffle, drop_last)
            size = sampler.largest
        super().__init__(sampler=sampler, batch_size=size, drop_last=drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        if isinstance(self.sampler, Budgeted):
            return (batch.tolist() for batch in self.sampler.batches(draw_seed(None), 0))
        return super().__iter__()

    def __len__(self) -> int:
        return len(self.sampler.cuts) if isinstance(self.sampler, Budgeted) else super().__len__()

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return an epoch's indices, all batches concatenated, or None if only `__iter__` knows them.

        With `max_tokens` it returns None, because the indices alone do not tell where a batch ends.
        """
        return self.sampler.order(seed, epoch) if type(self).__iter__ is BucketSampler.__iter__ else None

    @property
    def lengths(self) -> NDArray[Any]:
        """The length of every sample."""
        assert isinstance(self.sampler, _Buckets | Budgeted)
        return self.sampler.lengths


def find_batches(sampler: Iterable[Any], seed: int, epoch: int) -> Iterable[Any]:
    """Return the batches of an epoch if they follow from the seed, otherwise the batch sampler itself.

    >>> sampler = BucketSampler([1, 2, 1], max_tokens=2)
    >>> [batch.tolist() for batch in find_batches(sampler, seed=1, epoch=0)]
    [[1], [2, 0]]
    """
    inside = getattr(sampler, "sampler", None)
    if isinstance(inside, Budgeted) and type(sampler).__iter__ is BucketSampler.__iter__:
        return inside.batches(seed, epoch)
    return sampler


_ALIKE = 0.9  # the shortest sample of a group has at least this fraction of the longest's length
_MIXED = 4  # batches per group, if lengths allow: with one, the same samples would meet in every epoch


class Budgeted(Sampler[int]):
    """The samples of a `BucketSampler` with a budget, in groups whose batches have the same size.

    Batches are `cuts` of all samples in descending order of length.
    """

    # The groups do not depend on the epoch, so neither does the number of batches. Schedules rely on that.

    def __init__(
        self, lengths: NDArray[Any], max_tokens: float, most: int, pool: int, shuffle: bool, drop_last: bool
    ) -> None:
        super().__init__(lengths)
        is_number = isinstance(max_tokens, int | float | np.number) and not isinstance(max_tokens, bool)
        if not is_number or not 0 < max_tokens < np.inf:
            raise BadValue(f"max_tokens must be a number above 0, got {max_tokens!r}")
        if len(long := np.flatnonzero(lengths > max_tokens)):
            raise BadValue(
                f"sample {long[0]} has length {lengths[long[0]]}, but a whole batch may have "
                f"max_tokens={max_tokens}; {len(long)} samples are too long: cut them, leave them out, or "
                "allow more"
            )
        self.lengths, self.shuffles = lengths, shuffle
        ascending = np.argsort(lengths, kind="stable")
        sizes, count, start = lengths[ascending], len(lengths), 0
        self._sorted, self._group = ascending[::-1], np.empty(count, np.int64)
        self.cuts: list[slice] = []
        while start < count:
            longest = sizes[count - 1 - start]
            size = count if longest * count <= max_tokens else int(max_tokens // longest)
            size = min(size, most or size)
            # Whole batches, so that only the last group leaves a partial one.
            alike = count - start - int(np.searchsorted(sizes, longest * _ALIKE))
            wanted = min(alike, max(count // pool, _MIXED * size))
            end = start - (-max(wanted, 1) // size) * size
            self._group[self._sorted[start:end]] = start
            self.cuts += [slice(at, min(at + size, count)) for at in range(start, min(end, count), size)]
            start = end
        self.largest = max((cut.stop - cut.start for cut in self.cuts), default=1)
        if drop_last and start > count:
            self.cuts.pop()

    def __iter__(self) -> Iterator[int]:
        for batch in self.batches(draw_seed(None), 0):
            yield from batch.tolist()

    def batches(self, seed: int, epoch: int) -> list[IndexArray]:
        """Return the indices of each batch of an epoch."""
        if not self.shuffles:
            return [self._sorted[cut] for cut in reversed(self.cuts)]
        drawn = Shuffled(len(self.lengths), seed, epoch).slice(0, len(self.lengths))
        arranged = drawn[np.argsort(self._group[drawn], kind="stable")]
        turns = sort_hashes(len(self.cuts), derive_key(seed, epoch, BUCKETED))
        return [arranged[self.cuts[turn]] for turn in turns.tolist()]


class _Buckets(_Seeded):
    """The indices of a `BucketSampler`, one by one."""

    def __init__(self, lengths: NDArray[Any], batch_size: int, pool: int, shuffle: bool) -> None:
        super().__init__(lengths)
        self.lengths = lengths
        self._batch_size = batch_size
        self._pool = pool
        # Without a shuffle the order is the same in every epoch, so it is sorted once.
        self._sorted = None if shuffle else np.argsort(lengths, kind="stable")

    def _draw(self, seed: int, epoch: int) -> Order:
        if self._sorted is not None:
            return Mapped(InOrder(len(self.lengths)), self._sorted)
        base = Shuffled(len(self.lengths), seed, epoch)
        return orders.Bucketed(base, self.lengths, self._batch_size, self._pool)


def _measure(dataset: Any, key: Callable[[Any], float]) -> list[float]:
    check_function("key", key)
    count = len(check_sized("a dataset whose samples are measured", dataset))
    # Many per call, because a store may answer a request for a thousand samples as fast as for one.
    many = getattr(dataset, "__getitems__", None)
    if many is None:
        return [key(dataset[index]) for index in range(count)]
    starts = range(0, count, _AT_ONCE)
    return [key(sample) for start in starts for sample in many([*range(count)[start : start + _AT_ONCE]])]


def _as_lengths(lengths: Any) -> NDArray[Any]:
    expected = "lengths must be a list of numbers, one per sample"
    try:
        array = orders.as_plain(lengths)
    except ValueError as error:
        raise ValueError(f"{expected}: {error}; for a dataset, pass key=len or a function like it") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        got = f"{type(lengths).__name__} of dtype {array.dtype} and shape {array.shape}"
        raise ValueError(f"{expected}, got {got}; for a dataset, pass key=len or a function like it")
    if bad := np.flatnonzero(~((array >= 0) & (array < np.inf))).tolist():
        raise BadValue(f"lengths must be finite and 0 or more, got {array[bad[0]]} at index {bad[0]}")
    # A copy, because the lengths are part of the order: if the user changed them, epochs already run would
    # change.
    array = array.copy()
    array.flags.writeable = False
    return array


# Reading a user's own sampler.


def walk(sampler: Iterable[T]) -> Iterator[T]:
    """Yield what a sampler yields."""
    closed = QueueClosed  # an iterator that is left until Python ends outlives the names of this module
    try:
        yield from open_sampler(sampler)
    except closed as error:  # would silently end the epoch
        raise LoaderError(f"the sampler or batch sampler raised {describe_error(error)}") from error


def open_sampler(sampler: Iterable[T]) -> Iterator[T]:
    """Return a sampler's iterator, which does not start over; raise `TypeError` if it is not an iterator."""
    try:
        # Some iterators start over after their end, which would turn two epochs into one.
        return Steady.of(iter(sampler))
    except TypeError as error:
        if "non-iterator" not in str(error):
            raise
        kind = type(sampler).__name__
        raise BadType(
            f"{kind}.__iter__ of the sampler or batch sampler must return an iterator ({error}); return "
            "iter(...) of a list, or write it as a generator"
        ) from error
