"""A pool: the worker processes of a loader, the board they share with it, and what holds for an epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.base.errors import LoaderError
from gpuloader.collate.form import Form
from gpuloader.collate.items import ItemState
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.processes.process import GRACE, WorkerProcess, close_all
from gpuloader.fetch.processes.starting import Start
from gpuloader.fetch.processes.wire import NO_ROW, Board, Kind, Message, dumps, dumps_for_stranger

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
        Of an iterable dataset: where each worker goes on. None for one with indices.
    turn : int
        Of an iterable dataset: which worker begins.
    """

    seed: int
    epoch: int
    timeout: float
    respawn: bool
    keep: bool
    reached: Mapping[int, ItemState] | None
    turn: int = 0


class Pool:
    """Worker processes and the board they share with the loader; lives for one epoch, or for many.

    Parameters
    ----------
    start : Start
        How they come by the dataset.
    ahead : int
        Tasks under way at once.
    columns : int
        Indices of a task that fit on the board; longer ones travel in the message.
    count : int
        Workers to begin with.
    """

    def __init__(self, start: Start, ahead: int, columns: int, count: int) -> None:
        self.start = start
        collation = start.setup.reading.collation
        self.form: Form | None = None
        self.is_settled = collation.whole or collation.feeds is not None
        self.process = os.getpid()
        self.serial = 0
        self.board, self._descriptor = Board.create(ahead, columns)
        self._free_rows = list(range(ahead))
        self.workers: list[WorkerProcess] = []
        try:
            self.resize(count)
        except BaseException:
            self.close()
            raise

    def resize(self, count: int) -> None:
        """Have so many workers; between two epochs, when none has work."""
        while len(self.workers) < count:
            self.workers.append(self.spawn(len(self.workers)))
        surplus, self.workers = self.workers[count:], self.workers[:count]
        close_all(surplus, GRACE)

    def spawn(self, number: int) -> WorkerProcess:
        """Return a new worker of that number.

        Raises
        ------
        LoaderError
            The system starts no more processes.
        """
        try:
            return WorkerProcess(number, self.start, self.board, self._descriptor)
        except OSError as error:
            raise LoaderError(f"worker {number} could not be started: {error}") from error

    def dumps(self, value: Any) -> bytes:
        """Return a value pickled for the workers."""
        return dumps(value) if self.start.method == "fork" else dumps_for_stranger(value)

    def settle(self, form: Form, by: WorkerProcess) -> None:
        """Take the form that one worker settled, and tell the others."""
        self.form, self.is_settled = form, True
        payload = self.dumps(form)
        for other in self.workers:
            if other is not by:
                other.send(Message(Kind.FORM, payload=payload))

    def write_indices(self, job: Job) -> tuple[int, bytes]:
        """Put a job's indices on the board and return their row; or return them pickled."""
        indices = job.indices
        if type(indices) is range:
            indices = np.arange(indices.start, indices.stop, indices.step)
        elif not isinstance(indices, np.ndarray):
            listed = np.asarray(indices) if all(type(one) is int for one in indices) else None
            if listed is None or listed.dtype != np.int64:
                return NO_ROW, self.dumps(list(indices))
            indices = listed
        if len(indices) > self.board.rows.shape[1]:
            return NO_ROW, self.dumps(list(indices))
        if job.row < 0:
            job.row = self._free_rows.pop()
        self.board.rows[job.row, : len(indices)] = indices
        return job.row, b""

    def free_row(self, job: Job) -> None:
        """Take the row of a job back, if it has one."""
        if job.row >= 0:
            self._free_rows.append(job.row)
            job.row = -1

    def close(self, grace: float = GRACE) -> None:
        """End all workers, after `grace` seconds by force; may be repeated."""
        workers, self.workers = self.workers, []
        descriptor, self._descriptor = self._descriptor, -1
        if self.process == os.getpid():
            close_all(workers, grace)
        if self.start.parcel is not None:
            self.start.parcel.close()
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()
