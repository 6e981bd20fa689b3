"""Fetching in several threads: for datasets that wait for I/O, or whose decoders release the GIL."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter_ns

from gpuloader.batches.items import Pass
from gpuloader.batches.staged import BatchAssembler, BatchBuilder, StagedBatch
from gpuloader.errors import LoaderError, SampleError, in_a_fork
from gpuloader.fetch.contract import (
    CLOSING_TIME,
    EpochRequest,
    WorkerSetup,
    as_failure,
    failed_alone,
    plain_indices,
    timed_out,
)
from gpuloader.fetch.jobs import Job, Window
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.order.worker_info import WorkerInfo, exchange_worker
from gpuloader.sources.frameworks import answering_threads
from gpuloader.system.cores import bind
from gpuloader.system.threads import (
    LONGEST_WAIT,
    StartedThread,
    deferred_interrupt,
    start_thread,
    this_thread,
)
from gpuloader.watch.tracing import WORKER, mark

# The least bytes that each thread gathers from arrays; for less, handing over the task costs more.
PART_NBYTES = 1 << 20

# A function to call with the thread's number, its job, and the start and stop of its part of the samples.
Task = tuple[Callable[[int], None], Job, int, int]

# What threads wait for; None ends one of them.
Tasks = SimpleQueue[Task | None]


@dataclass(eq=False)
class Threads:
    """The worker threads of one epoch, each with its queue of tasks; several may share one.

    Only the consumer calls the public methods.
    """

    window: Window
    setup: WorkerSetup
    epoch: EpochRequest
    timeout: float  # seconds to wait for a batch; 0 means no limit

    def __post_init__(self) -> None:
        self._process = os.getpid()
        self._threads: list[StartedThread] = []
        self._queues: list[Tasks] = []  # of each thread
        self._at_work: list[Task | None] = []  # what each thread is doing
        self._failures: list[LoaderError] = []
        self.bell: SimpleQueue[None] = SimpleQueue()  # an entry wakes the consumer: a job has ended
        self.closed = threading.Event()  # the epoch is over

    def _add(self, *queues: Tasks) -> None:
        """Start one more thread for each of these queues, from which it takes its tasks."""
        try:
            for tasks in queues:
                self._queues.append(tasks)
                self._at_work.append(None)
                number = len(self._threads)
                with deferred_interrupt():  # nobody would wait for a thread that is not noted
                    self._threads.append(start_thread(f"{WORKER}-{number}", self._work, number, tasks))
        except BaseException:
            self._end()
            raise

    def _work(self, number: int, tasks: Tasks) -> None:
        """Run tasks until the queue says None: the main function of a worker thread."""
        setup, epoch = self.setup, self.epoch
        bind(setup.cores)
        seed = setup.worker_seed(epoch.seed, epoch.epoch, number, follows_torch=epoch.follows_torch)
        exchange_worker(WorkerInfo(number, setup.count, seed, setup.spec.source.dataset, setup.rank.ranks))
        this_thread.reads_for = epoch.owner
        with answering_threads():
            try:
                if setup.init is not None:
                    setup.init(number)
            except BaseException as error:
                self._failures.append(failed_alone(number, error))
                self.bell.put(None)
                return
            exchange_draw(Draw(epoch.seed, epoch.epoch))
            while (task := tasks.get()) is not None:
                self._at_work[number] = task
                task[0](number)
                # Forget the task while waiting for the next one: it holds the batch.
                self._at_work[number] = task = None

    def _hand_out(self) -> None:
        """Give the threads as many jobs as the window has for them."""
        raise NotImplementedError

    def get(self) -> StagedBatch:
        """Wait for the next batch and return it.

        Raises
        ------
        QueueClosed
            The epoch is over.
        WorkerTimeout
            No batch was ready in time.
        BaseException
            The batch's error.
        """
        deadline = monotonic() + self.timeout if self.timeout else None
        while (staged := self.get_nowait()) is None:
            left = None if deadline is None else max(deadline - monotonic(), 0)
            try:
                self.bell.get(timeout=None if left is None else min(left, LONGEST_WAIT))
            except Empty:
                if left is not None and left <= LONGEST_WAIT:
                    break
        else:
            return staged
        job = next((job for job in self.window.jobs if not job.done), None)
        if job is None:
            raise timed_out("no worker thread", self._process, self.timeout, None, ())
        tasks = [(number, *task[2:]) for number, task in enumerate(self._at_work) if task and task[1] is job]
        who = " and ".join(f"worker {number} (a thread)" for number, *_ in tasks) or "no worker thread"
        held = [index for _, start, stop in tasks for index in plain_indices(job.indices[start:stop])]
        raise timed_out(who, self._process, self.timeout, job.number, held or job.indices)

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None if `get` would wait."""
        if os.getpid() != self._process:
            raise in_a_fork("the loader's worker threads")
        if self._failures:
            raise self._failures[0]
        self._hand_out()
        return self.window.deliver()

    def close(self) -> bool:
        """Stop the threads and return the slots they are not writing to; return False if one did not end."""
        if os.getpid() != self._process:
            # The threads do not exist in a forked process, and locks they held may still be locked.
            return False
        ended = self._end()
        if ended:
            for job in self.window.jobs:
                job.done = True
        self.window.drop_done()
        return ended

    def _end(self) -> bool:
        """Stop the threads; return False if one did not end in time."""
        self.closed.set()
        for tasks in self._queues:
            tasks.put(None)
        # A thread that hangs in the user's dataset cannot be stopped from outside: it stays, harmless, until
        # the dataset returns or the process ends.
        deadline = monotonic() + CLOSING_TIME
        ended = [thread.join(max(deadline - monotonic(), 0)) for thread in self._threads]
        return all(ended)


class _DividedJob:
    """A job whose samples are divided among several threads."""

    def __init__(self, job: Job, builder: BatchBuilder, count: int, threads: Threads, tasks: Tasks) -> None:
        self._job = job
        self._builder = builder
        self._fetch = builder.fetch
        self._left = self._count = count
        self._threads = threads
        self._tasks = tasks
        self._error: tuple[int, int, BaseException] | None = None  # worker, start of its part, error
        self._lock = threading.Lock()

    def hand_out(self, samples: int) -> None:
        """Give each part of the samples to a thread."""
        self._left = count = min(self._count, samples) or 1  # a batch without samples is one part, too
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
            if self._left:
                return
        # Only one thread comes here, so the rest needs no lock.
        staged: StagedBatch | None = None
        error = None
        builder = self._builder
        if self._error is not None:
            worker, _, error = self._error
        try:
            if error is None and not self._threads.closed.is_set():
                # Where images lie in the slot is known only now, so that they can be decoded into it.
                if self._fetch == builder.fetch:
                    unwritten = builder.lay_out()
                    if unwritten:
                        self._fetch = builder.write
                        self.hand_out(unwritten)
                        return
                staged = builder.finish()
        except BaseException as raised:
            error = raised
        if isinstance(error, SampleError):
            builder.locate(error)
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


@dataclass(eq=False)
class ThreadWorkers(Threads):
    """Threads that fetch a map-style dataset.

    Each batch is cut into one part per thread: so the first one is ready soonest, and few slots are needed.
    """

    assembler: BatchAssembler
    count: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tasks: Tasks = SimpleQueue()
        self._add(*[self._tasks] * self.count)

    def resize(self, workers: int, ahead: int) -> None:
        """Use `workers` threads from now on, and keep up to `ahead` batches in progress."""
        self._add(*[self._tasks] * (workers - self.count))
        for _ in range(workers, self.count):
            self._tasks.put(None)  # the thread that takes it ends
        self.count = workers
        self.window.ahead = ahead

    def _hand_out(self) -> None:
        window = self.window
        while (job := window.next_job()) is not None:
            try:
                builder = self.assembler.begin(job.number, job.indices, partial(window.reserve, job))
            except Exception as error:
                job.finish(None, error)
                continue
            samples, count = len(job.indices), self.count
            if builder.nbytes is not None:
                count = max(min(count, samples, builder.nbytes // PART_NBYTES), 1)
            _DividedJob(job, builder, count, self, self._tasks).hand_out(samples)


@dataclass(eq=False)
class ThreadStreams(Threads):
    """Threads that each read an iterable dataset; their batches come in turn, first that of thread `turn`."""

    streams: Sequence[Pass]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._turns = deque(range(len(self.streams)))
        self._turns.rotate(-self.epoch.turn)
        self._add(*(SimpleQueue() for _ in self.streams))

    def _hand_out(self) -> None:
        window = self.window
        for ended in window.jobs:  # of a thread that has no items left
            if ended.done and ended.staged is None and ended.worker in self._turns:
                self._turns.remove(ended.worker)
        if not self._turns:
            window.exhausted = True
        while self._turns and (job := window.next_job()) is not None:
            job.worker = self._turns[0]
            self._turns.rotate(-1)
            self._queues[job.worker].put((partial(self._run, job), job, 0, 0))

    def _run(self, job: Job, worker: int) -> None:
        staged: StagedBatch | None = None
        error: BaseException | None = None
        begun = perf_counter_ns()
        try:
            if not self.closed.is_set():
                staged = self.streams[worker].stage(job.number, partial(self.window.reserve, job))
        except BaseException as raised:
            error = raised
        ended = perf_counter_ns()
        job.busy = ended - begun
        mark("fetch", begun, ended)
        _end_job(job, staged, error, worker, self)

    def close(self) -> bool:
        """Stop the threads and close their streams; return False if one did not end in time."""
        closed = super().close()
        for stream in self.streams if closed else ():
            stream.close()
        return closed
