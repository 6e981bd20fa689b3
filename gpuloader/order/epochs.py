"""Tell a user's own samplers which epoch begins."""

from __future__ import annotations

from typing import Any

from gpuloader.order.batching import Batching


class EpochSetter:
    """Calls ``set_epoch`` of a user's own samplers when an epoch begins, as trainers do for PyTorch's loader.

    The samplers are `sampler` or `batch_sampler`, and the sampler inside it. A sampler whose ``epoch``
    changed since the last call is left alone from then on: the user sets it, or it counts by itself. Samplers
    with an order for each epoch, such as those of this package, are told the epoch when asked for the order.

    Parameters
    ----------
    batching : Batching
        The loader's batching.

    Examples
    --------
    >>> class Turned:
    ...     epoch = 0
    ...     def set_epoch(self, epoch):
    ...         self.epoch = epoch
    ...     def __iter__(self):
    ...         return iter([self.epoch, self.epoch + 1])
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(10), sampler=Turned(), batch_size=2, places="cpu")
    >>> [batch.tolist() for _ in range(3) for batch in loader]
    [[0, 1], [1, 2], [2, 3]]
    """

    def __init__(self, batching: Batching) -> None:
        self._known: list[tuple[Any, object]] = []
        if batching.order(0, 0) is not None:
            return
        for sampler in (batching.sampler, batching.batch_sampler):
            for one in (sampler, getattr(sampler, "sampler", None)):
                if callable(getattr(one, "set_epoch", None)):
                    self._known.append((one, getattr(one, "epoch", None)))

    def begin(self, epoch: int) -> None:
        """Set the epoch of the samplers that nobody else sets."""
        known, self._known = self._known, []
        for sampler, seen in known:
            if getattr(sampler, "epoch", None) == seen:
                sampler.set_epoch(epoch)
                self._known.append((sampler, getattr(sampler, "epoch", None)))
