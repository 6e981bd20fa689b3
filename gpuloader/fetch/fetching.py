"""Fetching for a dataset's loader: what lasts across epochs, and how each epoch's fetch is opened."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.batches.gathering import Gatherer, tree_of
from gpuloader.batches.items import ItemState, ItemStream, Reading, ShareStream
from gpuloader.checks import AUTO, THREAD, check_count, check_flags, check_read_ahead, check_word
from gpuloader.errors import BadValue
from gpuloader.fetch.inline import Fetch, InlineFetch, stage_inline
from gpuloader.fetch.jobs import Window
from gpuloader.fetch.read_ahead import STRETCH, ReadAhead
from gpuloader.fetch.threads import PART_NBYTES, ThreadOptions, ThreadStreams, ThreadWorkers
from gpuloader.fields.spec import Indices
from gpuloader.order.plan import Division, RankInfo
from gpuloader.staging.ring import Ring
from gpuloader.system.cores import Cores
from gpuloader.system.interrupts import deferred_interrupt
from gpuloader.system.platforms import check_processes, usable_cores
from gpuloader.system.rereading import next_depth
from gpuloader.watch.autotuner import BUDGET, DEEPEST, Autotuner, Setting
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from gpuloader.watch.stats import Meter

if TYPE_CHECKING:
    from gpuloader.fetch.processes.pool import Pool


# The user's options for workers, checked before any worker starts.

METHODS = ("fork", "forkserver", "spawn")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The user's options for workers.

    Attributes
    ----------
    count : int
        The number of workers; with 0 the consumer's thread fetches.
    kind : str
        'process' or 'thread'.
    prefetch_factor : int
        Batches in progress for each worker.
    in_order : bool
        Deliver in the plan's order; otherwise as batches finish.
    timeout : float
        Seconds to wait for a batch; 0 means no limit.
    init : callable or None
        Called with the worker's number before its first sample.
    persistent : bool
        Keep processes from one epoch to the next.
    start_method : str or None
        How processes start; None chooses by the dataset.
    respawn : bool
        Replace processes that die.
    most : int
        The most workers that tuning may choose; 0 if the number is fixed.
    deepens : bool
        Whether tuning chooses how far workers read ahead.
    budget : int
        The most bytes that the slots may grow to while tuning.
    read_ahead : bool or str
        Whether to read ahead without workers; 'thread' to do so in a thread always.
    """

    count: int = 0
    kind: str = "process"
    prefetch_factor: int = 2
    in_order: bool = True
    timeout: float = 0.0
    init: Callable[[int], object] | None = None
    persistent: bool = False
    start_method: str | None = None
    respawn: bool = False
    most: int = 0
    deepens: bool = False
    budget: int = BUDGET
    read_ahead: bool | str = False

    @classmethod
    def of(
        cls,
        *,
        num_workers: int | str,
        worker_type: str,
        prefetch_factor: int | None,
        prefetch: int | str = 1,
        memory_budget: int | None = None,
        use_buffer_reader: bool | str = False,
        iterable: bool = False,
        in_order: bool,
        timeout: float,
        worker_init_fn: Callable[[int], object] | None,
        persistent_workers: bool,
        start_method: str | None,
        on_worker_death: str,
    ) -> WorkerOptions:
        """Return the options that a loader's parameters describe.

        Raises
        ------
        ValueError
            A number is out of range, a word is unknown, or two options contradict each other.
        TypeError
            ``worker_init_fn`` is not callable.

        >>> WorkerOptions.of(
        ...     num_workers=2, worker_type="thread", prefetch_factor=2, in_order=True, timeout=0,
        ...     worker_init_fn=None, persistent_workers=False, start_method=None, on_worker_death="raise",
        ... ).count
        2
        """
        check_flags(in_order=in_order, persistent_workers=persistent_workers)
        tuned, deepens = num_workers == AUTO, prefetch == AUTO
        if tuned and iterable:
            raise ValueError(
                "num_workers='auto' needs a map-style dataset, because the batches of an iterable dataset "
                "depend on how many workers read it; pass a number"
            )
        if tuned:
            num_workers = 1
        if isinstance(num_workers, bool) or not isinstance(num_workers, int | np.integer) or num_workers < 0:
            raise BadValue(f"num_workers must be 'auto' or an integer of 0 or more, got {num_workers!r}")
        if memory_budget is not None and not (tuned or deepens):
            raise ValueError(
                "memory_budget limits num_workers='auto' and prefetch='auto'; pass one of these, or leave "
                "memory_budget out"
            )
        check_word("worker_type", worker_type, ("process", "thread"))
        check_word("on_worker_death", on_worker_death, ("raise", "respawn"))
        if start_method is not None:
            check_word("start_method", start_method, METHODS)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
            raise BadValue(f"timeout must be a number of seconds of 0 or more, got {timeout!r}")
        check_worker_init(worker_init_fn)
        return cls(
            int(num_workers),
            worker_type,
            check_count("prefetch_factor", 2 if prefetch_factor is None else prefetch_factor),
            bool(in_order),
            float(timeout),
            worker_init_fn,
            bool(persistent_workers and num_workers),
            start_method,
            on_worker_death == "respawn",
            most_workers() if tuned else 0,
            deepens,
            BUDGET if memory_budget is None else check_count("memory_budget", memory_budget),
            check_read_ahead("use_buffer_reader", use_buffer_reader),
        )

    def as_options(self) -> dict[str, Any]:
        """Return the parameters of a `DataLoader` that fetches with the same workers.

        >>> WorkerOptions(2, "thread").as_options()["worker_type"]
        'thread'
        """
        return {
            "num_workers": AUTO if self.most else self.count,
            "timeout": self.timeout,
            "worker_init_fn": self.init,
            "worker_type": self.kind,
            "start_method": self.start_method,
            "on_worker_death": "respawn" if self.respawn else "raise",
        }


def check_worker_init(function: object) -> None:
    """Raise `TypeError` unless a ``worker_init_fn`` is callable or None.

    >>> check_worker_init(print)
    """
    if function is not None and not callable(function):
        raise TypeError(f"worker_init_fn must be callable, got {type(function).__name__}")


def most_workers() -> int:
    """Return the largest number of workers that ``num_workers='auto'`` may choose.

    It is more than the number of cores, because some workers wait for a disk.

    >>> 4 <= most_workers() <= 32
    True
    """
    return min(max(4 * usable_cores(), 4), 32)


_COLUMNS = 256  # indices per batch that fit on the board if the batch size is unknown


@dataclass(frozen=True, slots=True)
class Pass:
    """One epoch to fetch.

    Attributes
    ----------
    seed, epoch : int
        The loader's seed and epoch.
    numbered : iterator of (int, sequence) or None
        Each batch's number and indices; None for an iterable dataset.
    reached : mapping of int to ItemState
        For an iterable dataset, the state from which each worker resumes.
    start : int
        For an iterable dataset, the number of the first batch.
    turn : int
        For an iterable dataset, the worker that yields the first batch.
    owner : object
        The token of the loader that reads.
    """

    seed: int
    epoch: int
    numbered: Iterator[tuple[int, Indices]] | None
    reached: Mapping[int, ItemState]
    start: int = 0
    turn: int = 0
    owner: object = None


class Fetching:
    """Fetches a dataset's batches, epoch after epoch: inline, in threads or in processes.

    A dataset that consists of arrays runs no Python code per sample. Threads gather its large batches, even
    if the user asked for processes. The consumer gathers its small ones, because one vectorized take costs
    less than a message to a worker. A dataset whose samples lie in other columns, such as text, is read by
    threads too: in a process, each value would have to be pickled.

    Parameters
    ----------
    reading : Reading
        The dataset, and how its samples become batches.
    workers : WorkerOptions
        The workers that the user asked for.
    gatherer : Gatherer or None
        Gathers batches from the arrays of a cached dataset.
    near : set of int
        The processor cores on which workers run, if there are as many of them as workers; empty: any.

    Attributes
    ----------
    count : int
        The number of workers: what the user asked for, or 0 if workers would cost more than they gain.
    pace : Pace
        Decides whether reading ahead without workers takes a thread.
    in_processes : bool
        Whether the workers are processes.
    """

    def __init__(
        self,
        reading: Reading,
        workers: WorkerOptions,
        gatherer: Gatherer | None = None,
        near: Cores = frozenset(),
    ) -> None:
        self._reading = reading
        # More workers than cores would take turns there while cores elsewhere are idle.
        self._near = near if max(workers.count, workers.most) <= len(near) else frozenset()
        self._workers = workers
        self._gatherer = gatherer or self._make_gatherer()
        self._renew_assembler()
        self._pools: deque[Pool] = deque()
        self._start_method = workers.start_method
        self._sent: object = None
        self.pace = ReadAheadPolicy(fixed=workers.read_ahead == THREAD, bound=reading.iterable)
        self.count = self._useful_count()
        in_columns = self._gatherer is not None or self._assembler.reads_columns
        self.in_processes = self.count > 0 and workers.kind == "process" and not in_columns
        if self.in_processes:
            check_processes()
            self._prepare_server()

    def _prepare_server(self) -> None:
        """Start the fork server now, if it may be needed, so that it is ready for the first epoch."""
        if self._workers.start_method not in (None, "forkserver"):
            return
        from gpuloader.fetch.processes.fork_server import prepare_server

        reading = self._reading
        users = (type(reading.dataset), reading.collation.function, self._workers.init)
        prepare_server([name for user in users if (name := getattr(user, "__module__", None))])

    def _make_gatherer(self) -> Gatherer | None:
        collation = self._reading.collation
        plain = collation.gathers and collation.feeds is None
        source = self._reading.source.arrays if plain else None
        if source is None:
            return None
        return Gatherer(source.arrays, source.rows, collation, tree_of(source))

    def _renew_assembler(self) -> None:
        self._assembler = self._reading.make_assembler()
        self._process = os.getpid()

    def _useful_count(self) -> int:
        """Return the number of workers to use: what the user asked for, or 0 for small batches of arrays."""
        if self._gatherer is None:
            return self._workers.count
        pays = self._gatherer.layout(self._reading.size or 1).nbytes >= PART_NBYTES
        return self._workers.count if pays else 0

    def set_worker_init(self, function: Callable[[int], object] | None) -> None:
        """Make workers that start from now on call this function first."""
        self._workers = replace(self._workers, init=function)

    @property
    def budget(self) -> int:
        """The most bytes that the slots may grow to while tuning."""
        return self._workers.budget

    @property
    def reads(self) -> str:
        """The kind of data: 'arrays' that are gathered, 'items' of an iterable dataset, or 'samples'."""
        if self._gatherer is not None:
            return "arrays"
        return "items" if self._reading.iterable else "samples"

    @property
    def crew(self) -> int | None:
        """How many workers take turns at an iterable dataset.

        None for a map-style dataset, and for an iterable one that is divided among ranks: its batches do not
        depend on the number of workers.
        """
        if not self._reading.iterable or self._reading.division is not None:
            return None
        return max(self._workers.count, 1)

    @property
    def ahead(self) -> int:
        """The most batches that may be in progress with workers, or read ahead without them."""
        if not self.count:
            return self._workers.prefetch_factor if self._workers.read_ahead else 0
        return self.ahead_of(self.count, self._workers.prefetch_factor)

    @property
    def stretch(self) -> int:
        """Bytes within which the ring may have more slots than needed, to read short batches in bursts."""
        return 0 if self.count or not self._workers.read_ahead else STRETCH

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
        if division != self._reading.division:
            self._reading = replace(self._reading, division=division)
            self.close()

    def open(self, one: Pass, ring: Ring, meter: Meter) -> Fetch:
        """Start an epoch and return the fetch that fills the ring's slots."""
        if self._process != os.getpid():
            self._renew_assembler()  # the fork may have copied locks that a thread held
        if not self.count:
            return self._open_alone(one, ring, meter)
        numbered = one.numbered if one.numbered is not None else _without_indices(one.start)
        window = Window(numbered, ring, self.ahead, in_order=self._workers.in_order)
        start = self._open_processes if self.in_processes else self._open_threads
        fetch: Fetch | None = None
        try:
            with deferred_interrupt():  # else it could leave a worker behind that nobody knows yet
                fetch = start(one, window, meter)
        except BaseException:
            if fetch is not None:
                fetch.close()
            raise
        return fetch

    def check_crew(self, crew: int | None) -> None:
        """Raise `ValueError` unless a state of a loader with this `crew` can resume here.

        What an iterable dataset yields depends on the number of workers, so theirs must be the same.
        """
        if self._reading.iterable == (crew is None):
            kinds = ("a map-style dataset", "an iterable dataset")
            found, here = kinds if self._reading.iterable else kinds[::-1]
            raise ValueError(f"the state belongs to {found}, but this loader reads {here}")
        if crew is not None and crew != self.crew:
            raise ValueError(
                f"the state belongs to an iterable dataset read by {_name_crew(crew)}, but this loader reads "
                f"it with {_name_crew(self.crew)}, and the batches depend on that number; use the same "
                "num_workers to resume"
            )

    def _open_alone(self, one: Pass, ring: Ring, meter: Meter) -> Fetch:
        """Start an epoch without workers."""
        if one.numbered is not None:
            assemble = (self._gatherer or self._assembler).assemble
            batches = stage_inline(
                one.numbered, assemble, ring, meter, seed=one.seed, epoch=one.epoch, owner=one.owner
            )
        else:
            stream = self._stream(0, one, keep_state=True)
            batches = stage_inline(
                _without_indices(one.start),
                lambda number, _, reserve: stream.stage(number, reserve),
                ring,
                meter,
                seed=one.seed,
                epoch=one.epoch,
                close=stream.close,
                owner=one.owner,
            )
        if not self._workers.read_ahead:
            return InlineFetch(batches)
        return ReadAhead(batches, ring, self.ahead, self.pace, bound=self._reading.iterable, eager=True)

    def _stream(self, worker: int, one: Pass, *, keep_state: bool) -> ItemStream | ShareStream:
        reached = one.reached.get(worker) or ItemState(worker, 0)
        return self._reading.open_stream(self._assembler, reached, keep_state=keep_state)

    def _open_threads(self, one: Pass, window: Window, meter: Meter) -> Fetch:
        workers = self._workers
        crew = ThreadOptions(
            workers.count,
            workers.timeout,
            workers.init,
            one.seed,
            one.epoch,
            self._reading.dataset,
            RankInfo.of(self._reading.division),
            max(workers.count, workers.most),
            one.owner,
            self._near,
        )
        if one.numbered is not None:
            return ThreadWorkers(self._gatherer or self._assembler, window, crew, meter)
        # Threads share the dataset object, so its state is the position of one thread only if it is alone.
        alone = workers.count == 1
        streams = [self._stream(number, one, keep_state=alone) for number in range(workers.count)]
        return ThreadStreams(streams, window, crew, meter, one.turn)

    def _open_processes(self, one: Pass, window: Window, meter: Meter) -> Fetch:
        # Imported late, because these modules take as long to import as the rest of the package.
        from gpuloader.fetch.processes.pool import Pool, Terms
        from gpuloader.fetch.processes.setup import Setup
        from gpuloader.fetch.processes.starting import choose_start
        from gpuloader.fetch.processes.workers import ProcessWorkers

        workers, depth = self._workers, self._workers.prefetch_factor
        pool = self._take_pool()
        if pool is not None:
            pool.resize(workers.count)
        else:
            count = max(workers.count, workers.most)
            setup = Setup(
                self._reading,
                workers.init,
                count,
                RankInfo.of(self._reading.division),
                next_depth(),
                self._near,
            )
            start = choose_start(setup, self._start_method)
            self._sent = start.setup.reading.dataset  # a list stays packed for the next epoch
            if start.method == "fork":
                self._start_method = "fork"  # so that later pools do not try to pickle the dataset again
            most = max(self.ahead, self.ahead_of(workers.most, DEEPEST if workers.deepens else depth))
            pool = Pool(start, most, max(self._reading.size or _COLUMNS, 1), workers.count)
        reached = None if one.numbered is not None else one.reached
        terms = Terms(
            one.seed, one.epoch, workers.timeout, workers.respawn, workers.persistent, reached, one.turn
        )
        keep = partial(self._keep, self._reading.division)
        return ProcessWorkers(pool, window, terms, workers.count, meter, keep)

    def _keep(self, division: Division | None, pool: Pool) -> None:
        """Take a pool back, and keep its workers if they are persistent."""
        if not pool.workers or not self._workers.persistent:
            return
        if division != self._reading.division:
            pool.close()
            return
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


def _without_indices(start: int) -> Iterator[tuple[int, tuple[()]]]:
    """Yield the numbers of an iterable dataset's batches, without indices: they are not known ahead."""
    return zip(itertools.count(start), itertools.repeat(()))


def _name_crew(crew: int | None) -> str:
    return "one worker or none" if crew == 1 else f"{crew} workers"
