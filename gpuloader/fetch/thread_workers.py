"""Fetching in several threads: for data sets that wait, or that decode with the GIL released."""

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

from gpuloader.collate.assembly import Assembler, Assembly
from gpuloader.collate.gather import Gatherer, Gathering
from gpuloader.collate.items import ItemStream
from gpuloader.collate.stream import StagedBatch
from gpuloader.errors import LoaderError, QueueClosed, WorkerTimeout
from gpuloader.fetch.jobs import Job, Window, deliver
from gpuloader.fetch.thread import CLOSING_TIME
from gpuloader.sources.randomness import begin_draws, mixed_seed
from gpuloader.sources.worker_info import WorkerInfo, enter_worker
from gpuloader.stats import Meter

PART_NBYTES = 1 << 20
"""Arrays are taken by several threads where each gets so many bytes; below, handing over costs more."""

Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of one epoch.

    Attributes
    ----------
    count : int
        How many.
    timeout : float
        Seconds a batch may be waited for, 0 for any time.
    init : callable or None
        Called with the worker's number before its first sample.
    seed, epoch : int
        Of the loader.
    dataset : object
        What they read.
    """

    count: int
    timeout: float
    init: Callable[[int], object] | None
    seed: int
    epoch: int
    dataset: Any


class _Threads:
    """Threads that do tasks, and the bell they ring when a job is done."""

    def __init__(self, crew: Crew, queues: Sequence[SimpleQueue[Task | None]]) -> None:
        self._queues = queues
        self._timeout = crew.timeout
        self._process = os.getpid()
        self.bell: SimpleQueue[BaseException | None] = SimpleQueue()
        self.closed = threading.Event()
        self._threads = [
            threading.Thread(
                target=_work,
                args=(number, tasks, crew, self.bell),
                name=f"gpuloader-worker-{number}",
                daemon=True,
            )
            for number, tasks in enumerate(queues)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, window: Window) -> None:
        """Wait until a job is done.

        Raises
        ------
        WorkerTimeout
            None was done in time.
        LoaderError
            This process was forked from the one the threads run in.
        BaseException
            What ``worker_init_fn`` raised.
        """
        if os.getpid() != self._process:
            raise LoaderError(
                "the loader's worker threads do not exist in this forked process; begin a new epoch here"
            )
        try:
            error = self.bell.get(timeout=self._timeout or None)
        except Empty:
            raise WorkerTimeout(
                f"no worker thread brought a batch within the timeout of {self._timeout} s",
                pid=self._process,
                indices=list(window.jobs[0].indices) if window.jobs else (),
            ) from None
        if error is not None:
            raise error

    def close(self) -> bool:
        """End the threads; return False if one did not come back in time."""
        self.closed.set()
        for tasks in self._queues:
            tasks.put(None)
        deadline = monotonic() + CLOSING_TIME
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)


def _work(
    number: int, tasks: SimpleQueue[Task | None], crew: Crew, bell: SimpleQueue[BaseException | None]
) -> None:
    seed = mixed_seed(crew.seed, crew.epoch, number)
    enter_worker(WorkerInfo(number, crew.count, seed, crew.dataset))
    try:
        if crew.init is not None:
            crew.init(number)
    except BaseException as error:
        bell.put(error)
        return
    begin_draws(crew.seed, crew.epoch)
    while (task := tasks.get()) is not None:
        task()


class _Parts:
    """A job cut into parts, for several threads."""

    def __init__(self, job: Job, assembly: Assembly | Gathering, count: int, threads: _Threads) -> None:
        self._job = job
        self._assembly = assembly
        self._left = count
        self._threads = threads
        self._error: tuple[int, BaseException] | None = None
        self._lock = threading.Lock()

    def run(self, start: int, stop: int, settles: bool) -> None:
        """Fetch a part; whoever does the last one finishes the job."""
        begun = perf_counter_ns()
        error: BaseException | None = None
        try:
            if self._error is None and not self._threads.closed.is_set():
                self._assembly.fetch(start, stop, settles=settles)
        except BaseException as raised:
            error = raised
        with self._lock:
            # The first in the batch's order, whoever was faster; a part that waited in vain says nothing.
            if error is not None and (self._error is None or _rank(start, error) < _rank(*self._error)):
                self._error = start, error
            self._job.begun = min(self._job.begun or begun, begun)
            self._left -= 1
            if self._left:
                return
        self._finish()

    def _finish(self) -> None:
        staged: StagedBatch | None = None
        error = self._error[1] if self._error else None
        try:
            if error is None and not self._threads.closed.is_set():
                staged = self._assembly.finish()
        except BaseException as raised:
            error = raised
        self._job.end = perf_counter_ns()
        self._job.finish(staged, error)
        self._threads.bell.put(None)


def _rank(start: int, error: BaseException) -> tuple[bool, int]:
    return isinstance(error, QueueClosed), start


class ThreadWorkers:
    """Threads that fetch the samples of batches, several of them for one batch.

    A batch is cut into a part for each thread, so the first one is there as soon as can be and few slots
    are needed. All methods are the consumer's.

    Parameters
    ----------
    assembler : Assembler or Gatherer
        Puts batches together.
    window : Window
        The batches to come and those under way.
    crew : Crew
        How many threads, and what they obey.
    meter : Meter
        Counts where the time goes.
    """

    def __init__(self, assembler: Assembler | Gatherer, window: Window, crew: Crew, meter: Meter) -> None:
        self._assembler = assembler
        self._window = window
        self._count = crew.count
        self._meter = meter
        self._settled = isinstance(assembler, Gatherer) or assembler.form is not None
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads = _Threads(crew, [self._tasks] * crew.count)

    def get(self) -> StagedBatch:
        """Return the next batch, waiting for it; raise `QueueClosed` at the end, or its error."""
        while (staged := self.get_nowait()) is None:
            self._threads.wait(self._window)
        return staged

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None where `get` would wait."""
        while (job := self._window.next_job()) is not None:
            self._hand_out(job)
        return deliver(self._window, self._meter, "gpuloader-worker")

    def _hand_out(self, job: Job) -> None:
        settles, self._settled = not self._settled, True
        try:
            assembly = self._assembler.begin(job.number, job.indices, partial(self._window.reserve, job))
        except Exception as error:
            job.finish(None, error)
            return
        samples = len(job.indices)
        count = min(self._count, samples) or 1
        if isinstance(assembly, Gathering):
            count = max(min(count, assembly.layout.nbytes // PART_NBYTES), 1)
        parts = _Parts(job, assembly, count, self._threads)
        for part in range(count):
            start, stop = part * samples // count, (part + 1) * samples // count
            self._tasks.put(partial(parts.run, start, stop, settles and part == 0))

    def close(self) -> bool:
        """End the threads; return False if one did not come back in time."""
        if isinstance(self._assembler, Assembler):
            self._assembler.give_up()
        return close_window(self._threads, self._window)


class ThreadStreams:
    """Threads that each read an iterable data set; their batches are delivered in turn.

    Parameters as for `ThreadWorkers`; `streams` are one a thread, and `turn` says which begins.
    """

    def __init__(
        self, streams: Sequence[ItemStream], window: Window, crew: Crew, meter: Meter, turn: int
    ) -> None:
        self._streams = streams
        self._window = window
        self._meter = meter
        self._turns = deque(range(crew.count))
        self._turns.rotate(-turn)
        self._settles = True
        self._tasks: list[SimpleQueue[Task | None]] = [SimpleQueue() for _ in streams]
        self._threads = _Threads(crew, self._tasks)

    def get(self) -> StagedBatch:
        """Return the next batch, waiting for it; raise `QueueClosed` at the end, or its error."""
        while (staged := self.get_nowait()) is None:
            self._threads.wait(self._window)
        return staged

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None where `get` would wait."""
        self._forget_ended()
        while self._turns and (job := self._window.next_job()) is not None:
            job.worker = self._turns[0]
            self._turns.rotate(-1)
            settles, self._settles = self._settles, False
            self._tasks[job.worker].put(partial(self._run, job, settles))
        return deliver(self._window, self._meter, "gpuloader-worker")

    def _forget_ended(self) -> None:
        for job in self._window.jobs:
            if job.done and job.staged is None and job.worker in self._turns:
                self._turns.remove(job.worker)
        if not self._turns:
            self._window.end()

    def _run(self, job: Job, settles: bool) -> None:
        staged: StagedBatch | None = None
        error: BaseException | None = None
        job.begun = perf_counter_ns()
        try:
            if not self._threads.closed.is_set():
                reserve = partial(self._window.reserve, job)
                staged = self._streams[job.worker].stage(job.number, reserve, settles=settles)
        except BaseException as raised:
            error = raised
        job.end = perf_counter_ns()
        job.finish(staged, error)
        self._threads.bell.put(None)

    def close(self) -> bool:
        """End the threads; return False if one did not come back in time."""
        closed = close_window(self._threads, self._window)
        for stream in self._streams if closed else ():
            stream.close()
        return closed


def close_window(threads: _Threads, window: Window) -> bool:
    """End threads and take back the slots of all jobs that none of them works on any more."""
    ended = threads.close()
    if ended:
        for job in window.jobs:
            job.done = True
    window.drop_done()
    return ended
