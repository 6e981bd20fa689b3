"""The worker threads of one epoch: how they start, take tasks, report back and end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from gpuloader.base.errors import LoaderError, WorkerTimeout
from gpuloader.base.nesting import read_for
from gpuloader.base.numa import Cores, bind
from gpuloader.base.processes import LONGEST_WAIT, StartedThread, start_thread
from gpuloader.collate.stream import StagedBatch
from gpuloader.fetch.failures import plain_indices, set_up_failed, timed_out
from gpuloader.fetch.jobs import Job, Window
from gpuloader.fetch.read_ahead import CLOSING_TIME
from gpuloader.order.division import Standing
from gpuloader.order.randomness import begin_draws, mixed_seed
from gpuloader.order.worker_info import WorkerInfo, enter_worker
from gpuloader.sources.frameworks import answering_threads
from gpuloader.watch.tracing import WORKER


@dataclass(frozen=True, slots=True)
class Crew:
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
    standing: Standing
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

    def __init__(self, crew: Crew, queues: Sequence[SimpleQueue[Task | None]]) -> None:
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
    crew: Crew,
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
