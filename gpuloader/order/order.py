"""Orders: the sequence of dataset indices in an epoch, as values that can be sliced anywhere.

An order is a function of its fields alone. It does not depend on workers, speed, the position of a resume or
NumPy's version. The cost of a slice is proportional to its length. An order pickles as its fields only,
without what it has computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.checks import check_count
from gpuloader.errors import BadValue
from gpuloader.fields.tensors import is_tensor, tensor_array
from gpuloader.order.permutation import (
    DRAWN,
    PERMUTED,
    REPEATED,
    SORTED,
    SORTED_AT_MOST,
    WEIGHTED,
    derive_key,
    hash_positions,
    permute,
    sort_hashes,
)

# Building blocks of orders: checked fields, and entries computed from their positions.

IndexArray = NDArray[np.int64]

_CHUNK = 4096
"""Entries computed at once; at about this size, the overhead of NumPy's calls equals their work."""


def as_plain(values: Any, dtype: DTypeLike) -> NDArray[Any]:
    """Return values as an array, without a copy where possible; a tensor in `dtype` if NumPy lacks its own.

    >>> as_plain([1, 2], np.float64)
    array([1, 2])
    """
    return tensor_array(values.detach(), np.dtype(dtype)) if is_tensor(values) else np.asarray(values)


def as_indices(name: str, indices: ArrayLike) -> IndexArray:
    """Return `indices` as an int64 array, without a copy if it already is one.

    Raises
    ------
    TypeError
        `indices` is not a one-dimensional list of integers.

    Examples
    --------
    >>> as_indices("indices", range(3))
    array([0, 1, 2])
    """
    expected = f"{name} must be a list of integers"
    try:
        array = np.asarray(indices)
    except ValueError as error:
        raise TypeError(f"{expected}: {error}") from None
    if array.ndim != 1:
        raise TypeError(f"{expected}, got {type(indices).__name__} of shape {array.shape}")
    if array.dtype == np.bool_:
        raise TypeError(f"{expected}, got a boolean mask; pass numpy.flatnonzero(mask)")
    if array.size and (array.dtype.kind not in "iu" or array.max() > np.iinfo(np.int64).max):
        raise TypeError(f"{expected} that fit into int64, got {type(indices).__name__} of {array.dtype}")
    return array.astype(np.int64, copy=False)


def check_whole(name: str, value: object, limit: int) -> int:
    """Return `value` as an int, or raise `ValueError` unless it is an integer from 0 to below `limit`.

    >>> check_whole("rank", 1, limit=2)
    1
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < limit:
        raise BadValue(f"{name} must be an integer from 0 to {limit - 1}, got {value!r}")
    return int(value)


def check_fields(order: object, **limits: int) -> None:
    """Replace the named fields of a frozen order by Python integers, checked to be below their limits."""
    for name, limit in limits.items():
        object.__setattr__(order, name, check_whole(name, getattr(order, name), limit))


class Computed:
    """Base class of orders whose entries are computed from their positions.

    An order keeps the chunk it computed last, and a table if it needs one. Any thread may slice it: both
    are replaced atomically, and at worst two threads compute the same chunk twice.
    """

    _chunk: tuple[int, IndexArray] = (-1, np.empty(0, np.int64))
    _kept: NDArray[Any] | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> IndexArray:
        """Return the indices from position `start` to before `stop`."""
        check_slice(self, start, stop)
        if start == stop:
            return np.empty(0, np.int64)
        first, last = start // _CHUNK, (stop - 1) // _CHUNK
        if last - first > 1:
            return self.at(np.arange(start, stop))
        pieces = [
            self._compute(number)[max(start - number * _CHUNK, 0) : stop - number * _CHUNK]
            for number in range(first, last + 1)
        ]
        return pieces[0] if first == last else np.concatenate(pieces)

    def _compute(self, number: int) -> IndexArray:
        kept, chunk = self._chunk
        if kept != number:
            chunk = self.at(np.arange(number * _CHUNK, min((number + 1) * _CHUNK, len(self))))
            chunk.flags.writeable = False
            object.__setattr__(self, "_chunk", (number, chunk))
        return chunk

    def _table(self) -> NDArray[Any]:
        if (table := self._kept) is None:
            table = self._build_table()
            table.flags.writeable = False
            object.__setattr__(self, "_kept", table)
        return table

    def _build_table(self) -> NDArray[Any]:
        raise NotImplementedError


def check_slice(order: Sized, start: int, stop: int) -> None:
    """Raise `IndexError` unless ``0 <= start <= stop <= len(order)``."""
    if not 0 <= start <= stop <= len(order):
        raise IndexError(f"an order of {len(order)} indices has no slice {start}:{stop}")


_PIECE = 4096
"""Number of indices computed at once while iterating over an order."""

_COUNTS, _WORDS = 2**62 + 1, 2**64


class Order(Protocol):
    """A finite sequence of dataset indices that can be sliced anywhere."""

    def __len__(self) -> int:
        """Return the number of indices."""

    def slice(self, start: int, stop: int) -> range | IndexArray:
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

    def at(self, positions: IndexArray) -> IndexArray:
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

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        if self.count <= SORTED_AT_MOST:
            permutation: IndexArray = self._table()
            return permutation[positions]
        key = derive_key(self.seed, self.epoch, PERMUTED)
        return permute(positions.astype(np.uint64), self.count, key).view(np.int64)

    def slice(self, start: int, stop: int) -> IndexArray:
        """Return the entries from position `start` to before `stop`."""
        if self.count > SORTED_AT_MOST:
            return super().slice(start, stop)
        check_slice(self, start, stop)
        permutation: IndexArray = self._table()
        return permutation[start:stop]

    def _build_table(self) -> IndexArray:
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

    def at(self, positions: IndexArray) -> IndexArray:
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

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        if self.replacement:
            return np.searchsorted(self._table(), self._uniform(positions), side="right")
        chosen: IndexArray = self._table()[positions]
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

    def _uniform(self, positions: IndexArray) -> NDArray[np.float64]:
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
    indices: IndexArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", as_indices("indices", self.indices))

    def __len__(self) -> int:
        return len(self.base)

    def slice(self, start: int, stop: int) -> IndexArray:
        """Return the indices from position `start` to before `stop`."""
        part = self.base.slice(start, stop)
        return self.indices[np.arange(part.start, part.stop) if isinstance(part, range) else part]

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        chosen: IndexArray = self.indices[self.base.at(positions)]
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

    def at(self, positions: IndexArray) -> IndexArray:
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


# A batch as a stretch of an order: a first and a last position, with the indices looked up on request.


@dataclass(frozen=True, slots=True)
class Stretch:
    """The samples at consecutive positions of an order; the last sample is repeated up to `count`.

    Attributes
    ----------
    order : Order
        The order of the epoch, which only `indices` evaluates.
    first, last : int
        The first and last position.
    count : int
        Number of samples, including repetitions.

    Examples
    --------
    >>> from gpuloader.order.order import Shuffled
    >>> Stretch.of(Shuffled(5, seed=0, epoch=0), [3, 4, 4]).indices().tolist()
    [2, 3, 3]
    """

    order: Order
    first: int
    last: int
    count: int

    @classmethod
    def of(cls, order: Order, positions: Sequence[int]) -> Stretch:
        """Return the stretch of `positions`, which increase by one and may repeat the last position."""
        return cls(order, positions[0], positions[-1], len(positions))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> int:
        """Return the dataset index of one sample."""
        return int(self.indices()[position])

    def indices(self) -> IndexArray:
        """Return the dataset indices of the samples."""
        part = self.order.slice(self.first, self.last + 1)
        found = np.arange(part.start, part.stop) if isinstance(part, range) else part
        return found if len(found) == self.count else found[np.minimum(np.arange(self.count), len(found) - 1)]


# The order of a random sampler that draws more samples than there are, without replacement.


@dataclass(frozen=True)
class Repeated(Computed):
    """The first `draws` entries of one random permutation of ``range(count)`` after another.

    Examples
    --------
    >>> Repeated(3, draws=8, seed=0, epoch=0).slice(0, 8).tolist()
    [1, 0, 2, 0, 2, 1, 1, 2]
    """

    count: int
    draws: int
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        check_fields(self, count=2**62 + 1, draws=2**62 + 1, seed=2**64, epoch=2**64)

    def __len__(self) -> int:
        return self.draws

    def at(self, positions: IndexArray) -> IndexArray:
        """Return the entries at `positions`."""
        turns, within = np.divmod(positions, self.count)
        found = np.empty_like(within)
        for turn in np.unique(turns).tolist():
            here = turns == turn
            found[here] = self._permutation(turn).at(within[here])
        return found

    def _permutation(self, turn: int) -> Shuffled:
        seed = derive_key(self.seed, turn, REPEATED) if turn else self.seed
        return Shuffled(self.count, seed, self.epoch)
