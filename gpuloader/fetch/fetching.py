"""Fetching for a dataset's loader: what lasts across epochs, and how each epoch's fetch is opened."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpuloader.batches.gathering import Gatherer, tree_of
from gpuloader.batches.items import ItemState, ItemStream, Reading, ShareStream
from gpuloader.checks import THREAD
from gpuloader.fetch.contract import DEFAULT_METHOD, EpochRequest, Fetch, WorkerOptions, WorkerSetup
from gpuloader.fetch.jobs import Window
from gpuloader.fetch.read_ahead import STRETCH, InlineFetch, ReadAhead, stage_inline, without_indices
from gpuloader.fetch.worker_threads import PART_NBYTES, ThreadStreams, ThreadWorkers
from gpuloader.order.dividing import Division, RankInfo
from gpuloader.staging.ring import Ring
from gpuloader.system.cores import Cores
from gpuloader.system.platforms import check_processes
from gpuloader.system.threads import deferred_interrupt
from gpuloader.watch.autotuner import DEEPEST, Autotuner, Setting
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from gpuloader.watch.stats import Meter

if TYPE_CHECKING:
    from gpuloader.fetch.processes.workers import Pool

_COLUMNS = 256  # indices per batch that fit in the index table if the batch size is unknown


class Fetching:
    """Fetches a dataset's batches, epoch after epoch: inline, in threads or in processes.

    `count` is the number of workers: what the user asked for, or 0 if workers would cost more than they gain.
    Workers run on the cores in `near`, if there are as many of them as workers.
    """

    def __init__(
        self,
        reading: Reading,
        workers: WorkerOptions,
        gatherer: Gatherer | None = None,
        near: Cores = frozenset(),
    ) -> None:
        self._reading = reading
        self._workers = workers
        # More workers than cores would take turns there while cores elsewhere are idle.
        self._near = near if max(workers.count, workers.most) <= len(near) else frozenset()
        if gatherer is None:
            collation = reading.collation
            plain = collation.gathers and collation.feeds is None
            source = reading.source.arrays if plain else None
            if source is not None:
                gatherer = Gatherer(source.arrays, source.rows, collation, tree_of(source))
        # A dataset that consists of arrays runs no Python code per sample. Threads gather its large batches,
        # even if the user asked for processes.
        self._gatherer = gatherer
        self._assembler = reading.make_assembler()
        self._process = os.getpid()
        self._pools: deque[Pool] = deque()
        self._start_method = workers.start_method
        self._sent: object = None
        self.policy = ReadAheadPolicy(fixed=workers.read_ahead == THREAD, bound=reading.iterable)
        self.budget = workers.budget  # bytes that the slots may grow to while tuning
        self.count = workers.count
        # The consumer gathers small batches: one vectorized take costs less than a message to a worker.
        if gatherer is not None and gatherer.layout(reading.size or 1).nbytes < PART_NBYTES:
            self.count = 0
        # Bytes within which the ring may have more slots than needed, to read short batches in bursts.
        self.stretch = 0 if self.count or not workers.read_ahead else STRETCH
        # Samples that lie in other columns, such as text, are read by threads too: in a process, each value
        # would have to be pickled.
        in_columns = gatherer is not None or self._assembler.reads_columns
        self.in_processes = self.count > 0 and workers.kind == "process" and not in_columns
        if not self.in_processes:
            return
        check_processes()
        if (workers.start_method or DEFAULT_METHOD) == "forkserver":
            # Now, so that the server is ready for the first epoch.
            from gpuloader.fetch.processes.fork_server import prepare_server

            modules = []
            for user in (type(reading.dataset), reading.collation.function, workers.init):
                if module := getattr(user, "__module__", None):
                    modules.append(module)
            prepare_server(modules)

    def set_worker_init(self, function: Callable[[int], object] | None) -> None:
        """Make workers that start from now on call this function first."""
        self._workers = replace(self._workers, init=function)

    @property
    def reads(self) -> str:
        """The kind of data: 'arrays' that are gathered, 'items' of an iterable dataset, or 'samples'."""
        if self._gatherer is not None:
            return "arrays"
        return "items" if self._reading.iterable else "samples"

    @property
    def readers(self) -> int | None:
        """How many workers take turns at an iterable dataset; None if the batches do not depend on that."""
        # Of one that is divided among ranks, each worker reads everything, and takes its own part.
        if not self._reading.iterable or self._reading.division is not None:
            return None
        return max(self._workers.count, 1)

    def check_readers(self, readers: int | None) -> None:
        """Raise `ValueError` unless a state of a loader with so many `readers` can resume here."""
        if self._reading.iterable == (readers is None):
            kinds = ("a map-style dataset", "an iterable dataset")
            found, here = kinds if self._reading.iterable else kinds[::-1]
            raise ValueError(f"the state belongs to {found}, but this loader reads {here}")
        if readers is not None and readers != self.readers:
            raise ValueError(
                f"the state belongs to an iterable dataset read by {_name_readers(readers)}, but this loader "
                f"reads it with {_name_readers(self.readers)}, and the batches depend on that number; use "
                "the same num_workers to resume"
            )

    @property
    def ahead(self) -> int:
        """The most batches that may be in progress with workers, or read ahead without them."""
        if not self.count:
            return self._workers.prefetch_factor if self._workers.read_ahead else 0
        return self.ahead_of(self.count, self._workers.prefetch_factor)

    def ahead_of(self, count: int, depth: int) -> int:
        """Return the most batches in progress for `count` workers that hold `depth` batches each."""
        size = self._reading.size
        if size and count and not self.in_processes and not self._reading.iterable:
            # Threads share a batch, and it occupies no more threads than it has samples.
            return depth * -(-count // min(count, size))
        return depth * count

    def autotuner(self, prefetch: int, meter: Meter) -> Autotuner | None:
        """Return the search for the options left 'auto', starting from the present ones; None if none is."""
        workers = self._workers
        if not self.count or self._reading.iterable or not (workers.most or workers.deepens):
            return None
        begin = Setting(self.count, workers.prefetch_factor, prefetch)
        return Autotuner(begin, workers.most or self.count, meter, deepens=workers.deepens)

    def begin_with(self, setting: Setting) -> None:
        """Start later epochs with a setting that tuning has found."""
        self._workers = replace(self._workers, count=setting.workers, prefetch_factor=setting.depth)
        self.count = setting.workers

    def divide(self, division: Division | None) -> None:
        """Read this rank's part from the next epoch on; persistent workers of another rank end."""
        if division != self._reading.division:  # workers have the division of their pool
            self._reading = replace(self._reading, division=division)
            self.close()

    def open(self, epoch: EpochRequest, ring: Ring, meter: Meter) -> Fetch:
        """Start an epoch and return the fetch that fills the ring's slots."""
        if self._process != os.getpid():
            # The fork may have copied locks of the assembler that a thread held.
            self._assembler = self._reading.make_assembler()
            self._process = os.getpid()
        workers = self._workers
        if self.count:
            numbered = epoch.numbered if epoch.numbered is not None else without_indices(epoch.start)
            window = Window(numbered, ring, self.ahead, meter, in_order=workers.in_order)
            start = self._open_processes if self.in_processes else self._open_threads
            fetch: Fetch | None = None
            try:
                with deferred_interrupt():  # else it could leave a worker behind that nobody knows yet
                    fetch = start(epoch, window)
            except BaseException:
                if fetch is not None:
                    fetch.close()
                raise
            return fetch
        if epoch.numbered is not None:
            batches = stage_inline(epoch, (self._gatherer or self._assembler).assemble, ring, meter)
        else:
            stream = self._open_stream(0, epoch, keep_state=True)
            assemble = lambda number, _, reserve: stream.stage(number, reserve)  # noqa: E731
            batches = stage_inline(epoch, assemble, ring, meter, stream.close)
        if not workers.read_ahead:
            return InlineFetch(batches)
        bound = self._reading.iterable
        return ReadAhead(batches, ring, self.ahead, self.policy, bound=bound, eager=True)

    def _open_stream(self, worker: int, epoch: EpochRequest, *, keep_state: bool) -> ItemStream | ShareStream:
        reached = epoch.reached.get(worker) or ItemState(worker, 0)
        return self._reading.open_stream(self._assembler, reached, keep_state=keep_state)

    def _make_setup(self) -> WorkerSetup:
        workers, rank = self._workers, RankInfo.of(self._reading.division)
        return WorkerSetup(self._reading, workers.init, max(workers.count, workers.most), rank, self._near)

    def _open_threads(self, epoch: EpochRequest, window: Window) -> Fetch:
        count = self._workers.count
        shared = window, self._make_setup(), epoch, self._workers.timeout
        if epoch.numbered is not None:
            return ThreadWorkers(self._gatherer or self._assembler, count, *shared)
        # Threads share the dataset object, so its state is the position of one thread only if it is alone.
        streams = [self._open_stream(number, epoch, keep_state=count == 1) for number in range(count)]
        return ThreadStreams(streams, *shared)

    def _open_processes(self, epoch: EpochRequest, window: Window) -> Fetch:
        # Imported late, because these modules take as long to import as the rest of the package.
        from gpuloader.fetch.processes.workers import Pool, ProcessWorkers
        from gpuloader.system.processes import next_depth

        workers = self._workers
        pool = self._take_pool()
        if pool is not None:
            pool.resize(workers.count)
        else:
            setup = replace(self._make_setup(), depth=next_depth())
            depth = DEEPEST if workers.deepens else workers.prefetch_factor
            most = max(self.ahead, self.ahead_of(workers.most, depth))
            columns = max(self._reading.size or _COLUMNS, 1)
            pool = Pool(setup, self._start_method, most, columns, workers.count)
            self._sent = pool.setup.reading.dataset  # a list stays packed for the next epoch
            if pool.method == "fork":
                self._start_method = "fork"  # so that later pools do not try to pickle the dataset again
        keep = partial(self._keep, self._reading.division)
        return ProcessWorkers(pool, window, epoch, workers, keep)

    def _keep(self, division: Division | None, pool: Pool) -> None:
        """Take a pool back, and keep its workers if they are persistent."""
        if not pool.workers or not self._workers.persistent:
            return
        if division != self._reading.division:
            pool.close()
            return
        # Of two epochs at once, the workers of one persist.
        self._pools.append(pool)
        while len(self._pools) > 1:
            self._pools.popleft().close()

    def _take_pool(self) -> Pool | None:
        """Return the pool that an earlier epoch of this process kept, or None; any thread may call this."""
        try:
            pool = self._pools.pop()
        except IndexError:
            return None
        return pool if pool.workers and pool.process == os.getpid() else None

    def close(self) -> None:
        """Stop the persistent workers."""
        pool = self._take_pool()
        if pool is not None:
            pool.close()


def _name_readers(readers: int | None) -> str:
    return "one worker or none" if readers == 1 else f"{readers} workers"
