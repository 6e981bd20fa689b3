"""Jobs: batches under way with workers, and the window that gives them out in the plan's order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from gpuloader.base.errors import QueueClosed
from gpuloader.collate.stream import StagedBatch
from gpuloader.fields.spec import Indices
from gpuloader.staging.ring import Ring, Slot
from gpuloader.watch.stats import Meter


class Job:
    """A batch that some worker puts together.

    Attributes
    ----------
    number : int
        Of the batch.
    indices : sequence
        Its samples; empty for an iterable dataset, where only the worker knows.
    slot : Slot or None
        Where it is written to; None until its size is known.
    worker : int
        Which worker has it, -1 while none has.
    done : bool
        Whether `staged`, `error` or, for a worker at its items' end, neither of them is there.
    deaths : int
        How many workers died of it, perhaps.
    busy : int
        Nanoseconds that were spent on it, summed over all who did.
    """

    __slots__ = (
        "busy", "deaths", "done", "error", "indices", "number", "row", "slot", "staged", "worker",
    )  # fmt: skip

    def __init__(self, number: int, indices: Indices) -> None:
        self.number = number
        self.indices = indices
        self.slot: Slot | None = None
        self.worker = -1
        self.row = -1
        self.done = False
        self.staged: StagedBatch | None = None
        self.error: BaseException | None = None
        self.deaths = self.busy = 0

    def finish(self, staged: StagedBatch | None, error: BaseException | None = None) -> None:
        """Say how the job ended."""
        self.staged, self.error, self.done = staged, error, True


class Window:
    """The jobs under way, of which there are never more than `ahead`.

    Jobs without a batch, those of a worker whose items are at their end, are left out.

    Parameters
    ----------
    numbered : iterator
        Yields the number and the indices of each batch to come.
    ring : Ring
        Where slots come from. A job gets its slot when it is handed out, so no worker ever waits for one;
        before the first batch's size is known there are none, and workers ask for theirs.
    ahead : int
        Jobs handed out and not yet delivered.
    in_order : bool
        Deliver in the order of the plan; otherwise as batches come.

    Attributes
    ----------
    ahead : int
        As given; may be changed.
    """

    def __init__(
        self, numbered: Iterator[tuple[int, Indices]], ring: Ring, ahead: int, *, in_order: bool
    ) -> None:
        self._numbered = numbered
        self._ring = ring
        self.ahead = ahead
        self._in_order = in_order
        self._exhausted = False
        self._slotting = threading.Lock()
        self.jobs: deque[Job] = deque()

    def next_job(self) -> Job | None:
        """Return a new job with its slot; None if too many are under way, no slot is free or no more come."""
        if self._exhausted or len(self.jobs) >= self.ahead:
            return None
        slot = self._ring.take()
        if slot is None and self._ring.allocated:
            return None
        try:
            entry = next(self._numbered, None)
        except Exception as error:
            # Behind the batches before it, as if it were one.
            failed = Job(-1, ())
            failed.finish(None, error)
            self.jobs.append(failed)
            entry = None
        if entry is None:
            self._exhausted = True
            if slot is not None:
                self._ring.release(slot)
            return None
        job = Job(*entry)
        with self._slotting:
            job.slot = slot or self._ring.take()
            self.jobs.append(job)
        return job

    def reserve(self, job: Job, nbytes: int) -> Slot:
        """Return the job's slot with room for `nbytes`; raise `StagingMemoryError` where there is none."""
        with self._slotting:
            if job.slot is None:
                job.slot = self._ring.acquire(nbytes)
                # The slots are there now; the other jobs must not find them all taken by later ones.
                for other in list(self.jobs):
                    if other.slot is None and not other.done:
                        other.slot = self._ring.take()
        self._ring.fit(job.slot, nbytes)
        return job.slot

    def end(self) -> None:
        """Hand out no more jobs."""
        self._exhausted = True

    def due(self) -> Job | None:
        """Take the job to be delivered now, if it is done."""
        jobs = self.jobs
        while jobs:
            job = jobs[0]
            if not job.done:
                if self._in_order:
                    return None
                found = next((one for one in jobs if one.done), None)
                if found is None:
                    return None
                job = found
            jobs.remove(job)
            if job.staged is not None or job.error is not None:
                return job
            self.free(job)
        return None

    def free(self, job: Job) -> None:
        """Take back the slot of a job that nobody works on and nobody will get."""
        slot, job.slot = job.slot, None
        if slot is not None:
            self._ring.release(slot)

    def drop_done(self) -> None:
        """Take back the slots of all jobs that are done; for a window that is closed."""
        for job in list(self.jobs):
            if job.done:
                self.jobs.remove(job)
                self.free(job)

    @property
    def is_idle(self) -> bool:
        """Whether no job is under way or to be delivered; those that ended without a batch do not count."""
        return all(job.done and job.staged is None and job.error is None for job in self.jobs)

    @property
    def is_empty(self) -> bool:
        """Whether no job is under way and none will be."""
        return self._exhausted and not self.jobs


def deliver(window: Window, meter: Meter) -> StagedBatch | None:
    """Return the batch that is due, or None if it is not done yet; raise its error, or `QueueClosed`."""
    job = window.due()
    if job is None:
        if window.is_empty:
            raise QueueClosed("every batch of the epoch has been delivered")
        return None
    if job.error is not None:
        window.free(job)
        raise job.error
    assert job.staged is not None
    meter.fetched(job.busy, job.staged.layout.nbytes)
    return job.staged
