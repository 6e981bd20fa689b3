"""Divides samples evenly: an epoch among ranks, and a batch among places, by one formula.

`count` samples are divided among `parts`. With ``each, extra = divmod(count, parts)``, part `p`

    rule        begins at                has of its own      and all parts have
    'drop'      p * each                 each                each
    'pad'       p * each + min(p, extra) each + (p < extra)  each + (extra > 0)
    'repeat'    p * (what all have)      what all have       each + (extra > 0)

With 'pad', a part with one sample fewer repeats its last one, which does not count. With 'repeat', positions
beyond the last sample stand for those from the start of the order, and all count. 'error' divides like
'drop', after a check that nothing is left over.

A step is what all parts read together: one batch each, one part after the other. Only the last step of an
epoch is divided by the formula; all others are whole. Everything is arithmetic on positions of one order that
every rank computes identically, so ranks agree on the number of batches and their contents without
communicating.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuloader.checks import check_count, check_word
from gpuloader.errors import LoaderError
from gpuloader.fields.spec import Indices, plain_indices
from gpuloader.order.order import Computed, IndexArray, Order, check_whole
from gpuloader.order.worker_info import find_rank

UNEVEN = ("pad", "repeat", "drop", "error")


def span(count: int, parts: int, part: int, rule: str) -> tuple[int, int, int]:
    """Return where a part begins, how many samples it has of its own, and how many all parts have.

    >>> [span(5, 3, part, "pad") for part in range(3)]
    [(0, 2, 2), (2, 2, 2), (4, 1, 2)]
    """
    each, extra = divmod(count, parts)
    if rule == "pad":
        return part * each + min(part, extra), each + (part < extra), each + (extra > 0)
    size = each + (extra > 0) if rule == "repeat" else each
    return part * size, size, size


@dataclass(unsafe_hash=True)  # no slots: pickling errors find the culprit through `__dict__`
class Division:
    """One rank's part of every step, from 0 to below `world_size`, and the rule for an uneven last step.

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
        """Return whether batches have masks if `left` samples remain in the epoch, None if unknown."""
        # All batches of an epoch or none, on all ranks: a loop that unpacks a mask must always get one.
        if self.uneven != "pad" or drop_last or self.world_size == 1:
            return False
        return left is None or left % self.world_size > 0

    def last(self, left: int, batch_size: int, drop_last: bool) -> int:
        """Return how many samples each rank gets of a last step of `left` samples."""
        _, _, size = span(left, self.world_size, self.rank, self.uneven)
        # PyTorch's DistributedSampler repeats before its loader drops, so a filled-up step stays.
        return 0 if drop_last and not (self.uneven == "repeat" and size == batch_size) else size

    def count(self, samples: int, batch_size: int, *, drop_last: bool = False, least: int = 1) -> int:
        """Return the number of batches per rank, not counting a last one of fewer than `least` samples."""
        full, left = divmod(samples, batch_size * self.world_size)
        return full + (self.last(left, batch_size, drop_last) >= least)

    def own(self, left: int, batch_size: int, *, items: bool = False) -> tuple[int, int]:
        """Return how many samples of the next batch count, and how many it has, if `left` samples remain.

        With `items`, they are dealt to the ranks one by one, as an iterable dataset yields them.
        """
        # Computed, never counted as batches arrive: if one rank had a batch less, all others would wait for
        # its gradients forever.
        if left >= batch_size * self.world_size:
            return batch_size, batch_size
        # Items cannot be read again from the start, so 'repeat' repeats a rank's last item, as 'pad' does.
        rule = "pad" if items and self.uneven == "repeat" else self.uneven
        _, own, size = span(left, self.world_size, self.rank, rule)
        return own, size

    def check_even(self, left: int, batch_size: int, *, drop_last: bool, what: str = "samples") -> None:
        """Raise `ValueError` if `uneven` is 'error' and the last step does not divide evenly."""
        full, rest = divmod(left, batch_size * self.world_size)
        if self.uneven == "error" and not drop_last and rest % self.world_size:
            raise ValueError(
                f"{left:,} {what} fill {full:,} steps of {self.world_size} ranks and leave {rest} for the "
                "last step, which do not divide evenly; choose uneven='pad', 'repeat' or 'drop', or "
                "drop_last=True"
            )


ALONE = Division(0, 1, "drop")
"""The division of a loader that does not divide its epoch."""


@dataclass(eq=False, repr=False)
class Share(Computed):
    """One rank's samples of `base` from position `start` on, batch by batch; all ranks get equally many.

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
        return full * self.batch_size + self.division.last(left, self.batch_size, self.drop_last)

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        division, end = self.division, len(self.base)
        # A batch larger than the share is the share. This keeps all numbers within 64 bits, even for a batch
        # size of sys.maxsize, which users pass to mean "everything".
        size = min(self.batch_size, max(-(-(end - self.start) // division.world_size), 1))
        full, left = divmod(end - self.start, size * division.world_size)
        begin, own, _ = span(left, division.world_size, division.rank, division.uneven)
        turn, offset = np.divmod(positions, size)
        last = begin + np.minimum(offset, max(own - 1, 0))
        within = np.where(turn < full, division.rank * size + offset, last)
        found = self.start + turn * (size * division.world_size) + within
        # A padded rank without any sample of its own repeats the last one of the order.
        found = found % end if division.uneven == "repeat" else np.minimum(found, end - 1)
        if hasattr(self.base, "at"):
            entries: IndexArray = self.base.at(found)
            return entries
        # A user's order can only be sliced, so runs of consecutive positions are read together: one slice for
        # each batch of a step instead of one for each sample.
        runs = np.split(found, np.flatnonzero(np.diff(found) != 1) + 1)
        parts = [self.base.slice(int(run[0]), int(run[-1]) + 1) for run in runs]
        return np.concatenate([np.asarray(part, np.int64) for part in parts])


def cut(indices: Indices, places: int, uneven: str) -> tuple[list[Indices], list[int]]:
    """Cut a batch into equal parts; return them, and how many samples of each count.

    >>> cut(range(6), 2, "error")
    ([range(0, 3), range(3, 6)], [3, 3])
    >>> cut([7, 8, 9, 4, 5], 2, "drop")
    ([[7, 8], [9, 4]], [2, 2])
    >>> cut([7, 8, 9, 4, 5], 2, "pad")
    ([[7, 8, 9], [4, 5, 5]], [3, 2])
    """
    count = len(indices)
    if count % places and uneven == "error":
        raise LoaderError(
            f"a batch of {count} samples cannot be cut into {places} equal parts; choose a batch_size that "
            "the number of places divides, drop_last=True for the last batch, or uneven='drop' or 'pad'"
        )
    if count % places and uneven == "pad":
        # A list, because a range that repeats its last index would differ in type from its neighbors.
        indices = plain_indices(indices)
    parts, counted = [], []
    for place in range(places):
        begin, own, size = span(count, places, place, uneven)
        part: Indices = indices[begin : begin + own]
        if own < size:  # a place without a sample of its own repeats the batch's last one
            part = [*part, (part if own else indices)[-1]]
        parts.append(part)
        counted.append(own)
    return parts, counted


# What the user says about ranks, and what workers need to know about them.


class Sharding(NamedTuple):
    """A loader's options `shard` and `uneven`, checked; without `ranks`, each epoch looks them up.

    Examples
    --------
    >>> Sharding.of((1, 4), "drop").divide()
    Division(rank=1, world_size=4, uneven='drop')
    """

    ranks: tuple[int, int] | None
    uneven: str
    find: Callable[[], tuple[int, int]] = find_rank

    @classmethod
    def of(cls, shard: object, uneven: object) -> Sharding:
        """Return the options; raise `ValueError` or `TypeError` unless `shard` is 'auto' or a valid pair."""
        check_word("uneven", uneven, UNEVEN)
        if isinstance(shard, str):
            check_word("shard", shard, ("auto",))
            return cls(None, str(uneven))
        if not isinstance(shard, tuple | list) or len(shard) != 2:
            raise TypeError(f"shard must be 'auto', a pair (rank, world_size) or None, got {shard!r}")
        rank, world_size = shard
        name = "the world size in shard"
        world_size = check_whole(name, check_count(name, world_size), 2**31)
        return cls((check_whole("the rank in shard", rank, world_size), world_size), str(uneven))

    def divide(self) -> Division:
        """Return this rank's part of every step; raises the errors of `find_rank` if it has to ask."""
        return Division(*(self.ranks or self.find()), self.uneven)
