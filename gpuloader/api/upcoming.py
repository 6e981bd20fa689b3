"""A loader's own samplers, as its attributes show them: the loader decides their epoch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from gpuloader.api.epochs import DatasetEpochs
from gpuloader.order.samplers import BatchSampler


class UpcomingBatches(BatchSampler):
    """The indices of the batches that a loader's next epoch will deliver on this rank.

    If the epoch draws its order as PyTorch does, each iteration draws another one, as PyTorch's samplers do.

    So a loader of PyTorch over this batch sampler, as Accelerate and Hugging Face's Trainer make one to skip
    batches, reads what the loader itself would read. Iterating begins no epoch of the loader.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(10), places="cpu", batch_size=2, shard=(1, 2), uneven="repeat")
    >>> list(loader.batch_sampler), len(loader.batch_sampler)
    ([[2, 3], [6, 7], [9]], 3)
    """

    _plain: type[BatchSampler] = BatchSampler
    """The class of a copy, which is not a loader's."""

    def __init__(
        self, sampler: Iterable[Any], batch_size: int, drop_last: bool, epochs: DatasetEpochs
    ) -> None:
        super().__init__(sampler=sampler, batch_size=batch_size, drop_last=drop_last)
        self._epochs = epochs
        self._counts = False

    def lead_to(self, epochs: DatasetEpochs, *, counts: bool = False) -> None:
        """Yield the indices of these epochs; if it `counts`, reading an epoch's begins the next."""
        self._epochs, self._counts = epochs, counts

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self._epochs.next_epoch
        yield from self._epochs.list_batches()
        if self._counts:
            self._epochs.set_epoch(epoch + 1)

    def __len__(self) -> int:
        return self._epochs.count_batches()

    @property
    def num_replicas(self) -> int:
        """The number of ranks that the batches are divided among."""
        return self._epochs.ranks[1]

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._epochs.ranks[0]

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the loader's next one."""
        self._epochs.set_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        kept: dict[str, Any] = {name: getattr(self, name) for name in ("sampler", "batch_size", "drop_last")}
        return partial(self._plain, **kept), ()


class EpochOf:
    """The ``set_epoch`` of a loader's own sampler. It does not keep the loader alive; a copy does nothing.

    A cycle through the sampler would keep the loader's pinned slots until garbage is collected.
    """

    def __init__(self, epochs: DatasetEpochs | None = None) -> None:
        self._epochs = None if epochs is None else weakref.ref(epochs)

    def __call__(self, epoch: int) -> None:
        """Set the loader's epoch."""
        epochs = None if self._epochs is None else self._epochs()
        if epochs is not None:
            epochs.set_epoch(epoch)

    def __reduce__(self) -> tuple[type[EpochOf], tuple[()]]:
        return EpochOf, ()
