"""The batching of a dataset: the loader's batching options, checked and combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuloader.base.checks import check_count
from gpuloader.base.errors import BadValue
from gpuloader.order.agreement import Listed, divides, find_order, find_shared
from gpuloader.order.batch_sampler import BatchSampler, DistributedBatchSampler
from gpuloader.order.bucket_sampler import BucketSampler
from gpuloader.order.division import ALONE, Division, Sharding
from gpuloader.order.fitting import check_samplers
from gpuloader.order.mixed import Mixed
from gpuloader.order.order import InOrder, Mapped, Order
from gpuloader.order.plan import (
    BulkPlan,
    DealtPlan,
    DividedPlan,
    GroupedPlan,
    OrderedPlan,
    Plan,
    SampledPlan,
)
from gpuloader.order.ranks import find_rank, find_torch_rank
from gpuloader.order.sampler import Sampler, check_sized, make_sampler
from gpuloader.order.walking import walk

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
        check_samplers(dataset, sampler, batch_sampler, batch_size)
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
            own = getattr(dataset, "default_sampler", None)  # as of a `MixDataset`
            sampler = own(shuffle) if callable(own) else make(dataset, shuffle)
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
