"""Orders: the sequence of dataset indices in an epoch, as values that can be sliced anywhere.

An order is a function of its fields alone. It does not depend on workers, speed, the position of a resume or
NumPy's version. The cost of a slice is proportional to its length. An order pickles as its fields only,
without what it has computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.base.checks import check_count
from gpuloader.base.errors import BadValue
from gpuloader.order.computed import Computed, Indices, as_indices, as_plain, check_fields, check_slice
from gpuloader.order.permutation import (
    DRAWN,
    PERMUTED,
    SORTED,
    SORTED_AT_MOST,
    WEIGHTED,
    derive_key,
    hash_positions,
    permute,
    sort_hashes,
)

_PIECE = 4096
"""Number of indices computed at once while iterating over an order."""

_COUNTS, _WORDS = 2**62 + 1, 2**64


class Order(Protocol):
    """A finite sequence of dataset indices that can be sliced anywhere."""

    def __len__(self) -> int:
        """Return the number of indices."""

    def slice(self, start: int, stop: int) -> range | Indices:
        """Return the indices from position `start` to before `stop`; callers must not write to them."""


@dataclass(frozen=True)
class InOrder:
    """The indices 0, 1, 2, … below `count`.

    Examples
    --------
    >>> InOrder(10).slice(3, 6)
    range(3, 6)
    """

    count: int

    def __post_init__(self) -> None:
        check_fields(self, count=_COUNTS)

    def __len__(self) -> int:
        return self.count

    def at(self, positions: Indices) -> Indices:
        """Return `positions`."""
        return positions

    def slice(self, start: int, stop: int) -> range:
        """Return the indices from position `start` to before `stop`."""
        check_slice(self, start, stop)
        return range(start, stop)


@dataclass(frozen=True)
class Shuffled(Computed):
    """The first `draws` entries (all if None) of a random permutation of ``range(count)``.

    Examples
    --------
    >>> Shuffled(5, seed=0, epoch=0).slice(0, 5).tolist()
    [1, 0, 4, 2, 3]
    """

    count: int
    seed: int
    epoch: int
    draws: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, count=_COUNTS, seed=_WORDS, epoch=_WORDS)
        if self.draws is not None:
            check_fields(self, draws=self.count + 1)

    def __len__(self) -> int:
        return self.count if self.draws is None else self.draws

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        if self.count <= SORTED_AT_MOST:
            permutation: Indices = self._table()
            return permutation[positions]
        key = derive_key(self.seed, self.epoch, PERMUTED)
        return permute(positions.astype(np.uint64), self.count, key).view(np.int64)

    def slice(self, start: int, stop: int) -> Indices:
        """Return the entries from position `start` to before `stop`."""
        if self.count > SORTED_AT_MOST:
            return super().slice(start, stop)
        check_slice(self, start, stop)
        permutation: Indices = self._table()
        return permutation[start:stop]

    def _build_table(self) -> Indices:
        return sort_hashes(self.count, derive_key(self.seed, self.epoch, SORTED)).view(np.int64)


@dataclass(frozen=True)
class Drawn(Computed):
    """`draws` indices below `count`, drawn uniformly and independently (with replacement).

    Examples
    --------
    >>> Drawn(3, draws=8, seed=0, epoch=0).slice(0, 8).tolist()
    [0, 1, 0, 2, 2, 2, 1, 2]
    """

    count: int
    draws: int
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        check_fields(self, count=_COUNTS, draws=_COUNTS, seed=_WORDS, epoch=_WORDS)
        if self.draws and not self.count:
            raise ValueError(f"cannot draw {self.draws} indices: there are no samples")

    def __len__(self) -> int:
        return self.draws

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        hashes = hash_positions(positions.astype(np.uint64), derive_key(self.seed, self.epoch, DRAWN))
        return (hashes % np.uint64(self.count)).view(np.int64)


@dataclass(frozen=True, eq=False)
class Weighted(Computed):
    """`draws` indices, each drawn with a probability proportional to its weight.

    Without replacement, the indices drawn are those of the smallest of exponential variables whose rates are
    the weights (Efraimidis and Spirakis 2006). This is equivalent to drawing one index after another.

    Examples
    --------
    >>> Weighted([0, 1, 0, 1], draws=2, replacement=False, seed=0, epoch=0).slice(0, 2).tolist()
    [1, 3]
    """

    weights: NDArray[np.float64]
    draws: int
    replacement: bool
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        check_fields(self, draws=_COUNTS, seed=_WORDS, epoch=_WORDS)
        object.__setattr__(self, "weights", as_weights(self.weights, self.draws, self.replacement))

    def __len__(self) -> int:
        return self.draws

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        if self.replacement:
            return np.searchsorted(self._table(), self._uniform(positions), side="right")
        chosen: Indices = self._table()[positions]
        return chosen

    def _build_table(self) -> NDArray[Any]:
        chosen = np.flatnonzero(self.weights)
        if self.replacement:
            # cumsum adds one weight after another: a pairwise sum may round differently on another machine.
            bounds = np.cumsum(self.weights)
            bounds /= bounds[-1]
            bounds[chosen[-1] :] = np.inf
            return bounds
        # Logarithms sort the same way and do not overflow.
        waits = np.log(-np.log(self._uniform(chosen))) - np.log(self.weights[chosen])
        return chosen[np.argsort(waits, kind="stable")[: self.draws]]

    def _uniform(self, positions: Indices) -> NDArray[np.float64]:
        """Return for each position a number between 0 and 1, both excluded."""
        hashes = hash_positions(positions.astype(np.uint64), derive_key(self.seed, self.epoch, WEIGHTED))
        return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def as_weights(
    weights: ArrayLike, draws: int, replacement: bool, *, zero: bool = True
) -> NDArray[np.float64]:
    """Return `weights` as an array, or raise `ValueError` if `draws` indices cannot be drawn from it.

    `zero` allows weights of 0.

    Examples
    --------
    >>> as_weights([1, 3], draws=5, replacement=True)
    array([1., 3.])
    """
    try:
        # NumPy 2 warns if it is asked to copy a tensor of PyTorch, so it first gets a view.
        array = np.array(as_plain(weights, np.float64), np.float64)
    except (TypeError, ValueError) as error:
        raise BadValue(f"weights must be a list of numbers, got {type(weights).__name__}: {error}") from None
    if array.ndim != 1:
        got = f"{type(weights).__name__} of shape {array.shape}"
        raise BadValue(f"weights must be a list of numbers, got {got}")
    if bad := np.flatnonzero(~((array >= 0 if zero else array > 0) & (array < np.inf))).tolist():
        least = "0 or more" if zero else "above 0"
        raise BadValue(f"weights must be finite and {least}, got {array[bad[0]]} at index {bad[0]}")
    positive = int(np.count_nonzero(array))
    if draws > (0 if not positive else draws if replacement else positive):
        how = "with" if replacement else "without"
        raise BadValue(f"cannot draw {draws} indices {how} replacement: {positive} weights are above 0")
    if positive and array.max() > np.finfo(np.float64).max / array.size:
        raise BadValue("the sum of the weights may exceed the range of float64; scale the weights down")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Mapped:
    """The entries of `indices` at the positions in `base`.

    Examples
    --------
    >>> Mapped(InOrder(3), [20, 40, 60]).slice(1, 3)
    array([40, 60])
    """

    base: InOrder | Shuffled
    indices: Indices

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", as_indices("indices", self.indices))

    def __len__(self) -> int:
        return len(self.base)

    def slice(self, start: int, stop: int) -> Indices:
        """Return the indices from position `start` to before `stop`."""
        part = self.base.slice(start, stop)
        return self.indices[np.arange(part.start, part.stop) if isinstance(part, range) else part]

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        chosen: Indices = self.indices[self.base.at(positions)]
        return chosen


@dataclass(frozen=True)
class Shard(Computed):
    """One rank's samples of `base`, batch by batch; all of the `world_size` ranks get equally many.

    The ranks take turns in `base`, batch by batch: rank 0, rank 1, …, then rank 0 again. The remainder at the
    end is split evenly, repeating samples from the start of `base` to make it divisible, or left out.

    Examples
    --------
    >>> [Shard(InOrder(7), 2, world_size=2, rank=rank).slice(0, 4).tolist() for rank in (0, 1)]
    [[0, 1, 4, 5], [2, 3, 6, 0]]
    """

    base: InOrder | Shuffled
    batch_size: int
    world_size: int
    rank: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        check_fields(self, rank=self.world_size)

    def __len__(self) -> int:
        return self._share // self.batch_size * self.batch_size if self.drop_last else self._share

    @property
    def _share(self) -> int:
        return -(-len(self.base) // self.world_size)

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        # Limiting the batch size to the share keeps all numbers within 64 bits.
        size = max(min(self.batch_size, self._share), 1)
        turns, rest = divmod(self._share, size)
        turn, offset = np.divmod(positions, size)
        width = np.where(turn < turns, size, rest)
        return self.base.at((turn * (size * self.world_size) + self.rank * width + offset) % len(self.base))


def iterate(order: Order) -> Iterator[int]:
    """Yield the indices of `order` one by one, as Python integers.

    Examples
    --------
    >>> list(iterate(InOrder(3)))
    [0, 1, 2]
    """
    for start in range(0, len(order), _PIECE):
        part = order.slice(start, min(start + _PIECE, len(order)))
        yield from part if isinstance(part, range) else part.tolist()
