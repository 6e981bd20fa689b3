"""A snapshot of a loader's counters."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """A snapshot of a loader's counters since it was created; all times in seconds.

    ``startup + wait + transfer + compute`` is the time of the loops over the loader. The other times run in
    parallel, in workers, in the reader thread and on copy streams. If the consumer itself fetches, `fetch`
    and `stage` are part of `wait`. To get what happened in between, subtract an earlier snapshot from a later
    one.

    Attributes
    ----------
    steps : int
        Steps delivered.
    batches : int
        Batches staged, including those not yet delivered.
    nbytes : int
        The bytes in these batches.
    fetch : float
        Time in the user's reader or dataset, summed over all workers. If samples are written straight into
        the slot (`set_sample_generator`, datasets), this includes the time to write them.
    stage : float
        Time to write batches into slots.
    stall : float
        Time that the fetcher waited for a free slot or for space in the queue, because the consumer is
        slower.
    copy : float
        Time of the copy streams, estimated from a few copies, or measured for all copies during a trace.
    startup : float
        Time that the consumer waited for the first step of each epoch: starting workers, reserving memory.
    wait : float
        Time that the consumer waited for later steps, because the input is slower.
    transfer : float
        Time that the consumer spent on issuing copies and delivering batches. The copies run in parallel.
    compute : float
        Time between the consumer's getting a step and asking for the next.
    slots : int
        Host slots of the latest epoch; 0 before its first batch.
    slots_in_use : int
        The slots that are now being filled, waiting, being copied or held by the user.
    skipped : int
        Samples that ``on_bad='skip'`` left out of the batches.
    skipped_samples : tuple of str
        The first ten of them: for each, its index in the dataset or its file, and the reason.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(100), places="cpu", batch_size=10)
    >>> for batch in loader: pass
    >>> stats = loader.stats()
    >>> stats.steps, stats.nbytes, stats.steps_per_second > 0, (stats - stats).steps
    (10, 800, True, 0)
    """

    steps: int
    batches: int
    nbytes: int
    fetch: float
    stage: float
    stall: float
    copy: float
    startup: float
    wait: float
    transfer: float
    compute: float
    slots: int
    slots_in_use: int
    skipped: int = 0
    skipped_samples: tuple[str, ...] = field(default=(), repr=False)

    def __setstate__(self, state: list[Any]) -> None:
        # Pickles of earlier releases name no samples.
        for one, value in zip(fields(self), [*state, ()], strict=False):
            object.__setattr__(self, one.name, value)

    @property
    def seconds(self) -> float:
        """The time of all loops over the loader."""
        return self.startup + self.wait + self.transfer + self.compute

    @property
    def steps_per_second(self) -> float:
        """Steps per second of looping; 0 before the first step."""
        return self.steps / self.seconds if self.steps else 0.0

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        """Return what happened since an earlier snapshot; the numbers of slots are this snapshot's."""
        if not isinstance(earlier, LoaderStats):
            return NotImplemented
        # Counters are subtracted. The slots are a state, and those of a past moment are of no use.
        flows = [one.name for one in fields(self) if not one.name.startswith(("slots", "skipped_"))]
        changes: dict[str, Any] = {name: getattr(self, name) - getattr(earlier, name) for name in flows}
        return replace(self, **changes)
