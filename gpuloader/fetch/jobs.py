"""Jobs are batches in progress with workers; the window hands them out and delivers them in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from operator import attrgetter

from gpuloader.batches.staged import StagedBatch
from gpuloader.errors import QueueClosed
from gpuloader.fields.spec import Indices
from gpuloader.staging import Ring, Slot
from gpuloader.watch.meter import Meter

# The most jobs in progress before any batch has been delivered; then twice as many as were delivered.
#
# Otherwise workers would get as many jobs as `ahead` allows before it is known whether there are items.
FIRST_JOBS = 256

_is_done = attrgetter("done")


@dataclass(slots=True, eq=False, repr=False)
class Job:
    """A batch that workers assemble."""

    number: int
    indices: Indices  # empty for an iterable dataset, whose worker alone knows them
    slot: Slot | None = None  # None until its size is known
    worker: int = -1
    # It ends with a batch, with an exception, or with neither if the worker had no more items.
    done: bool = False
    staged: StagedBatch | None = None
    error: BaseException | None = None
    deaths: int = 0  # workers that died while this was their oldest job, which may have killed them
    busy: int = 0  # nanoseconds of work spent on it, summed over its workers

    def finish(self, staged: StagedBatch | None, error: BaseException | None = None) -> None:
        """Record how the job ended."""
        self.staged, self.error = staged, error
        self.done = True  # last, because the consumer reads it without a lock


@dataclass(eq=False, repr=False)
class Window:
    """The jobs in progress, never more than `ahead`, which may be changed at any time."""

    numbered: Iterator[tuple[int, Indices]]
    # A job gets its slot when it is handed out, so no worker waits for one. Until the size of a batch is
    # known there are no slots, and workers request theirs with `reserve`.
    ring: Ring
    ahead: int
    meter: Meter
    _: KW_ONLY
    in_order: bool
    turns: deque[int] | None = None  # the workers that take turns, the next one first; None: any that is free

    def __post_init__(self) -> None:
        self.exhausted = False  # no more jobs to hand out
        self.delivered = 0
        # Reentrant: a finalizer that runs inside `reserve` may close the epoch of this window.
        self._slotting = threading.RLock()
        # Oldest first. Only the consumer adds and removes jobs, and only while it holds the lock under which
        # a worker's `reserve` reads them.
        self.jobs: deque[Job] = deque()

    def whose_turn(self) -> int:
        """Return the worker that gets the next job; -1 if any may, or if none has items left."""
        if self.turns is None:
            return -1
        for job in self.jobs:
            if job.done and job.staged is None and job.error is None and job.worker in self.turns:
                self.turns.remove(job.worker)  # it has no more items
        self.exhausted = self.exhausted or not self.turns
        return self.turns[0] if self.turns else -1

    @property
    def is_ready(self) -> bool:
        """Whether `deliver` would not return None."""
        return any(map(_is_done, islice(self.jobs, 1 if self.in_order else None)))

    def next_job(self, spare: int = 0) -> Job | None:
        """Return a new job with its slot; None if the window is full, no slot is free or the plan is done.

        The window may hold `spare` jobs more than it is to have.
        """
        worker = self.whose_turn()
        most = min(self.ahead, max(FIRST_JOBS, 2 * self.delivered)) + spare
        if self.exhausted or len(self.jobs) >= most:
            return None
        # The slot first: indices that the plan has yielded could not be put back.
        slot = self.ring.take()
        if slot is None and self.ring.allocated:
            return None
        job: Job | None = None
        try:
            entry = next(self.numbered, None)
            if entry is not None:
                job = Job(*entry, worker=worker)
        except Exception as error:
            # Queue the error like a batch, so that the consumer gets the earlier batches first.
            failed = Job(-1, ())
            failed.finish(None, error)
            with self._slotting:
                self.jobs.append(failed)
        if job is None:
            self.exhausted = True
            if slot is not None:
                self.ring.release(slot)
            return None
        with self._slotting:
            job.slot = slot or self.ring.take()
            self.jobs.append(job)
        if self.turns:
            self.turns.rotate(-1)
        return job

    def reserve(self, job: Job, nbytes: int) -> Slot:
        """Return the job's slot with space for `nbytes`; raise `StagingMemoryError` if memory is short."""
        with self._slotting:
            if job.slot is None:
                job.slot = self.ring.acquire(nbytes)
                # Slots exist from now on. Give the other jobs theirs before later jobs take them all.
                for other in list(self.jobs):
                    if other.slot is None and not other.done:
                        other.slot = self.ring.take()
        self.ring.fit(job.slot, nbytes)
        return job.slot

    def deliver(self) -> StagedBatch | None:
        """Return the next batch, or None if it is not done.

        Jobs that ended without a batch are skipped, because their worker has read all its items.

        Raises
        ------
        QueueClosed
            Every batch was delivered and none will follow.
        BaseException
            What the batch's worker raised.
        """
        while self.jobs:
            job = self.jobs[0]
            if not (job.done or self.in_order):
                job = next(filter(_is_done, self.jobs), job)
            if not job.done:
                return None
            with self._slotting:  # a worker's `reserve` may be reading the others
                self.jobs.remove(job)
            self.delivered += job.staged is not None or job.error is not None
            if job.staged is not None:
                self.meter.fetched(job.busy, job.staged.layout.nbytes, job.staged.skipped)
                return job.staged
            self._free(job)
            if job.error is not None:
                try:
                    raise job.error
                finally:
                    job.error = None  # its traceback refers to this frame, which would keep the epoch alive
        if self.exhausted:
            raise QueueClosed("every batch of the epoch has been delivered")
        return None

    def drop(self, *, unfinished: bool) -> None:
        """Remove finished jobs, or also `unfinished` ones if nobody works on them; return their slots."""
        for job in list(self.jobs):
            if unfinished or job.done:
                with self._slotting:
                    self.jobs.remove(job)
                self._free(job)

    def _free(self, job: Job) -> None:
        """Return a job's slot to the ring; no worker may be using it, and it will not be delivered."""
        slot, job.slot = job.slot, None
        if slot is not None:
            self.ring.release(slot)
