"""What happens inside a `DataLoader`: the fetch, the buffers and the cache of its epochs."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

import numpy as np

from gpuloader.api.state import Progress, end_epoch, find_spent
from gpuloader.batches.gathering import Gatherer, RowStager
from gpuloader.batches.items import ItemState, Reading
from gpuloader.batches.schema import Collation, build_batch
from gpuloader.batches.staged import StagedBatch
from gpuloader.epoch.cache import ArraySource, Resident
from gpuloader.epoch.delivery import Delivery
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
from gpuloader.epoch.split import Masks, add_mask
from gpuloader.errors import SampleError
from gpuloader.fetch.contract import EpochRequest, WorkerOptions, check_worker_init
from gpuloader.fetch.fetching import Fetching
from gpuloader.fields.convert import IF_IT_VARIES, describe_field
from gpuloader.fields.spec import FeedSpec
from gpuloader.order.batching import Batching, EpochSetter
from gpuloader.order.dividing import ALONE
from gpuloader.order.order import InOrder, Shuffled, Stretch
from gpuloader.order.plan import DealtPlan, OrderedPlan, Plan, ShardedPlan
from gpuloader.sources.describing import Source
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.platforms import usable_cores
from gpuloader.system.threads import check_not_reading
from gpuloader.transforms.program import Spec, Transform
from gpuloader.transforms.programmer import Programmer
from gpuloader.watch.explaining import Configuration
from gpuloader.watch.stats import Meter

# The warning that every rank of a distributed run reads the whole dataset, which nobody has asked for.

Present = Callable[[DeliveredStep], Any]

_warned = False

_SAMPLES = "pass shard='auto' to read this rank's part of each step"
_ITEMS = (
    "pass shard='auto', or make the dataset divide its items by the rank and world_size of get_worker_info()"
)


def watch(batching: Batching) -> Callable[[Present], Present]:
    """Warn once per process if each of several ranks reads everything, and nobody has said that it should.

    An iterable dataset may divide its items itself. Whether it asks for its rank is known once it has yielded
    a batch. So this returns a function, through which the loader passes the one that presents its steps.
    """
    if _warned or batching.is_divided or batching.reads_all:
        return _keep
    try:
        ranks = batching.find()
    except ValueError:
        return _keep  # a loader that does not need the rank does not mind
    if ranks[1] == 1:
        return _keep
    if batching.iterable:
        return partial(_look_at_first, ranks, batching.obstacle or _ITEMS)
    _warn(ranks, batching.obstacle or _SAMPLES)
    return _keep


def _keep(present: Present) -> Present:
    return present


def _look_at_first(ranks: tuple[int, int], advice: str, present: Present) -> Present:
    asked: bool | None = None

    def look_and_present(step: DeliveredStep) -> Any:
        nonlocal asked
        if asked is None:
            asked = any(isinstance(staged.state, ItemState) and staged.state.asked for staged, _ in step)
            if not asked:
                _warn(ranks, advice)
        return present(step)

    return look_and_present


def _warn(ranks: tuple[int, int], advice: str) -> None:
    global _warned
    if _warned:
        return
    _warned = True
    rank, world_size = ranks
    warnings.warn(
        f"this process is rank {rank} of {world_size}, and the loader reads all samples on every rank: "
        f"{advice}; if every rank is meant to read everything, pass shard=(0, 1)",
        UserWarning,
        stacklevel=_count_own_frames() + 1,
    )


def _count_own_frames() -> int:
    """Return how many frames of this package lie between the caller and the user's code."""
    package = __name__.partition(".")[0] + "."
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame, count = frame.f_back, count + 1
    return count - 1


# The last stage of a dataset's loader: turn a delivered step into what the user sees.


@dataclass(frozen=True, slots=True)
class Presenter:
    """Turns a delivered step into what the user sees, and counts it as received.

    Attributes
    ----------
    delivery : Delivery
        Where batches land.
    feeds : sequence of FeedSpec or None
        The fields whose names are the keys of each dict; None returns batches in the form of a sample.
    alike : bool
        Whether the batches of a step are parts of one batch whose samples must all have one form.
    """

    delivery: Delivery
    feeds: Sequence[FeedSpec] | None
    alike: bool = False

    def present(self, progress: Progress, masked: bool, step: DeliveredStep) -> Any:
        """Return a step: the batch of the only place, or a list with one entry per place.

        If it is `masked`, the last array of each place is the batch's mask.

        Raises
        ------
        SampleError
            The parts of a batch differ in form.
        """
        if self.alike:
            _check_alike([staged for staged, _ in step])
        batches: list[Any] = []
        for staged, arrays in step:
            progress.received(staged)
            assert staged.tree is not None
            mask = arrays.pop() if masked else None
            batch = build_batch(staged.tree, staged.levels, arrays, staged.objects)
            if self.feeds is not None:
                batch = {feed.name: field for feed, field in zip(self.feeds, batch, strict=True)}
            if masked:
                batch = add_mask(batch, mask)
            batches.append(batch)
        return batches[0] if self.feeds is None and len(self.delivery.devices) == 1 else batches


def _check_alike(parts: Sequence[StagedBatch]) -> None:
    """Raise `SampleError` unless the parts of a batch have the same fields, shapes and dtypes."""
    first, *others = parts
    assert first.tree is not None
    for part in others:
        assert part.tree is not None
        if part.layout is first.layout:
            continue
        if part.tree != first.tree:
            raise _unlike(part, first.tree.describe(), part.tree.describe())
        names = first.tree.array_names
        for name, one, other in zip(names, first.layout.fields, part.layout.fields, strict=True):
            if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
                expected, got = (describe_field(each.shape[1:], each.dtype) for each in (one, other))
                raise _unlike(part, expected, got, name)


def _unlike(part: StagedBatch, expected: str, got: str, field: str | None = None) -> SampleError:
    return SampleError(
        f"expected {expected} as in the first part of the batch that split='shards' has cut, got {got}; "
        f"{IF_IT_VARIES}",
        batch=part.number,
        field=field,
    )


# Where in its epoch a `DataLoader` begins or resumes, counted in samples or in batches.


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions in the epochs of one loader.

    Attributes
    ----------
    batching : Batching
        Which samples make up a batch.
    size : int or None
        Samples per batch on one place; None if a batch sampler determines it.
    shards : int
        The number of parts that each batch is cut into.
    """

    batching: Batching
    size: int | None
    shards: int

    def fresh(self, seed: int, epoch: int, crew: int | None, position: int = 0) -> Progress:
        """Return the progress of an epoch in which all ranks together have taken `position` samples.

        For a loader that is divided among ranks, `place` has to follow once the ranks are known.
        """
        batching = self.batching
        step = 1 if batching.sharding is not None else batching.step
        steps, base = divmod(position, step) if batching.sharding is None else (0, position)
        progress = Progress(
            seed,
            epoch,
            steps * self.shards,
            crew=crew,
            size=self.size,
            shards=self.shards,
            order_size=batching.order_size,
        )
        if batching.sharding is not None or base:
            progress.step, progress.base, progress.total = step, base, self._count()
            progress.dealt = batching.is_dealt
        return progress

    def place(self, progress: Progress, settled: Batching) -> None:
        """Number the batches of an epoch that is about to begin, for the ranks that there are now."""
        if self.batching.sharding is None:
            return
        position = progress.position or 0
        settled.check_even(position)
        steps, progress.base = divmod(position, settled.step)
        progress.step, progress.batches = settled.step, steps * self.shards

    def adopt(self, progress: Progress, fetching: Fetching) -> Progress:
        """Return where to resume from a loader's state: at its batch, or at its sample if batches differ.

        Raises
        ------
        ValueError
            This loader cannot resume there: the state does not tell how many samples were delivered, it comes
            from another number of workers and the order depends on it, or it comes from another dataset.
        """
        batching = self.batching
        if progress.order_size != batching.order_size:
            raise ValueError(
                f"the state is a position in {_name_order(progress.order_size)}, but this loader reads "
                f"{_name_order(batching.order_size)}; resume with the same batch sampler and batch size"
            )
        is_sharded = batching.sharding is not None
        same = (progress.size, progress.shards) == (self.size, self.shards)
        if not is_sharded and progress.step is None and same:
            fetching.check_crew(progress.crew)
            with suppress(TypeError):  # the number of batches is unknown
                _check_end("batches", progress.batches, batching.count() * self.shards)
            return progress
        if batching.is_dealt:
            position = progress.batches if progress.step is None and progress.crew is None and same else None
        elif batching.iterable:
            # Without a step it may come from a map-style dataset.
            position = progress.position if is_sharded and progress.step is not None else None
        else:
            position = progress.position if is_sharded or batching.counts_samples else None
        if position is None or (progress.beyond and (is_sharded or not same)):
            raise ValueError(
                f"the state counts {progress.describe()}; this loader has batches of {self.size} samples per "
                f"place, {self.shards} per step, and cannot tell where in its epoch that is"
            )
        assert progress.seed is not None
        total = self._count()
        if total is not None:
            if progress.step is None and not batching.is_dealt:  # its last batch may have been shorter
                position = min(position, total) if position < total + (progress.size or 1) else position
            _check_end("batches" if batching.is_dealt else "samples", position, total)
        self._check_even(position)
        adopted = self.fresh(progress.seed, progress.epoch, fetching.crew, position)
        adopted.beyond = {number + adopted.batches for number in progress.beyond}
        return adopted

    def _check_even(self, position: int) -> None:
        try:
            settled = self.batching.settle()
        except ValueError:
            return  # the epoch finds the rank when it begins, or raises this again
        settled.check_even(position)

    def _count(self) -> int | None:
        """Return the samples per epoch over all ranks, or the batches if those are dealt; None if unknown."""
        try:
            return self.batching.count() if self.batching.is_dealt else self.batching.count_samples()
        except TypeError:
            return None


def _name_order(size: int | None) -> str:
    return "an order for any batch size" if size is None else f"an order for batches of {size} samples"


def _check_end(what: str, reached: int, total: int) -> None:
    if reached > total:
        raise ValueError(
            f"the state is {reached} {what} into an epoch and this dataset has {total}: it comes from "
            "another dataset or sampler"
        )


Counting = Callable[[StagedBatch], tuple[int, int]]
"""Returns how many samples of a batch count, and how many it has."""


class Loading:
    """Opens the epochs of one loader, whose options have been checked.

    Parameters
    ----------
    source : Source
        The dataset to read.
    batching : Batching
        Which samples make up a batch.
    collation : Collation
        How samples become a batch.
    workers : WorkerOptions
        Which workers fetch.
    delivery : Delivery
        Where batches land.
    presenter : Presenter
        Turns a delivered step into what the user sees.
    meter : Meter
        Measures where the time goes.
    draw : callable
        Returns a seed; called at the first epoch if the batching has none.

    Attributes
    ----------
    size : int or None
        Samples per batch on one place; None if a batch sampler determines it.
    workers : WorkerOptions
        The workers that were passed.
    seed : int or None
        The seed of the order; None until it is drawn.
    places : tuple of Place
        Where batches land.
    devices : list of str
        The names of the places' devices.
    """

    def __init__(
        self,
        source: Source,
        batching: Batching,
        collation: Collation,
        workers: WorkerOptions,
        delivery: Delivery,
        presenter: Presenter,
        meter: Meter,
        draw: Callable[[], int],
    ) -> None:
        self.workers = workers
        self.seed = batching.seed
        self._has_drawn = False
        self._token = object()
        self.places = delivery.places
        self.devices = [device.name for device in delivery.devices]
        self.size = None if batching.size is None else -(-batching.size // delivery.shards)
        self._source = source
        self._batching = batching
        self._collation = collation
        self._delivery = delivery
        self._shards = delivery.shards
        self._positions = Positions(batching, self.size, delivery.shards)
        self._presenter = presenter
        self._meter = meter
        self._draw = draw
        self._programmer = collation.programmer
        self._kernels = None if delivery.on_host else KernelsAhead(delivery.devices)
        if self._programmer is not None and self._kernels is not None:
            self._programmer.planned = self._kernels.begin
        self._resident: Resident | None = None
        self._promised: Resident | None = None
        self._fetching = self._make_fetching(collation, workers, None)
        self._tuner = self._fetching.autotuner(delivery.prefetch, meter)
        self._idle: deque[EpochBuffers] = deque(maxlen=1)
        self._epochs = None if batching.given is None else EpochSetter(batching)
        self._masks = Masks(delivery.locker)

    def _make_fetching(
        self, collation: Collation, workers: WorkerOptions, gatherer: Gatherer | None
    ) -> Fetching:
        batching = self._batching
        reading = Reading(
            self._source,
            collation,
            self.size,
            drop_last=batching.drop_last or (batching.iterable and self._shards > 1),
            division=None if batching.sharding is None else ALONE,  # until an epoch finds the rank
        )
        return Fetching(reading, workers, gatherer, self._delivery.near)

    def set_worker_init(self, function: Callable[[int], object] | None) -> None:
        """Make workers that start from now on call this function first; raise `TypeError` if they cannot."""
        check_worker_init(function)
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
            len(self._delivery.devices),
            persistent=workers.persistent,
            tuned="" if tuner is None else tuner.describe(),
            most=0 if tuner is None else tuner.most_workers,
            since=None if tuner is None else tuner.settled_at,
            policy=fetching.policy if fetching.ahead and not fetching.count else None,
        )

    def draw_seed(self) -> int:
        """Return the loader's seed; draw it first if none was given.

        Ranks that divide an order cannot each draw one, so theirs is 0.
        """
        if self.seed is None or self._has_drawn:
            ranks = (self._batching.settle().division or ALONE).world_size
            if self.seed is None or ranks > 1:  # there may have been one rank when it was drawn
                self.seed, self._has_drawn = 0 if ranks > 1 else self._draw(), True
        return self.seed

    def start_epoch(self, epoch: int) -> Progress:
        """Return the progress at the start of an epoch."""
        return self._positions.fresh(self.draw_seed(), epoch, self._fetching.crew)

    def adopt(self, progress: Progress) -> Progress:
        """Return where to resume from a loader's state; raises like `Positions.adopt`."""
        adopted = self._positions.adopt(progress, self._fetching)
        self.seed, self._has_drawn = adopted.seed, False
        return adopted

    def count_steps(self) -> int:
        """Return the number of steps in an epoch, for the ranks that there are now.

        Raises
        ------
        TypeError
            The number is unknown.
        """
        batching = self._batching.settle()
        if self._shards > 1 and not batching.iterable:
            return batching.count(self._shards if self._delivery.remainder == "drop" else 1)
        batches, places = self._count_batches(batching), len(self._delivery.devices)
        if self._shards > 1:
            return batches
        return batches // places if self._delivery.drop_last else -(-batches // places)

    def list_batches(self, progress: Progress) -> Iterator[list[Any]]:
        """Yield the indices of each batch of an epoch that would begin now, over all places of this rank."""
        batching = self._batching.settle()
        self._positions.place(progress, batching)
        assert progress.seed is not None
        plan = batching.plan(progress.seed, progress.epoch, progress.base)
        for indices in plan.batches(progress.batches // self._shards):
            yield indices.tolist() if isinstance(indices, np.ndarray) else list(indices)

    def count_batches(self) -> int:
        """Return the number of batches that `list_batches` yields for a whole epoch."""
        return self._count_batches(self._batching.settle())

    def find_ranks(self) -> tuple[int, int]:
        """Return the rank, and the number of ranks that share an epoch; (0, 1) if it is not divided."""
        division = self._batching.settle().division or ALONE
        return division.rank, division.world_size

    def _count_batches(self, batching: Batching) -> int:
        if not batching.iterable:
            return batching.count()
        samples = self._source.count_items()  # not checked against what the workers yield, as in PyTorch
        drop_last = batching.drop_last or self._shards > 1
        return (batching.division or ALONE).count(samples, batching.size or 1, drop_last=drop_last)

    def promise_cache(self, specs: Sequence[Spec]) -> None:
        """Reserve device memory for arrays that are yet to be read; raises the errors of `cache_as`."""
        self._promised = None
        if not self._delivery.has_host:
            there = Resident(self._delivery.devices, self._transforms)
            there.reserve(specs)
            self._promised = there

    @property
    def _transforms(self) -> tuple[Transform, ...]:
        programmer = self._collation.programmer
        return () if programmer is None else programmer.transforms

    def cache_as(self, source: ArraySource, *, resident: bool) -> None:
        """Take all later batches from arrays: on the host, or on the devices if `resident` is set.

        Raises
        ------
        StagingMemoryError
            A device has too little memory.
        """
        collation, workers = self._collation, self.workers
        if not resident or self._delivery.has_host:
            gatherer = Gatherer(source.arrays, source.rows, collation, source.tree)
        else:
            source = source.compact()
            transforms = self._transforms
            there, self._promised = self._promised or Resident(self._delivery.devices, transforms), None
            Gatherer(source.arrays, None, collation, source.tree).check_all()
            there.bring(source)
            self._resident = there
            native = collation.programmer is not None and collation.programmer.native
            programmer = Programmer(transforms, source.gathers(), native=native)
            collation = replace(collation, programmer=programmer)
            outline = source.outline()  # holds one row of each array, so that the host's can be freed
            gatherer = RowStager(outline.arrays, None, collation, outline.tree)
            workers = replace(workers, count=0)  # too little is left to stage to be worth a worker
        self._fetching = self._make_fetching(collation, workers, gatherer)
        self._tuner = self._fetching.autotuner(self._delivery.prefetch, self._meter)

    def refuse_capture(self) -> None:
        """Raise `LoaderError` if the calling thread captures a graph, so that no epoch can begin."""
        self._delivery.refuse_capture()

    def begin(self, progress: Progress) -> Iteration:
        """Open an epoch at the user's position, for the rank that this process has now.

        Raises
        ------
        ValueError
            The environment of the ranks is inconsistent, or the samples do not divide evenly among them.
        Misuse
            An epoch is running that delivers in the same memory.
        """
        check_not_reading(self._token)
        self._delivery.refuse_another()
        guard = Finalizer()
        batching = self._batching.settle()
        watched = watch(batching)
        self._positions.place(progress, batching)
        self._fetching.divide(batching.division)
        tuner = self._tuner
        if tuner is not None:
            self._fetching.begin_with(tuner.setting)
            self._delivery = replace(self._delivery, prefetch=tuner.setting.prefetch)
        if self._epochs is not None:
            self._epochs.begin(progress.epoch)
        buffers = take_buffers(
            self._idle,
            self._delivery,
            self._fetching.ahead,
            self._meter,
            shared=self._fetching.in_processes,
            stretch=self._fetching.stretch,
            programmer=self._programmer,
        )
        order, own, one = self._plan(progress, batching)
        if self._resident is not None:
            try:
                self._resident.begin(order, buffers.lanes)
            except BaseException:
                self._idle.append(buffers)  # nothing is in flight there
                raise
        fetch = self._fetching.open(one, buffers.ring, self._meter)
        drops = batching.drop_last or self._delivery.drop_last
        resizable = cast("Resizable", fetch)  # only workers that fetch by index are tuned
        epoch = Epoch(
            buffers,
            fetch,
            watched(partial(self._presenter.present, progress, own is not None)),
            self._idle,
            drop_last=self._delivery.drop_last,
            meter=self._meter,
            ended=partial(end_epoch, progress, partial(find_spent, self._source, batching, drops=drops)),
            tuner=tuner,
            apply=partial(apply_setting, buffers, resizable, self._fetching),
            masking=None if own is None else lambda staged: self._masks.get(*own(staged)),
            kernels=self._kernels,
        )
        return open_epoch(epoch, guard)

    def _plan(
        self, progress: Progress, batching: Batching
    ) -> tuple[InOrder | Shuffled | None, Counting | None, EpochRequest]:
        """Return the order that cached batches follow, what counts real samples, and the pass."""
        assert progress.seed is not None
        start, beyond = progress.batches, set(progress.beyond)
        if batching.iterable:
            return None, *self._plan_items(progress, batching)
        plan: Plan = batching.plan(progress.seed, progress.epoch, progress.base)
        order = None if self._resident is None else self._resident.find_order(plan)
        if order is not None and isinstance(plan, OrderedPlan):
            plan = replace(plan, order=InOrder(len(order)))  # positions in the order, which the devices hold
        is_part = batching.division is not None
        pads = is_part and isinstance(plan, OrderedPlan | DealtPlan) and plan.pads
        if self._shards > 1:
            plan = ShardedPlan(plan, self._shards, self._delivery.remainder)
        batches: Iterator[Any] = plan.batches(start)
        if order is not None:
            batches = (Stretch.of(order, positions) for positions in batches)
        numbered: Iterator[tuple[int, Any]] = enumerate(batches, start)
        if beyond:
            numbered = (entry for entry in numbered if entry[0] not in beyond)
        own: Counting | None = None
        if isinstance(plan, ShardedPlan | OrderedPlan | DealtPlan) and (pads or self._delivery.pads):
            take = plan.take_own
            own = lambda staged: take(staged.number)  # noqa: E731
        return order, own, EpochRequest(progress.seed, progress.epoch, numbered, {}, owner=self._token)

    def _plan_items(self, progress: Progress, batching: Batching) -> tuple[Counting | None, EpochRequest]:
        assert progress.seed is not None
        reached, own, division = dict(progress.workers), None, batching.division
        if division is not None:
            workers = range(max(self.workers.count, 1))
            reached = {number: ItemState(number, 0, base=progress.base) for number in workers}
            # A step that would need a mask and has to be cut into shards is dropped.
            if division.pads(None, drop_last=batching.drop_last or self._shards > 1):
                own = attrgetter("state")
        return own, EpochRequest(
            progress.seed, progress.epoch, None, reached, progress.batches, progress.turn, self._token
        )

    def close(self) -> None:
        """End persistent worker processes."""
        self._fetching.close()
