"""The batching of a dataset: the loader's batching options, checked and combined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.checks import check_count
from gpuloader.base.errors import BadType, BadValue
from gpuloader.order.batch_sampler import BatchSampler, DistributedBatchSampler
from gpuloader.order.bucket_sampler import BucketSampler
from gpuloader.order.computed import as_indices
from gpuloader.order.division import ALONE, Division, find_division
from gpuloader.order.mixed import Mixed
from gpuloader.order.order import InOrder, Mapped, Order
from gpuloader.order.plan import BulkPlan, DividedPlan, GroupedPlan, OrderedPlan, Plan, SampledPlan
from gpuloader.order.sampler import RandomSampler, Sampler, SequenceSampler, check_sized


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
    division : Division or None
        The rank whose part of each step to read; None reads everything.
    """

    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    size: int | None
    given_size: int | None
    drop_last: bool
    seed: int | None = None
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
    ) -> Batching:
        """Return the batching that the options of a loader describe.

        Raises
        ------
        ValueError
            Two options exclude each other.
        TypeError
            The dataset has no length and there is no sampler, or a sampler is not iterable.
        """
        if iterable:
            given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
            if asked := [name for name, value in given.items() if value is not None and value is not False]:
                raise BadValue(f"an iterable dataset determines its own order: {asked[0]} cannot be given")
        for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value is not None and not isinstance(value, Iterable):
                raise BadType(f"{name} must be iterable, got {type(value).__name__}")
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
            if callable(own):
                sampler = own(shuffle)
            else:
                sampler = RandomSampler(dataset) if shuffle else SequenceSampler(dataset)
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
        """Return the batching of one rank, or this one unchanged if `shard` is None.

        A seed of None becomes 0 if the order is not random; ranks that each drew a seed would disagree.

        Raises
        ------
        ValueError
            Two options exclude each other, the ranks might not agree on an order, or the samples do not
            divide evenly.
        TypeError
            `shard` is not 'auto', a pair or None.
        """
        division = find_division(shard, uneven)
        if division is None:
            return self
        if not in_order:
            raise ValueError(
                "shard needs in_order=True: if ranks received batches in different orders, no position in "
                "the epoch would tell which samples all of them have read"
            )
        if self.single and uneven == "pad":
            raise ValueError(
                "uneven='pad' adds a mask to each batch, but batch_size=None yields single samples: choose "
                "uneven='drop' or 'error'"
            )
        if self.iterable:
            self._check_items_divide(uneven, dataset)
            divided = replace(self, division=division)
        else:
            divided = self._divide_indices(division)
        if divided.seed is None and divided.is_seeded:
            raise ValueError(
                "with shard, all ranks need the same order: pass the same seed to all of them, for example "
                "seed=0; without one, each rank would draw its own"
            )
        return replace(divided, seed=divided.seed or 0)

    def _check_items_divide(self, uneven: object, dataset: object) -> None:
        if uneven == "error":
            raise ValueError(
                "the length of an iterable dataset is not known in advance: choose uneven='pad' or 'drop'"
            )
        if isinstance(dataset, Iterator):
            raise ValueError(
                "with shard, every rank and every worker reads the dataset from its start, in every epoch, "
                f"but a {type(dataset).__name__} can be read only once: pass an IterableDataset whose "
                "__iter__ starts over"
            )

    def _divide_indices(self, division: Division) -> Batching:
        source = self.sampler
        if isinstance(self.batch_sampler, DistributedBatchSampler):
            raise ValueError(
                "DistributedBatchSampler already divides the dataset among ranks: pass it or shard, not both"
            )
        if isinstance(self.batch_sampler, BatchSampler) and (
            type(self.batch_sampler).__iter__ is BatchSampler.__iter__
        ):
            source = self.batch_sampler.sampler
        if isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
            source = _Listed(source)
        order = _order_of(source, 0, 0)
        if order is None:
            name = type(self.batch_sampler if self.sampler is None else self.sampler).__name__
            raise ValueError(
                f"shard needs an order that is the same on every rank, which {name} does not guarantee: pass "
                "a list of indices as sampler, one of gpuloader's samplers, or a Sampler with a method "
                "order(seed, epoch)"
            )
        assert self.size is not None
        division.check_even(len(order), self.size, drop_last=self.drop_last)
        return replace(self, sampler=source, division=division)

    @property
    def pads(self) -> bool:
        """Whether a rank's last batch may contain repeated samples."""
        return self.division is not None and self.division.pads(drop_last=self.drop_last)

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
        return _order_of(self.sampler, seed, epoch)

    def plan(self, seed: int, epoch: int, base: int = 0) -> Plan:
        """Return the plan of an epoch of a map-style dataset, with `base` samples before its batch 0."""
        order = self.order(seed, epoch)
        if order is not None:
            assert self.size is not None
            if self.division is not None or base:
                return DividedPlan(order, self.size, self.drop_last, self.division or ALONE, base)
            return OrderedPlan(order, self.size, self.drop_last)
        if self.sampler is None:
            assert self.batch_sampler is not None
            return SampledPlan(self.batch_sampler)
        assert self.size is not None
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
        if self.batch_sampler is not None and self.division is None:
            return len(_sized(self.batch_sampler))
        if self.sampler is None or self.size is None:
            raise TypeError("an iterable dataset has no length")
        division = self.division or ALONE
        return division.count(self.count_samples(), self.size, drop_last=self.drop_last, least=least)

    def count_last(self) -> int | None:
        """Return the number of samples in an epoch's last batch, or None if it is not known in advance."""
        order = None if self.drop_last or self.division is not None else self.order(0, 0)
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


class _Listed(Sampler[int]):
    """A fixed list of indices, the same in every epoch."""

    def __init__(self, indices: Sequence[int] | NDArray[np.int64]) -> None:
        super().__init__()
        self._order = Mapped(InOrder(len(indices)), as_indices("sampler", indices))

    def order(self, seed: int, epoch: int) -> Order:  # noqa: ARG002
        return self._order


def _order_of(sampler: object, seed: int, epoch: int) -> Order | None:
    """Return the order of a sampler of single indices; a `BatchSampler` passed as `sampler` yields lists."""
    if isinstance(sampler, Sampler) and not isinstance(sampler, BatchSampler):
        return sampler.order(seed, epoch)
    return None


def _sized(sampler: Iterable[Any]) -> Sized:
    if not isinstance(sampler, Sized):
        raise TypeError(f"the sampler, of type {type(sampler).__name__}, has no length")
    return sampler
