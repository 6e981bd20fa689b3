"""How a dataset's samples are put into batches, epoch after epoch: what a loader's options amount to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.checks import check_count
from gpuloader.order.batch_sampler import BatchSampler, DistributedBatchSampler
from gpuloader.order.computed import as_indices
from gpuloader.order.division import ALONE, Division, find_division
from gpuloader.order.order import InOrder, Mapped, Order
from gpuloader.order.plan import DividedPlan, GroupedPlan, OrderedPlan, Plan, SampledPlan
from gpuloader.order.sampler import RandomSampler, Sampler, SequenceSampler, check_sized


@dataclass(frozen=True, slots=True)
class Batching:
    """How a dataset's samples are put into batches, epoch after epoch.

    Attributes
    ----------
    sampler : iterable or None
        Yields indices.
    batch_sampler : iterable or None
        Yields sequences of them.
    size : int or None
        Samples a batch, 1 for single samples; None where a batch sampler decides.
    given_size : int or None
        What the user passed as batch_size.
    drop_last : bool
        Whether a last shorter batch is left out.
    seed : int or None
        Of the order; None: the loader draws one.
    division : Division or None
        Which rank's part of each step is read; None: all of it.
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
        """Return what the options of a loader amount to.

        Raises
        ------
        ValueError
            Options that exclude each other.
        TypeError
            The dataset has no length and no sampler says what to read, or a sampler is no iterable.
        """
        if iterable:
            given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
            if asked := [name for name, value in given.items() if value is not None and value is not False]:
                raise ValueError(f"an iterable dataset has an order of its own: {asked[0]} cannot be given")
        for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value is not None and not isinstance(value, Iterable):
                raise TypeError(f"{name} must be iterable, got {type(value).__name__}")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or drop_last or sampler is not None:
                raise ValueError(
                    "batch_sampler says all about batches: batch_size, shuffle, sampler and drop_last "
                    "cannot be given beside it"
                )
            size = getattr(batch_sampler, "batch_size", None)
            if not isinstance(size, int | np.integer) or size < 1:
                size = None  # one of another's making may mean anything by it
            drop_last = isinstance(batch_sampler, BatchSampler) and batch_sampler.drop_last
            return cls(None, batch_sampler, None if size is None else int(size), None, drop_last, seed)
        if sampler is not None and shuffle:
            raise ValueError("sampler says the order: shuffle cannot be given beside it")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None gives single samples: there is no last batch to drop")
        size = 1 if batch_size is None else check_count("batch_size", batch_size)
        if sampler is None and not iterable:
            check_sized("a dataset without a sampler", dataset)
            sampler = RandomSampler(dataset) if shuffle else SequenceSampler(dataset)
        return cls(sampler, None, size, batch_size, drop_last, seed)

    @property
    def iterable(self) -> bool:
        """Whether the dataset has no indices."""
        return self.sampler is None and self.batch_sampler is None

    @property
    def single(self) -> bool:
        """Whether samples are delivered one by one."""
        return self.given_size is None and self.batch_sampler is None

    def divide(self, shard: object, uneven: object, *, dataset: object, in_order: bool) -> Batching:
        """Return the batching of one rank of several; the same batching if `shard` is None.

        A seed of None becomes 0 if nothing is random about the order: ranks that each drew a seed would
        disagree.

        Raises
        ------
        ValueError
            The options exclude each other, the ranks could not agree on an order, or the samples do not
            divide evenly.
        TypeError
            `shard` is not 'auto', a pair or None.
        """
        division = find_division(shard, uneven)
        if division is None:
            return self
        if not in_order:
            raise ValueError(
                "shard needs in_order=True: ranks whose batches came in different orders would be at "
                "different places of the epoch, and no position in it would say what was seen"
            )
        if self.single and uneven == "pad":
            raise ValueError(
                "uneven='pad' adds a mask to each batch, and batch_size=None gives single samples: choose "
                "uneven='drop' or 'error'"
            )
        if self.iterable:
            self._check_items_divide(uneven, dataset)
            divided = replace(self, division=division)
        else:
            divided = self._divide_indices(division)
        if divided.seed is None and divided.is_seeded:
            raise ValueError(
                "with shard, every rank draws the same order: give all of them the same seed, for example "
                "seed=0; otherwise each would draw its own"
            )
        return replace(divided, seed=divided.seed or 0)

    def _check_items_divide(self, uneven: object, dataset: object) -> None:
        if uneven == "error":
            raise ValueError(
                "the length of an iterable dataset is not known beforehand: choose uneven='pad' or 'drop'"
            )
        if isinstance(dataset, Iterator):
            raise ValueError(
                f"with shard, every rank and every worker reads the dataset from its start, in every epoch; "
                f"a {type(dataset).__name__} can be read only once: give an IterableDataset whose __iter__ "
                "begins anew"
            )

    def _divide_indices(self, division: Division) -> Batching:
        source = self.sampler
        if isinstance(self.batch_sampler, DistributedBatchSampler):
            raise ValueError("DistributedBatchSampler divides the dataset already: leave out one of the two")
        if isinstance(self.batch_sampler, BatchSampler) and (
            type(self.batch_sampler).__iter__ is BatchSampler.__iter__
        ):
            source = self.batch_sampler.sampler
        if isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
            source = _Listed(source)
        order = source.order(0, 0) if isinstance(source, Sampler) else None
        if order is None:
            name = type(self.batch_sampler if self.sampler is None else self.sampler).__name__
            raise ValueError(
                f"shard needs an order that is the same on every rank, and nothing says that of {name}: give "
                "a list of indices as sampler, a sampler of gpuloader's, or a Sampler with a method "
                "order(seed, epoch)"
            )
        assert self.size is not None
        division.check_even(len(order), self.size, drop_last=self.drop_last)
        return replace(self, sampler=source, division=division)

    @property
    def pads(self) -> bool:
        """Whether a rank's last batch may hold repeated samples."""
        return self.division is not None and self.division.pads(drop_last=self.drop_last)

    @property
    def is_seeded(self) -> bool:
        """Whether the order of what is divided depends on the seed."""
        order = self.order(0, 0)
        return not isinstance(order.base if isinstance(order, Mapped) else order, InOrder | None)

    def order(self, seed: int, epoch: int) -> Order | None:
        """Return the order of an epoch; None where whoever gives the indices has to be asked."""
        source = self.batch_sampler if self.sampler is None else self.sampler
        return source.order(seed, epoch) if isinstance(source, Sampler | BatchSampler) else None

    def plan(self, seed: int, epoch: int, base: int = 0) -> Plan:
        """Return the plan of an epoch of a dataset with indices, with `base` samples before its batch 0."""
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
        return GroupedPlan(self.sampler, self.size, self.drop_last, base)

    @property
    def counts_samples(self) -> bool:
        """Whether an epoch is the same samples in the same order at any batch size, to be entered at any."""
        if isinstance(self.batch_sampler, DistributedBatchSampler):
            return False  # which deals batches to its ranks, so that one rank's samples depend on their size
        return self.sampler is not None or self.order(0, 0) is not None

    def count(self, least: int = 1) -> int:
        """Return how many batches an epoch has, a last one of fewer than `least` samples left out.

        Raises
        ------
        TypeError
            Nothing says so.
        """
        if self.batch_sampler is not None and self.division is None:
            return len(_sized(self.batch_sampler))
        if self.sampler is None or self.size is None:
            raise TypeError("an iterable dataset has no length")
        division = self.division or ALONE
        return division.count(self.count_samples(), self.size, drop_last=self.drop_last, least=least)

    def count_last(self) -> int | None:
        """Return how many samples an epoch's last batch has; None where that is not known before."""
        order = None if self.drop_last or self.division is not None else self.order(0, 0)
        if order is None or self.size is None:
            return None
        return len(order) % self.size or self.size

    def count_samples(self) -> int:
        """Return how many samples an epoch has, of all ranks together; raise `TypeError` as `count`."""
        order = self.order(0, 0)
        if order is not None:
            return len(order)
        if self.sampler is None:
            raise TypeError("nothing says how many samples an epoch has")
        return len(_sized(self.sampler))


class _Listed(Sampler):
    """Indices that are the same in every epoch."""

    def __init__(self, indices: Sequence[int] | NDArray[np.int64]) -> None:
        super().__init__()
        self._order = Mapped(InOrder(len(indices)), as_indices("sampler", indices))

    def order(self, seed: int, epoch: int) -> Order:  # noqa: ARG002
        return self._order


def _sized(sampler: Iterable[Any]) -> Sized:
    if not isinstance(sampler, Sized):
        raise TypeError(f"the sampler is {type(sampler).__name__}, which has no length")
    return sampler
