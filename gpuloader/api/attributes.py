"""The attributes of a `DataLoader`, under PyTorch's and Paddle's names; its description and its copies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gpuloader.api.loading import Loading
from gpuloader.api.state import Cursor, read_state
from gpuloader.devices.places import Place
from gpuloader.fetch.contract import WorkerOptions
from gpuloader.order.batching import Batching
from gpuloader.order.order import check_whole
from gpuloader.order.randomness import GeneratorLike
from gpuloader.order.samplers import BatchSampler
from gpuloader.sources.describing import Source

# The batch sampler of a `DataLoader` that has made its own: the batches of its next epoch.


class UpcomingBatches(BatchSampler):
    """The indices of the batches that a loader's next epoch will deliver on this rank.

    So a loader of PyTorch over this batch sampler, as Accelerate and Hugging Face's Trainer make one to skip
    batches, reads what the loader itself would read. Iterating begins no epoch of the loader.

    Parameters
    ----------
    sampler : iterable
        The loader's sampler.
    loading : Loading
        Opens the loader's epochs.
    course : Course
        Knows which epoch comes next.
    batch_size : int
        Samples per batch.
    drop_last : bool
        Whether an incomplete last batch is dropped.

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
        self, sampler: Iterable[Any], loading: Loading, course: Cursor, batch_size: int, drop_last: bool
    ) -> None:
        super().__init__(sampler=sampler, batch_size=batch_size, drop_last=drop_last)
        self._loading = loading
        self._course = course

    def __iter__(self) -> Iterator[list[int]]:
        return self._loading.list_batches(self._course.upcoming())

    def __len__(self) -> int:
        return self._loading.count_batches()

    @property
    def num_replicas(self) -> int:
        """The number of ranks that the batches are divided among."""
        return self._loading.find_ranks()[1]

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._loading.find_ranks()[0]

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the loader's next one."""
        self._course.set_epoch(check_whole("epoch", epoch, 2**64))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._plain, (None, self.sampler, False, self.batch_size, self.drop_last)


# The part of a `DataLoader` that numbers epochs, returns states and resumes from them.


class EpochOf:
    """The ``set_epoch`` of a loader's own sampler. It does not keep the loader alive; a copy does nothing.

    Parameters
    ----------
    loader : Resumable or None
        The loader whose epoch to set.
    """

    def __init__(self, loader: Resumable | None = None) -> None:
        self._loader = None if loader is None else weakref.ref(loader)

    def __call__(self, epoch: int) -> None:
        """Set the loader's epoch."""
        loader = None if self._loader is None else self._loader()
        if loader is not None:
            loader.set_epoch(epoch)

    def __reduce__(self) -> tuple[type[EpochOf], tuple[()]]:
        return EpochOf, ()


class Resumable:
    """Numbered epochs and resumable states; the loader that inherits this provides the attributes."""

    _course: Cursor
    _loading: Loading

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop run epoch number `epoch`, counted from 0; later loops continue from there.

        If `load_state_dict` set this same epoch to resume in its middle, the next loop still resumes it.

        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(100), places="cpu", shuffle=True, seed=1, batch_size=3)
        >>> first = next(iter(loader))
        >>> loader.set_epoch(0)
        >>> bool((next(iter(loader)) == first).all())
        True
        """
        self._course.set_epoch(check_whole("epoch", epoch, 2**64))

    def state_dict(self) -> dict[str, Any]:
        """Return the user's position in the latest epoch, as a dict under 1 kB that JSON can store.

        Only delivered batches count, not batches fetched ahead. An iterable dataset with its own
        ``state_dict``, in the main process or in worker processes, adds its own state, of any size. With
        `shard`, the state is the seed, the epoch and the position in the epoch. It is the same on all ranks
        that have received the same number of batches, so any rank's state can resume every rank.

        Examples
        --------
        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(6), places="cpu", batch_size=2, seed=1)
        >>> epoch = iter(loader)
        >>> next(epoch)
        array([0, 1])
        >>> state = loader.state_dict()
        >>> again = DataLoader(range(6), places="cpu", batch_size=2, num_workers=1, worker_type="thread")
        >>> again.load_state_dict(state)
        >>> [batch.tolist() for batch in again]
        [[2, 3], [4, 5]]
        """
        return self._course.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next loop resume at a state that this or another loader returned.

        That loader may have had other workers, another batch size and, with `shard`, another number of ranks.
        Each remaining sample of the epoch is delivered once. A map-style dataset is not read again, because
        the loader enters the order in its middle. With your own batch sampler, the loader steps through the
        earlier indices without fetching them. An iterable dataset that has no ``state_dict``, or is read with
        `shard`, is read from its start, and the samples already delivered are dropped.

        Raises
        ------
        TypeError
            The state is not a dict.
        ValueError
            The dict is not a loader's state. Or it counts batches of another size or kind than this loader's,
            as with a batch sampler or shards. Or it comes from another number of workers and the order
            depends on it, as with an iterable dataset without `shard`.

        Examples
        --------
        >>> from gpuloader import DataLoader
        >>> ranks = [DataLoader(range(10), shard=(rank, 2), places="cpu", batch_size=2) for rank in (0, 1)]
        >>> [next(iter(loader)).tolist() for loader in ranks]
        [[0, 1], [2, 3]]
        >>> states = [loader.state_dict() for loader in ranks]
        >>> states[0] == states[1], states[0]["position"]
        (True, 4)
        >>> alone = DataLoader(range(10), shard=(0, 1), places="cpu", batch_size=4)
        >>> alone.load_state_dict(states[0])
        >>> [batch.tolist() for batch in alone]
        [[4, 5, 6, 7], [8, 9]]
        """
        progress = read_state(state)
        if progress.seed is None:
            raise ValueError(
                "this is the state of a loader made by DataLoader.from_generator, not of one over a dataset"
            )
        self._course.resume(self._loading.adopt(progress))


class Described:
    """Readable options, of which only `worker_init_fn` can be set; the loader provides the private ones.

    A copy or a pickle of a loader has the same options, and starts with its first epoch.
    """

    _given: dict[str, Any]
    _source: Source
    _batching: Batching
    _batches: Iterable[Any] | None
    _loading: Loading
    _course: Cursor
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
            _describe_dataset(self.dataset, self._source.dataset),
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
