"""Orders: in which sequence a dataset is read, as values that can be sliced anywhere.

An order is a function of its fields alone: not of workers, of speed, of where reading was resumed, nor of
NumPy's release. A slice costs what it holds, and an order pickles as its fields, whatever it has computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.base.checks import check_count
from gpuloader.order.computed import Computed, Indices, as_indices, check_fields, check_slice
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
"""Indices made at once where an order is iterated."""

_COUNTS, _WORDS = 2**62 + 1, 2**64


class Order(Protocol):
    """A finite sequence of dataset indices that can be sliced anywhere."""

    def __len__(self) -> int:
        """Return how many indices it gives."""

    def slice(self, start: int, stop: int) -> range | Indices:
        """Return the indices from position `start` to before `stop`; they are not to be written to."""


@dataclass(frozen=True)
class InOrder:
    """0, 1, 2, … up to `count`.

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
    """The first `draws` entries (None: all) of a permutation of ``range(count)``.

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
    """`draws` indices below `count`, each as likely as any other whatever came before: with replacement.

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
            raise ValueError(f"{self.draws} indices cannot be drawn from none")

    def __len__(self) -> int:
        return self.draws

    def at(self, positions: Indices) -> Indices:
        """Return the entries at `positions`."""
        hashes = hash_positions(positions.astype(np.uint64), derive_key(self.seed, self.epoch, DRAWN))
        return (hashes % np.uint64(self.count)).view(np.int64)


@dataclass(frozen=True, eq=False)
class Weighted(Computed):
    """`draws` indices, each drawn as often as its weight says.

    Without replacement they are the smallest of exponential variables whose rates are the weights
    (Efraimidis and Spirakis 2006), which is the same as drawing one after another.

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
            # Added one after another: a pairwise sum may round differently on another machine.
            bounds = np.cumsum(self.weights)
            bounds /= bounds[-1]
            bounds[chosen[-1] :] = np.inf
            return bounds
        # Their logarithms are in the same order, and do not overflow.
        waits = np.log(-np.log(self._uniform(chosen))) - np.log(self.weights[chosen])
        return chosen[np.argsort(waits, kind="stable")[: self.draws]]

    def _uniform(self, positions: Indices) -> NDArray[np.float64]:
        """Return a number between 0 and 1, neither of them, for every position."""
        hashes = hash_positions(positions.astype(np.uint64), derive_key(self.seed, self.epoch, WEIGHTED))
        return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def as_weights(weights: ArrayLike, draws: int, replacement: bool) -> NDArray[np.float64]:
    """Return `weights` as an array of which `draws` indices can be drawn, or raise `ValueError`.

    Examples
    --------
    >>> as_weights([1, 3], draws=5, replacement=True)
    array([1., 3.])
    """
    try:
        array = np.array(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"weights must be a list of numbers, got {type(weights).__name__}: {error}"
        ) from None
    if array.ndim != 1:
        raise ValueError(f"weights must be a list of numbers, got shape {array.shape}")
    if bad := np.flatnonzero(~((array >= 0) & (array < np.inf))).tolist():
        raise ValueError(f"weights must be finite and 0 or more, got {array[bad[0]]} at index {bad[0]}")
    positive = int(np.count_nonzero(array))
    if draws > (0 if not positive else draws if replacement else positive):
        how = "with" if replacement else "without"
        raise ValueError(f"{draws} indices cannot be drawn {how} replacement: {positive} weights are above 0")
    if positive and array.max() > np.finfo(np.float64).max / array.size:
        raise ValueError("the sum of the weights may be beyond the range of float64; make them smaller")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Mapped:
    """The entries of `indices` at the positions that `base` gives.

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
    """What one rank of `world_size` reads of `base`, batch by batch; all ranks read equally many.

    The batches lie in `base` rank after rank: first one of rank 0, then one of rank 1, …, then the next of
    rank 0. What is left at the end is split evenly, `base` starting over to fill it up, or left out.

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
        # A batch larger than the share is the share; so no number outgrows its 64 bits.
        size = max(min(self.batch_size, self._share), 1)
        turns, rest = divmod(self._share, size)
        turn, offset = np.divmod(positions, size)
        width = np.where(turn < turns, size, rest)
        return self.base.at((turn * (size * self.world_size) + self.rank * width + offset) % len(self.base))


def iterate(order: Order) -> Iterator[int]:
    """Give the indices of `order` one by one, as Python integers.

    Examples
    --------
    >>> list(iterate(InOrder(3)))
    [0, 1, 2]
    """
    for start in range(0, len(order), _PIECE):
        part = order.slice(start, min(start + _PIECE, len(order)))
        yield from part if isinstance(part, range) else part.tolist()
