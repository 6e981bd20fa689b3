"""Jobs are batches in progress with workers; the window hands them out and delivers them in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from gpuloader.batches.stream import StagedBatch
from gpuloader.errors import QueueClosed
from gpuloader.fields.spec import Indices
from gpuloader.staging.ring import Ring, Slot
from gpuloader.watch.stats import Meter

FIRST_JOBS = 256
"""The most jobs in progress before any batch has been delivered; then twice as many as were delivered.

Otherwise workers would be handed as many jobs as `ahead` allows, before it is known whether there are items.
"""


class Job:
    """A batch that workers assemble.

    Attributes
    ----------
    number : int
        The batch's number.
    indices : sequence
        The indices of its samples; empty for an iterable dataset, whose worker alone knows them.
    slot : Slot or None
        The slot it is written to; None until its size is known.
    worker : int
        The worker it is assigned to; -1 before that.
    row : int
        The row of the board that holds its indices; -1 if none does.
    done : bool
        Whether the job has ended: with a batch in `staged`, with an exception in `error`, or with neither if
        the worker had no items left.
    staged : StagedBatch or None
        The finished batch.
    error : BaseException or None
        The exception to raise in its place.
    deaths : int
        How many workers died while this was the oldest job they held, so that it may have killed them.
    busy : int
        Nanoseconds of work spent on it, summed over its workers.
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
        """Record how the job ended."""
        self.staged, self.error, self.done = staged, error, True


class Window:
    """The jobs in progress, never more than `ahead`.

    It skips jobs that end without a batch, which happens when a worker has read all its items.

    Parameters
    ----------
    numbered : iterator of (int, sequence)
        The number and indices of each batch to come.
    ring : Ring
        The source of slots. A job gets its slot when it is handed out, so no worker waits for one. Until the
        size of some batch is known there are no slots, and workers ask for theirs with `reserve`.
    ahead : int
        The most jobs that may be handed out and not yet delivered.
    in_order : bool
        Deliver in the plan's order; otherwise as batches finish.

    Attributes
    ----------
    ahead : int
        As given; may be changed at any time.
    jobs : deque of Job
        The jobs in progress, oldest first. Only the consumer adds and removes them, and only while it holds
        the lock under which a worker's `reserve` looks at them.
    """

    def __init__(
        self, numbered: Iterator[tuple[int, Indices]], ring: Ring, ahead: int, *, in_order: bool
    ) -> None:
        self._numbered = numbered
        self._ring = ring
        self.ahead = ahead
        self._in_order = in_order
        self._exhausted = False
        self._delivered = 0
        # Reentrant: a finalizer that runs inside `reserve` may close the epoch of this window.
        self._slotting = threading.RLock()
        self.jobs: deque[Job] = deque()

    def next_job(self) -> Job | None:
        """Return a new job with its slot; None if the window is full, no slot is free or the plan is done."""
        if self._exhausted or len(self.jobs) >= min(self.ahead, max(FIRST_JOBS, 2 * self._delivered)):
            return None
        slot = self._ring.take()
        if slot is None and self._ring.allocated:
            return None
        try:
            entry = next(self._numbered, None)
        except Exception as error:
            # Queue the error like a batch, so that the consumer gets the earlier batches first.
            failed = Job(-1, ())
            failed.finish(None, error)
            with self._slotting:
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
        """Return the job's slot with room for `nbytes`; raise `StagingMemoryError` if memory is short."""
        with self._slotting:
            if job.slot is None:
                job.slot = self._ring.acquire(nbytes)
                # Slots exist from now on: give the other jobs theirs, before later jobs take them all.
                for other in list(self.jobs):
                    if other.slot is None and not other.done:
                        other.slot = self._ring.take()
        self._ring.fit(job.slot, nbytes)
        return job.slot

    @property
    def exhausted(self) -> bool:
        """Whether there are no more jobs to hand out."""
        return self._exhausted

    def end(self) -> None:
        """Hand out no more jobs."""
        self._exhausted = True

    def due(self) -> Job | None:
        """Remove and return the job to deliver next; None if it is not done."""
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
            self._remove(job)
            if job.staged is not None or job.error is not None:
                self._delivered += 1
                return job
            self.free(job)
        return None

    def free(self, job: Job) -> None:
        """Return a job's slot to the ring; no worker may be using it, and it will not be delivered."""
        slot, job.slot = job.slot, None
        if slot is not None:
            self._ring.release(slot)

    def drop_done(self) -> None:
        """Remove all finished jobs and return their slots to the ring, when the window closes."""
        for job in list(self.jobs):
            if job.done:
                self._remove(job)
                self.free(job)

    def _remove(self, job: Job) -> None:
        with self._slotting:
            self.jobs.remove(job)

    @property
    def is_empty(self) -> bool:
        """Whether every job was delivered and none will follow."""
        return self._exhausted and not self.jobs


def deliver(window: Window, meter: Meter) -> StagedBatch | None:
    """Return the window's next batch, or None if it is not done; raise its error, or `QueueClosed`."""
    job = window.due()
    if job is None:
        if window.is_empty:
            raise QueueClosed("every batch of the epoch has been delivered")
        return None
    if job.error is not None:
        window.free(job)
        raise job.error
    assert job.staged is not None
    meter.fetched(job.busy, job.staged.layout.nbytes, job.staged.skipped)
    return job.staged
