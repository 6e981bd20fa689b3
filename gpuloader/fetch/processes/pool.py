"""Loader's side: a loader's worker processes, the board they share with it, and the options of an epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from gpuloader.batches.items import ItemState
from gpuloader.errors import LoaderError
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.processes.process import GRACE, WorkerProcess, close_all
from gpuloader.fetch.processes.shipping import Parcel
from gpuloader.fetch.processes.starting import Start
from gpuloader.fetch.processes.wire import NO_ROW, Board, dumps, dumps_for_stranger
from gpuloader.system.finalizers import Finalizer, closing_once
from gpuloader.system.interrupts import exit_first

FIRST = 2
"""Workers to start before the first batch is requested; the others start while the loop waits or runs."""

MOST_DEATHS = 3
"""With ``on_worker_death='respawn'``, workers that may die at the same batch before that is an error."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of one epoch's workers.

    Attributes
    ----------
    seed, epoch : int
        The loader's seed and epoch.
    timeout : float
        Seconds to wait for a batch; 0 means no limit.
    respawn : bool
        Replace a worker that dies and give its batches to the new one; otherwise a death is an error.
    keep : bool
        Whether the pool serves later epochs.
    reached : mapping of int to ItemState, or None
        For an iterable dataset, the state from which each worker resumes; None for a map-style dataset.
    turn : int
        For an iterable dataset, the worker that yields the first batch.
    """

    seed: int
    epoch: int
    timeout: float
    respawn: bool
    keep: bool
    reached: Mapping[int, ItemState] | None
    turn: int = 0


class Pool:
    """Worker processes and the board they share with the loader, for one epoch or for many.

    Parameters
    ----------
    start : Start
        How workers start, and how they get the dataset.
    ahead : int
        The most tasks in progress at once.
    columns : int
        The indices of one task, if known. Tasks that do not fit on the board travel in messages.
    count : int
        The number of workers. Only the first ones start at once; `start_next` starts the others.
    """

    def __init__(self, start: Start, ahead: int, columns: int, count: int) -> None:
        self.start = start
        self.process = os.getpid()
        self.serial = 0
        self.workers: list[WorkerProcess] = []
        self._descriptor = -1
        self._parts: _Parts = self.workers, start.parcel, self.process, closing_once()
        self._finalizer = Finalizer()
        try:
            self.board, self._descriptor = Board.create(ahead, columns)
            self._parts = *self._parts[:-1], closing_once(self._descriptor)
            self._finalizer.watch(partial(_close, *self._parts))
            self._free_rows = list(range(len(self.board.rows)))
            self.resize(count)
            exit_first()
        except BaseException:
            self.close()
            raise

    def resize(self, count: int) -> None:
        """Stop surplus workers, or start the first ones; call it between epochs, when all are idle."""
        surplus = self.workers[count:]
        del self.workers[count:]
        close_all(surplus, GRACE)
        while len(self.workers) < min(count, FIRST):
            self.start_next()

    def start_next(self) -> WorkerProcess:
        """Start and return one more worker; raises what `spawn` raises."""
        worker = self.spawn(len(self.workers))
        self.workers.append(worker)
        return worker

    def spawn(self, number: int) -> WorkerProcess:
        """Start and return a worker with that number.

        Raises
        ------
        LoaderError
            The operating system cannot start another process.
        """
        try:
            return WorkerProcess(number, self.start, self.board, self._descriptor)
        except OSError as error:
            raise LoaderError(f"worker {number} could not be started: {error}") from error

    def dumps(self, value: Any) -> bytes:
        """Pickle a value for the workers."""
        return dumps(value) if self.start.method == "fork" else dumps_for_stranger(value)

    def write_indices(self, job: Job) -> tuple[int, bytes]:
        """Return the row of the board to which a job's indices were written, or NO_ROW and them pickled."""
        indices = job.indices
        if type(indices) is range:
            indices = np.arange(indices.start, indices.stop, indices.step)
        elif not isinstance(indices, np.ndarray):
            listed = np.asarray(indices) if all(type(one) is int for one in indices) else None
            if listed is None or listed.dtype != np.int64:
                return NO_ROW, self.dumps(list(indices))
            indices = listed
        if len(indices) > self.board.rows.shape[1] or (job.row < 0 and not self._free_rows):
            return NO_ROW, self.dumps(indices.tolist())
        if job.row < 0:
            job.row = self._free_rows.pop()
        self.board.rows[job.row, : len(indices)] = indices
        return job.row, b""

    def free_row(self, job: Job) -> None:
        """Free a job's row of the board, if it has one."""
        if job.row >= 0:
            self._free_rows.append(job.row)
            job.row = -1

    def close(self, grace: float = GRACE) -> None:
        """Stop all workers, killing them after `grace` seconds; may be called again."""
        self._descriptor = -1
        _close(*self._parts, grace)
        self._finalizer.end()


_Parts: TypeAlias = tuple[list[WorkerProcess], Parcel | None, int, Callable[[], object]]


def _close(
    workers: list[WorkerProcess],
    parcel: Parcel | None,
    owner: int,
    forget: Callable[[], object],
    grace: float = GRACE,
) -> None:
    """Stop a pool's workers, and close what it shares with them."""
    ended = workers.copy()
    workers.clear()
    try:
        if owner == os.getpid():
            close_all(ended, grace)
    finally:  # a Ctrl-C may end the wait for the workers
        if parcel is not None:
            parcel.close()
        forget()
