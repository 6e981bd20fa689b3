"""A pool: the worker processes of a loader and the board they share with it."""

from __future__ import annotations

import os

from gpuloader.collate.form import Form
from gpuloader.fetch.processes import Start, WorkerProcess, close_all
from gpuloader.fetch.wire import Board


class Pool:
    """Worker processes and the board they share with the loader; lives for one epoch, or for many.

    Parameters
    ----------
    start : Start
        How they come by the data set.
    ahead : int
        Tasks under way at once.
    columns : int
        Indices of a task that fit on the board; longer ones travel in the message.
    """

    def __init__(self, start: Start, ahead: int, columns: int) -> None:
        self.start = start
        collation = start.setup.collation
        self.form: Form | None = None
        self.is_settled = collation.whole or collation.feeds is not None
        self.process = os.getpid()
        self.serial = 0
        self.board, self._descriptor = Board.create(ahead, columns)
        self.free_rows = list(range(ahead))
        self.workers: list[WorkerProcess] = []
        try:
            for number in range(start.setup.count):
                self.workers.append(self.spawn(number))
        except BaseException:
            self.close()
            raise

    def spawn(self, number: int) -> WorkerProcess:
        """Return a new worker of that number."""
        return WorkerProcess(number, self.start, self.board, self._descriptor)

    def close(self) -> None:
        """End all workers; may be repeated."""
        workers, self.workers = self.workers, []
        descriptor, self._descriptor = self._descriptor, -1
        if self.process == os.getpid():
            close_all(workers)
        if self.start.parcel is not None:
            self.start.parcel.close()
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()
