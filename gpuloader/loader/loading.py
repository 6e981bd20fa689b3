"""What happens inside a `DataLoader`: the fetch, the road and the cache of its epochs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

import numpy as np

from gpuloader.base.finalizers import Finalizer
from gpuloader.base.nesting import check_not_reading
from gpuloader.base.platforms import usable_cores
from gpuloader.collate.form import Collation
from gpuloader.collate.gather import Gatherer, RowStager
from gpuloader.collate.items import ItemState
from gpuloader.collate.reading import Reading
from gpuloader.collate.stream import StagedBatch
from gpuloader.fetch.fetching import Fetching, Pass
from gpuloader.fetch.worker_options import WorkerOptions, check_worker_init
from gpuloader.loader.positions import Positions
from gpuloader.loader.presenting import Presenter
from gpuloader.loader.spent import end_epoch, find_spent
from gpuloader.loader.state import Progress
from gpuloader.loader.undivided import watch
from gpuloader.order.batching import Batching
from gpuloader.order.division import ALONE
from gpuloader.order.epochs import EpochSetter
from gpuloader.order.order import InOrder, Shuffled
from gpuloader.order.plan import DealtPlan, DividedPlan, OrderedPlan, Plan
from gpuloader.order.stretch import Stretch
from gpuloader.pipeline.cache import ArraySource, Resident
from gpuloader.pipeline.closing import Road, take_road
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.epoch import Epoch, build_road
from gpuloader.pipeline.kernels_ahead import KernelsAhead
from gpuloader.pipeline.masks import Masks
from gpuloader.pipeline.split import ShardedPlan
from gpuloader.pipeline.steering import Resizable, Steering
from gpuloader.sources.dataset_base import count_items
from gpuloader.transforms.operations import Spec
from gpuloader.transforms.program import Transform
from gpuloader.transforms.programmer import Programmer
from gpuloader.watch.advising import Configuration
from gpuloader.watch.stats import Meter

Counting = Callable[[StagedBatch], tuple[int, int]]
"""Returns how many samples of a batch count, and how many it has."""


class Loading:
    """Opens the epochs of one loader, whose options have been checked.

    Parameters
    ----------
    dataset : object
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
        dataset: Any,
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
        self._dataset = dataset
        self._batching = batching
        self._collation = collation
        self._delivery = delivery
        self._shards = delivery.shards
        self._positions = Positions(batching, self.size, delivery.shards)
        self._presenter = presenter
        self._meter = meter
        self._draw = draw
        self._programmer = collation.programmer
        self._kernels = KernelsAhead(delivery.devices)
        if self._programmer is not None and not delivery.on_host:
            self._programmer.planned = self._kernels.begin
        self._resident: Resident | None = None
        self._promised: Resident | None = None
        self._fetching = self._make_fetching(collation, workers, None)
        self._climb = self._fetching.climb(delivery.prefetch)
        self._idle: deque[Road] = deque(maxlen=1)
        self._epochs = EpochSetter(batching)
        self._masks = Masks(delivery.locker)

    def _make_fetching(
        self, collation: Collation, workers: WorkerOptions, gatherer: Gatherer | None
    ) -> Fetching:
        batching = self._batching
        reading = Reading(
            self._dataset,
            collation,
            self.size,
            iterable=batching.iterable,
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
        fetching, workers, climb = self._fetching, self.workers, self._climb
        return Configuration(
            fetching.reads,
            fetching.count if climb is None else climb.setting.workers,
            workers.kind,
            usable_cores(),
            len(self._delivery.devices),
            persistent=workers.persistent,
            tuned="" if climb is None else climb.describe(),
            most=0 if climb is None else climb.most_workers,
            since=None if climb is None else climb.settled_at,
            pace=fetching.pace if fetching.ahead and not fetching.count else None,
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
        samples = count_items(self._dataset)  # not checked against what the workers yield, as in PyTorch
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
            gatherer = Gatherer(source.arrays, source.rows, collation, source.structure)
        else:
            source = source.compact()
            transforms = self._transforms
            there, self._promised = self._promised or Resident(self._delivery.devices, transforms), None
            Gatherer(source.arrays, None, collation, source.structure).check_all()
            there.bring(source)
            self._resident = there
            native = collation.programmer is not None and collation.programmer.native
            programmer = Programmer(transforms, source.gathers(), native=native)
            collation = replace(collation, programmer=programmer)
            outline = source.outline()  # holds one row of each array, so that the host's can be freed
            gatherer = RowStager(outline.arrays, None, collation, outline.structure)
            workers = replace(workers, count=0)  # too little is left to stage to be worth a worker
        self._fetching = self._make_fetching(collation, workers, gatherer)
        self._climb = self._fetching.climb(self._delivery.prefetch)

    def refuse_capture(self) -> None:
        """Raise `LoaderError` if the calling thread captures a graph, so that no epoch can begin."""
        self._delivery.refuse_capture()

    def begin(self, progress: Progress) -> Epoch:
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
        climb = self._climb
        if climb is not None:
            self._fetching.begin_with(climb.setting)
            self._delivery = replace(self._delivery, prefetch=climb.setting.prefetch)
        self._epochs.begin(progress.epoch)
        road = take_road(self._idle) or build_road(
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
                self._resident.begin(order, road.lanes)
            except BaseException:
                self._idle.append(road)  # nothing is in flight on it
                raise
        fetch = self._fetching.open(one, road.ring, self._meter)
        drops = batching.drop_last or self._delivery.drop_last
        steering = None
        if climb is not None:
            resizable = cast("Resizable", fetch)  # only workers that fetch by index are tuned
            steering = Steering(climb, resizable, road.ring, road.lanes, self._meter, self._fetching)
        return Epoch(
            road,
            fetch,
            watched(partial(self._presenter.present, progress, own is not None)),
            self._idle,
            drop_last=self._delivery.drop_last,
            meter=self._meter,
            ended=partial(end_epoch, progress, partial(find_spent, self._dataset, batching, drops=drops)),
            steering=steering,
            masking=None if own is None else lambda staged: self._masks.get(*own(staged)),
            guard=guard,
            kernels=self._kernels,
        )

    def _plan(
        self, progress: Progress, batching: Batching
    ) -> tuple[InOrder | Shuffled | None, Counting | None, Pass]:
        """Return the order that cached batches follow, what counts real samples, and the pass."""
        assert progress.seed is not None
        start, beyond = progress.batches, set(progress.beyond)
        if batching.iterable:
            return None, *self._plan_items(progress, batching)
        plan: Plan = batching.plan(progress.seed, progress.epoch, progress.base)
        order = None if self._resident is None else self._resident.find_order(plan)
        if order is not None and isinstance(plan, OrderedPlan | DividedPlan):
            plan = replace(plan, order=InOrder(len(order)))  # positions in the order, which the devices hold
        pads = isinstance(plan, DividedPlan | DealtPlan) and plan.pads
        if self._shards > 1:
            plan = ShardedPlan(plan, self._shards, self._delivery.remainder)
        batches: Iterator[Any] = plan.batches(start)
        if order is not None:
            batches = (Stretch.of(order, positions) for positions in batches)
        numbered: Iterator[tuple[int, Any]] = enumerate(batches, start)
        if beyond:
            numbered = (entry for entry in numbered if entry[0] not in beyond)
        own: Counting | None = None
        if isinstance(plan, ShardedPlan | DividedPlan | DealtPlan) and (pads or self._delivery.pads):
            take = plan.take_own
            own = lambda staged: take(staged.number)  # noqa: E731
        return order, own, Pass(progress.seed, progress.epoch, numbered, {}, owner=self._token)

    def _plan_items(self, progress: Progress, batching: Batching) -> tuple[Counting | None, Pass]:
        assert progress.seed is not None
        reached, own, division = dict(progress.workers), None, batching.division
        if division is not None:
            workers = range(max(self.workers.count, 1))
            reached = {number: ItemState(number, 0, base=progress.base) for number in workers}
            # A step that would need a mask and has to be cut into shards is dropped.
            if division.pads(None, drop_last=batching.drop_last or self._shards > 1):
                own = attrgetter("state")
        return own, Pass(
            progress.seed, progress.epoch, None, reached, progress.batches, progress.turn, self._token
        )

    def close(self) -> None:
        """End persistent worker processes."""
        self._fetching.close()
