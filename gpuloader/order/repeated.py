"""The order of a random sampler that draws more samples than there are, without replacement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuloader.order.computed import Computed, Indices, check_fields
from gpuloader.order.order import Shuffled
from gpuloader.order.permutation import REPEATED, derive_key


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

    def at(self, positions: Indices) -> Indices:
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
