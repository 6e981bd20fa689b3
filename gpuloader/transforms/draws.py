"""Random words for transforms: a function of the loader's seed, the epoch, and each sample's key.

For a small batch, NumPy's calls take longer than the arithmetic. So where batches follow one another in an
order, the words of many are computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuloader.fields.spec import Array, Indices
from gpuloader.order.order import Order
from gpuloader.order.permutation import Words, derive_key, hash_for_keys
from gpuloader.order.randomness import as_number
from gpuloader.order.stretch import Stretch

_DRAWS = 16  # part of the hash key, so that draws are independent of orders
_AHEAD = 4096  # samples whose words are computed at once


@dataclass(frozen=True, slots=True)
class Purpose:
    """What random words are for.

    Attributes
    ----------
    seed, epoch : int
        The loader's seed and epoch.
    widths : tuple of int
        The words per sample of each transform that draws.
    """

    seed: int
    epoch: int
    widths: tuple[int, ...]

    def draw(self, keys: Indices) -> list[Array]:
        """Return each transform's words for the samples with these keys, uint64 (samples, width).

        >>> [words.shape for words in Purpose(0, 0, (3, 1)).draw(range(4))]
        [(4, 3), (4, 1)]
        """
        if isinstance(keys, np.ndarray):
            samples: Words = keys.astype(np.uint64)
        else:
            samples = np.array([as_number(key) for key in keys], np.uint64)
        words = hash_for_keys(samples, _derive_keys(self))
        ends = np.cumsum(self.widths).tolist()
        return [words[:, end - width : end] for end, width in zip(ends, self.widths, strict=True)]


@lru_cache(maxsize=16)
def _derive_keys(purpose: Purpose) -> Sequence[int]:
    seed, epoch, widths = purpose.seed, purpose.epoch, purpose.widths
    return [
        derive_key(seed, epoch, _DRAWS, number, column)
        for number, width in enumerate(widths)
        for column in range(width)
    ]


@dataclass(frozen=True, slots=True)
class DrawnAhead:
    """Words for consecutive positions of an order.

    Attributes
    ----------
    purpose : Purpose
        What they are for.
    order : Order
        The order.
    first, stop : int
        The first position, and the one after the last.
    words : list of numpy.ndarray
        Each transform's words, one row per position.
    """

    purpose: Purpose
    order: Order
    first: int
    stop: int
    words: list[Array]

    def has(self, purpose: Purpose, stretch: Stretch) -> bool:
        """Return whether the words of a batch are among these."""
        return (
            self.order is stretch.order
            and self.first <= stretch.first
            and stretch.last < self.stop
            and self.purpose == purpose
        )

    def take(self, stretch: Stretch) -> list[Array]:
        """Return each transform's words for a batch, whose last sample may be repeated."""
        begin, end = stretch.first - self.first, stretch.last + 1 - self.first
        if end - begin == stretch.count:
            return [words[begin:end] for words in self.words]
        rows = np.minimum(np.arange(begin, begin + stretch.count), end - 1)
        return [words[rows] for words in self.words]


def draw_ahead(purpose: Purpose, stretch: Stretch, before: DrawnAhead | None) -> DrawnAhead:
    """Return the words of a batch; of later ones as well, if it follows those that were drawn `before`."""
    order, first, stop = stretch.order, stretch.first, stretch.last + 1
    if before is not None and before.order is order and before.stop == first:
        whole = max(_AHEAD // stretch.count, 1) * stretch.count
        stop = max(stop, min(first + whole, len(order)))
    found = Stretch(order, first, stop - 1, stop - first).indices()
    return DrawnAhead(purpose, order, first, stop, purpose.draw(found))
