"""The attributes of a `DataLoader`, under PyTorch's and Paddle's names; its description and its copies."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gpuloader.api.epochs import DatasetEpochs
from gpuloader.api.options import Options
from gpuloader.devices.places import Place
from gpuloader.order.batching import Batching
from gpuloader.order.randomness import GeneratorLike
from gpuloader.order.samplers import BatchSampler


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


class Described:
    """Readable options, of which only `worker_init_fn` can be set; the loader provides the private ones.

    A copy or a pickle of a loader has the same options, and starts with its first epoch.
    """

    _options: Options
    _epochs: DatasetEpochs
    _batches: Iterable[Any] | None
    _generator: GeneratorLike

    @property
    def dataset(self) -> Any:
        """The dataset."""
        return self._options.dataset

    @property
    def batch_size(self) -> int | None:
        """Samples per batch; None if samples are delivered singly or a batch sampler determines the size."""
        return self._epochs.plan.batching.given_size

    @property
    def sampler(self) -> Iterable[Any] | None:
        """The sampler in force, also if the loader made it; None for an iterable dataset.

        With a batch sampler, it is that one's ``sampler``. A random sampler that you iterate yourself draws
        another order: the loader's follows from its seed and the epoch. The ``set_epoch`` of a sampler that
        the loader made sets the loader's epoch, because trainers such as Lightning call it.
        """
        options, batching = self._options, self._epochs.plan.batching
        if batching.batch_sampler is not None:
            return getattr(batching.batch_sampler, "sampler", None)
        if options.sampler is not None:
            return options.sampler
        # Nobody else has the loader's own sampler, so it is soon enough to tell it of the loader here.
        if batching.sampler is not None:
            vars(batching.sampler).setdefault("set_epoch", EpochOf(self._epochs))
        return batching.sampler

    @property
    def batch_sampler(self) -> Iterable[Any] | None:
        """The batch sampler in force, also if the loader made it.

        None for an iterable dataset, or if samples are delivered singly. One that the loader made yields the
        indices of this rank's batches in the loader's next epoch, and its ``set_epoch`` chooses that epoch.
        """
        batching = self._epochs.plan.batching
        if batching.batch_sampler is not None:
            return batching.batch_sampler
        if self._batches is None and batching.sampler is not None and batching.given_size is not None:
            sampler = self.sampler
            assert sampler is not None
            kind = self._upcoming_batches()
            self._batches = kind(sampler, self._epochs, batching.given_size, batching.drop_last)
        return self._batches

    @staticmethod
    def _upcoming_batches() -> type[UpcomingBatches]:
        """Return the class of a batch sampler that the loader makes."""
        return UpcomingBatches

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is dropped; False if a batch sampler decides."""
        return self._options.drop_last

    @property
    def num_workers(self) -> int:
        """The number of workers; with 'auto', the number in use now."""
        workers = self._epochs.workers  # 'auto' changes them while loops run
        return self._epochs.configuration.workers if workers.most else workers.count

    @property
    def prefetch_factor(self) -> int | None:
        """Batches in progress per worker; None without workers."""
        return self._epochs.workers.prefetch_factor if self.num_workers else None

    @property
    def persistent_workers(self) -> bool:
        """Whether worker processes are kept from one epoch to the next."""
        return self._epochs.workers.persistent

    @property
    def in_order(self) -> bool:
        """Whether batches are delivered in the sampler's order."""
        return self._options.in_order

    @property
    def timeout(self) -> float:
        """Seconds to wait for a batch; 0 means no limit."""
        return self._options.timeout

    @property
    def worker_init_fn(self) -> Callable[[int], object] | None:
        """Called in each worker before its first sample. Setting it affects workers that start later."""
        return self._options.worker_init_fn

    @worker_init_fn.setter
    def worker_init_fn(self, function: Callable[[int], object] | None) -> None:
        # Trainers set it, such as Lightning's with `seed_everything(workers=True)`.
        self._options = dataclasses.replace(self._options, worker_init_fn=function)
        self._epochs.set_worker_init(function)

    @property
    def multiprocessing_context(self) -> Any:
        """The context of multiprocessing for the start method that was asked for; None if none was."""
        # A context, because trainers and PyTorch compare and copy contexts, not names.
        method = self._options.start_method
        if method is None:
            return None
        import multiprocessing  # imported late: the loader itself may never need it

        return multiprocessing.get_context(method)

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """The function that makes batches from lists of samples; None if the loader does it."""
        return self._options.collate_fn

    @property
    def generator(self) -> GeneratorLike:
        """The generator that the seed was drawn from, or None."""
        return self._generator

    @property
    def feed_list(self) -> Any:
        """The feeds that were passed, or None."""
        return self._options.feed_list

    @property
    def places(self) -> list[Place]:
        """The places where batches land."""
        return list(self._epochs.delivery.places)

    @property
    def return_list(self) -> bool:
        """Whether a batch is nested like a sample, also if there is a feed_list."""
        return self._options.return_list

    @property
    def use_buffer_reader(self) -> bool | str:
        """Whether steps are read and copied ahead; 'thread' if a thread always reads them."""
        return self._options.use_buffer_reader

    @property
    def use_shared_memory(self) -> bool:
        """What was passed; it has no effect."""
        return self._options.use_shared_memory

    @property
    def auto_collate_batch(self) -> bool:
        """Whether samples make up batches; False if they are delivered singly."""
        return not self._epochs.plan.batching.single

    @property
    def pin_memory(self) -> bool:
        """What was passed; it has no effect."""
        return self._options.pin_memory

    @property
    def pin_memory_device(self) -> str:
        """What was passed; it has no effect."""
        return self._options.pin_memory_device

    def __setattr__(self, name: str, value: object) -> None:
        # As PyTorch's loader refuses it. Silently ignored, `loader.batch_size = 64` would train on.
        if name in _FIXED:
            raise ValueError(
                f"{name} cannot be changed once the loader is made: make another DataLoader, with the {name} "
                "that you need"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        plan, options, count = self._epochs.plan, self._options, self.num_workers
        batching = plan.batching
        name = type(self.dataset).__name__  # the user's word for it, not the table that is read
        try:
            # The source's length: that of a dict is its number of columns. Nothing that the user's class
            # raises may make a description fail.
            dataset = f"{name} of {len(plan.source.dataset):,} samples"
        except Exception:
            dataset = name
        batches = "single samples" if batching.given_size is None else f"batches of {batching.given_size}"
        order = "in the dataset's order" if batching.batch_sampler is None else "in its order"
        if batching.batch_sampler is not None:
            batches = f"batches of {type(batching.batch_sampler).__name__}"
        if options.sampler is not None:
            order = f"in the order of {type(options.sampler).__name__}"
        elif options.shuffle:
            order = "shuffled" if batching.seed is None else f"shuffled with seed {batching.seed}"
        workers = f"{count or 'no'} worker {self._epochs.workers.kind}" if count else "no workers"
        if count > 1:
            workers += "es" if self._epochs.workers.kind == "process" else "s"
        if count and self._epochs.workers.most:
            workers += ", a number found automatically"
        devices = ", ".join(device.name for device in plan.delivery.devices)
        parts = [dataset, batches, order, *_describe_rank(batching), workers, f"on {devices}"]
        return f"<{type(self).__name__}: {'; '.join(parts)}>"

    def __getstate__(self) -> dict[str, Any]:
        names = Options.__dataclass_fields__
        options = {name: getattr(self._options, name) for name in names}
        # A copy has the seed that was drawn from the generator, not the next one that it would give.
        options |= {"seed": self._epochs.plan.batching.seed, "generator": None}
        own = {name: value for name, value in vars(self).items() if name not in _PRIVATE}
        return {"options": options, "generator": self.generator, "own": own}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._open(Options(**state["options"]))
        self._generator = state["generator"]  # whose seed is an option now
        vars(self).update(state["own"])

    def _open(self, options: Options) -> None:
        """Make the loader from its options."""
        raise NotImplementedError


_FIXED = frozenset(
    name for name, found in vars(Described).items() if isinstance(found, property) and found.fset is None
)
_PRIVATE = frozenset({"_options", "_epochs", "_batches", "_generator", "_meter", "_cache"})
"""The attributes of a loader that a copy makes again; all others were added by a subclass or by the user."""


def _describe_rank(batching: Batching) -> list[str]:
    try:
        division = batching.settle().division
    except ValueError:
        return []  # a description must not fail if the launcher's variables are inconsistent
    if division is None or division.world_size == 1:
        return []
    return [f"rank {division.rank} of {division.world_size}"]
