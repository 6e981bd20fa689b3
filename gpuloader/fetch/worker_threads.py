"""Fetching in several threads: for datasets that wait for I/O, or whose decoders release the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter_ns

from gpuloader.batches import assembly, gathering, items
from gpuloader.batches.staged import BatchBuilder, Reserve, StagedBatch
from gpuloader.errors import LoaderError, SampleError, in_a_fork
from gpuloader.fetch import contract
from gpuloader.fetch.jobs import Job, Window
from gpuloader.fields.spec import plain_indices
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.order.worker_info import WorkerInfo, exchange_worker
from gpuloader.sources.frameworks import answering_threads
from gpuloader.system import threads
from gpuloader.system.cores import bind
from gpuloader.watch.meter import WORKER, mark

# A job, and the start and stop of the part of its samples that a thread fetches or writes.
Task = tuple["DividedJob", int, int]

# What threads wait for; None ends one of them.
Tasks = SimpleQueue[Task | None]


@dataclass(eq=False)
class ThreadWorkers:
    """The worker threads of one epoch; only the consumer calls the public methods.

    Each batch of a map-style dataset is cut into one part per thread, so that the first batch is ready
    soonest and few slots are needed. With an iterable dataset, each thread reads one of the `streams`, in
    turn.
    """

    window: Window
    setup: contract.WorkerSetup
    epoch: contract.EpochRequest
    timeout: float  # seconds to wait for a batch; 0 means no limit
    assembler: assembly.Assembler | gathering.Gatherer
    count: int
    streams: Sequence[items.Pass] = ()

    def __post_init__(self) -> None:
        self._process = os.getpid()
        self._threads: list[threads.StartedThread] = []
        self._queues: list[Tasks] = [SimpleQueue() for _ in range(len(self.streams) or 1)]
        self._at_work: list[Task | None] = []  # what each thread is doing
        self._failures: list[LoaderError] = []
        self.bell: SimpleQueue[None] = SimpleQueue()  # an entry wakes the consumer: a job has ended
        # The epoch is over. Not an Event: a Ctrl-C within `set` may leave its lock locked.
        self.closed = False
        self._start(self.count)

    def _tasks(self, number: int) -> Tasks:
        return self._queues[number % len(self._queues)]

    def _start(self, count: int) -> None:
        """Start `count` more threads."""
        try:
            for number in range(len(self._threads), len(self._threads) + count):
                self._at_work.append(None)
                with threads.deferred_interrupt():  # nobody would wait for a thread that is not recorded
                    self._threads.append(threads.start_thread(f"{WORKER}-{number}", self._work, number))
        except BaseException:
            self._end()
            raise

    def _work(self, number: int) -> None:
        """Run tasks until the queue says None: the main function of a worker thread."""
        setup, epoch, tasks = self.setup, self.epoch, self._tasks(number)
        bind(setup.cores)
        seed = setup.worker_seed(epoch.seed, epoch.epoch, number, follows_torch=epoch.follows_torch)
        exchange_worker(WorkerInfo(number, setup.count, seed, setup.spec.source.dataset, setup.ranks))
        threads.this_thread.reads_for = epoch.owner
        with answering_threads():
            try:
                if setup.init is not None:
                    setup.init(number)
            except BaseException as error:
                self._failures.append(contract.failed_alone(number, error))
                self.bell.put(None)
                return
            exchange_draw(Draw(epoch.seed, epoch.epoch))
            while (task := tasks.get()) is not None:  # without limit: `_end` sends the None
                self._at_work[number] = task
                task[0].run(task[1], task[2], number)
                # Forget the task before waiting for the next one, because it holds the batch.
                self._at_work[number] = task = None

    def resize(self, workers: int, ahead: int) -> None:
        """Use `workers` threads from now on, and keep up to `ahead` batches in progress."""
        self._start(workers - self.count)
        for _ in range(workers, self.count):
            self._queues[0].put(None)  # ends the thread that takes it
        self.count = workers
        self.window.ahead = ahead

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
                self.bell.get(timeout=None if left is None else min(left, threads.LONGEST_WAIT))
            except Empty:
                if left is not None and left <= threads.LONGEST_WAIT:
                    break
        else:
            return staged
        job = next((job for job in self.window.jobs if not job.done), None)
        if job is None:
            raise contract.timed_out("no worker thread", self._process, self.timeout, None, ())
        tasks = [
            (number, *task[1:]) for number, task in enumerate(self._at_work) if task and task[0].job is job
        ]
        who = " and ".join(f"worker {number} (a thread)" for number, *_ in tasks) or "no worker thread"
        held = [index for _, start, stop in tasks for index in plain_indices(job.indices[start:stop])]
        raise contract.timed_out(who, self._process, self.timeout, job.number, held or job.indices)

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None if `get` would wait."""
        if os.getpid() != self._process:
            raise in_a_fork("the loader's worker threads")
        if self._failures:
            raise self._failures[0]
        while not self.bell.empty():  # else the entries of all batches that nobody waited for would pile up
            self.bell.get()
        try:
            while (job := self.window.next_job()) is not None:
                self._hand_out(job)
            return self.window.deliver()
        except KeyboardInterrupt:  # a batch may be lost by now, or the sampler's generator be closed
            self._failures.append(contract.interrupted())
            raise

    def _hand_out(self, job: Job) -> None:
        reserve, count = partial(self.window.reserve, job), 1
        try:
            if self.streams:
                builder: BatchBuilder = _StreamBuilder(self.streams[job.worker], job.number, reserve)
            else:
                builder, count = self.assembler.begin(job.number, job.indices, reserve), self.count
        except Exception as error:
            job.finish(None, error)
            return
        if builder.nbytes is not None:
            count = max(min(count, builder.nbytes // contract.PART_NBYTES), 1)
        DividedJob(job, builder, count, self, self._tasks(job.worker)).hand_out(len(job.indices))

    def close(self) -> bool:
        """Stop the threads and return the slots they are not writing to; return False if one did not end."""
        if os.getpid() != self._process:
            # The threads do not exist in a forked process, and locks that they held may still be locked.
            return False
        ended = self._end()
        self.window.drop(unfinished=ended)
        for stream in self.streams if ended else ():
            stream.close()
        return ended

    def _end(self) -> bool:
        """Stop the threads; return False if one did not end in time."""
        self.closed = True
        for number in range(len(self._at_work)):
            self._tasks(number).put(None)
        # A thread that hangs in the user's dataset cannot be stopped from outside. It stays, harmless, until
        # the dataset returns or the process ends.
        deadline = monotonic() + contract.CLOSING_TIME
        ended = [thread.join(max(deadline - monotonic(), 0)) for thread in self._threads]
        return all(ended)


@dataclass(eq=False)
class _StreamBuilder(BatchBuilder):
    """Stages the next batch of an iterable dataset, all of it in one thread."""

    stream: items.Pass
    number: int
    reserve: Reserve

    def fetch(self, start: int, stop: int) -> None:  # noqa: ARG002
        self.staged = self.stream.stage(self.number, self.reserve)

    def finish(self) -> StagedBatch | None:  # type: ignore[override]
        return self.staged

    def locate(self, error: SampleError) -> None:
        """Add nothing: the stream has said where."""


@dataclass(eq=False)
class DividedJob:
    """A job whose samples are divided among several threads."""

    job: Job
    builder: BatchBuilder
    count: int
    threads: ThreadWorkers
    tasks: Tasks
    _error: tuple[int, int, BaseException] | None = None  # worker, start of its part, error
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._fetch = self.builder.fetch
        self._left = self.count

    def hand_out(self, samples: int) -> None:
        """Give each part of the samples to a thread."""
        self._left = count = min(self.count, samples) or 1  # a batch without samples is one part, too
        for part in range(count):
            self.tasks.put((self, part * samples // count, (part + 1) * samples // count))

    def run(self, start: int, stop: int, worker: int) -> None:
        """Fetch or write a part; the thread that fetches the last one finishes the job."""
        job, builder = self.job, self.builder
        begun = perf_counter_ns()
        error: BaseException | None = None
        failed = self._error
        try:
            # A part before a failed one may hold an earlier error, and the earliest one is raised.
            if (failed is None or start < failed[1]) and not self.threads.closed:
                self._fetch(start, stop)
        except BaseException as raised:
            error = raised
        ended = perf_counter_ns()
        mark("fetch", begun, ended)
        with self._lock:
            # Keep the error that comes first in the batch, not in time.
            if error is not None and (self._error is None or start < self._error[1]):
                self._error = worker, start, error
            job.busy += ended - begun
            self._left -= 1
            if self._left:
                error = failed = None  # as below
                return
        # Only one thread gets here, so the rest needs no lock.
        staged: StagedBatch | None = None
        error = None
        if self._error is not None:
            worker, _, error = self._error
        try:
            if error is None and not self.threads.closed:
                # Only now is it known where images lie in the slot, so that they can be decoded into it.
                if self._fetch == builder.fetch and (unwritten := builder.lay_out()):
                    self._fetch = builder.write
                    self.hand_out(unwritten)
                    return
                staged = builder.finish()
        except BaseException as raised:
            error = raised
        if isinstance(error, SampleError):
            builder.locate(error)
        if error is not None:
            error = contract.as_failure(error, job.number, worker)
            if isinstance(error, SampleError):
                error.worker = worker
        # An error's traceback refers to this frame and, once raised, to the loop's. If a variable here were
        # the last to hold it, this thread would free the loop, or the garbage collector would.
        last, self._error, error, failed = [error], None, None, None
        job.finish(staged, last.pop())
        self.threads.bell.put(None)
