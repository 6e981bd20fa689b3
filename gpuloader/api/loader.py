"""`DataLoader`: the loader over a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from gpuloader.api.attributes import Described, EpochOf, Resumable
from gpuloader.api.generator_loader import from_dataset, from_generator
from gpuloader.api.loading import Loading, Presenter
from gpuloader.api.options import (
    check_collation,
    check_delivery,
    check_on_bad,
    check_parts,
    check_priority,
    check_seed,
    check_transforms,
    choose_worker_type,
    find_stage,
    make_on_device,
    may_ask_by_key,
    read_positions,
    resolve_seed,
    resolve_start_method,
)
from gpuloader.api.state import Cursor, Progress
from gpuloader.checks import check_flags
from gpuloader.epoch.cache import ArraySource, check_cache, materialise
from gpuloader.epoch.epoch import Iteration
from gpuloader.fetch.fetching import WorkerOptions
from gpuloader.fields.spec import FeedSpec, resolve_feeds
from gpuloader.order.batching import Batching, StoredOrder
from gpuloader.order.randomness import GeneratorLike
from gpuloader.order.samplers import Sampler, make_sampler
from gpuloader.sources.dataset import Readable, S
from gpuloader.sources.describing import describe
from gpuloader.transforms.program import Transform
from gpuloader.watch.explaining import Configuration, Measured
from gpuloader.watch.stats import Meter

if TYPE_CHECKING:
    from gpuloader.transforms.image_transforms import ImageTransform


CACHE_BATCH = 64
"""Samples per batch while a cache is filled."""


class DataLoader(Described, Resumable, Measured, Generic[S]):
    """Loads a dataset in batches. For a reader instead of a dataset, see `from_generator`.

    Each loop over the loader is one epoch. Workers, or the calling thread, write samples straight into
    page-locked slots, which are then copied to the places. The order of the samples and the random numbers
    of `sample_rng` depend only on the seed and the epoch.

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
        True returns a batch in the form of a sample. False returns a dict from field name to array, in a list
        with one entry per place, if there is a feed_list.
    batch_sampler : iterable or None
        Yields the indices of each batch. Excludes batch_size, shuffle, sampler and drop_last. None makes
        batches from those options.
    batch_size : int or None
        Samples per batch. None delivers each sample as it is: without a batch dimension, or as the batch
        that it already is.
    shuffle : bool or None
        True draws a new order from the seed for every epoch. False and None keep the dataset's order.
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
        True reads ahead without workers, in a thread where that pays, and copies the next step to a GPU while
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
        epoch's number when an epoch begins, until somebody else changes the sampler's ``epoch``.
    seed : int or None
        The 64-bit seed of everything random. None draws one from NumPy's global state at the first epoch.
    generator : torch.Generator, numpy.random.Generator, numpy.random.RandomState, or None
        Gives the loader its seed, which is drawn once, when the loader is made. Excludes seed.
    prefetch : int or 'auto'
        Steps to copy to a GPU ahead of the current one. 'auto' tunes it in the first steps, together with
        prefetch_factor; neither grows beyond 8.
    memory_budget : int or None
        Bytes of host memory that slots may grow to under an 'auto' option; None means 1 GiB. The slots that
        a loop starts with are allocated in any case.
    in_order : bool
        True delivers batches in the sampler's order. False delivers them as they arrive.
    worker_type : str or None
        'process', or 'thread' for datasets that wait or release the GIL. Threads share the dataset, so an
        iterable dataset must keep its position in what ``__iter__`` returns, not in itself. None means
        threads for pictures, whose decoders release the GIL, and processes for anything else.
    start_method : str or None
        How worker processes start: 'fork', 'forkserver' or 'spawn'. None uses a fork server if sending it the
        dataset is cheap, otherwise fork.
    multiprocessing_context : str, multiprocessing context, or None
        PyTorch's way to pass start_method.
    on_worker_death : str
        'raise' raises WorkerError. 'respawn' replaces the worker and retries its samples, at most three
        times.
    ragged : list of str
        Names of fields of varying length to deliver as `Ragged`; a nested field is named ``outer.inner``.
    pad : mapping or None
        Maps names of fields of varying length to the number that fills up short rows.
    transforms : list of Transform
        Operations from `gpuloader.transforms` that run where the batch lands. On a GPU they follow the copy,
        on its stream, so only their smaller input crosses the bus. On a CPU place they run as the batch is
        loaded. Those that resize, crop, mirror or color single pictures run as each sample is loaded.
    decode : str or None
        'image' takes bytes in the samples for encoded pictures, and decodes them to uint8 pixels of shape
        (height, width, 3). Fields that a transform of pictures names, and those of an `ImageFolder`, are
        decoded without it. 'device' does the same, but on a GPU nvImageCodec decodes JPEG files that a
        transform of pictures gives a size; its pixels are not exactly those of Pillow.
    on_bad : str
        What to do about a picture that cannot be decoded. 'raise' raises PictureError, which names the file
        and the sample. 'skip' leaves the sample out, so that its batch is shorter, and counts it in
        ``stats().skipped``.
    cache : str or None
        None reads the dataset every epoch. 'host' and 'device' read it once and gather later batches from
        arrays in RAM or on the GPUs; with 'device', epochs are permuted on the GPU and only 16 bytes per
        batch cross the bus. Batches and order stay the same. Random numbers in ``__getitem__`` are drawn
        once, those of transforms in every epoch.
    split : str
        How a step is divided among several places. 'batches' sends each place a batch of its own. 'shards'
        cuts each batch into equal consecutive parts, so that a step is one batch for any number of places.
    remainder : str
        What to do with a batch that cannot be cut into equal shards. 'error' raises ValueError when the
        loader is made if the batch's size is known by then, else LoaderError. 'drop' drops the surplus
        samples. 'pad' repeats the last sample of each short part and adds a mask of the real samples to each
        place's batch, as its last entry.
    output : str or None
        The library whose arrays make up a batch: 'torch', 'jax', 'paddle', 'cupy' or 'numpy'. None means CuPy
        on a GPU and NumPy elsewhere. The conversion copies nothing, except for JAX on a GPU.
    stream : object
        The CUDA stream on which you use the batches: an object with ``__cuda_stream__``, or a function that
        returns one. None means the output library's current stream in the thread that requests the batch.
    copy_priority : str or None
        The priority of the stream on which batches are copied to a GPU and transforms run: 'high' makes their
        kernels go ahead of the model's, 'normal' behind those that wait already. None means 'high' if there
        are transforms or a cache on the device; copies alone need no priority.
    static : bool
        True delivers every batch at the same addresses, for CUDA graphs: asking for the next batch refills
        the arrays of the last one, once the work on them has run. All batches must have one shape, and
        holding one while you ask for the next but one is an error. False gives each batch memory of its own.
    shard : str, tuple of int or None
        The rank whose part of each step to read, as a pair (rank, world size). 'auto' asks torch.distributed
        or the launcher; None reads everything. All ranks get the same number of batches. A random order needs
        a seed.
    pin_memory, pin_memory_device : bool and str
        Accepted as in PyTorch, without effect: batches for a GPU are always copied from page-locked memory.
    uneven : str
        With shard, how to divide an incomplete last step among the ranks. 'pad' repeats samples to make it
        even and adds a mask of the real samples to every batch, as its last entry. 'drop' drops the surplus
        samples. 'error' raises ValueError when the loader is made. drop_last drops the whole step.

    Raises
    ------
    ValueError
        Options exclude each other, or a value is out of range.
    TypeError
        A value has the wrong type.

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

    def __init__(
        self,
        dataset: Readable[S] | Iterable[S],
        feed_list: Sequence[FeedSpec | str] | int | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Iterable[Any] | None = None,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
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
        pad: Mapping[str, float] | None = None,
        transforms: Sequence[Transform | ImageTransform] = (),
        decode: str | None = None,
        on_bad: str = "raise",
        cache: str | None = None,
        split: str = "batches",
        remainder: str = "error",
        output: str | None = None,
        stream: object = None,
        copy_priority: str | None = None,
        static: bool = False,
        shard: str | tuple[int, int] | None = None,
        uneven: str = "pad",
        pin_memory: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        feed_list, places, batch_size, shuffle = read_positions(
            feed_list, places, return_list, batch_size, shuffle
        )
        given = dict(locals())  # the options, for the attributes and for copies
        added = frozenset(vars(given.pop("self")))  # by a subclass, before it called this
        by_key = may_ask_by_key(sampler, batch_sampler)
        source = describe(dataset, by_key=by_key, encoded=decode is not None)
        iterable = source.iterable
        check_flags(
            return_list=return_list,
            shuffle=shuffle,
            drop_last=drop_last,
            static=static,
        )
        self._feeds = None if feed_list is None else resolve_feeds(feed_list)
        transforms = check_transforms(transforms)
        pictures = find_stage(transforms, decode, self._feeds, holds_images=source.holds_images)
        start_method = resolve_start_method(start_method, multiprocessing_context)
        workers = WorkerOptions.of(
            num_workers=num_workers,
            worker_type=choose_worker_type(worker_type, pictures, start_method),
            prefetch_factor=prefetch_factor,
            prefetch=prefetch,
            memory_budget=memory_budget,
            use_buffer_reader=use_buffer_reader,
            iterable=iterable,
            in_order=in_order,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            persistent_workers=persistent_workers,
            start_method=start_method,
            on_worker_death=on_worker_death,
        )
        batching = Batching.choose(
            source.dataset,
            iterable=iterable,
            own_order=source.own_order,
            sampler=sampler,
            batch_sampler=batch_sampler,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=check_seed(resolve_seed(seed, generator)),
            make=self._make_sampler,
        )
        self._batching = self._divide(
            batching, shard, uneven=uneven, dataset=source.dataset, in_order=workers.in_order
        )
        delivery = check_delivery(
            places=places,
            batching=self._batching,
            workers=workers,
            transforms=transforms,
            split=split,
            remainder=remainder,
            output=output,
            stream=stream,
            prefetch=prefetch,
            drop_last=drop_last,
            static=static,
            urgent=check_priority(copy_priority, runs_kernels=bool(transforms) or cache == "device"),
        )
        collation = check_collation(
            feeds=self._feeds,
            collate_fn=collate_fn,
            batched=batch_size is not None,
            ragged=ragged,
            pad=pad,
            transforms=transforms,
            on_host=delivery.on_host,
            output=output,
            pictures=pictures,
            skips=check_on_bad(
                on_bad,
                pictures,
                equal=delivery.shards > 1 or (self._batching.sharding is not None and uneven == "pad"),
            ),
        )
        collation = make_on_device(
            collation,
            whole=delivery.shards == 1 and not static,
            codecs=delivery.open_codecs if decode == "device" else None,
        )
        self._cache = check_cache(
            cache, cacheable=not iterable and collation.fixed and not (pictures and pictures.chains)
        )
        chosen = sampler is not None or batch_sampler is not None
        check_parts(source, self._batching, collation, chosen=chosen, cached=self._cache is not None)
        self._source = source
        self._meter = Meter()
        presenter = Presenter(
            delivery,
            None if return_list else self._feeds,
            alike=delivery.shards > 1 and not collation.keeps,
        )
        self._loading = Loading(
            source, self._batching, collation, workers, delivery, presenter, self._meter, self._draw_seed
        )
        self._course = Cursor(self._loading.start_epoch)
        if sampler is None and batch_sampler is None and self._batching.sampler is not None:
            vars(self._batching.sampler)["set_epoch"] = EpochOf(self)
        self._describe_as(given, added)

    @staticmethod
    def _divide(batching: Batching, shard: object, **options: Any) -> Batching:
        """Return the batching, divided among ranks as `shard` asks."""
        return batching.divide(shard, **options)

    @staticmethod
    def _make_sampler(dataset: Any, shuffle: bool) -> Sampler[int]:
        """Return the sampler of a loader that was passed none."""
        return make_sampler(dataset, shuffle)

    @staticmethod
    def _draw_seed() -> int:
        """Return a seed from NumPy's global generator."""
        return int(np.random.randint(2**31))

    def _open(self, **options: Any) -> None:
        DataLoader.__init__(self, **options)  # a subclass's own may take other parameters

    def __call__(self) -> Iterator[Any]:
        """Begin the next epoch and return its iterator, as ``iter(loader)`` does."""
        return iter(self)

    def __len__(self) -> int:
        """Return the number of steps in an epoch.

        For an iterable dataset, it follows from the dataset's length, as if one worker read all items.

        Raises
        ------
        TypeError
            The dataset or the sampler has no length.
        """
        return self._loading.count_steps()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next epoch, which begins when its first step is requested."""
        return Iteration(self._begin, self._loading.count_steps)

    def warm_up(self) -> None:
        """Do now what the first batch of the next loop would wait for; that loop then begins at once.

        Starts the workers, allocates and page-locks the slots, reads the dataset if there is a `cache`,
        fetches the first step, copies it to its places, and compiles and runs the kernels of its transforms.
        Returns when all that is done. Batches, their order and the loader's state stay the same; an error of
        the dataset is raised by the loop. If `set_epoch` or `load_state_dict` changes what comes next, the
        step is dropped.

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
        self._ready()
        self._course.prepare(self._open_prepared)

    def _open_prepared(self, progress: Progress) -> Iteration:
        epoch = self._loading.begin(progress)
        epoch.prepare()
        return epoch

    def _begin(self) -> Iteration:
        self._ready()
        return self._course.begin(self._loading.begin)

    def _ready(self) -> None:
        self._loading.refuse_capture()
        if self._cache is not None:
            self._loading.cache_as(self._read_all(), resident=self._cache == "device")
            self._cache = None

    def _read_all(self) -> ArraySource:
        """Return all samples as arrays; the loader's own workers read them if they are not arrays yet."""
        source = ArraySource.of(self._source) if self._feeds is None else None
        if source is not None:
            return source
        reading = DataLoader(
            self._source.dataset,
            self._feeds,
            "cpu",
            batch_size=CACHE_BATCH,
            sampler=StoredOrder(self._source.dataset),
            seed=self._loading.draw_seed(),
            shard=(0, 1),
            decode=self._given["decode"],
            **self._loading.workers.as_options(),
        )
        promise = self._loading.promise_cache if self._cache == "device" else None
        return materialise(reading, len(self._source.dataset), promise)

    def _configuration(self) -> Configuration:
        return self._loading.configuration

    def close(self) -> None:
        """End persistent worker processes; the next loop starts new ones."""
        self._loading.close()
