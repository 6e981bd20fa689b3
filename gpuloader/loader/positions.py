"""Where in its epoch a `DataLoader` begins or resumes, counted in samples or in batches."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from gpuloader.fetch.fetching import Fetching
from gpuloader.loader.state import Progress
from gpuloader.order.batching import Batching


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions in the epochs of one loader.

    Attributes
    ----------
    batching : Batching
        Which samples make up a batch.
    size : int or None
        Samples per batch on one place; None if a batch sampler determines it.
    shards : int
        The number of parts that each batch is cut into.
    """

    batching: Batching
    size: int | None
    shards: int

    def fresh(self, seed: int, epoch: int, crew: int | None, position: int = 0) -> Progress:
        """Return the progress of an epoch in which all ranks together have taken `position` samples.

        For a loader that is divided among ranks, `place` has to follow once the ranks are known.
        """
        batching = self.batching
        step = 1 if batching.sharding is not None else batching.step
        steps, base = divmod(position, step) if batching.sharding is None else (0, position)
        progress = Progress(
            seed,
            epoch,
            steps * self.shards,
            crew=crew,
            size=self.size,
            shards=self.shards,
            order_size=batching.order_size,
        )
        if batching.sharding is not None or base:
            progress.step, progress.base, progress.total = step, base, self._count()
            progress.dealt = batching.is_dealt
        return progress

    def place(self, progress: Progress, settled: Batching) -> None:
        """Number the batches of an epoch that is about to begin, for the ranks that there are now."""
        if self.batching.sharding is None:
            return
        position = progress.position or 0
        settled.check_even(position)
        steps, progress.base = divmod(position, settled.step)
        progress.step, progress.batches = settled.step, steps * self.shards

    def adopt(self, progress: Progress, fetching: Fetching) -> Progress:
        """Return where to resume from a loader's state: at its batch, or at its sample if batches differ.

        Raises
        ------
        ValueError
            This loader cannot resume there: the state does not tell how many samples were delivered, it comes
            from another number of workers and the order depends on it, or it comes from another dataset.
        """
        batching = self.batching
        if progress.order_size != batching.order_size:
            raise ValueError(
                f"the state is a position in {_name_order(progress.order_size)}, but this loader reads "
                f"{_name_order(batching.order_size)}; resume with the same batch sampler and batch size"
            )
        is_sharded = batching.sharding is not None
        same = (progress.size, progress.shards) == (self.size, self.shards)
        if not is_sharded and progress.step is None and same:
            fetching.check_crew(progress.crew)
            with suppress(TypeError):  # the number of batches is unknown
                _check_end("batches", progress.batches, batching.count() * self.shards)
            return progress
        if batching.is_dealt:
            position = progress.batches if progress.step is None and progress.crew is None and same else None
        elif batching.iterable:
            # Without a step it may come from a map-style dataset.
            position = progress.position if is_sharded and progress.step is not None else None
        else:
            position = progress.position if is_sharded or batching.counts_samples else None
        if position is None or (progress.beyond and (is_sharded or not same)):
            raise ValueError(
                f"the state counts {progress.describe()}; this loader has batches of {self.size} samples per "
                f"place, {self.shards} per step, and cannot tell where in its epoch that is"
            )
        assert progress.seed is not None
        total = self._count()
        if total is not None:
            if progress.step is None and not batching.is_dealt:  # its last batch may have been shorter
                position = min(position, total) if position < total + (progress.size or 1) else position
            _check_end("batches" if batching.is_dealt else "samples", position, total)
        self._check_even(position)
        adopted = self.fresh(progress.seed, progress.epoch, fetching.crew, position)
        adopted.beyond = {number + adopted.batches for number in progress.beyond}
        return adopted

    def _check_even(self, position: int) -> None:
        try:
            settled = self.batching.settle()
        except ValueError:
            return  # the epoch finds the rank when it begins, or raises this again
        settled.check_even(position)

    def _count(self) -> int | None:
        """Return the samples per epoch over all ranks, or the batches if those are dealt; None if unknown."""
        try:
            return self.batching.count() if self.batching.is_dealt else self.batching.count_samples()
        except TypeError:
            return None


def _name_order(size: int | None) -> str:
    return "an order for any batch size" if size is None else f"an order for batches of {size} samples"


def _check_end(what: str, reached: int, total: int) -> None:
    if reached > total:
        raise ValueError(
            f"the state is {reached} {what} into an epoch and this dataset has {total}: it comes from "
            "another dataset or sampler"
        )
