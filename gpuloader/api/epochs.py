"""The epochs of a loader: which is next, where the user is in it, and how one is opened."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

import numpy as np

from gpuloader.api.loading import LoadingPlan
from gpuloader.api.options import warn
from gpuloader.api.state import Position, end_epoch, find_spent
from gpuloader.batches.gathering import Gatherer, RowStager
from gpuloader.batches.items import ItemState, Reading
from gpuloader.batches.readers import ReadSoFar, stage_all
from gpuloader.batches.schema import Collation, build_batch
from gpuloader.batches.staged import StagedBatch
from gpuloader.epoch.cache import ArraySource, Resident
from gpuloader.epoch.delivery import Delivery, Masks, add_mask
from gpuloader.epoch.epoch import (
    DeliveredStep,
    Epoch,
    EpochBuffers,
    Iteration,
    KernelsAhead,
    Resizable,
    apply_setting,
    open_epoch,
    take_buffers,
)
from gpuloader.errors import SampleError
from gpuloader.fetch.contract import EpochRequest, Fetch, WorkerOptions
from gpuloader.fetch.fetching import Fetching
from gpuloader.fetch.read_ahead import InlineFetch, ReadAhead
from gpuloader.fields.convert import IF_IT_VARIES, describe_field
from gpuloader.order.batching import Batching, EpochSetter
from gpuloader.order.dividing import ALONE
from gpuloader.order.order import InOrder, Shuffled, Stretch, check_whole
from gpuloader.order.plan import DealtPlan, OrderedPlan, Plan, ShardedPlan
from gpuloader.order.samplers import BatchSampler
from gpuloader.sources.readers.decorators import Reader
from gpuloader.staging.ring import Ring
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.platforms import usable_cores
from gpuloader.system.threads import check_not_reading
from gpuloader.transforms.program import Spec, Transform
from gpuloader.transforms.programmer import Programmer
from gpuloader.watch.explaining import Configuration
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy
from gpuloader.watch.stats import Meter


class Epochs:
    """The epochs of one loader; a class for each kind of loader says how its epochs `start` and `open`.

    Any thread may begin an epoch. Epochs that several threads begin at the same time follow one another.

    ::

        start(n) or resume(state) -> Position -> open -> Iteration, whose steps move the Position -> state()
    """

    def __init__(self, meter: Meter, programmer: Programmer | None = None) -> None:
        self._meter = meter
        self._programmer = programmer
        # A thread that reads the source carries this token, and may not begin an epoch of the same loader.
        self._token = object()
        self._latest: Position | None = None
        self._resumed: Position | None = None
        self._next = 0
        # The epoch that `prepare` has opened, from which state, and in which process.
        self._prepared: tuple[Position, Iteration, Position | None, int] | None = None
        # Reentrant: opening an epoch runs the user's code, which may begin another one.
        self._beginning = threading.RLock()

    def deliver_to(self, delivery: Delivery) -> None:
        """Deliver the epochs that begin from now on to these places."""
        self.delivery = delivery
        self._prepared = None
        # A new deque: an epoch that still runs leaves its buffers, for the old places, in the old one.
        self._idle: deque[EpochBuffers] = deque(maxlen=1)
        self._kernels: KernelsAhead | None = None
        if self._programmer is not None and not delivery.on_host:
            self._kernels = KernelsAhead(delivery.devices)
            self._programmer.planned = self._kernels.begin

    def start(self, epoch: int) -> Position:
        """Return the position at the start of an epoch."""
        return Position(None, epoch)

    def open(self, position: Position, guard: Finalizer) -> Iteration:
        """Open an epoch at a position. The `guard`, older than all that reads, ends it if it is dropped."""
        raise NotImplementedError

    def open_reading(
        self,
        position: Position,
        guard: Finalizer,
        source: tuple[Reader, Callable[[Ring], Any], int],
        capacity: int,
        policy: ReadAheadPolicy | None,
        present: Callable[[Position, bool, DeliveredStep], Any],
        ended: Callable[[], None],
    ) -> Iteration:
        """Open an epoch that one thread reads, up to `capacity` batches ahead if there is a `policy`.

        The `source` is a reader, what makes the function that stages its items, and the items per batch;
        `present` also takes whether there is only one place.
        """
        reader, make_stager, items_a_batch = source
        # One pair: another thread may set another source, with other places, while this epoch opens.
        delivery, idle = self.delivery, self._idle
        delivery.refuse_another()
        buffers = take_buffers(idle, delivery, capacity, self._meter, programmer=self._programmer)
        reached = ReadSoFar(position.batches, items_a_batch, position.own)
        batches = stage_all(reader, make_stager(buffers.ring), reached, self._token)
        fetch: Fetch = InlineFetch(batches)
        if policy is not None:
            fetch = ReadAhead(batches, buffers.ring, capacity, policy, bound=True, eager=True)
        epoch = Epoch(
            buffers,
            fetch,
            partial(present, position, len(delivery.devices) == 1),
            idle,
            drop_last=delivery.drop_last,
            meter=self._meter,
            ended=ended,
            kernels=self._kernels,
        )
        return open_epoch(epoch, guard)

    def explain_reading(self, reads: str, places: int, policy: ReadAheadPolicy | None) -> Configuration:
        """Return the options that explain the times of a loop over what one thread reads."""
        threads = int(policy is not None and policy.threaded)
        return Configuration(reads, threads, "thread", usable_cores(), places, policy=policy)

    def check_ready(self) -> None:
        """Raise an error if the calling thread reads the loader's own source, or captures a CUDA graph.

        This is checked without the lock: a thread that reads for an epoch being opened would wait for itself.
        """
        check_not_reading(self._token)
        self.delivery.refuse_capture()

    def upcoming(self) -> Position:
        """Return where the next epoch begins."""
        return self._resumed or self.start(self._next)

    def begin(self) -> Iteration:
        """Open the next epoch, or the one to resume; if that fails, nothing has changed."""
        self.check_ready()
        with self._beginning:
            position, epoch = self._open_next()
            self._resumed, self._latest, self._next = None, position, position.epoch + 1
        return epoch

    def prepare(self) -> None:
        """Open the next epoch and take its first step to its places, for the next `begin`."""
        self.check_ready()
        with self._beginning:
            before = self._prepared
            position, epoch = self._open_next()
            if before is None or epoch is not before[1]:
                epoch.prepare()
            self._prepared = position, epoch, self._resumed, os.getpid()

    def _open_next(self) -> tuple[Position, Iteration]:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            position, epoch, resumed, process = prepared
            is_next = resumed is not None or position.epoch == self._next
            # A forked child must not read from its parent's epoch. A state loaded since then comes first.
            if is_next and resumed is self._resumed and process == os.getpid():
                return position, epoch
        position = self._resumed or self.start(self._next)
        return position, self.open(position, Finalizer())

    def forget_prepared(self) -> None:
        """Drop what `prepare` has opened."""
        self._prepared = None

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the next one, from its start unless it is the one to resume."""
        number = check_whole("epoch", epoch, 2**64)
        # Trainers load a state and then set its epoch, which must not lose the position in it.
        if self._resumed is None or self._resumed.epoch != number:
            self._resumed = None
        self._latest, self._next = None, number

    def resume(self, position: Position) -> None:
        """Resume there when an epoch next begins."""
        self._resumed = position

    def state(self) -> dict[str, Any]:
        """Return, as plain data, where a loader that resumes from here must begin."""
        position = self._resumed or self._latest
        if position is None or position.ended:
            position = self.start(self._next)
        return position.to_json()


class DatasetEpochs(Epochs):
    """The epochs of a `DataLoader`. Its plan never changes; rank, workers and cached arrays may."""

    def __init__(self, plan: LoadingPlan, meter: Meter) -> None:
        super().__init__(meter, plan.collation.programmer)
        self.plan = plan
        self.workers = plan.workers  # who fetches from the next epoch on
        self.seed = plan.batching.seed  # None until an epoch needs one
        self._has_drawn = False
        self.deliver_to(plan.delivery)
        self._masks = Masks(plan.delivery.locker)
        self._epoch_setter = None if plan.batching.given is None else EpochSetter(plan.batching)
        self._resident: Resident | None = None
        self._promised: Resident | None = None
        self._read_with(plan.collation, plan.workers, None)

    def _read_with(self, collation: Collation, workers: WorkerOptions, gatherer: Gatherer | None) -> None:
        plan = self.plan
        batching, shards = plan.batching, plan.delivery.shards
        reading = Reading(
            plan.source,
            collation,
            plan.size,
            # How the parts of a shorter batch divide is not known before its size.
            drop_last=batching.drop_last or (batching.iterable and shards > 1),
            division=None if batching.sharding is None else ALONE,  # until an epoch finds the rank
        )
        self._fetching = Fetching(reading, workers, gatherer, plan.delivery.near)
        self._tuner = self._fetching.autotuner(self.delivery.prefetch, self._meter)

    def open(self, position: Position, guard: Finalizer) -> Iteration:
        """Open an epoch at the user's position, for the rank that this process has now."""
        plan, fetching, tuner = self.plan, self._fetching, self._tuner
        self.delivery.refuse_another()
        # The rank is found now: a launcher may start the ranks after the loader was made, or change them.
        batching = plan.batching.settle()
        watch = _warn_if_undivided(batching)
        if plan.batching.sharding is not None:
            self._number_batches(position, batching)
        fetching.divide(batching.division)  # ends persistent workers that read for another rank
        if tuner is not None:  # where the search of earlier epochs has arrived
            fetching.begin_with(tuner.setting)
            self.delivery = replace(self.delivery, prefetch=tuner.setting.prefetch)
        if self._epoch_setter is not None:
            self._epoch_setter.begin(position.epoch)  # before anything asks the user's samplers for indices

        buffers = take_buffers(
            self._idle,
            self.delivery,
            fetching.ahead,
            self._meter,
            shared=fetching.in_processes,
            stretch=fetching.stretch,
            programmer=self._programmer,
        )
        # The pass is made before workers start, so that an error of the user's sampler leaves none behind.
        order, count_real, one = self._read_from(position, batching)
        if self._resident is not None:
            try:
                self._resident.begin(order, buffers.lanes)
            except BaseException:
                self._idle.append(buffers)  # nothing is in flight on them
                raise
        present: Present = partial(present_step, plan, position, count_real is not None)
        if watch is not None:
            present = watch(present)
        fetch = fetching.open(one, buffers.ring, self._meter)
        # With too few samples for a step, an epoch is empty although its source was not read before.
        drops = batching.drop_last or self.delivery.drop_last
        epoch = Epoch(
            buffers,
            fetch,
            present,
            self._idle,
            drop_last=self.delivery.drop_last,
            meter=self._meter,
            ended=partial(end_epoch, position, partial(find_spent, plan.source, batching, drops=drops)),
            tuner=tuner,
            # Only workers that fetch by index are tuned.
            apply=partial(apply_setting, buffers, cast("Resizable", fetch), fetching),
            masking=None if count_real is None else lambda staged: self._masks.get(*count_real(staged)),
            kernels=self._kernels,
        )
        return open_epoch(epoch, guard)

    def _number_batches(self, position: Position, batching: Batching) -> None:
        """Number the batches of an epoch that is about to begin, for the ranks that there are now."""
        taken = position.taken or 0
        batching.check_even(taken)
        steps, position.base = divmod(taken, batching.step)
        position.step, position.batches = batching.step, steps * position.shards

    def _read_from(
        self, position: Position, batching: Batching
    ) -> tuple[InOrder | Shuffled | None, Callable[[StagedBatch], tuple[int, int]] | None, EpochRequest]:
        """Return the order that cached batches follow, what counts a batch's real samples, and the pass.

        Samples are counted only where batches may end in repeated ones, and carry a mask.
        """
        assert position.seed is not None
        shards = self.delivery.shards
        if batching.iterable:
            reached, division = dict(position.workers), batching.division
            counts = False
            if division is not None:
                workers = range(max(self.workers.count, 1))
                reached = {number: ItemState(number, 0, base=position.base) for number in workers}
                # A step that would need a mask and has to be cut into shards is dropped.
                counts = division.pads(None, drop_last=batching.drop_last or shards > 1)
            one = EpochRequest(
                position.seed, position.epoch, None, reached, position.batches, position.turn, self._token
            )
            return None, attrgetter("state") if counts else None, one

        plan: Plan = batching.plan(position.seed, position.epoch, position.base)
        order = None if self._resident is None else self._resident.find_order(plan)
        if order is not None and isinstance(plan, OrderedPlan):
            plan = replace(plan, order=InOrder(len(order)))  # positions in the order, which the devices hold
        is_part = batching.division is not None
        pads = self.delivery.pads or (is_part and isinstance(plan, OrderedPlan | DealtPlan) and plan.pads)
        if shards > 1:
            plan = ShardedPlan(plan, shards, self.delivery.uneven)
        count_real = None
        if pads and isinstance(plan, ShardedPlan | OrderedPlan | DealtPlan):
            count_real = partial(_take_own, plan)
        # A copy: the position's own set shrinks while the fetch, which is ahead of the user, reads this one.
        start, beyond = position.batches, set(position.beyond)
        batches: Iterator[Any] = plan.batches(start)
        if order is not None:
            batches = (Stretch.of(order, positions) for positions in batches)
        numbered: Iterator[tuple[int, Any]] = enumerate(batches, start)
        if beyond:
            numbered = (entry for entry in numbered if entry[0] not in beyond)
        one = EpochRequest(position.seed, position.epoch, numbered, {}, owner=self._token)
        return order, count_real, one

    # Positions: where an epoch starts, and where one resumes that another loader may have begun.

    def draw_seed(self) -> int:
        """Return the loader's seed; draw it first if none was given.

        Ranks that divide an order cannot each draw one, so theirs is 0.
        """
        # Drawn late, at the first epoch, as PyTorch does: `manual_seed` after making a loader still counts.
        if self.seed is None or self._has_drawn:
            ranks = (self.plan.batching.settle().division or ALONE).world_size
            if self.seed is None or ranks > 1:  # there may have been one rank when it was drawn
                self.seed, self._has_drawn = 0 if ranks > 1 else int(self.plan.draw_seed()), True
        return self.seed

    def start(self, epoch: int, taken: int = 0) -> Position:
        """Return the position in an epoch of which all ranks together have taken so many samples.

        The batches of a loader that is divided among ranks are numbered when its epoch is opened.
        """
        seed = self.draw_seed()
        plan, batching = self.plan, self.plan.batching
        position = Position(
            seed,
            epoch,
            readers=self._fetching.readers,
            size=plan.size,
            shards=plan.delivery.shards,
            order_size=batching.order_size,
        )
        if batching.sharding is not None:
            position.step, position.base = 1, taken
        else:
            steps, base = divmod(taken, batching.step)
            position.batches = steps * plan.delivery.shards
            if base:
                position.step, position.base = batching.step, base
        if position.step is not None:
            position.total, position.dealt = self._count_all(), batching.is_dealt
        return position

    def resume_at(self, position: Position) -> None:
        """Resume at a loader's state: at its batch, or at its sample if batches differ.

        A `ValueError` refuses a state that does not tell how many samples were delivered, or that comes from
        another number of workers on which the order depends, or from another dataset.
        """
        plan, batching = self.plan, self.plan.batching
        if position.order_size != batching.order_size:
            raise ValueError(
                f"the state is a position in {_name_order(position.order_size)}, but this loader reads "
                f"{_name_order(batching.order_size)}; resume with the same batch sampler and batch size"
            )
        is_sharded, shards = batching.sharding is not None, plan.delivery.shards
        same = (position.size, position.shards) == (plan.size, shards)
        if not is_sharded and position.step is None and same:
            self._fetching.check_readers(position.readers)
            with suppress(TypeError):  # the number of batches is unknown
                _check_end("batches", position.batches, batching.count() * shards)
            self.seed, self._has_drawn = position.seed, False
            self.resume(position)
            return

        if batching.is_dealt:
            taken = position.batches if position.step is None and position.readers is None and same else None
        elif batching.iterable:
            # Without a step it may come from a map-style dataset.
            taken = position.taken if is_sharded and position.step is not None else None
        else:
            taken = position.taken if is_sharded or batching.counts_samples else None
        if taken is None or (position.beyond and (is_sharded or not same)):
            raise ValueError(
                f"the state counts {position.describe()}; this loader has batches of {plan.size} samples per "
                f"place, {shards} per step, and cannot tell where in its epoch that is"
            )
        total = self._count_all()
        if total is not None:
            if position.step is None and not batching.is_dealt:  # its last batch may have been shorter
                taken = min(taken, total) if taken < total + (position.size or 1) else taken
            _check_end("batches" if batching.is_dealt else "samples", taken, total)
        try:
            settled = batching.settle()
        except ValueError:
            pass  # the epoch finds the rank when it begins, or raises this again
        else:
            settled.check_even(taken)
        self.seed, self._has_drawn = position.seed, False
        resumed = self.start(position.epoch, taken)
        # Here the numbers count from the position: another loader numbered its batches in another way.
        resumed.beyond = {number + resumed.batches for number in position.beyond}
        self.resume(resumed)

    def _count_all(self) -> int | None:
        """Return the samples per epoch over all ranks, or the batches if those are dealt; None if unknown."""
        batching = self.plan.batching
        try:
            return batching.count() if batching.is_dealt else batching.count_samples()
        except TypeError:
            return None

    # Lengths, and the batches of an epoch without reading any.

    def count_steps(self) -> int:
        """Return the number of steps in an epoch, for the ranks that there are now; raises `TypeError`."""
        # Asked anew each time: ranks may come later than the loader, and a dataset may grow.
        batching, delivery = self.plan.batching.settle(), self.delivery
        if delivery.shards > 1 and not batching.iterable:
            return batching.count(delivery.shards if delivery.uneven == "drop" else 1)
        batches, places = self.count_batches(), len(delivery.devices)
        if delivery.shards > 1:
            return batches
        return batches // places if delivery.drop_last else -(-batches // places)

    def count_batches(self) -> int:
        """Return the number of batches that `list_batches` yields for a whole epoch."""
        batching = self.plan.batching.settle()
        if not batching.iterable:
            return batching.count()
        # The dataset's length is not checked against what the workers yield, as in PyTorch.
        samples = self.plan.source.count_items()
        drop_last = batching.drop_last or self.delivery.shards > 1
        return (batching.division or ALONE).count(samples, batching.size or 1, drop_last=drop_last)

    def list_batches(self) -> Iterator[list[Any]]:
        """Yield the indices of each batch of an epoch that would begin now, over all places of this rank."""
        position, batching = self.upcoming(), self.plan.batching.settle()
        if self.plan.batching.sharding is not None:
            self._number_batches(position, batching)
        assert position.seed is not None
        plan = batching.plan(position.seed, position.epoch, position.base)
        for indices in plan.batches(position.batches // position.shards):
            yield indices.tolist() if isinstance(indices, np.ndarray) else list(indices)

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank, and the number of ranks that share an epoch; (0, 1) if it is not divided."""
        division = self.plan.batching.settle().division or ALONE
        return division.rank, division.world_size

    # A cache: later epochs take their batches from arrays.

    def promise_cache(self, specs: Sequence[Spec]) -> None:
        """Reserve device memory for arrays that are yet to be read; raises the errors of `cache_as`."""
        # Reading may take hours, so memory that is too small has to show now.
        self._promised = None
        if not self.delivery.has_host:
            there = Resident(self.delivery.devices, self._transforms)
            there.reserve(specs)
            self._promised = there

    @property
    def _transforms(self) -> tuple[Transform, ...]:
        return () if self._programmer is None else self._programmer.transforms

    def cache_as(self, source: ArraySource, *, resident: bool) -> None:
        """Take all later batches from arrays: on the host, or on the devices if `resident` is set."""
        collation, workers = self.plan.collation, self.workers
        if not resident or self.delivery.has_host:
            gatherer = Gatherer(source.arrays, source.rows, collation, source.tree)
        else:
            source = source.compact()
            there = self._promised or Resident(self.delivery.devices, self._transforms)
            self._promised = None
            Gatherer(source.arrays, None, collation, source.tree).check_all()
            there.bring(source)
            self._resident = there
            native = self._programmer is not None and self._programmer.native
            programmer = Programmer(self._transforms, source.gathers(), native=native)
            collation = replace(collation, programmer=programmer)
            # Workers and slots carry only the numbers of rows, 16 bytes a batch.
            outline = source.outline()  # holds one row of each array, so that the host's can be freed
            gatherer = RowStager(outline.arrays, None, collation, outline.tree)
            workers = replace(workers, count=0)  # too little is left to stage to be worth a worker
        self._read_with(collation, workers, gatherer)

    # What the loader's attributes tell and change.

    def set_worker_init(self, function: Callable[[int], object] | None) -> None:
        """Make workers that start from now on call this function first."""
        self.workers = replace(self.workers, init=function)
        self._fetching.set_worker_init(function)

    @property
    def configuration(self) -> Configuration:
        """The options that explain a loop's times."""
        fetching, workers, tuner = self._fetching, self.workers, self._tuner
        return Configuration(
            fetching.reads,
            fetching.count if tuner is None else tuner.setting.workers,
            workers.kind,
            usable_cores(),
            len(self.delivery.devices),
            persistent=workers.persistent,
            tuned="" if tuner is None else tuner.describe(),
            most=0 if tuner is None else tuner.most_workers,
            since=None if tuner is None else tuner.settled_at,
            policy=fetching.policy if fetching.ahead and not fetching.count else None,
        )

    def close(self) -> None:
        """End persistent worker processes."""
        self._fetching.close()


def _take_own(plan: ShardedPlan | OrderedPlan | DealtPlan, staged: StagedBatch) -> tuple[int, int]:
    return plan.take_own(staged.number)


def _name_order(size: int | None) -> str:
    return "an order for any batch size" if size is None else f"an order for batches of {size} samples"


def _check_end(what: str, reached: int, total: int) -> None:
    if reached > total:
        raise ValueError(
            f"the state is {reached} {what} into an epoch and this dataset has {total}: it comes from "
            "another dataset or sampler"
        )


# A loader's own samplers, as its attributes show them: the loader decides their epoch.


class UpcomingBatches(BatchSampler):
    """The indices of the batches that a loader's next epoch will deliver on this rank.

    So a loader of PyTorch over this batch sampler, as Accelerate and Hugging Face's Trainer make one to skip
    batches, reads what the loader itself would read. Iterating begins no epoch of the loader.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(10), places="cpu", batch_size=2, shard=(1, 2), uneven="repeat")
    >>> list(loader.batch_sampler), len(loader.batch_sampler)
    ([[2, 3], [6, 7], [9]], 3)
    """

    _plain: type[BatchSampler] = BatchSampler
    """The class of a copy, which is not a loader's."""

    def __init__(
        self, sampler: Iterable[Any], epochs: DatasetEpochs, batch_size: int, drop_last: bool
    ) -> None:
        super().__init__(sampler=sampler, batch_size=batch_size, drop_last=drop_last)
        self._epochs = epochs

    def __iter__(self) -> Iterator[list[int]]:
        return self._epochs.list_batches()

    def __len__(self) -> int:
        return self._epochs.count_batches()

    @property
    def num_replicas(self) -> int:
        """The number of ranks that the batches are divided among."""
        return self._epochs.ranks[1]

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._epochs.ranks[0]

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the loader's next one."""
        self._epochs.set_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._plain, (None, self.sampler, False, self.batch_size, self.drop_last)


class EpochOf:
    """The ``set_epoch`` of a loader's own sampler. It does not keep the loader alive; a copy does nothing.

    A cycle through the sampler would keep the loader's page-locked slots until garbage is collected.
    """

    def __init__(self, epochs: DatasetEpochs | None = None) -> None:
        self._epochs = None if epochs is None else weakref.ref(epochs)

    def __call__(self, epoch: int) -> None:
        """Set the loader's epoch."""
        epochs = None if self._epochs is None else self._epochs()
        if epochs is not None:
            epochs.set_epoch(epoch)

    def __reduce__(self) -> tuple[type[EpochOf], tuple[()]]:
        return EpochOf, ()


# What the user sees of a delivered step.

Present = Callable[[DeliveredStep], Any]


def present_step(plan: LoadingPlan, position: Position, masked: bool, step: DeliveredStep) -> Any:
    """Return a step, counted as received: the batch of the only place, or a list with one entry per place.

    If it is `masked`, the last array of each place is the batch's mask.
    """
    # Each part takes its schema from its own first sample. Kept samples are collated, which compares them.
    if plan.delivery.shards > 1 and not plan.collation.keeps:
        _check_alike([staged for staged, _ in step])
    batches: list[Any] = []
    for staged, arrays in step:
        position.received(staged)
        assert staged.tree is not None
        mask = arrays.pop() if masked else None
        batch = build_batch(staged.tree, staged.levels, arrays, staged.objects)
        if plan.names is not None:
            batch = dict(zip(plan.names, batch, strict=True))
        batches.append(add_mask(batch, mask) if masked else batch)
    return batches[0] if plan.names is None and len(plan.delivery.devices) == 1 else batches


def _check_alike(parts: Sequence[StagedBatch]) -> None:
    """Raise `SampleError` unless the parts of a batch have the same fields, shapes and dtypes."""
    first, *others = parts
    assert first.tree is not None
    for part in others:
        assert part.tree is not None
        if part.layout is first.layout:  # equal batches share one, so this is nearly always all
            continue
        field, expected, got = None, first.tree.describe(), part.tree.describe()
        if part.tree == first.tree:
            names = first.tree.array_names
            for name, one, other in zip(names, first.layout.fields, part.layout.fields, strict=True):
                if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
                    field = name
                    expected, got = (describe_field(each.shape[1:], each.dtype) for each in (one, other))
                    break
            else:
                continue
        raise SampleError(
            f"expected {expected} as in the first part of the batch that split='shards' has cut, got {got}; "
            f"{IF_IT_VARIES}",
            batch=part.number,
            field=field,
        )


# The warning that every rank of a distributed run reads the whole dataset, which nobody has asked for.

_has_warned = False

_SAMPLES = "pass shard='auto' to read this rank's part of each step"
_ITEMS = (
    "pass shard='auto', or make the dataset divide its items by the rank and world_size of get_worker_info()"
)


def _warn_if_undivided(batching: Batching) -> Callable[[Present], Present] | None:
    """Warn once per process if each of several ranks reads everything, and nobody has said that it should.

    An iterable dataset may divide its items itself. Whether it asks for its rank is known once it has yielded
    a batch, so for it this returns a function, to be applied to the one that presents the steps.
    """
    # Once, not per loader: programs make one for training and one for evaluation, and the advice is the same.
    if _has_warned or batching.is_divided or batching.reads_all:
        return None
    try:
        ranks = batching.find()
    except ValueError:
        return None  # a loader that does not need the rank does not mind
    if ranks[1] == 1:
        return None
    if batching.iterable:
        return partial(_present_and_warn, ranks, batching.obstacle or _ITEMS)
    # The loop calls Iteration.__next__, _open, DataLoader._begin, Epochs.begin, _open_next and open.
    _warn_of_ranks(ranks, batching.obstacle or _SAMPLES, 6)
    return None


def _present_and_warn(ranks: tuple[int, int], advice: str, present: Present) -> Present:
    is_first = True

    def present_first(step: DeliveredStep) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            states = [staged.state for staged, _ in step]
            if not any(isinstance(state, ItemState) and state.asked for state in states):
                # The loop calls Iteration.__next__ and Epoch.__next__.
                _warn_of_ranks(ranks, advice, 2)
        return present(step)

    return present_first


def _warn_of_ranks(ranks: tuple[int, int], advice: str, depth: int) -> None:
    global _has_warned
    if _has_warned:
        return
    _has_warned = True
    warn(
        f"this process is rank {ranks[0]} of {ranks[1]}, and the loader reads all samples on every rank: "
        f"{advice}; if every rank is meant to read everything, pass shard=(0, 1)",
        UserWarning,
        depth + 1,
    )
