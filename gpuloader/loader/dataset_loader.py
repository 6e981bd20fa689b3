"""`DataLoader`: the object a user holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpuloader.base.checks import check_flags
from gpuloader.fetch.worker_options import WorkerOptions
from gpuloader.fields.spec import FeedSpec, resolve_feeds
from gpuloader.loader.from_generator import from_generator
from gpuloader.loader.loading import Loading
from gpuloader.loader.options import (
    check_collation,
    check_dataset,
    check_delivery,
    check_seed,
    check_transforms,
)
from gpuloader.loader.presenting import Presenter
from gpuloader.loader.resuming import Resumable
from gpuloader.loader.state import Course
from gpuloader.order.batching import Batching
from gpuloader.pipeline.cache import ArraySource, check_cache, materialise
from gpuloader.pipeline.split import Masks
from gpuloader.transforms.program import Transform
from gpuloader.watch.explaining import Setup
from gpuloader.watch.measured import Measured
from gpuloader.watch.stats import Meter

CACHE_BATCH = 64
"""Samples read at a time while a cache is filled."""


class DataLoader(Resumable, Measured):
    """Loads a dataset in batches; `from_generator` makes a loader around a reader instead.

    Each loop over the loader is an epoch. Samples are written straight into page-locked slots, by this
    thread, by threads or by processes, and brought to their places from there. The order of samples, and
    what `sample_rng` gives them, is a function of (seed, epoch) alone.

    Parameters
    ----------
    dataset : object
        With ``__getitem__`` and ``__len__`` (and perhaps ``__getitems__(indices)``, which returns a list of
        samples), or an iterable. A sample is an array, a number, or dicts, tuples and lists of them, nested
        at will; what is no array (text, for one) stays a Python object.
    feed_list : list of FeedSpec or str, or None
        Declares the fields, from `gpuloader.data`; samples are then tuples with one value a field and are
        converted. None: the first sample says what the fields are.
    places : place, str, or list of them, or None
        Where batches land; None: the first GPU, or host memory where there is none. With several places
        consecutive batches go to them in turn, and each step is a list with one entry a place.
    return_list : bool
        False: an entry is a dict from field name to array; needs a feed_list.
    batch_sampler : iterable or None
        Yields sequences of indices; excludes batch_size, shuffle, sampler and drop_last.
    batch_size : int or None
        Samples a batch. None: samples are delivered one by one, without a batch dimension.
    shuffle : bool
        Every epoch in another order, drawn from the seed.
    drop_last : bool
        Leave out a last shorter batch; with several places, also a last step without a batch for each.
    collate_fn : callable or None
        Makes a batch of a list of samples; its arrays are staged.
    num_workers : int or 'auto'
        0: the thread that loops fetches. Otherwise so many threads or processes do, beside it. 'auto': from
        one on, twice as many as long as the loop gains by it, measured in its first steps; then they stay.
        The order of samples does not depend on it. For datasets with indices.
    use_buffer_reader : bool
        Copy the next step to a GPU while this one is computed on.
    prefetch_factor : int
        Batches under way for each worker.
    use_shared_memory : bool
        Taken for Paddle's sake: worker processes always write into shared memory.
    timeout : float
        Seconds to wait for a batch of a worker; 0: any time.
    worker_init_fn : callable or None
        Called with the worker's number before its first sample.
    persistent_workers : bool
        Keep worker processes, and their copies of the dataset, from one epoch to the next.
    sampler : iterable or None
        Yields indices; excludes shuffle.
    seed : int or None
        Of all that is random, 64 bits; None: drawn from NumPy's global state at the first epoch.
    prefetch : int or 'auto'
        Steps copied to a GPU ahead of the one in hand. 'auto': found in the first steps, together with
        prefetch_factor, 8 at most.
    memory_budget : int or None
        Bytes of host memory that slots may grow to where something is 'auto'; None: 1 GiB. Those it begins
        with are taken in any case.
    in_order : bool
        Deliver in the order of the sampler; False: as batches come.
    worker_type : str
        'process', or 'thread' for datasets that wait or that release the GIL. Threads share the dataset:
        an iterable one must keep its place in what ``__iter__`` returns, not in itself.
    start_method : str or None
        'fork', 'forkserver' or 'spawn'; None: a fork server if the dataset can be sent there cheaply.
    on_worker_death : str
        'raise', or 'respawn': start the worker anew and try its samples again, three times at most.
    ragged : list of str
        Fields of varying length, delivered as `Ragged`; nested ones are named ``outer.inner``.
    pad : mapping or None
        Fields of varying length, each with the number that short rows are filled up with.
    transforms : list of Transform
        What is done to fields where the batch lands, from `gpuloader.transforms`: on a GPU behind the copy,
        on the copy's stream, so that what crosses the bus is small; on a CPU place where it is fetched.
    cache : str or None
        Read the dataset once, then gather batches from arrays: 'host', or 'device': from arrays that are
        brought to each GPU once and permuted there: 16 bytes a batch cross the bus. Same batches, same order;
        what ``__getitem__`` draws at random stays as first drawn, transforms draw anew.
    split : str
        With several places: 'batches' gives each a batch of its own, consecutive ones; 'shards' cuts each
        batch into equal parts, consecutive ones, so that a step is one batch whatever the number of places.
    remainder : str
        Where a batch does not divide evenly into shards: 'error', at once even of the last batch if its size
        is known; 'drop' what is too much; or 'pad': repeat the last sample of each part that is short, and
        add to each place's batch a mask of the samples that count, as last entry.
    output : str or None
        'torch', 'jax', 'paddle', 'cupy' or 'numpy': whose arrays a batch is made of, without a copy (but for
        JAX on a GPU). None: CuPy's on a GPU, NumPy's elsewhere.
    stream : object
        What batches on a GPU are used on, with ``__cuda_stream__``, or a function that gives such a stream.
        None: the current stream of the output's framework, in the thread that asks for the batch.
    shard : str, tuple of int or None
        Read one rank's part of every step, among several processes: 'auto', as torch.distributed or the
        launcher says, or a pair (rank, world size). All ranks get equally many batches. Needs a seed where
        the order is shuffled. None: the whole dataset.
    uneven : str
        With shard, what becomes of a last step that is not whole: it is divided evenly, and what does not
        divide is made up by repeated samples, 'pad', each batch having a mask of those that count as last
        entry; or left out, 'drop'; or a ValueError here, 'error'. With drop_last that step is left out.

    Raises
    ------
    ValueError
        Options that exclude each other, or a value out of range.
    TypeError
        Something is not what the option takes.

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

    from_generator = staticmethod(from_generator)

    def __init__(
        self,
        dataset: Any,
        feed_list: Sequence[FeedSpec | str] | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Iterable[Any] | None = None,
        batch_size: int | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        num_workers: int | str = 0,
        use_buffer_reader: bool = True,
        prefetch_factor: int = 2,
        use_shared_memory: bool = True,  # noqa: ARG002
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        persistent_workers: bool = False,
        *,
        sampler: Iterable[Any] | None = None,
        seed: int | None = None,
        prefetch: int | str = 1,
        memory_budget: int | None = None,
        in_order: bool = True,
        worker_type: str = "process",
        start_method: str | None = None,
        on_worker_death: str = "raise",
        ragged: Sequence[str] = (),
        pad: Mapping[str, float] | None = None,
        transforms: Sequence[Transform] = (),
        cache: str | None = None,
        split: str = "batches",
        remainder: str = "error",
        output: str | None = None,
        stream: object = None,
        shard: str | tuple[int, int] | None = None,
        uneven: str = "pad",
    ) -> None:
        iterable = check_dataset(dataset)
        check_flags(
            return_list=return_list,
            shuffle=shuffle,
            drop_last=drop_last,
            use_buffer_reader=use_buffer_reader,
        )
        self._feeds = None if feed_list is None else resolve_feeds(feed_list)
        if not return_list and self._feeds is None:
            raise ValueError("return_list=False gives dicts by field name, which need a feed_list")
        workers = WorkerOptions.of(
            num_workers=num_workers,
            worker_type=worker_type,
            prefetch_factor=prefetch_factor,
            prefetch=prefetch,
            memory_budget=memory_budget,
            iterable=iterable,
            in_order=in_order,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            persistent_workers=persistent_workers,
            start_method=start_method,
            on_worker_death=on_worker_death,
        )
        self._batching = Batching.choose(
            dataset,
            iterable=iterable,
            sampler=sampler,
            batch_sampler=batch_sampler,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=check_seed(seed),
        ).divide(shard, uneven, dataset=dataset, in_order=workers.in_order)
        transforms = check_transforms(transforms)
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
            use_buffer_reader=use_buffer_reader,
            drop_last=drop_last,
        )
        collation = check_collation(
            feeds=self._feeds,
            collate_fn=collate_fn,
            batched=batch_size is not None,
            ragged=ragged,
            pad=pad,
            transforms=transforms,
            on_host=delivery.on_host,
        )
        self._cache = check_cache(cache, cacheable=not iterable and collation.fixed)
        # An iterable dataset cut into parts leaves out the step that would need a mask.
        padded = delivery.pads or (self._batching.pads and not (iterable and delivery.shards > 1))
        self.dataset = dataset
        self._seed = self._batching.seed
        self._meter = Meter()
        self._course = Course(self._fresh_progress)
        presenter = Presenter(delivery, None if return_list else self._feeds, Masks() if padded else None)
        self._loading = Loading(dataset, self._batching, collation, workers, delivery, presenter, self._meter)

    @property
    def batch_size(self) -> int | None:
        """Samples a batch; None where samples come one by one, or a batch sampler decides."""
        return self._batching.given_size

    @property
    def batch_sampler(self) -> Iterable[Any] | None:
        """What was passed as batch_sampler."""
        return self._batching.batch_sampler

    def __call__(self) -> DataLoader:
        """Return the loader itself, so that ``for batch in loader():`` works as in Paddle."""
        return self

    def __len__(self) -> int:
        """Return how many steps an epoch has.

        Raises
        ------
        TypeError
            The dataset or the sampler has no length.
        """
        return self._loading.count_steps()

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch."""
        if self._cache is not None:
            self._loading.cache_as(self._read_all(), resident=self._cache == "device")
            self._cache = None
        return self._course.begin(self._loading.begin)

    def _read_all(self) -> ArraySource:
        """Return all samples as arrays, read by the loader's own workers where they are no arrays yet."""
        source = ArraySource.of(self.dataset) if self._feeds is None else None
        if source is not None:
            return source
        reading = DataLoader(
            self.dataset,
            self._feeds,
            "cpu",
            batch_size=CACHE_BATCH,
            seed=self._fresh_progress(0).seed,
            **self._loading.workers.as_options(),
        )
        promise = self._loading.promise_cache if self._cache == "device" else None
        return materialise(reading, len(self.dataset), promise)

    def _setup(self) -> Setup:
        return self._loading.setup

    def close(self) -> None:
        """End worker processes that stay between epochs; the next loop starts new ones."""
        self._loading.close()
