"""`DataLoader`: the loader over a dataset, and the samplers among its attributes."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic

from gpuloader.api.dataset_epochs import DatasetEpochs
from gpuloader.api.generator_loader import from_dataset, from_generator
from gpuloader.api.loading import Framework, decide
from gpuloader.api.options import DEPRECATED, Options
from gpuloader.api.state import Position, read_state
from gpuloader.devices.places import Place
from gpuloader.epoch.epoch import Iteration
from gpuloader.errors import warn
from gpuloader.fields.ragged import Padding
from gpuloader.fields.spec import FeedSpec
from gpuloader.order.batching import StoredOrder
from gpuloader.order.randomness import GeneratorLike
from gpuloader.order.samplers import BatchSampler
from gpuloader.sources.dataset import Readable, S
from gpuloader.watch.measured import Measured
from gpuloader.watch.meter import Meter

if TYPE_CHECKING:
    from gpuloader.transforms.image_transforms import ImageTransform
    from gpuloader.transforms.program import Transform

# A loader's own samplers, as its attributes show them: the loader decides their epoch.


class UpcomingBatches(BatchSampler):
    """The indices of the batches that a loader's next epoch will deliver on this rank.

    So a loader of PyTorch over this batch sampler, as Accelerate and Hugging Face's Trainer make one to skip
    batches, reads what the loader itself would read. They are listed from the epoch's start, also if a state
    is loaded, because programs skip from there. Iterating begins no epoch of the loader, unless another
    loader reads by this one: what Accelerate's `skip_first_batches` returns, or the same loader by a batch
    sampler that wraps this. If the epoch draws its order as PyTorch does, each iteration draws another one,
    as PyTorch's samplers do.

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
        self, sampler: Iterable[Any], batch_size: int, drop_last: bool, epochs: DatasetEpochs
    ) -> None:
        super().__init__(sampler=sampler, batch_size=batch_size, drop_last=drop_last)
        self.lead_to(epochs)

    def lead_to(self, epochs: DatasetEpochs, counts: float = 0) -> None:
        """Yield the indices of these epochs; each of the next `counts` readings begins one."""
        self._epochs, self._counts, self._seen = epochs, counts, self.sampler

    def __iter__(self) -> Iterator[list[int]]:
        if self._is_replaced:
            yield from super().__iter__()
            return
        epoch = self._epochs.next_epoch
        yield from self._epochs.list_batches()
        if self._counts:  # another loader reads by it
            self._counts -= 1
            self._epochs.set_epoch(epoch + 1)

    def __len__(self) -> int:
        return super().__len__() if self._is_replaced else self._epochs.count_batches()

    @property
    def _is_replaced(self) -> bool:
        """Whether its sampler is another now, as Accelerate sets one, which no epoch knows yet."""
        return self.sampler is not self._seen

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
        kept: dict[str, Any] = {name: getattr(self, name) for name in ("sampler", "batch_size", "drop_last")}
        return partial(self._plain, **kept), ()


class EpochOf:
    """The ``set_epoch`` of a loader's own sampler. It does not keep the loader alive; a copy does nothing.

    A cycle through the sampler would keep the loader's pinned slots until garbage is collected.
    """

    def __init__(self, epochs: DatasetEpochs | None = None) -> None:
        self._epochs = (lambda: None) if epochs is None else weakref.ref(epochs)

    def __call__(self, epoch: int) -> None:
        """Set the loader's epoch."""
        if (epochs := self._epochs()) is not None:
            epochs.set_epoch(epoch)

    def __reduce__(self) -> tuple[type[EpochOf], tuple[()]]:
        return EpochOf, ()


# The loader.

_CACHE_BATCH = 64  # samples that are in memory twice while a cache is filled


class DataLoader(Measured, Generic[S]):
    """Loads a dataset in batches. For a reader instead of a dataset, see `from_generator`.

    Each loop over the loader is one epoch. Workers, or the calling thread, write samples straight into pinned
    slots, which are then copied to the places. The order of the samples and the random numbers of
    `sample_rng` depend only on the seed and the epoch.

    Parameters
    ----------
    dataset : object
        A map-style dataset, with ``__getitem__`` and ``__len__`` (optionally ``__getitems__(indices)``, which
        returns a list of samples), or an iterable. A sample is an array, a number, or any nesting of dicts,
        tuples and lists of them. Anything else, such as text, stays a Python object. A data frame of pandas
        or Polars, an Arrow table and a dict of columns are read as a `TableDataset`, a dataset of Hugging
        Face from its Arrow columns.
    feed_list : list of FeedSpec or str, or None
        The fields, declared with `gpuloader.data`. Samples must then be tuples with one value per field,
        and are converted. None takes the fields from the first sample. A number in this position is PyTorch's
        batch_size: ``DataLoader(dataset, 32, True)`` means ``batch_size=32, shuffle=True``.
    places : place, str, torch.device, or list of them, or None
        Where batches land. None uses the first GPU, or host memory if there is none. With several places,
        consecutive batches go to them in turn, and each step is a list with one entry per place.
    return_list : bool
        True returns a batch that is nested like a sample. False returns a dict from field name to array, in a
        list with one entry per place, if there is a feed_list.
    batch_sampler : iterable or None
        Yields the indices of each batch. Excludes batch_size, shuffle, sampler and drop_last. None makes
        batches from those options.
    batch_size : int or None
        Samples per batch. None delivers each sample unchanged, without adding a batch dimension; a sample may
        then be a whole batch.
    shuffle : bool, 'chunks' or None
        True draws a new order from the seed for every epoch. False and None keep the dataset's order.
        'chunks', for a `ZarrDataset`, an `HDF5Dataset` or a `Subset` of one, draws an order of their chunks,
        and shuffles the rows of a window of several chunks. So each chunk is decoded once per epoch.
    drop_last : bool
        True drops an incomplete last batch and, with several places, a last step that lacks a batch for any
        of them. False delivers both.
    collate_fn : callable or None
        Makes a batch from a list of samples; the arrays in it are staged. None stacks the samples field by
        field.
    num_workers : int or 'auto'
        0 loads without workers; n starts n workers. 'auto', for map-style datasets, starts with one
        worker, doubles while throughput improves in the loop's first steps, and then keeps that number. The
        order of a map-style dataset never depends on the number of workers.
    use_buffer_reader : bool or 'thread'
        True reads ahead without workers, in a thread if that helps, and copies the next step to a GPU while
        the current one is computed on. 'thread' always reads in a thread. False reads and copies each step
        when it is requested.
    prefetch_factor : int or None
        Batches in progress per worker; None means 2.
    use_shared_memory : bool
        Accepted for compatibility with Paddle and ignored: worker processes always write to shared memory.
    timeout : float
        Seconds to wait for a batch from a worker; 0 means no limit.
    worker_init_fn : callable or None
        Called in each worker with the worker's number, before the worker's first sample.
    persistent_workers : bool
        True keeps worker processes, if there are any, and their copies of the dataset from one epoch to the
        next. False starts new ones every epoch.
    sampler : iterable or None
        Yields indices. Excludes shuffle. None reads in the dataset's order, or in random order with shuffle.
        If a sampler, a batch_sampler or the sampler in it has ``set_epoch``, the loader calls it with the
        epoch's number when an epoch begins, unless the sampler's ``epoch`` has been set by somebody else.
    seed : int or None
        The 64-bit seed of everything random. None draws one from NumPy's global state at the first epoch.
    generator : torch.Generator, numpy.random.Generator, numpy.random.RandomState, or None
        Supplies the loader's seed, which is drawn once, when the loader is made. Excludes seed.
    prefetch : int or 'auto'
        Steps to copy to a GPU ahead of the current one. 'auto' tunes it in the first steps, together with
        prefetch_factor; neither grows beyond 8.
    memory_budget : int or None
        Deprecated, without effect. Under an 'auto' option, slots grow to at most 1 GiB of host memory, and to
        half of what is available.
    in_order : bool
        True delivers batches in the sampler's order. False delivers them as they arrive.
    worker_type : str or None
        'process', or 'thread' for datasets that wait or release the GIL. Threads share the dataset, so an
        iterable dataset must keep its position in what ``__iter__`` returns, not in itself. None means
        threads for images, whose decoders release the GIL, and for ``shuffle='chunks'``, where each process
        would decode all chunks. It means processes for anything else.
    start_method : str or None
        How worker processes start: 'fork', 'forkserver' or 'spawn'. None follows `multiprocessing`, like
        PyTorch: fork on Linux up to Python 3.13. Where a fork is known to hang, because JAX has
        computed in the program or the dataset refers to Polars, it is 'forkserver', with a warning.
    multiprocessing_context : str, multiprocessing context, or None
        PyTorch's name for start_method, which also takes a context; both must agree.
    on_worker_death : str
        'raise' raises WorkerError. 'respawn' replaces the worker and retries its samples, at most three
        times.
    ragged : list of str
        Names of fields of varying length to deliver as `Ragged`; a nested field is named ``outer.inner``.
    pad : mapping or None
        Maps names of fields of varying length to the number that fills up short rows, or to a `Padding`,
        which also says which axes vary, where they are filled up, and which lengths and masks the batch gets.
    targets : str or None
        'list' delivers all fields of varying length as one field ``targets``: a list of dicts, one for each
        sample, which torchvision's detectors take. Samples must be dicts. None delivers each as `Ragged`.
    transforms : list of Transform
        Operations from `gpuloader.transforms` that run where the batch lands. On a GPU they follow the copy,
        on its stream, so only their smaller input crosses the bus. On a CPU place they run as the batch is
        loaded. Those of single images, such as `Resize` or `ColorJitter`, run as each sample is loaded.
    decode : str or None
        'image' treats bytes in the samples as encoded images, and decodes them to uint8 pixels of shape
        (height, width, 3). Fields that a transform of images names, and those of an `ImageFolder`, are
        decoded without it. 'device' does the same, except that on a GPU nvImageCodec decodes JPEG files
        whose size a transform of images determines; its pixels differ slightly from Pillow's.
    on_bad : str
        What to do about a sample that raises. 'raise' raises SampleError, or DecodeError for an image that
        cannot be decoded. 'skip' leaves the sample out, counts it in ``stats().skipped`` and logs the first
        ten; the batch is then shorter. Without indices, that goes for images, and for samples of a dataset in
        files whose ``map`` or ``decode`` raises. A file that cannot be opened and a lack of memory still end
        the epoch.
    cache : str or None
        None reads the dataset every epoch. 'host' and 'device' read it once and gather later batches from
        arrays in RAM or on the GPUs; with 'device', epochs are permuted on the GPU and only 16 bytes per
        batch cross the bus. Batches and order stay the same. Random numbers in ``__getitem__`` are drawn
        once, those of transforms in every epoch.
    split : str
        How a step is divided among several places. 'batches' sends each place its own batch. 'shards' cuts
        each batch into equal consecutive parts, so that a step is one batch for any number of places.
    remainder : str or None
        Deprecated: `uneven` for places alone.
    output : str or None
        The library whose arrays make up a batch: 'torch', 'jax', 'paddle', 'cupy' or 'numpy'. None means CuPy
        on a GPU and NumPy elsewhere. The conversion copies nothing, except for JAX on a GPU.
    stream : object
        The CUDA stream on which you use the batches: an object with ``__cuda_stream__``, or a function that
        returns one. None means the output library's current stream in the thread that requests the batch.
    copy_priority : str or None
        Deprecated, without effect. The kernels of transforms and of a cache on the device go ahead of the
        model's.
    static : bool
        True delivers every batch at the same addresses, for CUDA graphs: asking for the next batch refills
        the arrays of the last one, once the work on them has run. All batches must have the same shape. Drop
        each batch before you ask for the second one after it, or the loader raises an error. False gives
        each batch its own memory.
    copy : bool
        False delivers the arrays that the dataset yields with ``batch_size=None``, or that the collate_fn
        returns, as they are, on a CPU place and without worker processes. Your code must not write to an
        array again once it has handed it over. True copies them, so that it may.
    shard : str, tuple of int or None
        The rank whose part of each step to read, as a pair (rank, world size). 'auto' asks torch.distributed
        or the launcher; None reads everything. All ranks get the same number of batches. A random order needs
        a seed.
    pin_memory, pin_memory_device : bool and str
        Accepted for compatibility with PyTorch, without effect: batches for a GPU are always copied from
        pinned memory.
    uneven : str or None
        What to do with samples that do not divide evenly: in an epoch's last step among the ranks of `shard`,
        and in any batch among the places of ``split='shards'``. 'pad' repeats samples to make parts equal and
        adds a mask of the real samples to every batch, as its last entry. 'drop' drops the surplus samples.
        'error' raises ValueError when the loader is made if the sizes are known by then, else LoaderError.
        'repeat', for ranks, pads without a mask; places then need equal parts. None means 'pad' among ranks
        and 'error' among places. drop_last drops the whole step.

    Raises
    ------
    ValueError
        Options exclude each other, or a value is out of range.
    TypeError
        A value has the wrong type.

    Attributes
    ----------
    batch_size : int or None
        Samples per batch; None if samples are delivered singly or a batch sampler determines the size.
    collate_fn : callable or None
        The function that makes batches from lists of samples; None if the loader does it.
    places : list of places
        Where batches land.
    auto_collate_batch : bool
        Whether samples are collated into batches; False if they are delivered singly.
    persistent_workers : bool
        Whether there are workers that are kept from one epoch to the next.
    dataset, drop_last, feed_list, generator, in_order, return_list, timeout, use_buffer_reader : object
        What was passed.
    pin_memory, pin_memory_device, use_shared_memory : object
        What was passed; it has no effect here.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader, TensorDataset
    >>> dataset = TensorDataset(np.arange(6.0).reshape(3, 2), np.array([7, 8, 9]))
    >>> for images, labels in DataLoader(dataset, places="cpu", batch_size=2):
    ...     print(images.shape, labels)
    (2, 2) [7 8]
    (1, 2) [9]
    """

    from_dataset = staticmethod(from_dataset)
    from_generator = staticmethod(from_generator)
    _framework = Framework()
    _upcoming = UpcomingBatches  # the class of a batch sampler that the loader makes
    _options: Options
    _epochs: DatasetEpochs
    _batches: Iterable[Any] | None
    _cache: str | None

    # Set when the loader is made, as in PyTorch; `__setattr__` refuses a change.
    batch_size: int | None
    collate_fn: Callable[[Any], Any] | None
    dataset: Any
    drop_last: bool
    feed_list: Any
    generator: GeneratorLike
    in_order: bool
    persistent_workers: bool
    pin_memory: bool
    pin_memory_device: str
    places: list[Place]
    return_list: bool
    timeout: float
    use_buffer_reader: bool | str
    use_shared_memory: bool

    def __init__(
        self,
        dataset: Readable[S] | Iterable[S],
        feed_list: Sequence[FeedSpec | str] | int | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Iterable[Any] | None = None,
        batch_size: int | None = 1,
        shuffle: bool | str | None = False,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        num_workers: int | str = 0,
        use_buffer_reader: bool | str = True,
        prefetch_factor: int | None = 2,
        use_shared_memory: bool = True,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        persistent_workers: bool = False,
        *,
        sampler: Iterable[Any] | None = None,
        seed: int | None = None,
        generator: GeneratorLike = None,
        prefetch: int | str = 1,
        memory_budget: int | None = None,
        in_order: bool = True,
        worker_type: str | None = None,
        start_method: str | None = None,
        multiprocessing_context: Any = None,
        on_worker_death: str = "raise",
        ragged: Sequence[str] = (),
        pad: Mapping[str, float | Padding] | None = None,
        targets: str | None = None,
        transforms: Sequence[Transform | ImageTransform] = (),
        decode: str | None = None,
        on_bad: str = "raise",
        cache: str | None = None,
        split: str = "batches",
        remainder: str | None = None,
        output: str | None = None,
        stream: object = None,
        copy_priority: str | None = None,
        static: bool = False,
        copy: bool = True,
        shard: str | tuple[int, int] | None = None,
        uneven: str | None = None,
        pin_memory: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        # fmt: off
        options = Options(  # in the order of the table, as a test makes sure
            dataset, feed_list, places, return_list, batch_sampler, batch_size, shuffle, drop_last,
            collate_fn, num_workers, use_buffer_reader, prefetch_factor, use_shared_memory, timeout,
            worker_init_fn, persistent_workers, sampler, seed, generator, prefetch, memory_budget, in_order,
            worker_type, start_method, multiprocessing_context, on_worker_death, ragged, pad, targets,
            transforms, decode, on_bad, cache, split, remainder, output, stream, copy_priority, static,
            copy, shard, uneven, pin_memory, pin_memory_device,
        )
        # fmt: on
        for name, advice in DEPRECATED.items():
            if getattr(options, name) is not None:
                warn(f"{name} is deprecated and ends with the next release; {advice}", DeprecationWarning)
        self._open(options)

    def _open(self, options: Options, framework: Framework | None = None) -> None:
        plan = decide(options, framework or self._framework)
        meter = vars(self).get("_meter") or Meter()
        vars(self).update(
            zip(_AS_PASSED, attrgetter(*_AS_PASSED)(options), strict=True),
            batch_size=plan.batching.given_size,
            persistent_workers=plan.workers.persistent,
            places=list(plan.delivery.places),
            _options=options,
            _meter=meter,
            _epochs=DatasetEpochs(plan, meter),
            _batches=None,  # what `batch_sampler` has made
            _cache=options.cache,  # until the first epoch fills it
        )

    # Not in `vars`, whose public names libraries such as Ignite pass on as parameters of another loader.
    auto_collate_batch = property(lambda self: self._options.batch_size is not None)

    def __call__(self) -> Iterator[Any]:
        """Begin the next epoch and return its iterator, as ``iter(loader)`` does."""
        return iter(self)

    def __len__(self) -> int:
        """Return the number of steps in an epoch; raise `TypeError` if dataset or sampler has no length.

        For an iterable dataset, it follows from the dataset's length, as if one worker read all items.
        """
        return self._epochs.count_steps()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next epoch, which begins when its first step is requested."""
        begin = partial(self._begin, self._epochs.draw_ahead())
        return self._framework.iteration(begin, self._epochs.count_steps)

    def _begin(self, ahead: Position | None) -> Iteration:
        if self._cache is not None:
            self._fill_cache()
        return self._epochs.begin(ahead)

    def warm_up(self) -> None:
        """Prepare the first batch of the next loop now, so that the loop starts immediately.

        Starts the workers, allocates and pins the slots, reads the dataset if there is a `cache`, fetches the
        first step, copies it to its places, and compiles and runs the kernels of its transforms. Returns when
        all that is done. Batches, their order and the loader's state stay the same; an error of the dataset
        is raised by the loop. If `set_epoch` or `load_state_dict` changes what comes next, the step is
        dropped.

        Raises
        ------
        LoaderError
            The calling thread captures a CUDA graph.
        StagingMemoryError
            Host or device memory is not available.

        Examples
        --------
        >>> from gpuloader import DataLoader
        >>> loader = DataLoader(range(4), places="cpu", batch_size=2)
        >>> loader.warm_up()
        >>> loader.stats().batches > 0, [batch.tolist() for batch in loader]
        (True, [[0, 1], [2, 3]])
        """
        if self._cache is not None:
            self._fill_cache()
        self._epochs.prepare()

    def _fill_cache(self) -> None:
        """Read all samples as arrays; the loader's own workers read them if they are not arrays yet."""
        # Imported late, because most loaders have no cache.
        from gpuloader.epoch.cache import ArraySource, materialise

        self._epochs.check_ready()
        options, plan = self._options, self._epochs.plan
        source = ArraySource.of(plan.source) if plan.collation.feeds is None else None
        if source is None:
            # A separate loader in the dataset's order reads them: ranks, places and transforms come
            # afterwards. Random numbers in `__getitem__` follow from the same seed, unless each epoch draws
            # its own.
            reading = DataLoader(
                plan.source.dataset,
                plan.collation.feeds,
                "cpu",
                batch_size=_CACHE_BATCH,
                sampler=StoredOrder(plan.source.dataset),
                seed=0 if plan.follows_torch else self._epochs.draw_seed(),
                shard=(0, 1),
                worker_type=plan.workers.kind,
                **{name: getattr(options, name) for name in _OF_READING},
            )
            # As arrays, tensors lose their classes; PyTorch's loader warns about that.
            keeping = reading._framework._replace(keeps_values=self._framework.keeps_values)
            reading._open(reading._options, keeping)
            promise = self._epochs.promise_cache if self._cache == "device" else None
            source = materialise(reading, len(plan.source.dataset), promise)
        self._epochs.cache_as(source, resident=self._cache == "device")
        self._cache = None

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
        self._epochs.set_epoch(epoch)

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
        return self._epochs.state()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Make the next loop resume at a state that this or another loader returned.

        That loader may have had a different number of workers, another batch size and, with `shard`, a
        different number of ranks. Each remaining sample of the epoch is delivered once. No sample of a
        map-style dataset is read twice, because the loader starts in the middle of the order. With your own
        batch sampler, the loader steps through the earlier indices without fetching them. An iterable dataset
        that has no ``state_dict``, or is read with `shard`, is read from its start, and the samples already
        delivered are dropped.

        Ranks that divide the files of a dataset themselves, without `shard`, have a state each. Save all of
        them, and pass every rank the list, in the order of the ranks: another number of ranks can then
        continue.

        Raises ValueError for anything but a loader's state; for a state that counts batches of a different
        size or kind, as with a batch sampler or shards; and for a state from a different number of workers if
        the order depends on it, as with an iterable dataset without `shard`.

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
        states = state if isinstance(state, list | tuple) and state else [state]
        positions = [*map(read_state, states)]
        if not all("seed" in one for one in states):
            raise ValueError(
                "this is the state of a loader made by DataLoader.from_generator, not of one over a dataset"
            )
        self._epochs.resume_at(positions[0] if states[0] is state else self._epochs.find_own(positions))

    def close(self) -> None:
        """End persistent worker processes; the next loop starts new ones."""
        self._epochs.close()

    # Attributes that are computed when they are asked for.

    @property
    def sampler(self) -> Iterable[Any] | None:
        """The sampler in force, also if the loader made it; None for an iterable dataset.

        With a batch sampler, this is the batch sampler's ``sampler``. Iterating a random sampler yourself
        draws another order: the loader's order follows from its seed and the epoch. The ``set_epoch`` of a
        sampler that the loader made sets the loader's epoch, because trainers such as Lightning call it.
        """
        options, batching = self._options, self._epochs.plan.batching
        if batching.batch_sampler is not None:
            return getattr(batching.batch_sampler, "sampler", None)
        if options.sampler is not None:
            return options.sampler
        # Nobody else has the loader's own sampler, so it only needs to know the loader from here on.
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
        size = batching.given_size
        if self._batches is None and size is not None and (sampler := self.sampler) is not None:
            self._batches = self._upcoming(sampler, size, batching.drop_last, self._epochs)
        return self._batches

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
    def worker_init_fn(self) -> Callable[[int], object] | None:
        """Called in each worker before its first sample. Setting it affects workers that start later."""
        return self._options.worker_init_fn

    @worker_init_fn.setter
    def worker_init_fn(self, function: Callable[[int], object] | None) -> None:
        # Trainers set it, for example Lightning's `seed_everything(workers=True)`.
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

    def __setattr__(self, name: str, value: object) -> None:
        # PyTorch's loader refuses this, too. If it were ignored, `loader.batch_size = 64` would train on
        # silently.
        if name in FIXED:
            raise refuse_change(name)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        plan, options, count = self._epochs.plan, self._options, self.num_workers
        batching, delivery = plan.batching, plan.delivery
        dataset = type(self.dataset).__name__  # the user's word for it, not the table that is read
        with suppress(Exception):  # of the user's class, which must not make a description fail
            # The source's length, because that of a dict is its number of columns.
            dataset += f" of {len(plan.source.dataset):,} samples"
        batches = "single samples" if batching.given_size is None else f"batches of {batching.given_size}"
        order = "in the dataset's order"
        if batching.batch_sampler is not None:
            batches, order = f"batches of {type(batching.batch_sampler).__name__}", "in its order"
        elif options.sampler is not None:
            order = f"in the order of {type(options.sampler).__name__}"
        elif options.shuffle:
            order = "shuffled" if batching.seed is None else f"shuffled with seed {batching.seed}"
        kinds = {"process": "processes", "thread": "threads"} if count > 1 else {}
        kind = self._epochs.workers.kind
        workers = f"{count} worker {kinds.get(kind, kind)}" if count else "no workers"
        if count and self._epochs.workers.most:
            workers += ", a number found automatically"
        parts = [dataset, batches, order, workers, f"on {', '.join(one.name for one in delivery.devices)}"]
        with suppress(ValueError):  # a description must not fail if the launcher's variables are inconsistent
            rank, world_size = self._epochs.ranks
            parts[3:3] = [f"rank {rank} of {world_size}"] if world_size > 1 else []
        return f"<{type(self).__name__}: {'; '.join(parts)}>"

    # A copy or a pickle has the same options and starts with its first epoch.

    def __getstate__(self) -> dict[str, Any]:
        options = {name: getattr(self._options, name) for name in Options.__dataclass_fields__}
        # A copy has the seed that was drawn from the generator, not the next one.
        if not self._epochs.plan.follows_torch:
            options |= {"seed": self._epochs.plan.batching.seed, "generator": None}
        own = {name: value for name, value in vars(self).items() if name not in _PRIVATE | FIXED}
        return {"options": options, "generator": self.generator, "own": own}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._open(Options(**state["options"]))
        vars(self)["generator"] = state["generator"]  # whose seed is an option now
        vars(self).update(state["own"])


_AS_PASSED = (
    "collate_fn", "dataset", "drop_last", "feed_list", "generator", "in_order", "pin_memory",
    "pin_memory_device", "return_list", "timeout", "use_buffer_reader", "use_shared_memory",
)  # fmt: skip
"""The attributes that are options as they were passed."""
FIXED = {*_AS_PASSED, "auto_collate_batch", "batch_size", "persistent_workers", "places"}
FIXED |= {"batch_sampler", "multiprocessing_context", "num_workers", "prefetch_factor", "sampler"}
"""The attributes that nobody can set."""
_OF_READING = ("decode", "num_workers", "timeout", "worker_init_fn", "start_method", "on_worker_death")
"""The options with which the samples of a cache are read, the same as for an epoch."""
_PRIVATE = {"_options", "_epochs", "_batches", "_meter", "_cache", "_seen"}
_PRIVATE |= {"_prepared", "_kind", "_is_accelerate_prepared"}
"""The attributes of a loader that a copy makes again; a subclass or the user added all others."""


def refuse_change(name: str) -> ValueError:
    """Return the error for an option that somebody sets after the loader was made."""
    return ValueError(f"{name} cannot be changed once the loader is made: make another DataLoader")
