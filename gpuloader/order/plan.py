"""The plan of an epoch: the indices of each batch, as a pure value that can start at any batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gpuloader.checks import check_count, check_word
from gpuloader.errors import LoaderError
from gpuloader.fields.spec import Indices
from gpuloader.order.order import Computed, IndexArray, Order, check_whole
from gpuloader.order.ranks import find_rank
from gpuloader.order.samplers import skip, walk

# Divide an epoch among ranks: what all ranks together read in a step, and one rank's part of it.
#
# Everything is arithmetic on positions of one order that every rank computes identically. So ranks agree on
# the number of batches and their contents without communicating.

UNEVEN = ("pad", "repeat", "drop", "error")


@dataclass(frozen=True)  # no slots: pickling errors find the culprit through `__dict__`
class Division:
    """One rank's share of every step.

    Attributes
    ----------
    rank : int
        This rank, from 0.
    world_size : int
        The number of ranks.
    uneven : str
        How to treat a last step that does not divide evenly: 'pad', 'repeat', 'drop' or 'error'.

    Examples
    --------
    >>> division = Division(rank=2, world_size=4, uneven="pad")
    >>> division.count(samples=18, batch_size=4)  # one step of 16, and one with the remaining 2
    2
    >>> division.own(left=2, batch_size=4)  # ranks 0 and 1 have one each; 2 and 3 repeat one
    (0, 1)
    """

    rank: int
    world_size: int
    uneven: str

    def pads(self, left: int | None, *, drop_last: bool) -> bool:
        """Return whether batches come with masks, if `left` samples are left in the epoch, None if unknown.

        They do if any rank must repeat a sample that does not count.
        """
        if self.uneven != "pad" or drop_last or self.world_size == 1:
            return False
        return left is None or left % self.world_size > 0

    @property
    def fills(self) -> bool:
        """Whether ranks repeat samples to make an incomplete last step even."""
        return self.uneven in ("pad", "repeat")

    def share(self, left: int) -> int:
        """Return how many of the `left` samples of a last step each rank gets, including repeated ones."""
        return -(-left // self.world_size) if self.fills else left // self.world_size

    def count(self, samples: int, batch_size: int, *, drop_last: bool = False, least: int = 1) -> int:
        """Return the number of batches per rank, without a last one of fewer than `least` samples."""
        full, left = divmod(samples, batch_size * self.world_size)
        return full + (self.share_last(left, batch_size, drop_last) >= least)

    def share_last(self, left: int, batch_size: int, drop_last: bool) -> int:
        """Return how many samples each rank gets of a last step that has fewer samples than all others.

        `drop_last` drops it, unless 'repeat' fills it up completely, as PyTorch's ``DistributedSampler`` does
        before the loader drops.
        """
        share = self.share(left)
        return 0 if drop_last and not (self.uneven == "repeat" and share == batch_size) else share

    def own(self, left: int, batch_size: int) -> tuple[int, int]:
        """Return how many samples of the next batch count and how many it has, if `left` samples remain."""
        if left >= batch_size * self.world_size:
            return batch_size, batch_size
        return self.part(left)[1], self.share(left)

    def part(self, left: int) -> tuple[int, int]:
        """Return start and size of this rank's part of a last step of `left` samples.

        With 'pad', samples that do not count are left out. With 'repeat' every sample counts, and positions
        beyond the last one stand for samples from the start of the order.
        """
        if self.uneven == "repeat":
            return self.rank * self.share(left), self.share(left)
        return part_of(
            left if self.uneven == "pad" else left - left % self.world_size, self.world_size, self.rank
        )

    def own_items(self, count: int, batch_size: int) -> tuple[int, int]:
        """Return the same as `own` for a step of `count` items that are dealt to the ranks one by one."""
        size = batch_size if count >= batch_size * self.world_size else self.share(count)
        return min(max(-(-(count - self.rank) // self.world_size), 0), size), size

    def check_even(self, left: int, batch_size: int, *, drop_last: bool, what: str = "samples") -> None:
        """Raise `ValueError` if `uneven` is 'error' and the last step does not divide evenly."""
        rest = left % (batch_size * self.world_size)
        if self.uneven == "error" and not drop_last and rest % self.world_size:
            raise ValueError(
                f"{left:,} {what} fill {left // (batch_size * self.world_size):,} steps of "
                f"{self.world_size} ranks and leave {rest} for the last step, which do not divide evenly; "
                "choose uneven='pad', 'repeat' or 'drop', or drop_last=True"
            )


@dataclass(frozen=True)
class RankInfo:
    """What workers know about the distributed run their loader belongs to.

    Attributes
    ----------
    ranks : tuple of int or None
        Rank and world size. None if the environment is inconsistent; then asking for them raises the error.
    salt : tuple of int
        Numbers mixed into the workers' seeds in addition to the worker numbers. If the loader divides the
        epoch, this is its rank unless that is 0, because all ranks' loaders have the same seed.
    """

    ranks: tuple[int, int] | None = None
    salt: tuple[int, ...] = ()

    @classmethod
    def of(cls, division: Division | None) -> RankInfo:
        """Return the standing of this process."""
        if division is not None:
            return cls((division.rank, division.world_size), (division.rank,) if division.rank else ())
        try:
            return cls(find_rank())
        except ValueError:
            return cls()


ALONE = Division(0, 1, "drop")
"""The division of a loader that does not divide its epoch."""


@dataclass(frozen=True)
class Share(Computed):
    """One rank's samples of `base` from position `start` on, batch by batch; all ranks get equally many.

    A step takes a batch for each rank from `base`, rank after rank. An incomplete last step is divided evenly
    or dropped. With 'pad', a rank that has one sample less than the others repeats its last one. With
    'repeat', the step is filled up from the start of `base`.

    Examples
    --------
    >>> from gpuloader.order.order import InOrder
    >>> for rank in (0, 1):
    ...     share = Share(InOrder(9), 2, 2, Division(rank, 2, "pad"))
    ...     print(share.slice(0, len(share)).tolist())
    [2, 3, 6, 7]
    [4, 5, 8, 8]
    """

    base: Order
    start: int
    batch_size: int
    division: Division
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.start > len(self.base):
            raise ValueError(f"an order of {len(self.base)} indices has no position {self.start}")

    def __len__(self) -> int:
        full, left = divmod(len(self.base) - self.start, self.batch_size * self.division.world_size)
        return full * self.batch_size + self.division.share_last(left, self.batch_size, self.drop_last)

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        size, division = self.batch_size, self.division
        step = size * division.world_size
        full, left = divmod(len(self.base) - self.start, step)
        begin, own = division.part(left)
        turn, offset = np.divmod(positions, size)
        last = begin + np.minimum(offset, max(own - 1, 0))
        within = np.where(turn < full, division.rank * size + offset, last)
        found = self.start + turn * step + within
        end = len(self.base)
        # A padded rank without a sample of its own repeats the last one of the order.
        return _entries(self.base, found % end if division.uneven == "repeat" else np.minimum(found, end - 1))


def _entries(order: Order, positions: IndexArray) -> IndexArray:
    """Return the entries of an order at `positions`, even if the order can only be sliced."""
    if hasattr(order, "at"):
        found: IndexArray = order.at(positions)
        return found
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return np.concatenate([np.asarray(order.slice(int(run[0]), int(run[-1]) + 1), np.int64) for run in runs])


def part_of(count: int, parts: int, part: int) -> tuple[int, int]:
    """Return the start and size of part `part` when `count` samples are cut into `parts` nearly equal parts.

    >>> [part_of(5, 3, part) for part in range(3)]
    [(0, 2), (2, 2), (4, 1)]
    """
    each, extra = divmod(count, parts)
    return part * each + min(part, extra), each + (part < extra)


@dataclass(frozen=True)  # no slots: pickling errors find the culprit through `__dict__`
class Sharding:
    """A loader's options `shard` and `uneven`, checked.

    Attributes
    ----------
    ranks : tuple of int or None
        Rank and world size; None finds them whenever an epoch begins.
    uneven : str
        As for `Division`.
    find : callable
        Returns rank and world size.

    Examples
    --------
    >>> Sharding.of((1, 4), "drop").divide()
    Division(rank=1, world_size=4, uneven='drop')
    """

    ranks: tuple[int, int] | None
    uneven: str
    find: Callable[[], tuple[int, int]] = find_rank

    @classmethod
    def of(cls, shard: object, uneven: object) -> Sharding | None:
        """Return the options, or None if `shard` is None.

        Raises
        ------
        ValueError
            An option has an unknown value, or the rank is not below the world size.
        TypeError
            `shard` is not 'auto', a pair or None.
        """
        check_word("uneven", uneven, UNEVEN)
        if shard is None:
            return None
        if isinstance(shard, str):
            check_word("shard", shard, ("auto",))
            return cls(None, str(uneven))
        if not isinstance(shard, tuple | list) or len(shard) != 2:
            raise TypeError(f"shard must be 'auto', a pair (rank, world_size) or None, got {shard!r}")
        rank, world_size = shard
        name = "the world size in shard"
        world_size = check_whole(name, check_count(name, world_size), 2**31)
        return cls((check_whole("the rank in shard", rank, world_size), world_size), str(uneven))

    @property
    def is_alone(self) -> bool:
        """Whether the user has said that there is one rank, which reads everything."""
        return self.ranks is not None and self.ranks[1] == 1

    def divide(self) -> Division:
        """Return this rank's share of every step; raises like `find` if that is asked."""
        return Division(*(self.ranks or self.find()), self.uneven)


_AHEAD = 1 << 12  # indices looked up at once: 32 KB, a third of a millisecond


class Plan(Protocol):
    """The indices of each batch of an epoch."""

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""


@dataclass(frozen=True, slots=True)
class OrderedPlan:
    """An order cut into equal batches; starting at any batch costs the same.

    Attributes
    ----------
    order : Order
        The order of all samples in the epoch.
    batch_size : int
        Samples per batch.
    drop_last : bool
        Whether to drop a shorter last batch.

    Examples
    --------
    >>> from gpuloader.order.order import InOrder
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
                part.flags.writeable = False  # so that a check of the whole part holds for its batches
            for begin in range(0, len(part), size):
                yield part[begin : begin + size]


@dataclass(frozen=True, slots=True)
class DividedPlan:
    """One rank's batches of an order, from a given position on.

    Attributes
    ----------
    order : Order
        The order of all samples in the epoch, over all ranks.
    batch_size : int
        Samples per batch of one rank.
    drop_last : bool
        Whether to drop an incomplete last step.
    division : Division
        The rank, the world size and how to divide an uneven last step.
    base : int
        Position in the order where batch 0 of rank 0 begins.

    Examples
    --------
    >>> from gpuloader.order.order import InOrder
    >>> plan = DividedPlan(InOrder(7), 2, False, Division(1, 2, "pad"))
    >>> [batch.tolist() for batch in plan.batches(0)], plan.take_own(1)
    ([[2, 3], [6, 6]], (1, 2))
    """

    order: Order
    batch_size: int
    drop_last: bool
    division: Division
    base: int = 0
    _share: Share = field(init=False, repr=False)

    def __post_init__(self) -> None:
        share = Share(self.order, self.base, self.batch_size, self.division, self.drop_last)
        object.__setattr__(self, "_share", share)

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        return OrderedPlan(self._share, self.batch_size, drop_last=False).batches(start)

    @property
    def pads(self) -> bool:
        """Whether samples are repeated that do not count, so that batches have masks."""
        return self.division.pads(len(self.order) - self.base, drop_last=self.drop_last)

    @property
    def wraps(self) -> bool:
        """Whether the last batch of any rank repeats samples from the start of the order."""
        left = len(self.order) - self.base
        return self.division.uneven == "repeat" and left % self.division.world_size > 0

    def take_own(self, number: int) -> tuple[int, int]:
        """Return how many samples of batch `number` count, and how many it has."""
        taken = self.base + number * self.batch_size * self.division.world_size
        return self.division.own(len(self.order) - taken, self.batch_size)


@dataclass(frozen=True, slots=True)
class SampledPlan:
    """The batches of a batch sampler; to start at a later batch, those before it are drawn and discarded.

    Attributes
    ----------
    sampler : iterable
        Yields one sequence of indices per batch.
    """

    sampler: Iterable[Any]

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        listed = walk(self.sampler)
        skip(listed, start, 1, "the batch sampler")
        for indices in listed:
            yield _as_sequence(indices)


@dataclass(slots=True)
class DealtPlan:
    """One rank's batches of a batch sampler that yields the same batches on every rank.

    A step takes a batch for each rank, in turn. If the last step lacks batches, `division.uneven` decides:
    'pad' and 'repeat' give the ranks that would have none a batch from the start of the epoch, which with
    'pad' does not count; 'drop' drops the step.

    Attributes
    ----------
    sampler : iterable
        Yields one sequence of indices per batch, for all ranks together.
    division : Division
        The rank, the world size and how to treat a last step that lacks batches.
    base : int
        Number of batches before those of step 0.
    own : dict of int to (int, int)
        For each batch, how many samples count, and how many it has; until `take_own` takes it.

    Examples
    --------
    >>> for rank in (0, 1):
    ...     plan = DealtPlan([[0, 1], [2], [3, 4]], Division(rank, 2, "pad"))
    ...     print(list(plan.batches(0)), plan.take_own(1))
    [[0, 1], [3, 4]] (2, 2)
    [[2], [0, 1]] (0, 2)
    """

    sampler: Iterable[Any]
    division: Division
    base: int = 0
    own: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def pads(self) -> bool:
        """Whether batches are repeated that do not count, so that batches have masks."""
        left = len(self.sampler) - self.base if isinstance(self.sampler, Sized) else None
        return self.division.pads(left, drop_last=False)

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one.

        Raises
        ------
        LoaderError
            The last step lacks batches, and `division.uneven` is 'error'.
        """
        rank, world_size = self.division.rank, self.division.world_size
        pads = self.pads
        listed = map(_as_sequence, walk(self.sampler))
        begin = self.base + start * world_size
        first = list(itertools.islice(listed, min(begin, world_size)))
        # Not `skip`: the state of other ranks may count a last step that was filled up, beyond the end.
        next(itertools.islice(listed, begin - len(first), begin - len(first)), None)
        for number in itertools.count(start):
            step = list(itertools.islice(listed, world_size))
            first += step[: world_size - len(first)]
            counts = rank < len(step)
            if not step or (len(step) < world_size and not self._fill(step, first)):
                return
            if pads:
                self.own[number] = len(step[rank]) if counts else 0, len(step[rank])
            yield step[rank]

    def _fill(self, step: list[Indices], first: list[Indices]) -> bool:
        """Fill up the last step from the epoch's first batches; return False if it is dropped."""
        if self.division.uneven == "error":
            raise LoaderError(
                f"the batch sampler's last step has {len(step)} batches for {self.division.world_size} "
                "ranks; choose uneven='pad', 'repeat' or 'drop'"
            )
        step += itertools.islice(itertools.cycle(first), self.division.world_size - len(step))
        return self.division.fills

    def take_own(self, number: int) -> tuple[int, int]:
        """Remove and return how many samples of a batch count, and how many it has."""
        return self.own.pop(number)


@dataclass(frozen=True, slots=True)
class GroupedPlan:
    """The indices of a sampler, grouped into batches.

    Attributes
    ----------
    sampler : iterable
        Yields indices, of whatever type the dataset accepts.
    batch_size : int
        Samples per batch.
    drop_last : bool
        Whether to drop a shorter last batch.
    base : int
        Number of indices before batch 0.
    """

    sampler: Iterable[Any]
    batch_size: int
    drop_last: bool
    base: int = 0

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        indices = walk(self.sampler)
        skip(indices, self.base + start * self.batch_size, self.batch_size, "the sampler")
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """Batches of one index each, which is a list: the dataset reads the samples of a whole batch at once.

    Attributes
    ----------
    plan : Plan
        Its batches become the lists.
    base : int
        Number of lists before batch 0.

    Examples
    --------
    >>> from gpuloader.order.order import InOrder
    >>> list(BulkPlan(OrderedPlan(InOrder(5), 2, drop_last=False)).batches(1))
    [[[2, 3]], [[4]]]
    """

    plan: Plan
    base: int = 0

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the list of batch `start` and of every later one."""
        for indices in self.plan.batches(self.base + start):
            yield [indices.tolist() if isinstance(indices, np.ndarray) else list(indices)]


def _as_sequence(indices: Any) -> Indices:
    if not isinstance(indices, Iterable) or isinstance(indices, str | bytes):
        raise LoaderError(
            f"a batch sampler must yield sequences of indices, got {indices!r}; if it yields single indices, "
            "pass it as sampler, with a batch_size"
        )
    if isinstance(indices, range | tuple):
        listed: Sequence[Any] = indices
    else:
        # A copy, because the sampler may reuse the object before this batch is fetched.
        listed = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
    if not listed:
        raise LoaderError("a batch sampler must yield at least one index per batch, got none")
    return listed
