"""The orders of PyTorch's random samplers: drawn when PyTorch draws them, replayed when an epoch resumes.

PyTorch's samplers draw an epoch from the global generator, or from a generator of the user's. So a program
sees the same batches, and the same random numbers in its own code, only if a loader draws the same numbers at
the same moment. A state keeps what an order was drawn from. Replaying it needs none of the program's
generators.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuloader.errors import BadValue
from gpuloader.foreign import foreign_name, is_instance
from gpuloader.order.order import IndexArray
from gpuloader.system.iterators import group

Origin = int | str
"""What an order was drawn from: the seed that a sampler drew, or a generator's state before it drew."""

_RANDOM = ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")
_AT_ONCE = 32  # indices that a RandomSampler with replacement draws at a time
_TOGETHER = 128  # such draws to replay in one go, which takes half a millisecond


def find_torch_sampler(sampler: Any) -> Any:
    """Return the sampler if it is one of PyTorch's random samplers, or the one in its batch sampler, or None.

    >>> find_torch_sampler([2, 0, 1]) is None
    True
    """
    if foreign_name(sampler) == "BatchSampler":
        sampler = getattr(sampler, "sampler", None)
    # Exactly these classes: a subclass may yield something else.
    if foreign_name(sampler) not in _RANDOM or not is_instance(sampler, "torch.utils.data", *_RANDOM):
        return None
    indices = getattr(sampler, "indices", range(0))
    if isinstance(indices, range) or not len(indices) or np.asarray(indices).dtype.kind in "iu":
        return sampler
    return None  # an order holds numbers, but these are keys


class TorchOrder:
    """The order of one epoch, as a PyTorch sampler draws it; a state keeps its `origin`."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        # What the sampler drew first from a generator of the user's, until it is read; what it has yet to
        # draw from it, and the indices drawn so far.
        self._first: IndexArray | None = None
        self._later: Iterator[IndexArray] = iter(())
        self._reached: float = math.inf

    @classmethod
    def draw(cls, sampler: Any) -> TorchOrder:
        """Draw what PyTorch's sampler draws for its first index."""
        torch: Any = sys.modules["torch"]
        if sampler.generator is None and foreign_name(sampler) == "RandomSampler":
            # The only sampler that draws a seed, for a generator of its own.
            return cls(int(torch.empty((), dtype=torch.int64).random_()))
        generator = torch.default_generator if sampler.generator is None else sampler.generator
        drawn = cls(str(generator.get_state().numpy().tobytes().hex()))
        drawn._begin(sampler, generator)
        return drawn

    def read(self, sampler: Any, *, live: bool) -> Iterator[IndexArray]:
        """Yield the order in the parts that PyTorch's sampler draws, each when it is needed.

        A `live` reader gets what the user's generator draws then, even if the program has drawn from it as
        well. Any other, and a second one, gets what it would have drawn without the program. Raises
        `ValueError` if the state that the order comes from is damaged.
        """
        first, self._first = self._first, None
        if first is not None and len(first) == len(sampler):
            return iter((first,))  # what follows is not part of the order
        if first is None or not live:
            torch: Any = sys.modules["torch"]
            device = "cpu" if sampler.generator is None else sampler.generator.device
            parts = _draw(sampler, self._rewind(torch.Generator(device)))
            # Between the batches, PyTorch's function takes twice as long.
            together = _TOGETHER if getattr(sampler, "replacement", False) else 1
            return map(np.concatenate, group(parts, together, drop_last=False))
        later, self._later, self._reached = self._later, iter(()), math.inf
        return itertools.chain((first,), later)

    def resume(self, sampler: Any) -> None:
        """Leave the sampler's generator as the first drawing did, for the epochs that follow."""
        if isinstance(self.origin, str):  # otherwise it was not drawn from a generator of the user's
            self._begin(sampler, self._rewind(sampler.generator))

    def _begin(self, sampler: Any, generator: Any) -> None:
        self._later = _draw(sampler, generator)
        self._first = next(self._later)
        self._reached = len(self._first)

    def draw_until(self, position: float) -> None:
        """Draw from the user's generator what PyTorch's sampler draws for the first `position` indices.

        A number above the order's length means that one index too many was requested.
        """
        while self._reached < position:
            drawn = next(self._later, None)
            self._reached = math.inf if drawn is None else self._reached + len(drawn)

    def _rewind(self, generator: Any) -> Any:
        torch: Any = sys.modules["torch"]
        try:
            if isinstance(self.origin, int):
                generator.manual_seed(self.origin)
            else:
                generator.set_state(torch.frombuffer(bytearray.fromhex(self.origin), dtype=torch.uint8))
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadValue(f"the state's order is damaged ({error}): begin the epoch again") from error
        return generator


def _draw(sampler: Any, generator: Any) -> Iterator[IndexArray]:
    """Yield the indices of an epoch in the parts that PyTorch's sampler draws, each when it is needed."""
    torch: Any = sys.modules["torch"]
    if foreign_name(sampler) != "RandomSampler":
        one = copy.copy(sampler)
        one.generator = generator
        yield np.fromiter(one, np.int64, len(sampler))
        return
    count, wanted, device = len(sampler.data_source), len(sampler), generator.device
    if sampler.replacement:
        # The last part is drawn even if it is empty, and so is the last permutation below.
        for size in itertools.chain(itertools.repeat(_AT_ONCE, wanted // _AT_ONCE), (wanted % _AT_ONCE,)):
            part = torch.randint(count, (size,), dtype=torch.int64, generator=generator, device=device)
            yield part.cpu().numpy()
        return
    for size in itertools.chain(itertools.repeat(count, wanted // count), (wanted % count,)):
        yield torch.randperm(count, generator=generator, device=device).cpu().numpy()[:size]
