"""Fetching in worker processes, which write samples straight into the slots."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

import numpy as np

from gpuloader.collate.items import ItemState
from gpuloader.collate.stream import StagedBatch
from gpuloader.errors import LoaderError, WorkerError, WorkerTimeout
from gpuloader.fetch.jobs import Job, Window, deliver
from gpuloader.fetch.pool import Pool
from gpuloader.fetch.processes import GRACE, WorkerProcess
from gpuloader.fetch.wire import NO_BATCH, NO_ROW, Kind, Message, dumps, receive
from gpuloader.sources.processes import describe_death
from gpuloader.stats import Meter

MOST_DEATHS = 3
"""How many workers may die of the same batch, with ``on_worker_death='respawn'``, before that is an error."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for the workers of one epoch.

    Attributes
    ----------
    seed, epoch : int
        Of the loader.
    timeout : float
        Seconds a batch may be waited for, 0 for any time.
    respawn : bool
        Replace a worker that died and give its batches to the new one; otherwise its death is an error.
    keep : bool
        Whether the pool serves further epochs.
    reached : mapping or None
        Of an iterable data set: where each worker goes on. None for one with indices.
    turn : int
        Of an iterable data set: which worker begins.
    """

    seed: int
    epoch: int
    timeout: float
    respawn: bool
    keep: bool
    reached: Mapping[int, ItemState] | None
    turn: int = 0


class ProcessWorkers:
    """The parent's side of worker processes for one epoch; all methods are the consumer's.

    Tasks go to the worker with the fewest; of an iterable data set, to each in turn. The batch that settles
    the form goes out alone, so that no other worker has an opinion on it.

    Parameters
    ----------
    pool : Pool
        The processes.
    window : Window
        The batches to come and those under way.
    terms : Terms
        What holds for this epoch.
    meter : Meter
        Counts where the time goes.
    give_back : callable
        Takes the pool at the end of the epoch; its workers are gone unless they were to stay.
    """

    def __init__(
        self,
        pool: Pool,
        window: Window,
        terms: Terms,
        meter: Meter,
        give_back: Callable[[Pool], object],
    ) -> None:
        self._pool = pool
        self._window = window
        self._terms = terms
        self._meter = meter
        self._give_back = give_back
        self._broken = False
        self._reached: dict[int, ItemState] = dict(terms.reached or {})
        self._turns = deque(range(len(pool.workers)))
        self._turns.rotate(-terms.turn)
        pool.serial += 1
        pool.board.serial[0] = pool.serial
        self._poll = select.poll()
        self._by_descriptor: dict[int, WorkerProcess] = {}
        for worker in pool.workers:
            self._listen_to(worker)
            self._begin(worker)

    def _listen_to(self, worker: WorkerProcess) -> None:
        for descriptor in (worker.link.fileno(), worker.sentinel):
            self._by_descriptor[descriptor] = worker
            self._poll.register(descriptor, select.POLLIN)

    def _begin(self, worker: WorkerProcess) -> None:
        terms, pool = self._terms, self._pool
        payload = dumps((pool.form, self._reached.get(worker.number)))
        worker.send(Message(Kind.EPOCH, b=terms.seed, c=terms.epoch, d=pool.serial, payload=payload))

    def get(self) -> StagedBatch:
        """Return the next batch, waiting for it.

        Raises
        ------
        QueueClosed
            The epoch is over.
        WorkerError
            A worker died and is not to be replaced, or did not answer in time.
        SampleError
            The data set raised, or a sample does not fit.
        """
        deadline = monotonic() + self._terms.timeout if self._terms.timeout else None
        while (staged := self._take()) is None:
            self._listen(deadline)
        return staged

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None where `get` would wait; raises as `get`."""
        staged = self._take()
        if staged is None:
            self._hear(0)
            staged = self._take()
        return staged

    def _take(self) -> StagedBatch | None:
        self._hand_out()
        return deliver(self._window, self._meter, "gpuloader-worker")

    def _hand_out(self) -> None:
        pool, window = self._pool, self._window
        while (pool.is_settled or not window.jobs) and (worker := self._next_worker()) is not None:
            job = window.next_job()
            if job is None:
                return
            job.worker = worker.number
            worker.jobs.append(job)
            self._send_task(worker, job)

    def _next_worker(self) -> WorkerProcess | None:
        workers = self._pool.workers
        if self._terms.reached is None:
            return min(workers, key=_count_jobs)
        if not self._turns:
            self._window.end()
            return None
        return workers[self._turns[0]]

    def _send_task(self, worker: WorkerProcess, job: Job) -> None:
        if self._terms.reached is not None and self._turns[0] == worker.number:
            self._turns.rotate(-1)
        arena, offset, size = (0, 0, 0) if job.slot is None else worker.show(job.slot)
        row, payload = self._write_indices(job)
        worker.send(
            Message(Kind.TASK, row, arena, job.number, len(job.indices), offset, size, payload=payload)
        )

    def _write_indices(self, job: Job) -> tuple[int, bytes]:
        """Put a job's indices on the board and return their row; or return them pickled."""
        indices = job.indices
        if type(indices) is range:
            indices = np.arange(indices.start, indices.stop, indices.step)
        elif not isinstance(indices, np.ndarray):
            listed = np.asarray(indices) if all(type(one) is int for one in indices) else None
            if listed is None or listed.dtype != np.int64:
                return NO_ROW, dumps(list(indices))
            indices = listed
        if len(indices) > self._pool.board.rows.shape[1]:
            return NO_ROW, dumps(list(indices))
        if job.row < 0:
            job.row = self._pool.free_rows.pop()
        self._pool.board.rows[job.row, : len(indices)] = indices
        return job.row, b""

    def _listen(self, deadline: float | None) -> None:
        """Wait for an answer or a death, and deal with it."""
        if os.getpid() != self._pool.process:
            raise LoaderError(
                "the loader's worker processes belong to the process that forked this one; begin a new "
                "epoch here"
            )
        left = None if deadline is None else max(deadline - monotonic(), 0) * 1000
        if not self._hear(left) and deadline is not None and monotonic() >= deadline:
            raise self._timed_out()

    def _hear(self, milliseconds: float | None) -> bool:
        """Deal with every answer and death that comes within the time; return whether there was one."""
        ready = self._poll.poll(milliseconds)
        for descriptor, _ in ready:
            worker = self._by_descriptor[descriptor]
            if descriptor == worker.sentinel:
                self._bury(worker)
                return True  # what else was ready may have other descriptors by now
            if not self._receive(worker):
                self._poll.unregister(descriptor)  # its sentinel tells the rest
        return bool(ready)

    def _receive(self, worker: WorkerProcess) -> bool:
        """Deal with one message of a worker; return False where there is none and its link is closed."""
        message = receive(worker.link, socket.MSG_DONTWAIT)
        if message is None:
            return False
        if message.b == NO_BATCH:
            self._broken = True
            _, cause = _unpack_error(message)
            problem = f"worker {worker.number} could not begin: {type(cause).__name__}: {cause}"
            raise LoaderError(problem) from cause
        job = worker.jobs[0]
        if message.kind == Kind.NEED:
            self._grant(worker, job, message)
            return True
        worker.jobs.popleft()
        if job.row >= 0:
            self._pool.free_rows.append(job.row)
            job.row = -1
        if not job.done:
            self._finish(worker, job, message)
        return True

    def _finish(self, worker: WorkerProcess, job: Job, message: Message) -> None:
        if message.kind == Kind.ERROR:
            job.finish(None, _unpack_error(message)[0])
        elif message.kind == Kind.END:
            job.finish(None)
            if worker.number in self._turns:
                self._turns.remove(worker.number)
        else:
            job.begun, job.end = message.c, message.d
            objects, state = (), None
            if message.payload:
                look, objects, state = pickle.loads(message.payload)
                worker.look = look or worker.look
            if isinstance(state, ItemState):
                self._reached[worker.number] = state
            assert job.slot is not None
            layout, levels, structure = worker.look
            job.finish(StagedBatch(job.slot, layout, levels, job.number, structure, objects, state))

    def _grant(self, worker: WorkerProcess, job: Job, message: Message) -> None:
        """Give a job the room it asks for."""
        if not self._pool.is_settled:
            self._pool.form, self._pool.is_settled = pickle.loads(message.payload), True
            for other in self._pool.workers:
                if other is not worker:
                    other.send(Message(Kind.FORM, payload=message.payload))
        try:
            slot = self._window.reserve(job, message.c)
        except Exception as error:
            job.finish(None, error)
            worker.send(Message(Kind.SLOT))
            return
        arena, offset, size = worker.show(slot)
        worker.send(Message(Kind.SLOT, arena=arena, d=offset, e=size))

    def _bury(self, worker: WorkerProcess) -> None:
        """Deal with a dead worker, once everything it still said has been heard.

        Raises
        ------
        WorkerError
            It is not to be replaced, or too many died of the same batch.
        """
        with contextlib.suppress(BlockingIOError):
            while self._receive(worker):
                pass
        held = list(worker.jobs)
        if held:
            held[0].deaths += 1
        if not self._terms.respawn or (held and held[0].deaths > MOST_DEATHS):
            self._broken = True
            raise died(worker, held)
        for descriptor in (worker.link.fileno(), worker.sentinel):
            self._by_descriptor.pop(descriptor, None)
            with contextlib.suppress(KeyError):
                self._poll.unregister(descriptor)
        worker.close(monotonic())
        fresh = self._pool.workers[worker.number] = self._pool.spawn(worker.number)
        self._listen_to(fresh)
        self._begin(fresh)
        fresh.jobs = worker.jobs
        for job in held:
            self._send_task(fresh, job)

    def _timed_out(self) -> WorkerTimeout:
        job = next((job for job in self._window.jobs if not job.done), None)
        worker = self._pool.workers[job.worker if job is not None else 0]
        self._broken = True
        return WorkerTimeout(
            f"worker {worker.number} (process {worker.pid}) did not bring its batch within the timeout of "
            f"{self._terms.timeout} s",
            pid=worker.pid,
            indices=[] if job is None else list(job.indices),
        )

    def close(self) -> bool:
        """End or call off what the workers do, and take all slots back; return True."""
        if os.getpid() == self._pool.process:
            if not (self._terms.keep and not self._broken and self._call_off()):
                self._pool.close()
            for job in self._window.jobs:
                job.done = True
            self._give_back(self._pool)
        self._window.drop_done()
        return True

    def _call_off(self) -> bool:
        """Have every task under way ended or skipped; return False where that takes too long."""
        self._pool.board.serial[0] = -1
        deadline = monotonic() + GRACE
        try:
            while any(worker.jobs for worker in self._pool.workers):
                if monotonic() > deadline:
                    return False
                self._hear(max(deadline - monotonic(), 0) * 1000)
        except LoaderError:
            return False
        return True


def _count_jobs(worker: WorkerProcess) -> int:
    return len(worker.jobs)


def _unpack_error(message: Message) -> tuple[BaseException, BaseException]:
    """Return the exception a worker sent, and the one at its root, with the worker's traceback in a note."""
    error, cause, trace = pickle.loads(message.payload)
    root = cause or error
    root.add_note(f"gpuloader: raised in a worker process\n{trace}")
    if cause is not None:
        error.__cause__ = cause
    return error, root


def died(worker: WorkerProcess, held: list[Job]) -> WorkerError:
    """Return the error for a dead worker and the jobs it held."""
    cause, signal = describe_death(worker.exit_code(GRACE))
    doing = "was idle"
    if held:
        doing = "fetched batch " + ", ".join(str(job.number) for job in held)
    if held and held[0].deaths > 1:
        doing += f", the {held[0].deaths}th worker to die of batch {held[0].number}"
    hint = "; the system may have run out of memory" if signal == 9 else ""
    return WorkerError(
        f"worker {worker.number} (process {worker.pid}) {cause} while it {doing}{hint}",
        pid=worker.pid,
        signal=signal,
        indices=[index for job in held for index in job.indices],
    )
