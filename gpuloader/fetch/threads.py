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
from typing import Any

from gpuloader.batches.assembly import Assembler, Assembly
from gpuloader.batches.blocks import BlockAssembly
from gpuloader.batches.gathering import Gatherer, Gathering
from gpuloader.batches.items import ItemStream, ShareStream
from gpuloader.batches.stream import StagedBatch
from gpuloader.errors import LoaderError, SampleError, WorkerTimeout
from gpuloader.fetch.inline import as_failure, plain_indices, set_up_failed, timed_out
from gpuloader.fetch.jobs import Job, Window, deliver
from gpuloader.fetch.read_ahead import CLOSING_TIME
from gpuloader.order.plan import RankInfo
from gpuloader.order.randomness import begin_draws, mixed_seed
from gpuloader.order.worker_info import WorkerInfo, enter_worker
from gpuloader.sources.frameworks import answering_threads
from gpuloader.system.cores import Cores, bind
from gpuloader.system.processes import LONGEST_WAIT, StartedThread, start_thread
from gpuloader.system.rereading import read_for
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import WORKER, mark

# The worker threads of one epoch: how they start, take tasks, report back and end.


@dataclass(frozen=True, slots=True)
class ThreadOptions:
    """The options of one epoch's worker threads.

    Attributes
    ----------
    count : int
        The number of threads.
    timeout : float
        Seconds to wait for a batch; 0 means no limit.
    init : callable or None
        Called with the worker's number before its first sample.
    seed, epoch : int
        The loader's seed and epoch.
    dataset : object
        The dataset that the threads read.
    standing : Standing
        The rank that the threads belong to.
    most : int
        The most threads that tuning may start.
    owner : object
        The token of the loader that reads.
    cores : set of int
        The processor cores on which the threads run; empty: any.
    """

    count: int
    timeout: float
    init: Callable[[int], object] | None
    seed: int
    epoch: int
    dataset: Any
    standing: RankInfo
    most: int
    owner: object = None
    cores: Cores = frozenset()


Task = tuple[Callable[[int], None], Job, int, int]
"""A function to call with the thread's number, its job, and the start and stop of its part of the samples."""


class Threads:
    """Threads that run tasks, each from its queue; several may share one.

    Only the consumer calls the methods. A thread that hangs in the user's dataset cannot be stopped from
    outside: it stays, harmless, until the dataset returns or the process ends.

    Attributes
    ----------
    bell : SimpleQueue
        Receives an entry whenever a thread finishes a job, to wake the consumer.
    closed : threading.Event
        Set once the epoch is over.
    """

    def __init__(self, crew: ThreadOptions, queues: Sequence[SimpleQueue[Task | None]]) -> None:
        self._crew = crew
        self._queues = list(queues)
        self._timeout = crew.timeout
        self._process = os.getpid()
        self._at_work: list[Task | None] = []
        self._failures: list[LoaderError] = []
        self.bell: SimpleQueue[None] = SimpleQueue()
        self.closed = threading.Event()
        self._threads: list[StartedThread] = []
        try:
            for tasks in queues:
                self._start(tasks)
        except BaseException:
            self._end()
            raise

    def add(self, tasks: SimpleQueue[Task | None]) -> None:
        """Start another thread, which takes its tasks from this queue."""
        self._queues.append(tasks)
        self._start(tasks)

    def _start(self, tasks: SimpleQueue[Task | None]) -> None:
        number = len(self._threads)
        self._at_work.append(None)
        arguments = number, tasks, self._crew, self.bell, self._at_work, self._failures
        self._threads.append(start_thread(f"{WORKER}-{number}", _work, *arguments))

    def check(self) -> None:
        """Raise `LoaderError` if a thread failed to start, or if the threads belong to the parent process."""
        if os.getpid() != self._process:
            raise LoaderError(
                "the loader's worker threads do not exist in this forked process; start a new epoch here"
            )
        if self._failures:
            raise self._failures[0]

    def wait_for(self, window: Window, take: Callable[[], StagedBatch | None]) -> StagedBatch:
        """Call `take` whenever a job finishes, until it returns a batch; return that.

        Raises
        ------
        WorkerTimeout
            No batch was ready in time.
        """
        deadline = monotonic() + self._timeout if self._timeout else None
        while (staged := take()) is None:
            try:
                left = None if deadline is None else max(deadline - monotonic(), 0)
                self.bell.get(timeout=None if left is None else min(left, LONGEST_WAIT))
            except Empty:
                if left is not None and left <= LONGEST_WAIT:
                    raise self._time_out(window) from None
        return staged

    def _time_out(self, window: Window) -> WorkerTimeout:
        job = next((job for job in window.jobs if not job.done), None)
        if job is None:
            return timed_out("no worker thread", self._process, self._timeout, None, ())
        tasks = [(number, *task[2:]) for number, task in enumerate(self._at_work) if task and task[1] is job]
        who = " and ".join(f"worker {number} (a thread)" for number, *_ in tasks) or "no worker thread"
        held = [index for _, start, stop in tasks for index in plain_indices(job.indices[start:stop])]
        return timed_out(who, self._process, self._timeout, job.number, held or job.indices)

    def close(self, window: Window) -> bool:
        """Stop the threads and return the slots they are not writing to; return False if one did not end.

        In a forked process it does nothing: the threads do not exist there, and locks they held may still be
        locked.
        """
        if os.getpid() != self._process:
            return False
        ended = self._end()
        if ended:
            for job in window.jobs:
                job.done = True
        window.drop_done()
        return ended

    def _end(self) -> bool:
        """Stop the threads; return False if one did not end in time."""
        self.closed.set()
        for tasks in self._queues:
            tasks.put(None)
        deadline = monotonic() + CLOSING_TIME
        for thread in self._threads:
            if not thread.is_current:
                thread.join(max(deadline - monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)


def _work(
    number: int,
    tasks: SimpleQueue[Task | None],
    crew: ThreadOptions,
    bell: SimpleQueue[None],
    at_work: list[Task | None],
    failures: list[LoaderError],
) -> None:
    bind(crew.cores)
    seed = mixed_seed(crew.seed, crew.epoch, number, *crew.standing.salt)
    enter_worker(WorkerInfo(number, crew.most, seed, crew.dataset, crew.standing.ranks))
    read_for(crew.owner)
    with answering_threads():
        try:
            if crew.init is not None:
                crew.init(number)
        except BaseException as error:
            failures.append(set_up_failed(number, error))
            bell.put(None)
            return
        begin_draws(crew.seed, crew.epoch)
        while (task := tasks.get()) is not None:
            at_work[number] = task
            task[0](number)
            at_work[number] = task = None


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

    def __init__(
        self, assembler: Assembler | Gatherer, window: Window, crew: ThreadOptions, meter: Meter
    ) -> None:
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
        crew: ThreadOptions,
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
