"""How an epoch is divided among ranks: what all of them take at a step, and what one of them takes of it.

All is arithmetic on positions of one order that every rank computes alike, so ranks agree on how many batches
there are, and on what is in them, without a word to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuloader.base.checks import check_count, check_word
from gpuloader.order.computed import Computed, Indices, check_whole
from gpuloader.order.order import Order
from gpuloader.order.ranks import find_rank

UNEVEN = ("pad", "drop", "error")


@dataclass(frozen=True)  # without slots: worker processes are sent it, and who ships looks at attributes
class Division:
    """One rank's share of every step.

    Attributes
    ----------
    rank : int
        From 0.
    world_size : int
        How many ranks there are.
    uneven : str
        What becomes of a last step that does not divide evenly: 'pad', 'drop' or 'error'.

    Examples
    --------
    >>> division = Division(rank=2, world_size=4, uneven="pad")
    >>> division.count(samples=18, batch_size=4)  # one step of 16, and one of the 2 that are left
    2
    >>> division.own(left=2, batch_size=4)  # of which ranks 0 and 1 have one each, and 2 and 3 repeat one
    (0, 1)
    """

    rank: int
    world_size: int
    uneven: str

    def pads(self, *, drop_last: bool) -> bool:
        """Return whether samples may be repeated, so that batches come with masks."""
        return self.uneven == "pad" and not drop_last

    def share(self, left: int) -> int:
        """Return how many samples each rank gets of `left` ones in a last step, repeated ones included."""
        return -(-left // self.world_size) if self.uneven == "pad" else left // self.world_size

    def count(self, samples: int, batch_size: int, *, drop_last: bool = False, least: int = 1) -> int:
        """Return how many batches each rank gets; a last one of fewer than `least` samples is left out."""
        full, left = divmod(samples, batch_size * self.world_size)
        return full + (not drop_last and self.share(left) >= least)

    def own(self, left: int, batch_size: int) -> tuple[int, int]:
        """Return how many samples of the next batch count, and how many it has, with `left` to come."""
        if left >= batch_size * self.world_size:
            return batch_size, batch_size
        return self.part(left)[1], self.share(left)

    def part(self, left: int) -> tuple[int, int]:
        """Return where in a last step of `left` samples this rank's begin, and how many it has of its own."""
        return part_of(
            left if self.uneven == "pad" else left - left % self.world_size, self.world_size, self.rank
        )

    def own_items(self, count: int, batch_size: int) -> tuple[int, int]:
        """Return the same where `count` items are there of a step, and are dealt to the ranks one by one."""
        size = batch_size if count >= batch_size * self.world_size else self.share(count)
        return min(max(-(-(count - self.rank) // self.world_size), 0), size), size

    def check_even(self, left: int, batch_size: int, *, drop_last: bool) -> None:
        """Raise `ValueError` where samples are left over, and that is an error."""
        rest = left % (batch_size * self.world_size)
        if self.uneven == "error" and not drop_last and rest % self.world_size:
            raise ValueError(
                f"{left:,} samples are {left // (batch_size * self.world_size):,} steps of {self.world_size} "
                f"ranks and a last one of {rest}, which they do not share evenly; choose uneven='pad' or "
                "'drop', or drop_last=True"
            )


@dataclass(frozen=True)
class Standing:
    """What workers know of the run that their loader is part of.

    Attributes
    ----------
    ranks : tuple of int or None
        Rank and world size; None: the environment contradicts itself, which is for who asks.
    salt : tuple of int
        What seeds of workers are mixed with, beside their numbers: where the loader divides, its rank if that
        is not 0, since the ranks' loaders have one seed.
    """

    ranks: tuple[int, int] | None = None
    salt: tuple[int, ...] = ()

    @classmethod
    def of(cls, division: Division | None) -> Standing:
        """Return what holds in this process."""
        if division is not None:
            return cls((division.rank, division.world_size), (division.rank,) if division.rank else ())
        try:
            return cls(find_rank())
        except ValueError:
            return cls()


ALONE = Division(0, 1, "drop")
"""The division of what is not divided."""


@dataclass(frozen=True)
class Share(Computed):
    """What one rank reads of `base` from position `start` on, batch by batch; all ranks read equally many.

    A step takes a batch for each rank from `base`, rank after rank; a last one that is not whole is divided
    evenly, who has one sample less than others repeating its last, or left out altogether.

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
        return full * self.batch_size + (0 if self.drop_last else self.division.share(left))

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        size, division = self.batch_size, self.division
        step = size * division.world_size
        full, left = divmod(len(self.base) - self.start, step)
        begin, own = division.part(left)
        turn, offset = np.divmod(positions, size)
        last = begin + np.minimum(offset, max(own - 1, 0))
        within = np.where(turn < full, division.rank * size + offset, last)
        return _entries(self.base, np.minimum(self.start + turn * step + within, len(self.base) - 1))


def _entries(order: Order, positions: Indices) -> Indices:
    """Return the entries of an order at positions, also of one that can only be sliced."""
    if hasattr(order, "at"):
        found: Indices = order.at(positions)
        return found
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return np.concatenate([np.asarray(order.slice(int(run[0]), int(run[-1]) + 1), np.int64) for run in runs])


def part_of(count: int, parts: int, part: int) -> tuple[int, int]:
    """Return where part number `part` of `count` samples begins, and how many it has, one more or less.

    >>> [part_of(5, 3, part) for part in range(3)]
    [(0, 2), (2, 2), (4, 1)]
    """
    each, extra = divmod(count, parts)
    return part * each + min(part, extra), each + (part < extra)


def find_division(shard: object, uneven: object) -> Division | None:
    """Return what a loader's options `shard` and `uneven` ask for; None: the epoch is not divided.

    Raises
    ------
    ValueError
        A word is none of those known, the rank is not below the world size, or the environment contradicts
        itself.
    TypeError
        `shard` is neither 'auto' nor a pair.

    >>> find_division((1, 4), "drop")
    Division(rank=1, world_size=4, uneven='drop')
    """
    check_word("uneven", uneven, UNEVEN)
    if shard is None:
        return None
    if isinstance(shard, str):
        check_word("shard", shard, ("auto",))
        rank, world_size = find_rank()
    elif isinstance(shard, tuple | list) and len(shard) == 2:
        rank, world_size = shard
        name = "the world size in shard"
        world_size = check_whole(name, check_count(name, world_size), 2**31)
        rank = check_whole("the rank in shard", rank, world_size)
    else:
        raise TypeError(f"shard must be 'auto', a pair (rank, world_size) or None, got {shard!r}")
    return Division(rank, world_size, str(uneven))
