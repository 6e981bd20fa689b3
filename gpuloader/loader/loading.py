"""What happens inside a `DataLoader`: the fetch, the road and the cache of its epochs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from gpuloader.base.platforms import usable_cores
from gpuloader.collate.form import Collation
from gpuloader.collate.gather import Gatherer, RowStager
from gpuloader.collate.items import ItemState
from gpuloader.collate.reading import Reading
from gpuloader.fetch.fetching import Fetching, Pass
from gpuloader.fetch.worker_options import WorkerOptions, check_worker_init
from gpuloader.loader.presenting import Presenter
from gpuloader.loader.state import Progress
from gpuloader.order.batching import Batching
from gpuloader.order.division import ALONE
from gpuloader.order.epochs import EpochSetter
from gpuloader.order.order import InOrder, Shuffled
from gpuloader.order.plan import DividedPlan, OrderedPlan, Plan
from gpuloader.order.stretch import Stretch
from gpuloader.pipeline.cache import ArraySource, Resident
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.epoch import Epoch, Road, build_road, take_road
from gpuloader.pipeline.split import ShardedPlan
from gpuloader.pipeline.steering import Resizable, Steering
from gpuloader.sources.dataset_base import count_items
from gpuloader.transforms.operations import Spec
from gpuloader.transforms.program import Programmer, Transform
from gpuloader.watch.advising import Configuration
from gpuloader.watch.stats import Meter


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
        self.places = delivery.places
        self.devices = [device.name for device in delivery.devices]
        self.size = None if batching.size is None else -(-batching.size // delivery.shards)
        self._dataset = dataset
        self._batching = batching
        self._collation = collation
        self._delivery = delivery
        self._shards = delivery.shards
        self._presenter = presenter
        self._meter = meter
        self._draw = draw
        self._programmer = collation.programmer
        self._resident: Resident | None = None
        self._promised: Resident | None = None
        self._fetching = self._make_fetching(collation, workers, None)
        self._climb = self._fetching.climb(delivery.prefetch)
        self._idle: deque[Road] = deque(maxlen=1)
        self._epochs = EpochSetter(batching)

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
            division=batching.division,
        )
        return Fetching(reading, workers, gatherer)

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
        )

    def draw_seed(self) -> int:
        """Return the loader's seed; draw it first if none was given."""
        if self.seed is None:
            self.seed = self._draw()
        return self.seed

    def start_epoch(self, epoch: int) -> Progress:
        """Return the progress at the start of an epoch."""
        return self.fresh(self.draw_seed(), epoch)

    def fresh(self, seed: int, epoch: int, position: int = 0) -> Progress:
        """Return the progress of an epoch in which all ranks together have taken `position` samples."""
        batching, division = self._batching, self._batching.division
        size = batching.size or 1
        step = size * (1 if division is None else division.world_size)
        steps, base = divmod(position, step)
        progress = Progress(
            seed,
            epoch,
            steps * self._shards,
            crew=self._fetching.crew,
            size=self.size,
            shards=self._shards,
            order_size=batching.order_size,
        )
        if division is not None or base:
            progress.step, progress.base, progress.total = step, base, self._count_samples()
        return progress

    def adopt(self, progress: Progress) -> Progress:
        """Return where to resume from a loader's state: at its batch, or at its sample if batches differ.

        Raises
        ------
        ValueError
            This loader cannot resume there: the state does not tell how many samples were delivered, it comes
            from another number of workers and the order depends on it, or it comes from another dataset.
        """
        batching, division = self._batching, self._batching.division
        if progress.order_size != batching.order_size:
            raise ValueError(
                f"the state is a position in {_name_order(progress.order_size)}, but this loader reads "
                f"{_name_order(batching.order_size)}; resume with the same batch sampler and batch size"
            )
        same = (progress.size, progress.shards) == (self.size, self._shards)
        if division is None and progress.step is None and same:
            self._fetching.check_crew(progress.crew)
            with suppress(TypeError):  # the number of batches is unknown
                _check_end("batches", progress.batches, batching.count() * self._shards)
            return progress
        position = progress.position
        by_samples = not self._batching.iterable and (division is not None or batching.counts_samples)
        if self._batching.iterable and division is not None:
            by_samples = progress.step is not None  # otherwise it may come from a map-style dataset
        if position is None or not by_samples or (progress.beyond and not same):
            raise ValueError(
                f"the state counts {progress.describe()}; this loader has batches of {self.size} samples per "
                f"place, {self._shards} per step, and cannot tell where in its epoch that is"
            )
        assert progress.seed is not None
        total = self._count_samples()
        if total is not None:
            if progress.step is None:  # the last batch it counts may have been shorter
                position = min(position, total) if position < total + (progress.size or 1) else position
            _check_end("samples", position, total)
            if division is not None:
                division.check_even(total - position, batching.size or 1, drop_last=batching.drop_last)
        adopted = self.fresh(progress.seed, progress.epoch, position)
        adopted.beyond = {number + adopted.batches for number in progress.beyond}
        return adopted

    def _count_samples(self) -> int | None:
        try:
            return self._batching.count_samples()
        except TypeError:
            return None

    def count_steps(self) -> int:
        """Return the number of steps in an epoch; raise `TypeError` if it is unknown."""
        batching = self._batching
        if self._shards > 1 and not batching.iterable:
            return batching.count(self._shards if self._delivery.remainder == "drop" else 1)
        batches, places = self._count_batches(), len(self._delivery.devices)
        if self._shards > 1:
            return batches
        return batches // places if self._delivery.drop_last else -(-batches // places)

    def _count_batches(self) -> int:
        batching = self._batching
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
            collation = replace(collation, programmer=Programmer(transforms, source.gathers()))
            outline = source.outline()  # holds one row of each array, so that the host's can be freed
            gatherer = RowStager(outline.arrays, None, collation, outline.structure)
            workers = replace(workers, count=0)  # too little is left to stage to be worth a worker
        self._fetching = self._make_fetching(collation, workers, gatherer)
        self._climb = self._fetching.climb(self._delivery.prefetch)

    def begin(self, progress: Progress) -> Epoch:
        """Open an epoch at the user's position."""
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
            programmer=self._programmer,
        )
        order, plan, one = self._plan(progress)
        if self._resident is not None:
            try:
                self._resident.begin(order, road.lanes)
            except BaseException:
                self._idle.append(road)  # nothing is in flight on it
                raise
        fetch = self._fetching.open(one, road.ring, self._meter)
        steering = None
        if climb is not None:
            resizable = cast("Resizable", fetch)  # only workers that fetch by index are tuned
            steering = Steering(climb, resizable, road.ring, road.lanes, self._meter, self._fetching)
        return Epoch(
            road,
            fetch,
            partial(self._presenter.present, progress, plan),
            self._idle.append,
            drop_last=self._delivery.drop_last,
            meter=self._meter,
            ended=progress.end,
            steering=steering,
            length=self.count_steps,
        )

    def _plan(
        self, progress: Progress
    ) -> tuple[InOrder | Shuffled | None, ShardedPlan | DividedPlan | None, Pass]:
        """Return the order that cached batches follow, the plan that counts real samples, and the pass."""
        assert progress.seed is not None
        start, beyond = progress.batches, set(progress.beyond)
        if self._batching.iterable:
            reached = dict(progress.workers)
            if self._batching.division is not None:
                workers = range(max(self.workers.count, 1))
                reached = {number: ItemState(number, 0, base=progress.base) for number in workers}
            one = Pass(progress.seed, progress.epoch, None, reached, start, progress.turn)
            return None, None, one
        plan: Plan = self._batching.plan(progress.seed, progress.epoch, progress.base)
        order = None if self._resident is None else self._resident.find_order(plan)
        if order is not None and isinstance(plan, OrderedPlan | DividedPlan):
            plan = replace(plan, order=InOrder(len(order)))  # positions in the order, which the devices hold
        if self._shards > 1:
            plan = ShardedPlan(plan, self._shards, self._delivery.remainder)
        batches: Iterator[Any] = plan.batches(start)
        if order is not None:
            batches = (Stretch.of(order, positions) for positions in batches)
        numbered: Iterator[tuple[int, Any]] = enumerate(batches, start)
        if beyond:
            numbered = (entry for entry in numbered if entry[0] not in beyond)
        marked = plan if isinstance(plan, ShardedPlan | DividedPlan) else None
        return order, marked, Pass(progress.seed, progress.epoch, numbered, {})

    def close(self) -> None:
        """End persistent worker processes."""
        self._fetching.close()


def _name_order(size: int | None) -> str:
    return "an order for any batch size" if size is None else f"an order for batches of {size} samples"


def _check_end(what: str, reached: int, total: int) -> None:
    if reached > total:
        raise ValueError(
            f"the state is {reached} {what} into an epoch and this dataset has {total}: it comes from "
            "another dataset or sampler"
        )
