"""The attributes of a `DataLoader`, under PyTorch's and Paddle's names; its description and its copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuloader.devices.places import Place
from gpuloader.fetch.worker_options import WorkerOptions
from gpuloader.loader.loading import Loading
from gpuloader.loader.state import Course
from gpuloader.loader.upcoming import UpcomingBatches
from gpuloader.order.batching import Batching
from gpuloader.order.generators import GeneratorLike


class Described:
    """Readable options, of which only `worker_init_fn` can be set; the loader provides the private ones.

    A copy or a pickle of a loader has the same options, and starts with its first epoch.
    """

    _given: dict[str, Any]
    _source: Any
    _batching: Batching
    _batches: Iterable[Any] | None
    _loading: Loading
    _course: Course
    _own: frozenset[str]

    def _describe_as(self, given: dict[str, Any], added: frozenset[str]) -> None:
        """Keep the options, and the names that a subclass added; called when the loader is complete."""
        self._given = given
        self._batches = self._batching.batch_sampler
        sampler, size = self.sampler, self._batching.given_size
        if self._batching.sampler is not None and sampler is not None and size is not None:
            drop_last = self._batching.drop_last
            kind = self._upcoming_batches()
            self._batches = kind(sampler, self._loading, self._course, size, drop_last)
        self._own = frozenset()
        self._own = frozenset(vars(self)) - added

    @staticmethod
    def _upcoming_batches() -> type[UpcomingBatches]:
        """Return the class of a batch sampler that the loader makes."""
        return UpcomingBatches

    @property
    def dataset(self) -> Any:
        """The dataset."""
        return self._given["dataset"]

    @property
    def batch_size(self) -> int | None:
        """Samples per batch; None if samples are delivered singly or a batch sampler determines the size."""
        return self._batching.given_size

    @property
    def sampler(self) -> Iterable[Any] | None:
        """The sampler in force, also if the loader made it; None for an iterable dataset.

        With a batch sampler, it is that one's ``sampler``. A random sampler that you iterate yourself draws
        another order: the loader's follows from its seed and the epoch. The ``set_epoch`` of a sampler that
        the loader made sets the loader's epoch, because trainers such as Lightning call it.
        """
        if self._batching.batch_sampler is not None:
            return getattr(self._batching.batch_sampler, "sampler", None)
        return self._batching.sampler if self._given["sampler"] is None else self._given["sampler"]

    @property
    def batch_sampler(self) -> Iterable[Any] | None:
        """The batch sampler in force, also if the loader made it.

        None for an iterable dataset, or if samples are delivered singly. One that the loader made yields the
        indices of this rank's batches in the loader's next epoch, and its ``set_epoch`` chooses that epoch.
        """
        return self._batches

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is dropped; False if a batch sampler decides."""
        return bool(self._given["drop_last"])

    @property
    def num_workers(self) -> int:
        """The number of workers; with 'auto', the number in use now."""
        workers = self._loading.workers
        return self._loading.configuration.workers if workers.most else workers.count

    @property
    def prefetch_factor(self) -> int | None:
        """Batches in progress per worker; None without workers."""
        return self._loading.workers.prefetch_factor if self.num_workers else None

    @property
    def persistent_workers(self) -> bool:
        """Whether worker processes are kept from one epoch to the next."""
        return self._loading.workers.persistent

    @property
    def in_order(self) -> bool:
        """Whether batches are delivered in the sampler's order."""
        return self._loading.workers.in_order

    @property
    def timeout(self) -> float:
        """Seconds to wait for a batch; 0 means no limit."""
        return self._loading.workers.timeout

    @property
    def worker_init_fn(self) -> Callable[[int], object] | None:
        """Called in each worker before its first sample. Setting it affects workers that start later."""
        return self._loading.workers.init

    @worker_init_fn.setter
    def worker_init_fn(self, function: Callable[[int], object] | None) -> None:
        # Trainers set it, such as Lightning's with `seed_everything(workers=True)`.
        self._loading.set_worker_init(function)
        self._given["worker_init_fn"] = function

    @property
    def multiprocessing_context(self) -> Any:
        """The context of multiprocessing for the start method that was asked for; None if none was."""
        method = self._loading.workers.start_method
        if method is None:
            return None
        import multiprocessing  # imported late: the loader itself may never need it

        return multiprocessing.get_context(method)

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """The function that makes batches from lists of samples; None if the loader does it."""
        function: Callable[[Any], Any] | None = self._given["collate_fn"]
        return function

    @property
    def generator(self) -> GeneratorLike:
        """The generator that the seed was drawn from, or None."""
        generator: GeneratorLike = self._given["generator"]
        return generator

    @property
    def feed_list(self) -> Any:
        """The feeds that were passed, or None."""
        return self._given["feed_list"]

    @property
    def places(self) -> list[Place]:
        """The places where batches land."""
        return list(self._loading.places)

    @property
    def return_list(self) -> bool:
        """Whether a batch has the form of a sample, also if there is a feed_list."""
        return bool(self._given["return_list"])

    @property
    def use_buffer_reader(self) -> bool | str:
        """Whether steps are read and copied ahead; 'thread' if a thread always reads them."""
        given: bool | str = self._given["use_buffer_reader"]
        return given

    @property
    def use_shared_memory(self) -> bool:
        """What was passed; it has no effect."""
        return bool(self._given["use_shared_memory"])

    @property
    def auto_collate_batch(self) -> bool:
        """Whether samples make up batches; False if they are delivered singly."""
        return not self._batching.single

    @property
    def pin_memory(self) -> bool:
        """What was passed; it has no effect."""
        return bool(self._given["pin_memory"])

    @property
    def pin_memory_device(self) -> str:
        """What was passed; it has no effect."""
        return str(self._given["pin_memory_device"])

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED:
            raise ValueError(
                f"{name} cannot be changed once the loader is made: make another DataLoader, with the {name} "
                "that you need"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        batching = self._batching
        parts = [
            _describe_dataset(self.dataset, self._source),
            _describe_batches(batching),
            _describe_order(self._given, batching),
            _describe_workers(self._loading.workers, self.num_workers),
            f"on {', '.join(self._loading.devices)}",
        ]
        if rank := _describe_rank(batching):
            parts.insert(3, rank)
        return f"<{type(self).__name__}: {'; '.join(parts)}>"

    def __getstate__(self) -> dict[str, Any]:
        options = {**self._given, "seed": self._batching.seed, "generator": None}
        own = {name: value for name, value in vars(self).items() if name not in self._own}
        return {"options": options, "generator": self.generator, "own": own}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._open(**state["options"])
        self._given["generator"] = state["generator"]  # the seed that was drawn from it is an option now
        vars(self).update(state["own"])

    def _open(self, **options: Any) -> None:
        """Make the loader again from its options."""
        raise NotImplementedError


_FIXED = frozenset(
    name for name, found in vars(Described).items() if isinstance(found, property) and found.fset is None
)


def _describe_dataset(dataset: Any, source: Any) -> str:
    """Describe a user's dataset, of which the loader has made `source`; a dict's length is not a table's."""
    name = type(dataset).__name__
    try:
        return f"{name} of {len(source):,} samples"
    except Exception:  # the user's class may raise anything, and a description must not fail
        return name


def _describe_batches(batching: Batching) -> str:
    if batching.batch_sampler is not None:
        return f"batches of {type(batching.batch_sampler).__name__}"
    return "single samples" if batching.given_size is None else f"batches of {batching.given_size}"


def _describe_order(given: Mapping[str, Any], batching: Batching) -> str:
    if given["sampler"] is not None:
        return f"in the order of {type(given['sampler']).__name__}"
    if not given["shuffle"]:
        return "in the dataset's order" if batching.batch_sampler is None else "in its order"
    return "shuffled" if batching.seed is None else f"shuffled with seed {batching.seed}"


def _describe_rank(batching: Batching) -> str | None:
    try:
        division = batching.settle().division
    except ValueError:
        return None  # a description must not fail if the launcher's variables are inconsistent
    return f"rank {division.rank} of {division.world_size}" if division and division.world_size > 1 else None


def _describe_workers(workers: WorkerOptions, count: int) -> str:
    if not count:
        return "no workers"
    found = f"{count} worker {workers.kind}"
    if count > 1:
        found += "es" if workers.kind == "process" else "s"
    return f"{found}, a number found automatically" if workers.most else found
