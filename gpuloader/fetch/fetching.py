"""How a loader's batches are fetched: what stays the same from epoch to epoch, and what opens one."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuloader.base.platforms import check_processes
from gpuloader.collate.assembly import Assembler
from gpuloader.collate.form import Collation
from gpuloader.collate.gather import Gatherer
from gpuloader.collate.items import ItemAssembler, ItemState, ItemStream
from gpuloader.collate.shares import ShareStream, open_stream
from gpuloader.fetch.base import Fetch
from gpuloader.fetch.inline import InlineFetch, stage_inline
from gpuloader.fetch.jobs import Window
from gpuloader.fetch.threads.crew import Crew
from gpuloader.fetch.threads.workers import PART_NBYTES, ThreadStreams, ThreadWorkers
from gpuloader.fetch.worker_options import WorkerOptions
from gpuloader.fields.spec import Indices
from gpuloader.order.division import Division, Standing
from gpuloader.sources.dataset import array_source
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter
from gpuloader.watch.tuning import DEEPEST, Climb, Setting

if TYPE_CHECKING:
    from gpuloader.fetch.processes.pool import Pool

_COLUMNS = 256  # indices a batch for which the board has room where the batch size is not known


@dataclass(frozen=True, slots=True)
class Pass:
    """One epoch to be fetched.

    Attributes
    ----------
    seed, epoch : int
        Of the loader.
    numbered : iterator or None
        Number and indices of each batch; None for an iterable data set.
    reached : mapping
        Of an iterable data set: worker to where it goes on.
    start : int
        Number of the first batch of an iterable data set.
    turn : int
        Which worker gives that one.
    """

    seed: int
    epoch: int
    numbered: Iterator[tuple[int, Indices]] | None
    reached: Mapping[int, ItemState]
    start: int = 0
    turn: int = 0


class Fetching:
    """Fetches a data set's batches, epoch after epoch: inline, in threads or in processes.

    A data set that is nothing but arrays has no Python code to be run beside the user's: large batches of it
    are taken by threads even where processes were asked for, and small ones by the consumer itself, since
    one vectorised take costs less than a message to whoever might do it instead.

    Parameters
    ----------
    dataset : object
        With indices, or iterable.
    collation : Collation
        How samples become a batch.
    workers : WorkerOptions
        Who fetches.
    items_a_batch : int or None
        For an iterable data set its batch size; None for one with indices.
    batch_size : int or None
        Samples a batch, where that is known.
    drop_last : bool
        For an iterable data set: whether a last shorter batch is left out.
    gatherer : Gatherer or None
        Takes batches from arrays, for a data set that was cached.
    division : Division or None
        Which rank's part of each step is fetched.

    Attributes
    ----------
    count : int
        Workers that fetch; fewer than were asked for where more make no sense.
    in_processes : bool
        Whether they are processes.
    """

    def __init__(
        self,
        dataset: Any,
        collation: Collation,
        workers: WorkerOptions,
        *,
        items_a_batch: int | None,
        batch_size: int | None,
        drop_last: bool,
        gatherer: Gatherer | None = None,
        division: Division | None = None,
    ) -> None:
        self._dataset = dataset
        self._division = division
        self._collation = collation
        self._workers = workers
        self._items_a_batch = items_a_batch
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._gatherer = gatherer or self._make_gatherer()
        self._renew_assembler()
        self._pools: deque[Pool] = deque()
        self._start_method = workers.start_method
        self.count = self._useful_count()
        self.in_processes = self.count > 0 and workers.kind == "process" and self._gatherer is None
        if self.in_processes:
            check_processes()

    def _make_gatherer(self) -> Gatherer | None:
        collation = self._collation
        source = array_source(self._dataset) if collation.fixed and collation.feeds is None else None
        return None if source is None else Gatherer(*source, collation)

    def _renew_assembler(self) -> None:
        kind = Assembler if self._items_a_batch is None else ItemAssembler
        self._assembler = kind(self._dataset, self._collation)
        self._process = os.getpid()

    def _useful_count(self) -> int:
        """Return how many workers of those asked for make sense."""
        if self._gatherer is None:
            return self._workers.count
        pays = self._gatherer.layout(self._batch_size or 1).nbytes >= PART_NBYTES
        return self._workers.count if pays else 0

    @property
    def budget(self) -> int:
        """Bytes that tuning may let the slots come to."""
        return self._workers.budget

    @property
    def reads(self) -> str:
        """What is read: 'arrays' taken whole, 'items' of an iterable data set, or 'samples'."""
        if self._gatherer is not None:
            return "arrays"
        return "samples" if self._items_a_batch is None else "items"

    @property
    def crew(self) -> int | None:
        """How many streams of an iterable data set are read in turn; None for a data set with indices."""
        if self._items_a_batch is None or self._division is not None:
            return None
        return max(self._workers.count, 1)

    @property
    def ahead(self) -> int:
        """Batches that may be under way with workers."""
        return self.ahead_of(self.count, self._workers.prefetch_factor)

    def ahead_of(self, count: int, depth: int) -> int:
        """Return how many batches may be under way with `count` workers, each so deep."""
        by_thread = not self.in_processes and self._items_a_batch is None
        if by_thread and count and self._batch_size:
            # A batch keeps as many threads busy as it has samples.
            return depth * -(-count // min(count, self._batch_size))
        return depth * count

    def climb(self, prefetch: int) -> Climb | None:
        """Return the search for what is to be tuned, beginning here; None if nothing is."""
        workers = self._workers
        if not self.count or self._items_a_batch is not None or not (workers.most or workers.deepens):
            return None
        begin = Setting(self.count, workers.prefetch_factor, prefetch)
        return Climb(begin, workers.most or self.count, workers.deepens)

    def begin_with(self, setting: Setting) -> None:
        """Begin later epochs with a setting that was found."""
        self._workers = replace(self._workers, count=setting.workers, prefetch_factor=setting.depth)
        self.count = setting.workers

    def open(self, one: Pass, ring: Ring, meter: Meter) -> Fetch:
        """Begin an epoch: return who fills the ring's slots."""
        form = self._assembler.form
        if form is None or self._process != os.getpid():
            # An earlier epoch may have given up on the first sample; in another process locks may be held.
            self._renew_assembler()
            if form is not None:
                self._assembler.adopt(form)
        if not self.count:
            return self._open_inline(one, ring, meter)
        numbered = one.numbered if one.numbered is not None else _without_indices(one.start)
        window = Window(numbered, ring, self.ahead, in_order=self._workers.in_order)
        if self.in_processes:
            return self._open_processes(one, window, meter)
        return self._open_threads(one, window, meter)

    def check_crew(self, crew: int | None) -> None:
        """Raise `ValueError` where an iterable data set was read by other workers than there are here."""
        if (self._items_a_batch is None) != (crew is None):
            kinds = ("an iterable data set", "one with indices")
            found, here = kinds if self._items_a_batch is None else kinds[::-1]
            raise ValueError(f"the state is of {found}, this loader reads {here}")
        if crew is not None and crew != self.crew:
            raise ValueError(
                f"the state is of an iterable data set that {_name_crew(crew)} read, and "
                f"{_name_crew(self.crew)} would go on: what it gives depends on how many there are"
            )

    def _open_inline(self, one: Pass, ring: Ring, meter: Meter) -> Fetch:
        if one.numbered is not None:
            assemble = (self._gatherer or self._assembler).assemble
            return InlineFetch(
                stage_inline(one.numbered, assemble, ring, meter, seed=one.seed, epoch=one.epoch)
            )
        stream = self._stream(0, one, keep_state=True)
        return InlineFetch(
            stage_inline(
                _without_indices(one.start),
                lambda number, _, reserve: stream.stage(number, reserve),
                ring,
                meter,
                seed=one.seed,
                epoch=one.epoch,
                close=stream.close,
            )
        )

    def _stream(self, worker: int, one: Pass, *, keep_state: bool) -> ItemStream | ShareStream:
        assert isinstance(self._assembler, ItemAssembler)
        assert self._items_a_batch is not None
        return open_stream(
            self._assembler,
            self._items_a_batch,
            self._division,
            drop_last=self._drop_last,
            reached=one.reached.get(worker) or ItemState(worker, 0),
            keep_state=keep_state,
        )

    def _open_threads(self, one: Pass, window: Window, meter: Meter) -> Fetch:
        workers = self._workers
        crew = Crew(
            workers.count,
            workers.timeout,
            workers.init,
            one.seed,
            one.epoch,
            self._dataset,
            Standing.of(self._division),
            max(workers.count, workers.most),
        )
        if one.numbered is not None:
            return ThreadWorkers(self._gatherer or self._assembler, window, crew, meter)
        # A state that all threads share says nothing of any one of them.
        alone = workers.count == 1
        streams = [self._stream(number, one, keep_state=alone) for number in range(workers.count)]
        return ThreadStreams(self._assembler, streams, window, crew, meter, one.turn)

    def _open_processes(self, one: Pass, window: Window, meter: Meter) -> Fetch:
        # Only now: what is about processes takes as long to import as the rest of the package.
        from gpuloader.fetch.processes.pool import Pool, Terms
        from gpuloader.fetch.processes.setup import Setup
        from gpuloader.fetch.processes.starting import choose_start
        from gpuloader.fetch.processes.workers import ProcessWorkers

        workers, depth = self._workers, self._workers.prefetch_factor
        pool = self._take_pool()
        if pool is not None:
            pool.resize(workers.count)
        else:
            setup = Setup(
                self._dataset,
                self._collation,
                self._items_a_batch,
                self._drop_last,
                workers.init,
                max(workers.count, workers.most),
                self._division,
                Standing.of(self._division),
            )
            start = choose_start(setup, self._start_method)
            if start.method == "fork":
                self._start_method = "fork"  # what cannot be sent, or is better not, is tried once
            most = max(self.ahead, self.ahead_of(workers.most, DEEPEST if workers.deepens else depth))
            pool = Pool(start, most, max(self._batch_size or _COLUMNS, 1), workers.count)
            if self._assembler.form is not None:
                pool.form, pool.is_settled = self._assembler.form, True
        reached = None if one.numbered is not None else one.reached
        terms = Terms(
            one.seed, one.epoch, workers.timeout, workers.respawn, workers.persistent, reached, one.turn
        )
        return ProcessWorkers(pool, window, terms, meter, self._keep)

    def _keep(self, pool: Pool) -> None:
        """Take a pool back: its workers, if they stay, and the form they settled in any case."""
        if pool.form is not None:
            self._assembler.adopt(pool.form)
        if not pool.workers or not self._workers.persistent:
            return
        self._pools.append(pool)
        while len(self._pools) > 1:
            self._pools.popleft().close()

    def _take_pool(self) -> Pool | None:
        """Return the workers that stayed, if they are this process's; epochs of several threads may ask."""
        try:
            pool = self._pools.pop()
        except IndexError:
            return None
        return pool if pool.workers and pool.process == os.getpid() else None

    def close(self) -> None:
        """End the workers that stay between epochs."""
        pool = self._take_pool()
        if pool is not None:
            pool.close()


def _without_indices(start: int) -> Iterator[tuple[int, tuple[()]]]:
    """Yield the numbers of an iterable data set's batches, of which only who reads them knows more."""
    return zip(itertools.count(start), itertools.repeat(()))


def _name_crew(crew: int | None) -> str:
    return "one worker, or the consumer," if crew == 1 else f"{crew} workers"
