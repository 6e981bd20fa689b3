"""A batch as a stretch of an order: a first and a last position, with the indices looked up on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloader.order.computed import Indices
from gpuloader.order.order import Order


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

    def indices(self) -> Indices:
        """Return the dataset indices of the samples."""
        part = self.order.slice(self.first, self.last + 1)
        found = np.arange(part.start, part.stop) if isinstance(part, range) else part
        return found if len(found) == self.count else found[np.minimum(np.arange(self.count), len(found) - 1)]
