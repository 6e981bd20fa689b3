"""Loader's side: fetching one epoch with worker processes, which write samples straight into the slots."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic

from gpuloader.batches.items import ItemState
from gpuloader.batches.stream import StagedBatch
from gpuloader.errors import LoaderError
from gpuloader.fetch.inline import set_up_failed, timed_out
from gpuloader.fetch.jobs import Job, Window, deliver
from gpuloader.fetch.processes.failures import died, unpack_failure
from gpuloader.fetch.processes.pool import MOST_DEATHS, Pool, Terms
from gpuloader.fetch.processes.process import GRACE, WorkerProcess
from gpuloader.fetch.processes.wire import NO_BATCH, Kind, Message, receive
from gpuloader.system.interrupts import deferred_interrupt
from gpuloader.system.processes import LONGEST_WAIT
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import WORKER, mark


class ProcessWorkers:
    """Fetches one epoch with a pool of worker processes; only the consumer calls the methods.

    A task goes to the worker with the fewest, or for an iterable dataset to each worker in turn. With many
    workers, the first batch does not wait until all have started: one more starts with each batch, and while
    the consumer waits.

    Parameters
    ----------
    pool : Pool
        The worker processes.
    window : Window
        The batches to come and those in progress.
    terms : Terms
        The options of this epoch.
    count : int
        The number of workers, of which some may be yet to start.
    meter : Meter
        Counts where the time goes.
    give_back : callable
        Takes the pool when the epoch ends; its workers have ended unless they persist.
    """

    def __init__(
        self,
        pool: Pool,
        window: Window,
        terms: Terms,
        count: int,
        meter: Meter,
        give_back: Callable[[Pool], object],
    ) -> None:
        self._pool = pool
        self._window = window
        self._terms = terms
        self._meter = meter
        self._give_back = give_back
        self._has_looked = self._broken = self._closing = False
        self._reached: dict[int, ItemState] = dict(terms.reached or {})
        self._active = count
        self._turns = deque(range(self._active))
        self._turns.rotate(-terms.turn)
        pool.serial += 1
        pool.board.serial[0] = pool.serial
        self._poll = select.poll()
        self._by_descriptor: dict[int, WorkerProcess] = {}
        self._full: set[int] = set()
        for worker in pool.workers:
            self._listen_to(worker)
            self._begin(worker)

    def _start_next(self) -> bool:
        """Start a missing worker; return False if none is missing, or no task is left for it."""
        pool = self._pool
        if len(pool.workers) >= self._active or (self._window.exhausted and self._terms.reached is None):
            return False
        with deferred_interrupt():
            worker = pool.start_next()
            self._listen_to(worker)
            self._begin(worker)
        return True

    def _listen_to(self, worker: WorkerProcess) -> None:
        for descriptor in (worker.link.fileno(), worker.sentinel):
            self._by_descriptor[descriptor] = worker
            self._full.discard(descriptor)  # a dead worker's link may have had the same number
            self._poll.register(descriptor, select.POLLIN)

    def _begin(self, worker: WorkerProcess) -> None:
        terms, pool = self._terms, self._pool
        payload = pool.dumps(self._reached.get(worker.number))
        worker.send(Message(Kind.EPOCH, b=terms.seed, c=terms.epoch, d=pool.serial, payload=payload))

    def resize(self, workers: int, ahead: int) -> None:
        """Use `workers` workers from now on, and keep up to `ahead` batches in progress.

        Surplus workers finish their tasks and then idle until the epoch ends.
        """
        self._active = workers
        while self._start_next():
            pass
        self._window.ahead = ahead

    def get(self) -> StagedBatch:
        """Wait for the next batch and return it.

        Raises
        ------
        QueueClosed
            The epoch is over.
        SampleError
            The dataset raised, or a sample does not fit its field.
        WorkerError
            A worker died; a `WorkerTimeout` if none answered in time.
        LoaderError
            A worker could not start, a batch could not be pickled, or this is a forked process.
        """
        deadline = monotonic() + self._terms.timeout if self._terms.timeout else None
        while (staged := self._take()) is None:
            if self._start_next():
                continue
            left = None if deadline is None else min(max(deadline - monotonic(), 0), LONGEST_WAIT) * 1000
            if not self._hear(left) and deadline is not None and monotonic() >= deadline:
                raise self._time_out()
        self._start_next()
        return staged

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None if `get` would wait; raises like `get`."""
        staged = self._take()
        if staged is None:
            self._hear(0)
            staged = self._take()
        return staged

    def _take(self) -> StagedBatch | None:
        if os.getpid() != self._pool.process:
            raise LoaderError(
                "the loader's worker processes belong to the process that forked this one; start a new "
                "epoch here"
            )
        if self._broken:
            raise LoaderError(
                "the epoch was interrupted in the middle of a message to or from a worker; start a new one"
            )
        if not self._has_looked:
            self._has_looked = True
            self._hear(0)  # notices workers that died since the last epoch
        try:
            self._hand_out()
            return deliver(self._window, self._meter)
        except KeyboardInterrupt:  # perhaps in the middle of a message
            self._broken = True
            raise

    def _hand_out(self) -> None:
        window = self._window
        while (worker := self._next_worker()) is not None:
            job = window.next_job()
            if job is None:
                return
            job.worker = worker.number
            worker.jobs.append(job)
            if self._terms.reached is not None:
                self._turns.rotate(-1)
            self._send_task(worker, job)

    def _next_worker(self) -> WorkerProcess | None:
        workers = self._pool.workers
        missing = self._active - len(workers)
        if self._terms.reached is None:
            worker = min(workers[: self._active], key=lambda worker: len(worker.jobs))
            share = -(-self._window.ahead // self._active)
            return None if missing > 0 and len(worker.jobs) >= share else worker
        if not self._turns:
            self._window.end()
            return None
        return None if self._turns[0] >= len(workers) else workers[self._turns[0]]

    def _send_task(self, worker: WorkerProcess, job: Job) -> None:
        arena, offset, size = (0, 0, 0) if job.slot is None else worker.show(job.slot)
        row, payload = self._pool.write_indices(job)
        worker.send(
            Message(Kind.TASK, row, arena, job.number, len(job.indices), offset, size, payload=payload)
        )

    def _hear(self, milliseconds: float | None) -> bool:
        """Handle the answers and deaths that arrive in time (None: no limit); return False if none does."""
        self._watch_full_links()
        ready = self._poll.poll(milliseconds)
        try:
            for descriptor, events in ready:
                worker = self._by_descriptor[descriptor]
                if events == select.POLLOUT:
                    worker.flush()
                elif descriptor == worker.sentinel or not self._receive(worker):
                    self._bury(worker)
                    break  # the other ready descriptors may have been closed and reused
        except KeyboardInterrupt:  # perhaps in the middle of a message
            self._broken = True
            raise
        return bool(ready)

    def _watch_full_links(self) -> None:
        """Wake `_hear` as soon as a link has room for messages that wait.

        A worker that has asked for a slot says nothing until it has one, and the answer may be one of them.
        """
        full = {worker.link.fileno() for worker in self._pool.workers if worker.unsent}
        for descriptor in full ^ self._full:
            if descriptor in self._by_descriptor:
                events = select.POLLIN | (select.POLLOUT if descriptor in full else 0)
                self._poll.modify(descriptor, events)
        self._full = full

    def _receive(self, worker: WorkerProcess) -> bool:
        """Receive and handle one message of a worker; return False if it closed the link and so has ended."""
        message = receive(worker.link, socket.MSG_DONTWAIT)
        if message is None:
            return False
        if worker.unsent:
            worker.flush()
        if message.b == NO_BATCH:
            self._broken = True
            raise set_up_failed(worker.number, unpack_failure(message.payload))
        worker.deaths = 0
        job = worker.jobs[0]
        if message.kind == Kind.NEED:
            self._grant(worker, job, message)
            return True
        worker.jobs.popleft()
        self._pool.free_row(job)
        if not job.done:
            try:
                self._finish(worker, job, message)
            except Exception as error:
                problem = f"batch {job.number} contains a non-array value that cannot be unpickled: {error!r}"
                job.finish(None, LoaderError(problem).with_traceback(error.__traceback__))
        return True

    def _finish(self, worker: WorkerProcess, job: Job, message: Message) -> None:
        if message.kind == Kind.ERROR:
            job.finish(None, unpack_failure(message.payload))
        elif message.kind == Kind.END:
            job.finish(None)
            if worker.number in self._turns:
                self._turns.remove(worker.number)
        else:
            begun, end = message.c, message.d
            job.busy = end - begun
            mark("fetch", begun, end, f"{WORKER}-{worker.number}")
            objects, state, skipped = (), None, 0
            if message.payload:
                look, objects, state, skipped = pickle.loads(message.payload)
                worker.look = look or worker.look
            if isinstance(state, ItemState):
                self._reached[worker.number] = state
            assert job.slot is not None
            layout, levels, tree = worker.look
            staged = StagedBatch(job.slot, layout, levels, job.number, tree, objects, state)
            staged.skipped = skipped
            job.finish(staged)

    def _grant(self, worker: WorkerProcess, job: Job, message: Message) -> None:
        """Answer a worker's request for a slot: send it one, or refuse and end the job with the error."""
        try:
            if self._closing:
                raise LoaderError("the epoch is over")
            slot = self._window.reserve(job, message.c)
        except Exception as error:
            job.finish(None, error)
            worker.send(Message(Kind.SLOT))
            return
        arena, offset, size = worker.show(slot)
        worker.send(Message(Kind.SLOT, arena=arena, d=offset, e=size))

    def _bury(self, worker: WorkerProcess) -> None:
        """Handle the last messages of a dead worker, then replace it.

        Raises
        ------
        WorkerError
            Workers are not to be replaced, or too many died at the same batch.
        """
        with contextlib.suppress(BlockingIOError):
            while self._receive(worker):
                pass
        held = list(worker.jobs)
        if held:
            held[0].deaths += 1
        worker.deaths += 1
        deaths = max(worker.deaths, held[0].deaths if held else 0)
        if not self._terms.respawn or self._closing or deaths > MOST_DEATHS:
            self._broken = True
            raise died(worker, worker.exit_code(GRACE), held)
        with deferred_interrupt():
            for descriptor in (worker.link.fileno(), worker.sentinel):
                del self._by_descriptor[descriptor]
                self._poll.unregister(descriptor)
            worker.close(monotonic())
            fresh = self._pool.workers[worker.number] = self._pool.spawn(worker.number)
            fresh.deaths = worker.deaths
            self._listen_to(fresh)
            self._begin(fresh)
            fresh.jobs = worker.jobs
            for job in held:
                self._send_task(fresh, job)

    def _time_out(self) -> LoaderError:
        job = next((job for job in self._window.jobs if not job.done), None)
        worker = self._pool.workers[job.worker if job is not None else 0]
        self._broken = True
        worker.kill()  # a worker that hangs does not end by itself
        who = f"worker {worker.number} (process {worker.pid})"
        number, indices = (None, ()) if job is None else (job.number, job.indices)
        return timed_out(who, worker.pid, self._terms.timeout, number, indices)

    def close(self) -> bool:
        """Call off all tasks, stop the workers unless they persist, and take all slots back.

        Returns
        -------
        bool
            Whether the slots may be used again. They may not if they belong to the process that forked this
            one, or if the garbage collector has already ended the workers.
        """
        pool = self._pool
        if os.getpid() != pool.process:
            return False
        self._closing = True
        deadline = monotonic() + GRACE
        intact = bool(pool.workers) and not any(worker.is_closed for worker in pool.workers)
        stays = False
        try:
            stays = intact and self._terms.keep and not self._broken and self._call_off(deadline)
        finally:
            if not stays:
                pool.close(max(deadline - monotonic(), 0))
            for job in self._window.jobs:
                job.done = True
            self._window.drop_done()
            self._give_back(pool)
        return intact

    def _call_off(self, deadline: float) -> bool:
        """Make the workers finish or skip their tasks; return False if that takes longer than `deadline`."""
        self._pool.board.serial[0] = -1
        try:
            while any(worker.jobs for worker in self._pool.workers):
                if monotonic() > deadline:
                    return False
                self._hear(max(deadline - monotonic(), 0) * 1000)
        except (LoaderError, OSError):
            return False
        return True
