"""Fetching in several threads: for datasets that wait for I/O, or whose decoders release the GIL."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns

from gpuloader.base.errors import SampleError
from gpuloader.collate.assembly import Assembler, Assembly
from gpuloader.collate.block_assembly import BlockAssembly
from gpuloader.collate.gather import Gatherer, Gathering
from gpuloader.collate.items import ItemStream
from gpuloader.collate.shares import ShareStream
from gpuloader.collate.stream import StagedBatch
from gpuloader.fetch.failures import as_failure
from gpuloader.fetch.jobs import Job, Window, deliver
from gpuloader.fetch.threads.crew import Crew, Task, Threads
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import mark

PART_NBYTES = 1 << 20
"""The least bytes that each thread gathers from arrays; for less, handing over the task costs more."""


class _Parts:
    """A job that is cut into parts for several threads."""

    def __init__(
        self,
        job: Job,
        assembly: Assembly | BlockAssembly | Gathering,
        count: int,
        threads: Threads,
        tasks: SimpleQueue[Task | None],
    ) -> None:
        self._job = job
        self._assembly = assembly
        self._fetch = assembly.fetch
        self._left = self._count = count
        self._threads = threads
        self._tasks = tasks
        self._error: tuple[int, int, BaseException] | None = None
        self._lock = threading.Lock()

    def hand_out(self, samples: int) -> None:
        """Give each part of the samples to a thread."""
        self._left = count = min(self._count, samples) or 1
        for part in range(count):
            start, stop = part * samples // count, (part + 1) * samples // count
            self._tasks.put((partial(self.run, start, stop), self._job, start, stop))

    def run(self, start: int, stop: int, worker: int) -> None:
        """Fetch or write a part; the thread that fetches the last one finishes the job."""
        begun = perf_counter_ns()
        error: BaseException | None = None
        failed = self._error
        try:
            # A part before one that has failed may hold an earlier error, and the earliest one is raised.
            if (failed is None or start < failed[1]) and not self._threads.closed.is_set():
                self._fetch(start, stop)
        except BaseException as raised:
            error = raised
        ended = perf_counter_ns()
        mark("fetch", begun, ended)
        with self._lock:
            # Keep the error that is first in the batch's order, not in time.
            if error is not None and (self._error is None or start < self._error[1]):
                self._error = worker, start, error
            self._job.busy += ended - begun
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._finish(worker)

    def _finish(self, worker: int) -> None:
        staged: StagedBatch | None = None
        error: BaseException | None = None
        assembly = self._assembly
        if self._error is not None:
            worker, _, error = self._error
        try:
            if error is None and not self._threads.closed.is_set():
                # Where pictures lie in the slot is known only now, so that they can be decoded into it.
                if isinstance(assembly, Assembly) and self._fetch == assembly.fetch:
                    unwritten = assembly.lay_out()
                    if unwritten:
                        self._fetch = assembly.write
                        self.hand_out(unwritten)
                        return
                staged = assembly.finish()
        except BaseException as raised:
            error = raised
        _end_job(self._job, staged, error, worker, self._threads)


def _end_job(
    job: Job, staged: StagedBatch | None, error: BaseException | None, worker: int, threads: Threads
) -> None:
    if error is not None:
        error = as_failure(error, job.number, worker)
        if isinstance(error, SampleError):
            error.worker = worker
    job.finish(staged, error)
    threads.bell.put(None)


class ThreadWorkers:
    """Threads that fetch a map-style dataset; each batch is cut into one part per thread.

    Sharing a batch makes the first one ready soonest and needs few slots. Only the consumer calls the
    methods.

    Parameters
    ----------
    assembler : Assembler or Gatherer
        Assembles the batches.
    window : Window
        The batches to come and those in progress.
    crew : Crew
        The number of threads and their options.
    meter : Meter
        Counts where the time goes.
    """

    def __init__(self, assembler: Assembler | Gatherer, window: Window, crew: Crew, meter: Meter) -> None:
        self._assembler = assembler
        self._window = window
        self._count = crew.count
        self._meter = meter
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads = Threads(crew, [self._tasks] * crew.count)

    def resize(self, workers: int, ahead: int) -> None:
        """Use `workers` threads from now on, and keep up to `ahead` batches in progress."""
        for _ in range(self._count, workers):
            self._threads.add(self._tasks)
        for _ in range(workers, self._count):
            self._tasks.put(None)  # the thread that takes it ends
        self._count = workers
        self._window.ahead = ahead

    def get(self) -> StagedBatch:
        """Wait for the next batch and return it; raise `QueueClosed` at the end, or the batch's error."""
        return self._threads.wait_for(self._window, self.get_nowait)

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None if `get` would wait."""
        self._threads.check()
        window = self._window
        while (job := window.next_job()) is not None:
            self._hand_out(job)
        return deliver(window, self._meter)

    def _hand_out(self, job: Job) -> None:
        assembler = self._assembler
        try:
            assembly = assembler.begin(job.number, job.indices, partial(self._window.reserve, job))
        except Exception as error:
            job.finish(None, error)
            return
        samples = len(job.indices)
        count = self._count
        if isinstance(assembly, Gathering):
            count = max(min(count, samples, assembly.layout.nbytes // PART_NBYTES), 1)
        _Parts(job, assembly, count, self._threads, self._tasks).hand_out(samples)

    def close(self) -> bool:
        """Stop the threads; return False if one did not end in time."""
        return self._threads.close(self._window)


class ThreadStreams:
    """Threads that each read an iterable dataset; their batches are delivered in turn.

    The parameters are those of `ThreadWorkers`, except that `streams`, one per thread, take the place of the
    assembler; `turn` is the number of the thread that yields the first batch.
    """

    def __init__(
        self,
        streams: Sequence[ItemStream | ShareStream],
        window: Window,
        crew: Crew,
        meter: Meter,
        turn: int,
    ) -> None:
        self._streams = streams
        self._window = window
        self._meter = meter
        self._turns = deque(range(crew.count))
        self._turns.rotate(-turn)
        self._tasks: list[SimpleQueue[Task | None]] = [SimpleQueue() for _ in streams]
        self._threads = Threads(crew, self._tasks)

    def get(self) -> StagedBatch:
        """Wait for the next batch and return it; raise `QueueClosed` at the end, or the batch's error."""
        return self._threads.wait_for(self._window, self.get_nowait)

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None if `get` would wait."""
        self._threads.check()
        window = self._window
        self._forget_ended()
        self._hand_out()
        return deliver(window, self._meter)

    def _hand_out(self) -> None:
        window = self._window
        while self._turns:
            job = window.next_job()
            if job is None:
                return
            job.worker = self._turns[0]
            self._turns.rotate(-1)
            self._tasks[job.worker].put((partial(self._run, job), job, 0, 0))

    def _forget_ended(self) -> None:
        for job in self._window.jobs:
            if job.done and job.staged is None and job.worker in self._turns:
                self._turns.remove(job.worker)
        if not self._turns:
            self._window.end()

    def _run(self, job: Job, worker: int) -> None:
        staged: StagedBatch | None = None
        error: BaseException | None = None
        begun = perf_counter_ns()
        try:
            if not self._threads.closed.is_set():
                staged = self._streams[worker].stage(job.number, partial(self._window.reserve, job))
        except BaseException as raised:
            error = raised
        ended = perf_counter_ns()
        job.busy = ended - begun
        mark("fetch", begun, ended)
        _end_job(job, staged, error, worker, self._threads)

    def close(self) -> bool:
        """Stop the threads; return False if one did not end in time."""
        closed = self._threads.close(self._window)
        for stream in self._streams if closed else ():
            stream.close()
        return closed
