"""The plan of an epoch: which samples make up which batch; pure, and to be entered at any batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuloader.checks import check_count
from gpuloader.errors import LoaderError
from gpuloader.sources.batch_sampler import BatchSampler
from gpuloader.sources.order import Order
from gpuloader.sources.sampler import RandomSampler, Sampler, SequenceSampler, check_sized
from gpuloader.spec import Indices

_AHEAD = 1 << 14  # samples whose order is looked up at once: some 128 KB of indices


class Plan(Protocol):
    """One epoch's batches of indices."""

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""


@dataclass(frozen=True, slots=True)
class OrderedPlan:
    """Equal parts of an order; any batch is found at once.

    Attributes
    ----------
    order : Order
        All samples of the epoch.
    batch_size : int
        Samples a batch.
    drop_last : bool
        Whether a last shorter batch is left out.

    Examples
    --------
    >>> from gpuloader.sources.order import InOrder
    >>> list(OrderedPlan(InOrder(5), 2, drop_last=False).batches(1))
    [range(2, 4), range(4, 5)]
    """

    order: Order
    batch_size: int
    drop_last: bool

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        size = self.batch_size
        end = len(self.order)
        if self.drop_last:
            end -= end % size
        chunk = max(_AHEAD // size, 1) * size
        for first in range(start * size, end, chunk):
            part = self.order.slice(first, min(first + chunk, end))
            if not isinstance(part, range):
                part.flags.writeable = False  # so that who has looked at all of it can trust its batches
            for begin in range(0, len(part), size):
                yield part[begin : begin + size]


@dataclass(frozen=True, slots=True)
class SampledPlan:
    """What a batch sampler yields; to enter it at a batch, those before are drawn and dropped.

    Attributes
    ----------
    sampler : iterable
        Yields one sequence of indices a batch.
    """

    sampler: Iterable[Any]

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        for indices in itertools.islice(iter(self.sampler), start, None):
            yield _as_sequence(indices)


@dataclass(frozen=True, slots=True)
class GroupedPlan:
    """So many indices of a sampler a batch.

    Attributes
    ----------
    sampler : iterable
        Yields indices, of whatever type the data set takes.
    batch_size : int
        Samples a batch.
    drop_last : bool
        Whether a last shorter batch is left out.
    """

    sampler: Iterable[Any]
    batch_size: int
    drop_last: bool

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        indices = itertools.islice(iter(self.sampler), start * self.batch_size, None)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


@dataclass(frozen=True, slots=True)
class Batching:
    """How a data set's samples are put into batches, epoch after epoch.

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
    """

    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    size: int | None
    given_size: int | None
    drop_last: bool

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
    ) -> Batching:
        """Return what the options of a loader amount to.

        Raises
        ------
        ValueError
            Options that exclude each other.
        TypeError
            The data set has no length and no sampler says what to read, or a sampler is no iterable.
        """
        if iterable:
            given = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
            if asked := [name for name, value in given.items() if value is not None and value is not False]:
                raise ValueError(f"an iterable data set has an order of its own: {asked[0]} cannot be given")
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
            return cls(None, batch_sampler, None if size is None else int(size), None, False)
        if sampler is not None and shuffle:
            raise ValueError("sampler says the order: shuffle cannot be given beside it")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None gives single samples: there is no last batch to drop")
        size = 1 if batch_size is None else check_count("batch_size", batch_size)
        if sampler is None and not iterable:
            check_sized("a data set without a sampler", dataset)
            sampler = RandomSampler(dataset) if shuffle else SequenceSampler(dataset)
        return cls(sampler, None, size, batch_size, drop_last)

    def plan(self, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch of a data set with indices."""
        if self.batch_sampler is not None:
            if isinstance(self.batch_sampler, BatchSampler):
                order = self.batch_sampler.order(seed, epoch)
                if order is not None:
                    return OrderedPlan(order, self.batch_sampler.batch_size, self.batch_sampler.drop_last)
            return SampledPlan(self.batch_sampler)
        assert self.sampler is not None
        assert self.size is not None
        order = self.sampler.order(seed, epoch) if isinstance(self.sampler, Sampler) else None
        if order is not None:
            return OrderedPlan(order, self.size, self.drop_last)
        return GroupedPlan(self.sampler, self.size, self.drop_last)

    def count(self, least: int = 1) -> int:
        """Return how many batches an epoch has, a last one of fewer than `least` samples left out.

        Raises
        ------
        TypeError
            Nothing says so.
        """
        if self.batch_sampler is not None:
            return len(_sized(self.batch_sampler))
        if self.sampler is None or self.size is None:
            raise TypeError("an iterable data set has no length")
        full, rest = divmod(len(_sized(self.sampler)), self.size)
        return full + (rest >= least and not self.drop_last)


def _sized(sampler: Iterable[Any]) -> Sized:
    if not isinstance(sampler, Sized):
        raise TypeError(f"the sampler is {type(sampler).__name__}, which has no length")
    return sampler


def _as_sequence(indices: Any) -> Indices:
    if not isinstance(indices, Iterable) or isinstance(indices, str | bytes):
        raise LoaderError(
            f"a batch sampler must yield sequences of indices, got {indices!r}; for single indices pass it "
            "as sampler, with a batch_size"
        )
    if isinstance(indices, range | tuple):
        listed: Sequence[Any] = indices
    else:
        # A copy: the sampler may go on with the very object before this batch is fetched.
        listed = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
    if not listed:
        raise LoaderError("a batch sampler must yield one index or more a batch, got none")
    return listed
