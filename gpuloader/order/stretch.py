"""A batch as a stretch of an order: where it begins and ends, for whoever has the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloader.order.computed import Indices
from gpuloader.order.order import Order


@dataclass(frozen=True, slots=True)
class Stretch:
    """The samples at consecutive positions of an order; the last one again, where there are too few.

    Attributes
    ----------
    order : Order
        Of the epoch; looked into only where somebody asks for the indices.
    first, last : int
        The positions.
    count : int
        How many samples.

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
        """Return the stretch of positions that rise by one and perhaps repeat at their end."""
        return cls(order, positions[0], positions[-1], len(positions))

    def __len__(self) -> int:
        return self.count

    def indices(self) -> Indices:
        """Return the dataset's indices of the samples."""
        part = self.order.slice(self.first, self.last + 1)
        found = np.arange(part.start, part.stop) if isinstance(part, range) else part
        return found if len(found) == self.count else found[np.minimum(np.arange(self.count), len(found) - 1)]
