"""The batch sampler of a `DataLoader` that has made its own: the batches of its next epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpuloader.loader.loading import Loading
from gpuloader.loader.state import Course
from gpuloader.order.batch_sampler import BatchSampler
from gpuloader.order.computed import check_whole


class UpcomingBatches(BatchSampler):
    """The indices of the batches that a loader's next epoch will deliver on this rank.

    So a loader of PyTorch over this batch sampler, as Accelerate and Hugging Face's Trainer make one to skip
    batches, reads what the loader itself would read. Iterating begins no epoch of the loader.

    Parameters
    ----------
    sampler : iterable
        The loader's sampler.
    loading : Loading
        Opens the loader's epochs.
    course : Course
        Knows which epoch comes next.
    batch_size : int
        Samples per batch.
    drop_last : bool
        Whether an incomplete last batch is dropped.

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
        self, sampler: Iterable[Any], loading: Loading, course: Course, batch_size: int, drop_last: bool
    ) -> None:
        super().__init__(sampler=sampler, batch_size=batch_size, drop_last=drop_last)
        self._loading = loading
        self._course = course

    def __iter__(self) -> Iterator[list[int]]:
        return self._loading.list_batches(self._course.upcoming())

    def __len__(self) -> int:
        return self._loading.count_batches()

    @property
    def num_replicas(self) -> int:
        """The number of ranks that the batches are divided among."""
        return self._loading.find_ranks()[1]

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._loading.find_ranks()[0]

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the loader's next one."""
        self._course.set_epoch(check_whole("epoch", epoch, 2**64))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._plain, (None, self.sampler, False, self.batch_size, self.drop_last)
