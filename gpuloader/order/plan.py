"""The plan of an epoch: the indices of each batch, as a value that can start at any batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gpuloader.errors import LoaderError
from gpuloader.fields.spec import Indices, plain_indices
from gpuloader.order.dividing import ALONE, Division, Share, cut
from gpuloader.order.order import Order
from gpuloader.order.samplers import walk
from gpuloader.system.iterators import group, skip

_AHEAD = 1 << 12  # indices to look up at a time: 32 KB, a third of a millisecond


class Plan(Protocol):
    """The indices of each batch of an epoch."""

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""


class OrderedPlan(NamedTuple):
    """One rank's batches of an order, from position `base` on; starting at any batch costs the same.

    Examples
    --------
    >>> from gpuloader.order.order import InOrder
    >>> list(OrderedPlan(InOrder(5), 2).batches(1))
    [range(2, 4), range(4, 5)]
    >>> plan = OrderedPlan(InOrder(7), 2, division=Division(1, 2, "pad"))
    >>> [batch.tolist() for batch in plan.batches(0)], plan.take_own(1)
    ([[2, 3], [6, 6]], (1, 2))
    """

    order: Order
    batch_size: int
    drop_last: bool = False
    division: Division = ALONE
    base: int = 0

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        order, size, drop_last = self.order, self.batch_size, self.drop_last
        # Alone and from the start, the order is its own share, and a sequential order stays a range.
        if self.division.world_size > 1 or self.base:
            order, drop_last = Share(order, self.base, size, self.division, drop_last), False
        end = len(order)
        if drop_last:
            end -= end % size
        # Small batches are looked up many at a time, because the cost of a slice is mostly the call.
        chunk = max(_AHEAD // size, 1) * size
        for first in range(start * size, end, chunk):
            part = order.slice(first, min(first + chunk, end))
            for begin in range(0, len(part), size):
                yield part[begin : begin + size]

    @property
    def pads(self) -> bool:
        """Whether repeated samples do not count, so that batches need masks."""
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


@dataclass(slots=True, eq=False, repr=False)
class DealtPlan:
    """One rank's batches of a batch sampler that yields the same batches on every rank.

    A step takes one batch for each rank, in turn, from batch `base` on. If the last step lacks batches, 'pad'
    and 'repeat' give the ranks without one a batch from the start of the epoch; with 'pad', it does not
    count. 'drop' drops the step. `own` holds, for each batch, how many samples count and how many it has,
    until `take_own` takes it.

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
        """Whether repeated batches do not count, so that batches need masks."""
        left = len(self.sampler) - self.base if isinstance(self.sampler, Sized) else None
        return self.division.pads(left, drop_last=False)

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        rank, world_size, uneven = self.division.rank, self.division.world_size, self.division.uneven
        pads = self.pads  # asked once, because the sampler's length may be expensive
        listed = map(_as_sequence, walk(self.sampler))
        begin = self.base + start * world_size
        first = list(itertools.islice(listed, min(begin, world_size)))
        # Not `skip`: other ranks' states may count a filled-up last step, beyond the end.
        next(itertools.islice(listed, begin - len(first), begin - len(first)), None)
        for number in itertools.count(start):
            step = list(itertools.islice(listed, world_size))
            first += step[: world_size - len(first)]
            counts, lacks = rank < len(step), world_size - len(step)
            if not step or (lacks and uneven == "drop"):
                return
            if lacks and uneven == "error":
                raise LoaderError(
                    f"the batch sampler's last step has {len(step)} batches for {world_size} ranks; choose "
                    "uneven='pad', 'repeat' or 'drop'"
                )
            step += itertools.islice(itertools.cycle(first), lacks)
            if pads:
                self.own[number] = len(step[rank]) if counts else 0, len(step[rank])
            yield step[rank]

    def take_own(self, number: int) -> tuple[int, int]:
        """Remove and return how many samples of a batch count, and how many it has."""
        return self.own.pop(number)


class GroupedPlan(NamedTuple):
    """What a sampler yields from `base` on: indices of any type, grouped; or batches, without a `batch_size`.

    Everything before the start is drawn and dropped: a sampler that can only be iterated has no way to start
    in its middle. With `follows_torch`, a batch may be text, whose characters are keys, or empty.
    """

    sampler: Iterable[Any]
    batch_size: int | None = None
    drop_last: bool = False
    base: int = 0
    follows_torch: bool = False

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of batch `start` and of every later one."""
        listed, size = walk(self.sampler), self.batch_size or 1
        what = "the batch sampler" if self.batch_size is None else "the sampler"
        skip(listed, self.base + start * size, size, what)
        if self.batch_size is None:
            yield from (_as_sequence(indices, self.follows_torch) for indices in listed)
        else:
            yield from group(listed, size, self.drop_last)


class BulkPlan(NamedTuple):
    """Batches of one index each, which is a list: the dataset reads the samples of a whole batch at once.

    Examples
    --------
    >>> from gpuloader.order.order import InOrder
    >>> list(BulkPlan(OrderedPlan(InOrder(5), 2)).batches(1))
    [[[2, 3]], [[4]]]
    """

    plan: Plan
    base: int = 0

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the list of batch `start` and of every later one."""
        for indices in self.plan.batches(self.base + start):
            yield [plain_indices(indices)]


@dataclass(slots=True, eq=False, repr=False)
class ShardedPlan:
    """A plan that cuts each batch of another plan into parts, one for each of the `shards` places.

    `own` holds, for each part, how many samples count and how many it has, until `take_own` takes it.
    """

    plan: Plan
    shards: int
    uneven: str
    own: dict[int, tuple[int, int]] = field(default_factory=dict)

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of part `start` and of every later one."""
        # If uneven samples are dropped, batches with fewer samples than places are skipped, and their parts
        # get no numbers. A batch sampler may yield such a batch anywhere; otherwise only the last batch can
        # be one.
        in_batches = isinstance(self.plan, GroupedPlan) and self.plan.batch_size is None
        entered = 0 if in_batches else start // self.shards
        number = entered * self.shards
        divided = self.plan if isinstance(self.plan, OrderedPlan) and self.plan.pads else None
        for entry, indices in enumerate(self.plan.batches(entered), entered):
            parts, own = cut(indices, self.shards, self.uneven)
            if not len(parts[0]):
                continue
            if divided is not None:
                # The rank's batch may itself end in padding: only its first `counted` samples count.
                counted, _ = divided.take_own(entry)
                begins = itertools.accumulate(own, initial=0)
                own = [min(max(counted - begin, 0), count) for begin, count in zip(begins, own, strict=False)]
            for part, count in zip(parts, own, strict=True):
                if number >= start:
                    if self.uneven == "pad" or divided is not None:
                        self.own[number] = count, len(part)
                    yield part
                number += 1

    def take_own(self, number: int) -> tuple[int, int]:
        """Remove and return how many samples of a part count, and how many it has."""
        return self.own.pop(number)


def _as_sequence(indices: Any, follows_torch: bool = False) -> Sequence[Any]:
    if not isinstance(indices, Iterable) or (isinstance(indices, str | bytes) and not follows_torch):
        raise LoaderError(
            f"a batch sampler must yield sequences of indices, got {indices!r}; if it yields single indices, "
            "pass it as sampler, with a batch_size"
        )
    # A copy, because the sampler may reuse the object before this batch is fetched.
    listed = indices if isinstance(indices, range | tuple) else plain_indices(indices)
    if not listed and not follows_torch:
        raise LoaderError("a batch sampler must yield at least one index per batch, got none")
    return listed
