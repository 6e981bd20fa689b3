"""The batching of a dataset: the loader's batching options, checked and combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import BadType, BadValue
from gpuloader.order.batch_samplers import BatchSampler, BucketSampler, DistributedBatchSampler
from gpuloader.order.mixed import Mixed, MixSampler
from gpuloader.order.order import InOrder, Mapped, Order, as_indices
from gpuloader.order.plan import (
    ALONE,
    BulkPlan,
    DealtPlan,
    DividedPlan,
    Division,
    GroupedPlan,
    OrderedPlan,
    Plan,
    SampledPlan,
    Sharding,
)
from gpuloader.order.ranks import find_rank, find_torch_rank
from gpuloader.order.samplers import RandomSampler, Sampler, SequenceSampler, check_sized, make_sampler, walk
from gpuloader.system.imported import find_classes
from gpuloader.system.rereading import refuse_read

# What ranks can agree on: which samplers yield the same indices on every rank, and which divide already.

OwnOrder = Callable[[bool], Any]
"""Makes the sampler of a dataset with an order of its own, such as a `MixDataset`, shuffled or not."""

_DIVIDING = (
    ("num_replicas", "rank"),
    ("nranks", "local_rank"),
    ("num_processes", "process_index"),
    ("world_size", "rank"),
    ("_world_size", "_rank"),
)
"""Attributes of samplers that yield one rank's indices: PyTorch's, Paddle's, Accelerate's and others'."""


class Listed(Sampler[int]):
    """A fixed list of indices, the same in every epoch.

    Examples
    --------
    >>> Listed([4, 2]).order(seed=0, epoch=0).slice(0, 2).tolist()
    [4, 2]
    """

    def __init__(self, indices: Sequence[int] | NDArray[np.int64]) -> None:
        super().__init__()
        self._order = Mapped(InOrder(len(indices)), as_indices("sampler", indices))

    def order(self, seed: int, epoch: int) -> Order:  # noqa: ARG002
        """Return the listed indices."""
        return self._order


def divides(sampler: object) -> bool:
    """Return whether a sampler, or one that it reads from, yields the indices of one rank.

    >>> divides(DistributedBatchSampler("abc", 2)), divides([0, 1, 2])
    (True, False)
    """
    for _ in range(3):  # a batch sampler, its sampler, and one more that wraps it
        if isinstance(sampler, DistributedBatchSampler) or any(
            all(hasattr(sampler, name) for name in names) for names in _DIVIDING
        ):
            return True
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(sampler, "batch_sampler", None) if inner is None else inner
    return False


def find_shared(sampler: object, batch_sampler: object) -> Sampler[Any] | None:
    """Return the sampler whose order ranks can divide; None if they have to iterate over the user's.

    Each rank iterates over a batch sampler, and over a sampler with ``set_epoch``, which is how a sampler
    tells that its order depends on the epoch alone.

    Raises
    ------
    ValueError
        Ranks might not agree on the indices, or the samplers divide them already.

    >>> find_shared(None, BatchSampler(sampler=[2, 0, 1], batch_size=2)).order(0, 0).slice(0, 3).tolist()
    [2, 0, 1]
    """
    name = type(sampler if batch_sampler is None else batch_sampler).__name__
    if divides(batch_sampler) or divides(sampler):
        raise ValueError(f"{name} already divides the dataset among ranks: pass it or shard, not both")
    grouped = sampler if batch_sampler is None else _find_grouped(batch_sampler)
    source = as_source(grouped)
    if source is not None:
        return source
    given = sampler if batch_sampler is None else batch_sampler
    draws = isinstance(getattr(given, "sampler", given), _find_drawing())
    tells = batch_sampler is not None or callable(getattr(sampler, "set_epoch", None))
    if isinstance(given, Iterator) or draws or not tells:
        raise ValueError(
            f"shard needs an order that is the same on every rank, which {name} does not guarantee: pass "
            "shuffle=True with a seed, a list of indices as sampler, one of gpuloader's samplers, a sampler "
            "with a method set_epoch, or a batch_sampler that yields the same batches on every rank"
        )
    return None


def as_source(sampler: object) -> Sampler[Any] | None:
    """Return a sampler with an order that every rank computes alike, or None if there is none.

    Indices in anything with a length that can be indexed are listed once, here.

    >>> type(as_source(range(3))).__name__, as_source(iter([1, 2]))
    ('Listed', None)
    """
    if isinstance(sampler, Sampler) and find_order(sampler, 0, 0) is not None:
        return sampler
    if type(sampler) in find_classes("SequentialSampler", "SequenceSampler"):
        return SequenceSampler(getattr(sampler, "data_source"))  # noqa: B009 - another package's attribute
    if isinstance(sampler, str | bytes | Mapping) or not isinstance(sampler, Sized):
        return None
    entries: Any = sampler
    if isinstance(entries, Sequence | np.ndarray) or hasattr(entries, "__array__"):
        return Listed(entries)
    if not hasattr(entries, "__getitem__"):
        return None
    return Listed([entries[position] for position in range(len(entries))])


def find_order(sampler: object, seed: int, epoch: int) -> Order | None:
    """Return the order of a sampler of single indices, or None if it has to be iterated.

    A `BatchSampler` that is passed as `sampler` yields lists of indices.

    >>> find_order(BatchSampler("abc"), 0, 0) is None, len(find_order(SequenceSampler("abc"), 0, 0))
    (True, 3)
    """
    if isinstance(sampler, Sampler) and not isinstance(sampler, BatchSampler):
        return sampler.order(seed, epoch)
    return None


def _find_grouped(batch_sampler: object) -> object:
    """Return the sampler whose indices a batch sampler groups without changing them, or None."""
    kinds: list[Any] = [BatchSampler, *find_classes("BatchSampler")]
    for kind in kinds:
        if isinstance(batch_sampler, kind) and type(batch_sampler).__iter__ is kind.__iter__:
            # Paddle's planner may make it group several batches into one.
            is_plain = getattr(batch_sampler, "_acc_steps", 1) == 1
            return getattr(batch_sampler, "sampler", None) if is_plain else None
    return None


def _find_drawing() -> tuple[type[Any], ...]:
    """Return the samplers that draw their indices themselves, so that each rank would draw others."""
    names = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
    return (RandomSampler, *find_classes(*names))


# Checks that a user's samplers fit the dataset, and the options that they are passed as.

_OF_INDICES = ("SequentialSampler", "SequenceSampler", "RandomSampler", "SubsetRandomSampler")
_OF_DRAWN_INDICES = ("WeightedRandomSampler", "DistributedSampler")


class StoredOrder(SequenceSampler):
    """The indices of a dataset in order, with which a loader fills its cache.

    It fits a `MixDataset` too: a cache holds every sample once, and is read in the order of the mix.
    """


def check_samplers(
    dataset: Any,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    batch_size: int | None,
    own_order: OwnOrder | None = None,
) -> None:
    """Check the samplers that were passed to a loader of a map-style dataset.

    Raises
    ------
    TypeError
        One is not iterable. Or a sampler of batches was passed as `sampler`, or one of single indices as
        `batch_sampler`. Or the dataset is a `MixDataset`, whose weights would be lost.
    ReaderError
        One is a generator that has been read already.
    ValueError
        A `BucketSampler` has another number of lengths than the dataset has samples.

    Examples
    --------
    >>> check_samplers("abc", None, BucketSampler([3, 1], 2), 1)
    Traceback (most recent call last):
    gpuloader.errors.BadValue: the BucketSampler has 2 lengths, but the dataset has 3 samples: pass t...
    """
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is None:
            continue
        if not isinstance(value, Iterable):
            raise BadType(f"{name} must be iterable, got {type(value).__name__}")
        refuse_read(value, f"the {name} is", "pass a list, or an object whose __iter__ makes a new iterator")
        _check_order(name, value, dataset, own_order)
        if isinstance(value, BucketSampler):
            _check_lengths(value, dataset)
    if isinstance(sampler, BucketSampler) and batch_size is not None:
        raise BadType(
            f"a {type(sampler).__name__} yields whole batches: pass it as batch_sampler, without a batch_size"
        )
    if _yields_indices(batch_sampler):
        raise BadType(
            f"a {type(batch_sampler).__name__} yields single indices: pass it as sampler, with a batch_size"
        )


def _check_order(name: str, given: object, dataset: Any, own_order: OwnOrder | None) -> None:
    """Raise `TypeError` if a dataset that has a mixed order of its own would be read in another one."""
    own = None if own_order is None else own_order(False)
    if not isinstance(own, MixSampler) or isinstance(given, StoredOrder):
        return
    innermost: Any = given
    for _ in range(3):  # a batch sampler, its sampler, and one more that wraps it
        if own.mixes_like(innermost):
            return
        inner = getattr(innermost, "sampler", None)
        innermost = getattr(innermost, "batch_sampler", None) if inner is None else inner
    raise BadType(
        f"the {name}, of type {type(given).__name__}, would read the {type(dataset).__name__} without its "
        "weights: leave it out, because the loader reads a mix in an order of its own, which shuffle=True "
        "shuffles and shard divides; for an order of your own, read ConcatDataset(mix.datasets)"
    )


def _check_lengths(sampler: BucketSampler, dataset: Any) -> None:
    count = len(dataset) if isinstance(dataset, Sized) else len(sampler.lengths)
    if len(sampler.lengths) != count:
        raise BadValue(
            f"the {type(sampler).__name__} has {len(sampler.lengths)} lengths, but the dataset has {count} "
            "samples: pass the length of each sample, in the dataset's order; for a Subset, "
            "lengths[subset.indices]"
        )


def _yields_indices(sampler: object) -> bool:
    """Return whether this is surely a sampler of single indices, not of batches."""
    if type(sampler) in find_classes(*_OF_INDICES, *_OF_DRAWN_INDICES):
        return True
    return isinstance(sampler, Sampler) and find_order(sampler, 0, 0) is not None


_IF_ALIKE = (
    "if it yields the same on every rank, pass shard=(rank, world_size) to divide that; if it divides the "
    "dataset itself, give it attributes num_replicas and rank"
)


_ITEMS_OBSTACLE = (
    "make the iterable dataset divide its items by the rank and world_size of gpuloader.get_worker_info(), "
    "or pass shard=(rank, world_size) if it yields the same on every rank"
)


@dataclass(frozen=True, slots=True)
class Batching:
    """How a dataset's samples are grouped into batches, in every epoch.

    Attributes
    ----------
    sampler : iterable or None
        Yields the indices of an epoch.
    batch_sampler : iterable or None
        Yields a sequence of indices for each batch.
    size : int or None
        Samples per batch, 1 for single samples; None if a batch sampler of unknown size decides.
    given_size : int or None
        The user's `batch_size`.
    drop_last : bool
        Whether to drop a shorter last batch.
    seed : int or None
        Seed of the order; if None, the loader draws one.
    sharding : Sharding or None
        The user's options for dividing the epoch among ranks; None reads everything.
    reads_all : bool
        Whether the user has said that every rank reads everything.
    obstacle : str or None
        Why the epoch is not divided although it would be if that were possible.
    alone : Batching or None
        The batching to use on a single rank instead of this one.
    find : callable
        Returns rank and world size.
    division : Division or None
        The rank whose part of each step to read, once `settle` has found it.
    """

    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    size: int | None
    given_size: int | None
    drop_last: bool
    seed: int | None = None
    sharding: Sharding | None = None
    reads_all: bool = False
    obstacle: str | None = None
    alone: Batching | None = None
    find: Callable[[], tuple[int, int]] = find_rank
    division: Division | None = None

    @classmethod
    def choose(
        cls,
        dataset: Any,
        *,
        iterable: bool,
        own_order: OwnOrder | None = None,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        batch_size: int | None,
        shuffle: bool,
        drop_last: bool,
        seed: int | None = None,
        make: Callable[[Any, bool], Sampler[int]] = make_sampler,
    ) -> Batching:
        """Return the batching that the options of a loader describe; `make` makes a missing sampler.

        Raises
        ------
        ValueError
            Two options exclude each other.
        TypeError
            The dataset has no length and there is no sampler, or a sampler does not fit; see
            `check_samplers`.
        """
        if iterable:
            given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
            if asked := [name for name, value in given.items() if value is not None and value is not False]:
                raise BadValue(f"an iterable dataset determines its own order: {asked[0]} cannot be given")
        check_samplers(dataset, sampler, batch_sampler, batch_size, own_order)
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or drop_last or sampler is not None:
                raise BadValue(
                    "batch_sampler determines the batches: batch_size, shuffle, sampler and drop_last "
                    "cannot be given as well"
                )
            size = getattr(batch_sampler, "batch_size", None)
            if not isinstance(size, int | np.integer) or size < 1:
                size = None  # a user-defined class may use the name differently
            drop_last = isinstance(batch_sampler, BatchSampler) and batch_sampler.drop_last
            return cls(None, batch_sampler, None if size is None else int(size), None, drop_last, seed)
        if sampler is not None and shuffle:
            raise BadValue("sampler determines the order: shuffle cannot be given as well")
        size = 1 if batch_size is None else check_count("batch_size", batch_size)
        if sampler is None and not iterable:
            check_sized("a dataset without a sampler", dataset)
            sampler = make(dataset, shuffle) if own_order is None else own_order(shuffle)
        return cls(sampler, None, size, batch_size, drop_last, seed)

    @property
    def iterable(self) -> bool:
        """Whether the dataset is iterable, so that there are no indices to batch."""
        return self.sampler is None and self.batch_sampler is None

    @property
    def single(self) -> bool:
        """Whether samples are delivered individually, not in batches."""
        return self.given_size is None and self.batch_sampler is None

    def divide(self, shard: object, uneven: object, *, dataset: object, in_order: bool) -> Batching:
        """Return a batching that is divided among ranks, or this one if `shard` is None.

        A seed of None becomes 0 if the order is not random; ranks that each drew a seed would disagree. A
        single rank has nobody to disagree with, so ``shard=(0, 1)`` is never refused.

        Raises
        ------
        ValueError
            Two options exclude each other, the ranks might not agree on an order, or the samples do not
            divide evenly.
        TypeError
            `shard` is not 'auto', a pair or None.
        """
        sharding = Sharding.of(shard, uneven)
        if sharding is None:
            return self
        try:
            divided = self._divide(sharding, dataset, in_order)
        except ValueError:
            if not sharding.is_alone:
                raise
            return replace(self, reads_all=True)
        if not sharding.is_alone and divided.seed is None and divided.is_seeded:
            raise ValueError(
                "with shard, all ranks need the same order: pass the same seed to all of them, for example "
                "seed=0; without one, each rank would draw its own"
            )
        if divided.seed is None and not divided.is_seeded:
            divided = replace(divided, seed=0)
        divided._check_if_even()
        return divided

    def divide_if_possible(self, uneven: object, *, dataset: object, in_order: bool) -> Batching:
        """Return a batching that is divided among the ranks there are, or as it is if that is impossible.

        An iterable dataset or a sampler that may yield other indices on each rank, or that divides already,
        stays as it is. So does everything on a single rank.

        Raises
        ------
        ValueError
            `uneven` has an unknown value, or is 'error' and the samples do not divide evenly.
        """
        self = replace(self, find=find_torch_rank)
        sharding = Sharding.of("auto", uneven)
        if sharding is None or divides(self._sampling):
            return self
        if self.iterable:
            return replace(self, obstacle=_ITEMS_OBSTACLE)
        try:
            divided = self._divide(replace(sharding, find=self.find), dataset, in_order)
            if divided.order(0, 0) is None:
                raise ValueError(f"{type(self._sampling).__name__} may differ between ranks: {_IF_ALIKE}")
        except (TypeError, ValueError) as error:
            return replace(self, obstacle=str(error))
        if self.batch_sampler is None and not isinstance(self.sampler, Sampler):
            divided = replace(divided, alone=self)  # what the user does to a list shows in the next epoch
        divided._check_if_even()
        return divided

    def _check_if_even(self) -> None:
        if self.sharding is None or self.sharding.uneven != "error":
            return
        try:
            settled = self.settle()
        except ValueError:
            return  # the next epoch finds the rank, or raises this again
        settled.check_even()

    def _divide(self, sharding: Sharding, dataset: object, in_order: bool) -> Batching:
        if not in_order:
            raise ValueError(
                "shard needs in_order=True: if ranks received batches in different orders, no position in "
                "the epoch would tell which samples all of them have read"
            )
        if self.single and sharding.uneven == "pad":
            raise ValueError(
                "uneven='pad' adds a mask to each batch, but batch_size=None yields single samples: choose "
                "uneven='repeat', 'drop' or 'error'"
            )
        if self.iterable:
            _check_items_divide(sharding.uneven, dataset)
            return replace(self, sharding=sharding)
        source = find_shared(self.sampler, self.batch_sampler)
        if source is None:
            if sharding.uneven == "error":
                _sized(self.batch_sampler)
            return replace(self, sharding=sharding)
        drop_last = self.drop_last or bool(getattr(self.batch_sampler, "drop_last", False))
        return replace(self, sampler=source, drop_last=drop_last, sharding=sharding)

    def settle(self) -> Batching:
        """Return this batching with the division of the rank that this process has now.

        Raises
        ------
        ValueError
            The environment is inconsistent.
        """
        if self.sharding is None:
            return self
        division = self.sharding.divide()
        return self.alone if self.alone and division.world_size == 1 else replace(self, division=division)

    def check_even(self, position: int = 0) -> None:
        """Raise `ValueError` if samples do not divide among the ranks and `uneven` is 'error'."""
        if self.division is None or self.division.uneven != "error":
            return
        if self.is_dealt:
            left = len(_sized(self.batch_sampler)) - position
            self.division.check_even(left, 1, drop_last=False, what="batches")
            return
        assert self.size is not None
        self.division.check_even(self.count_samples() - position, self.size, drop_last=self.drop_last)

    @property
    def is_dealt(self) -> bool:
        """Whether whole batches of a batch sampler are dealt to the ranks."""
        return self.sharding is not None and self.sampler is None and self.batch_sampler is not None

    @property
    def is_divided(self) -> bool:
        """Whether the epoch is divided among ranks, by this batching or by the sampler itself."""
        return self.sharding is not None or divides(self._sampling)

    @property
    def _sampling(self) -> Iterable[Any] | None:
        return self.batch_sampler if self.sampler is None else self.sampler

    @property
    def step(self) -> int:
        """Samples, or batches if those are dealt, that all ranks together take per step."""
        size = 1 if self.is_dealt else self.size or 1
        return size * (1 if self.division is None else self.division.world_size)

    @property
    def is_seeded(self) -> bool:
        """Whether the order depends on the seed."""
        order = self.order(0, 0)
        if isinstance(order, Mixed):
            return order.shuffle
        return not isinstance(order.base if isinstance(order, Mapped) else order, InOrder | None)

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the order of an epoch, or None if the sampler has to be iterated."""
        if self.sampler is None and isinstance(self.batch_sampler, BatchSampler):
            return self.batch_sampler.order(seed, epoch)
        return find_order(self.sampler, seed, epoch)

    def plan(self, seed: int, epoch: int, base: int = 0) -> Plan:
        """Return the plan of an epoch of a map-style dataset, with `base` samples before its batch 0."""
        order = self.order(seed, epoch)
        if order is not None:
            assert self.size is not None
            if (self.division or ALONE).world_size > 1 or base:
                return DividedPlan(order, self.size, self.drop_last, self.division or ALONE, base)
            return OrderedPlan(order, self.size, self.drop_last)
        if self.sampler is None:
            assert self.batch_sampler is not None
            if self.division is not None:
                return DealtPlan(self.batch_sampler, self.division, base)
            return SampledPlan(self.batch_sampler)
        assert self.size is not None
        if self.division is not None:  # the sampler, whose epoch has been set, yields the same on all ranks
            listed = Listed(list(walk(self.sampler))).order(seed, epoch)
            return DividedPlan(listed, self.size, self.drop_last, self.division, base)
        if self.single and isinstance(self.sampler, BatchSampler):
            order = self.sampler.order(seed, epoch)
            if order is not None:
                lists = OrderedPlan(order, self.sampler.batch_size, self.sampler.drop_last)
                return BulkPlan(lists, base)
        return GroupedPlan(self.sampler, self.size, self.drop_last, base)

    @property
    def order_size(self) -> int | None:
        """The batch size that the order was made for; None if the order does not depend on it."""
        return self.size if isinstance(self.batch_sampler, BucketSampler) else None

    @property
    def counts_samples(self) -> bool:
        """Whether any batch size yields the same samples in the same order, so a resume may change it."""
        if isinstance(self.batch_sampler, DistributedBatchSampler):
            return False  # it deals whole batches, so a rank's samples depend on the batch size
        return self.sampler is not None or self.order(0, 0) is not None

    def count(self, least: int = 1) -> int:
        """Return the number of batches per epoch, without a last one of fewer than `least` samples.

        Raises
        ------
        TypeError
            The number is unknown.
        """
        if self.batch_sampler is not None and (self.division is None or self.is_dealt):
            batches = len(_sized(self.batch_sampler))
            return batches if self.division is None else self.division.count(batches, 1)
        if self.sampler is None or self.size is None:
            raise TypeError("an iterable dataset has no length")
        division = self.division or ALONE
        return division.count(self.count_samples(), self.size, drop_last=self.drop_last, least=least)

    def count_last(self) -> int | None:
        """Return the number of samples in an epoch's last batch, or None if it is not known in advance."""
        order = None if self.drop_last or self.sharding is not None else self.order(0, 0)
        if order is None or self.size is None:
            return None
        return len(order) % self.size or self.size

    def count_samples(self) -> int:
        """Return the number of samples per epoch, over all ranks; raise `TypeError` like `count`."""
        order = self.order(0, 0)
        if order is not None:
            return len(order)
        if self.sampler is None:
            raise TypeError("the number of samples per epoch is unknown")
        return len(_sized(self.sampler))


def _check_items_divide(uneven: str, dataset: object) -> None:
    if uneven == "error":
        raise ValueError(
            "the length of an iterable dataset is not known in advance: choose uneven='pad', 'repeat' or "
            "'drop'"
        )
    if isinstance(dataset, Iterator):
        raise ValueError(
            "with shard, every rank and every worker reads the dataset from its start, in every epoch, "
            f"but a {type(dataset).__name__} can be read only once: pass an IterableDataset whose "
            "__iter__ starts over"
        )


def _sized(sampler: object) -> Sized:
    if not isinstance(sampler, Sized):
        raise TypeError(f"the sampler, of type {type(sampler).__name__}, has no length")
    return sampler


# Tell a user's own samplers which epoch begins.


class EpochSetter:
    """Calls ``set_epoch`` of a user's own samplers when an epoch begins, as trainers do for PyTorch's loader.

    The samplers are `sampler` or `batch_sampler`, and the sampler inside it. A sampler whose ``epoch``
    changed since the last call is left alone from then on: the user sets it, or it counts by itself. Samplers
    with an order for each epoch, such as those of this package, are told the epoch when asked for the order.

    Parameters
    ----------
    batching : Batching
        The loader's batching.

    Examples
    --------
    >>> class Turned:
    ...     epoch = 0
    ...     def set_epoch(self, epoch):
    ...         self.epoch = epoch
    ...     def __iter__(self):
    ...         return iter([self.epoch, self.epoch + 1])
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(10), sampler=Turned(), batch_size=2, places="cpu")
    >>> [batch.tolist() for _ in range(3) for batch in loader]
    [[0, 1], [1, 2], [2, 3]]
    """

    def __init__(self, batching: Batching) -> None:
        self._known: list[tuple[Any, object]] = []
        if batching.order(0, 0) is not None:
            return
        for sampler in (batching.sampler, batching.batch_sampler):
            for one in (sampler, getattr(sampler, "sampler", None)):
                if callable(getattr(one, "set_epoch", None)):
                    self._known.append((one, getattr(one, "epoch", None)))

    def begin(self, epoch: int) -> None:
        """Set the epoch of the samplers that nobody else sets."""
        known, self._known = self._known, []
        for sampler, seen in known:
            if getattr(sampler, "epoch", None) == seen:
                sampler.set_epoch(epoch)
                self._known.append((sampler, getattr(sampler, "epoch", None)))
