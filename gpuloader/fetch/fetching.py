"""Fetches for a dataset's loader: what lasts across epochs, and how each epoch's fetch is opened."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuloader.batches.assembly import Assembler
from gpuloader.batches.gathering import Gatherer, tree_of
from gpuloader.batches.items import BatchSpec, ItemState, Pass, copy_state
from gpuloader.batches.staged import Reserve, StagedBatch
from gpuloader.checks import THREAD
from gpuloader.fetch.contract import PART_NBYTES, EpochRequest, Fetch, WorkerOptions, WorkerSetup
from gpuloader.fetch.read_ahead import STRETCH, open_fetch, stage_inline
from gpuloader.fields.spec import Indices
from gpuloader.order.dividing import Division
from gpuloader.order.worker_info import find_rank
from gpuloader.sources.array_rows import held_by
from gpuloader.staging import Ring
from gpuloader.system.cores import Cores
from gpuloader.system.platforms import check_processes
from gpuloader.watch.meter import Meter
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy

if TYPE_CHECKING:
    from gpuloader.fetch.jobs import Window
    from gpuloader.fetch.processes.fork_server import ForkServer
    from gpuloader.fetch.processes.workers import Pool
    from gpuloader.watch.autotuner import Autotuner


class Fetching:
    """Fetches a dataset's batches, epoch after epoch: inline, in threads or in processes.

    `count` is the number of workers that the user asked for, or 0 if workers would cost more than they gain.
    Workers run on the cores in `near` if there are at least as many of these cores as workers.
    """

    def __init__(
        self,
        spec: BatchSpec,
        workers: WorkerOptions,
        gatherer: Gatherer | None,
        meter: Meter,
        prefetch: int,
        near: Cores,
    ) -> None:
        self._spec = spec
        self._workers = workers
        self._meter = meter
        iterable = spec.source.iterable
        # More workers than near cores would take turns there while other cores are idle.
        self._near = near if max(workers.count, workers.most) <= len(near) else frozenset()
        self._held: list[Any] | None = None  # the objects that the gatherer's arrays were taken from
        if gatherer is None:
            gatherer = self._make_gatherer()
            self._held = None if gatherer is None else held_by(spec.source.dataset)
        # A dataset that consists of arrays runs no Python code per sample. Threads gather its large batches,
        # even if the user asked for processes.
        self._gatherer = gatherer
        # The kind of data: 'arrays' that are gathered, 'items' of an iterable dataset, or 'samples'.
        self.reads = "arrays" if gatherer is not None else "items" if iterable else "samples"
        # How many workers take turns at an iterable dataset; None if the batches do not depend on that. If
        # ranks divide the dataset, each worker reads everything and takes its own part.
        self.readers = max(workers.count, 1) if iterable and spec.division is None else None
        self._assembler = spec.make_assembler()
        self._process = os.getpid()
        self._pools: deque[Pool] = deque()
        self._server: ForkServer | None = None  # for all epochs of the loader
        self._sent: object = None
        self.started = ""  # a sentence about how worker processes were started, once they were
        self.budget = workers.budget  # bytes that the slots may grow to while tuning
        self.count = workers.count
        # The consumer gathers small batches: one vectorized take costs less than a message to a worker.
        if gatherer is not None and gatherer.layout(spec.size or 1).nbytes < PART_NBYTES:
            self.count = 0
        # Chooses how batches are read ahead without workers; None if they are not.
        self.policy: ReadAheadPolicy | None = None
        if workers.read_ahead and not self.count:
            self.policy = ReadAheadPolicy(fixed=workers.read_ahead == THREAD, bound=iterable)
        # Bytes within which the ring may have extra slots, in order to read short batches in bursts.
        self.stretch = 0 if self.policy is None else STRETCH
        # Threads also read samples in other columns, such as text: for a process, each value would have to be
        # pickled.
        takes_blocks = self._assembler.take_block is not None and not spec.source.decodes
        in_columns = gatherer is not None or takes_blocks
        self.in_processes = self.count > 0 and workers.kind == "process" and not in_columns
        if self.in_processes:
            check_processes()
        self.tuner: Autotuner | None = None  # searches for the options left 'auto'
        if self.count and not iterable and (workers.most or workers.deepens):
            from gpuloader.watch.autotuner import Autotuner, Setting  # late: few loaders have such options

            begin = Setting(self.count, workers.prefetch_factor, prefetch)
            self.tuner = Autotuner(begin, workers.most or self.count, meter, deepens=workers.deepens)

    def _make_gatherer(self) -> Gatherer | None:
        collation = self._spec.collation
        plain = collation.fixed and collation.images is None and collation.feeds is None
        source = self._spec.source.arrays if plain else None
        # Where PyTorch has workers, they make batches in C order, as gathering does.
        fallback = None if self._workers.count else collation.fallback
        if source is None or (fallback and any(fallback.is_for(one[0]) for one in source.arrays if len(one))):
            return None
        return Gatherer(source.arrays, source.rows, collation, tree_of(source))

    def set_worker_init(self, function: Callable[[int], object] | None) -> None:
        """Make workers that start from now on call this function first."""
        self._workers = replace(self._workers, init=function)

    def check_readers(self, readers: int | None) -> None:
        """Raise `ValueError` unless a state of a loader with `readers` readers can resume here."""
        if self._spec.source.iterable == (readers is None):
            kinds = ("a map-style dataset", "an iterable dataset")
            found, here = kinds if self._spec.source.iterable else kinds[::-1]
            raise ValueError(f"the state belongs to {found}, but this loader reads {here}")
        if readers is not None and readers != self.readers:
            raise ValueError(
                f"the state belongs to an iterable dataset read by {_name_readers(readers)}, but this loader "
                f"reads it with {_name_readers(self.readers)}, and the batches depend on that number; use "
                "the same num_workers to resume"
            )

    @property
    def copies(self) -> int | None:
        """How many workers each read a copy of a map-style dataset with a state; 0: this process reads.

        None if there is no such state, or if several workers change a shared one.
        """
        source = self._spec.source
        if source.iterable or self._gatherer is not None or not source.keeps_state:
            return None
        return self.count if self._takes_turns or not self.count else None

    @property
    def reads_alone(self) -> bool:
        """Whether each worker has a dataset of its own, and so a position; several threads share one."""
        return self.in_processes or self.count <= 1

    @property
    def _takes_turns(self) -> bool:
        """Whether a fixed number of worker processes can fetch the batches of an epoch in turn."""
        workers = self._workers
        return self.in_processes and workers.in_order and not workers.most

    @property
    def ahead(self) -> int:
        """The most batches that may be in progress with workers, or read ahead without them."""
        if not self.count:
            return self._workers.prefetch_factor if self._workers.read_ahead else 0
        return self.ahead_of(self.count, self._workers.prefetch_factor)

    def ahead_of(self, count: int, depth: int) -> int:
        """Return the most batches in progress for `count` workers that hold `depth` batches each."""
        size = self._spec.size
        if size and count and not self.in_processes and not self._spec.source.iterable:
            # Threads share a batch, which can occupy at most as many threads as it has samples.
            return depth * -(-count // min(count, size))
        return depth * count

    def settle(self, division: Division | None) -> None:
        """Read this rank's part from the next epoch on, with the setting that tuning has found by now."""
        if division != self._spec.division:  # persistent workers have the division of their pool
            self._spec = self._spec._replace(division=division)
            self.close()
        if self.tuner is not None:
            self.count, depth, _ = self.tuner.setting
            self._workers = replace(self._workers, count=self.count, prefetch_factor=depth)

    def open(self, epoch: EpochRequest, ring: Ring) -> Fetch:
        """Start an epoch and return the fetch that fills the ring's slots.

        If that starts a worker or a thread, the caller defers interrupts.
        """
        if self._process != os.getpid():
            # The fork may have copied locks of the assembler that a thread held.
            self._assembler = self._spec.make_assembler()
            self._process = os.getpid()
        if self._held is not None:
            # A program may replace tensors or indices between epochs: gather from what the dataset holds now.
            source = self._spec.source
            held = held_by(source.dataset)
            if len(held) != len(self._held) or not all(map(operator.is_, held, self._held)):
                vars(source).pop("arrays", None)
                self._held, self._gatherer = held, self._make_gatherer()
        workers, meter = self._workers, self._meter
        if self.count:
            turns: deque[int] | None = None
            # The readers determine the items of an iterable dataset, and with PyTorch's seeds what is drawn.
            if epoch.reached is not None or (epoch.follows_torch and self._takes_turns):
                turns = deque(range(workers.count))
                turns.rotate(-epoch.turn)
            from gpuloader.fetch.jobs import Window  # late: the default has no workers

            window = Window(epoch.numbered, ring, self.ahead, meter, in_order=workers.in_order, turns=turns)
            start = self._open_processes if self.in_processes else self._open_threads
            return start(epoch, window)
        if epoch.reached is None:
            builder = self._gatherer or self._assembler
            assemble = builder.assemble
            if epoch.own is not None:
                assemble = partial(_assemble_and_keep, builder, self._spec.source.dataset)
            batches = stage_inline(epoch, assemble, ring, meter)
        else:
            stream = self._open_stream(0, epoch, keep_state=True)
            stage = lambda number, _, reserve: stream.stage(number, reserve)  # noqa: E731
            batches = stage_inline(epoch, stage, ring, meter, stream.close)
        return open_fetch(batches, ring, self.ahead, self.policy)

    def _open_stream(self, worker: int, epoch: EpochRequest, *, keep_state: bool) -> Pass:
        reached = (epoch.reached or {}).get(worker) or ItemState(worker, 0)
        return self._spec.open_stream(self._assembler, reached, keep_state=keep_state)

    def _make_setup(self) -> WorkerSetup:
        workers, division = self._workers, self._spec.division
        ranks = None if division is None else (division.rank, division.world_size)
        if ranks is None:
            with suppress(ValueError):  # the environment is inconsistent, and whoever asks is told
                ranks = find_rank()
        return WorkerSetup(self._spec, workers.init, max(workers.count, workers.most), ranks, self._near)

    def _open_threads(self, epoch: EpochRequest, window: Window) -> Fetch:
        from gpuloader.fetch.worker_threads import ThreadWorkers  # imported late, like those of processes

        count = self._workers.count
        streams: list[Pass] = []
        # Threads share the dataset object, so its state is a thread's position only if there is one thread.
        if epoch.reached is not None:
            streams = [self._open_stream(number, epoch, keep_state=count == 1) for number in range(count)]
        assembler, timeout = self._gatherer or self._assembler, self._workers.timeout
        return ThreadWorkers(window, self._make_setup(), epoch, timeout, assembler, count, streams)

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
            pool = Pool(setup, workers.start_method, workers.count, self._server)
            self._server = pool.server
            self._sent = pool.setup.spec.source.dataset  # a list stays packed for the next epoch
            self.started = pool.why
        return ProcessWorkers(pool, window, epoch, workers, partial(self._keep, self._spec.division))

    def _keep(self, division: Division | None, pool: Pool) -> None:
        """Take a pool back, and keep its workers if they are persistent."""
        if not pool.workers:
            return
        if division != self._spec.division or not self._workers.persistent:
            pool.close()
            return
        # If two epochs run at the same time, the workers of one persist.
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

    def retire(self) -> None:
        """Stop the persistent workers, even those of a running epoch once it ends."""
        self._workers = replace(self._workers, persistent=False)
        self.close()

    def close(self) -> None:
        """Stop the persistent workers."""
        pool = self._take_pool()
        if pool is not None:
            pool.close()


def _assemble_and_keep(
    builder: Assembler | Gatherer, dataset: Any, number: int, indices: Indices, reserve: Reserve
) -> StagedBatch:
    """Assemble a batch and keep the dataset's own state after it."""
    staged = builder.assemble(number, indices, reserve)
    staged.state = ItemState(0, 0, copy_state(dataset.state_dict()))
    return staged


def _name_readers(readers: int | None) -> str:
    return "one worker or none" if readers == 1 else f"{readers} workers"
