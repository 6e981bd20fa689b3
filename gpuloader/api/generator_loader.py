"""`GeneratorLoader`: the loader over a reader that `DataLoader.from_generator` returns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, Self, runtime_checkable

from gpuloader.api.epochs import ReadingEpochs
from gpuloader.api.options import check_option, check_uncopied
from gpuloader.api.state import Position, end_epoch, find_spent_reader, read_state
from gpuloader.batches.readers import BatchStager, SampleListStager, SampleStager, Stager, check_takes_state
from gpuloader.batches.staged import StagedBatch
from gpuloader.checks import THREAD, check_count, check_switch
from gpuloader.devices.places import default_place, guarded_place, parse_places
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import Iteration
from gpuloader.errors import BadType, BadValue, EOFException, Misuse, warn
from gpuloader.fields.ragged import gather_fields
from gpuloader.fields.spec import FeedSpec, resolve_feeds
from gpuloader.sources.readers.decorators import Reader, batch, check_reader
from gpuloader.system.finalizers import Finalizer
from gpuloader.watch.measured import Measured
from gpuloader.watch.meter import Meter
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy

Feeds = tuple[FeedSpec, ...] | None


class ReaderEpochs(ReadingEpochs):
    """The epochs of a reader: each has an iterator, a thread and slots of its own."""

    reads = "reader"

    def __init__(
        self, meter: Meter, capacity: int, policy: ReadAheadPolicy | None, feeds: Feeds, *, as_list: bool
    ) -> None:
        super().__init__(meter)
        # The reader, a function that makes its stager, and the items per batch.
        self.source: tuple[Reader, Callable[[], Stager], int] | None = None
        self.policy = policy
        self.capacity = capacity
        self._names = None if feeds is None else tuple(map(attrgetter("name"), feeds))
        self._as_list = as_list or feeds is None

    def check_ready(self) -> None:
        """Raise `Misuse` if there is no source, or if an epoch cannot begin now."""
        if self.source is None:
            raise Misuse(
                "the loader has no source: call set_sample_generator, set_sample_list_generator or "
                "set_batch_generator first"
            )
        super().check_ready()

    def open(self, position: Position, guard: Finalizer) -> Iteration:
        """Open an epoch that reads from the start, or from the reader's own state."""
        assert self.source is not None
        source = self.source
        ended = partial(end_epoch, position, partial(find_spent_reader, source[0]))
        how = self.capacity, self.policy, self._build, ended
        return self.open_reading(position, guard, source, *how, single=self._names is None)

    def _build(self, staged: StagedBatch, arrays: list[Any]) -> Any:
        fields = gather_fields(staged.levels, arrays) if any(staged.levels) else arrays
        return fields if self._as_list else dict(zip(self._names or (), fields, strict=True))


class GeneratorLoader(Measured):
    """A loader over a reader, made by `DataLoader.from_generator`, which describes the parameters.

    Set its source with one of the three setters. Then loop over it (``iterable=True``), or call `start`,
    `next` until `EOFException`, and `reset` (``iterable=False``).

    Several loaders, and several loops over one loader, may run at the same time. Every loop is a separate
    epoch with its own iterator of the reader, its own thread and its own slots. One thread drives a loader by
    hand.
    """

    _epochs: ReaderEpochs

    def __init__(
        self,
        feed_list: Sequence[FeedSpec | str] | None,
        capacity: int | None,
        use_double_buffer: bool | str,
        iterable: bool,
        return_list: bool,
        use_multiprocess: bool = False,
        drop_last: bool = True,
        output: str | None = None,
        stream: object = None,
        static: bool = False,
        copy: bool = True,
    ) -> None:
        given = {"output": output, "stream": stream, "static": static}
        self._copies: bool = check_option("copy", copy)
        self._outputs: dict[str, Any] = {name: check_option(name, value) for name, value in given.items()}
        self._drop_last = drop_last
        capacity = check_count("capacity", capacity)
        self._feeds = None if feed_list is None else resolve_feeds(feed_list)
        read_ahead = check_switch(THREAD, "use_double_buffer", use_double_buffer)
        policy = ReadAheadPolicy(fixed=read_ahead == THREAD, bound=True) if read_ahead else None
        self._multiprocess = use_multiprocess
        self._meter = Meter()
        self._epochs = ReaderEpochs(self._meter, capacity, policy, self._feeds, as_list=return_list)
        self._kind = ""
        # Driving by hand: the epoch that `start` began, and whether it is over. For an iterable loader: the
        # latest loop's epoch, weakly because leaving the loop ends it, or the epoch that `next` began.
        self._made_iterable = iterable
        self._started: Iteration | None = None
        self._ended = False
        self._looped: weakref.ref[Iteration] | None = None
        self._taken: Iteration | None = None

    def set_sample_generator(
        self, reader: Callable[[], Any], batch_size: int, drop_last: bool = True, places: Any = None
    ) -> GeneratorLoader:
        """Read single samples, each a tuple with one value per field, and batch them.

        A value is converted to its feed's dtype, and reshaped to its feed's shape if it has as many elements.

        Parameters
        ----------
        reader : callable
            A function without arguments that returns an iterable of samples.
        batch_size : int
            Samples per batch, 1 or more.
        drop_last : bool
            Whether to drop an incomplete last batch.
        places : place, str, or list of them, or None
            Where batches land. None uses the first GPU, or host memory if there is none; an iterable loader
            with a feed_list requires a place.

        Returns
        -------
        GeneratorLoader
            This loader.

        Raises
        ------
        ValueError
            The batch size is not an integer of 1 or more, or a place is missing or unknown.
        ReaderError
            The reader is not a function without arguments.

        Examples
        --------
        >>> from gpuloader import DataLoader, data
        >>> feeds = [data("image", [None, 2]), data("label", [None, 1], "int64")]
        >>> loader = DataLoader.from_generator(feed_list=feeds, capacity=2)
        >>> def samples():
        ...     for label in range(3):
        ...         yield [0.5, 1.5], label
        >>> _ = loader.set_sample_generator(samples, batch_size=2, drop_last=False, places="cpu")
        >>> [step[0]["label"].ravel().tolist() for step in loader]
        [[0, 1], [2]]
        """
        size = check_count("batch_size", batch_size)
        stager = partial(SampleStager, self._feeds, size, drop_last=drop_last)
        return self._set(reader, places, stager, f"samples, in batches of {size}", size)

    def set_sample_list_generator(self, reader: Callable[[], Any], places: Any = None) -> GeneratorLoader:
        """Read lists of samples, one list per batch, such as `gpuloader.batch` makes.

        Parameters, errors and conversions are those of `set_sample_generator`.

        Examples
        --------
        >>> import gpuloader
        >>> loader = gpuloader.DataLoader.from_generator(capacity=2, return_list=True)
        >>> reader = gpuloader.batch(lambda: ((float(n), n) for n in range(4)), batch_size=2)
        >>> [labels.tolist() for _, labels in loader.set_sample_list_generator(reader, places="cpu")]
        [[0, 1], [2, 3]]
        """
        return self._set(reader, places, partial(SampleListStager, self._feeds), "lists of samples")

    def set_batch_generator(self, reader: Callable[[], Any], places: Any = None) -> GeneratorLoader:
        """Read ready batches, each a list or tuple of arrays that share their first dimension.

        The arrays keep their dtypes. Parameters and errors are those of `set_sample_generator`.

        Examples
        --------
        >>> import numpy as np
        >>> from gpuloader import DataLoader
        >>> loader = DataLoader.from_generator(capacity=2, return_list=True)
        >>> reader = lambda: ([np.full((2, 3), n, "float32")] for n in range(2))
        >>> [float(images.sum()) for images, in loader.set_batch_generator(reader, places="cpu")]
        [0.0, 6.0]
        """
        return self._set(reader, places, partial(BatchStager, self._feeds, copies=self._copies), "batches")

    def _set(
        self,
        reader: Callable[[], Any],
        places: Any,
        make_stager: Callable[[], Stager],
        kind: str,
        items_a_batch: int = 1,
    ) -> GeneratorLoader:
        source = check_reader(reader)
        if places is None:
            if self._made_iterable and self._feeds is not None and guarded_place() is None:
                raise BadValue(
                    "an iterable loader with a feed_list needs places: pass where its batches land, "
                    "e.g. places=gpuloader.CPUPlace()"
                )
            places = default_place()
        parsed = parse_places(places)
        if not self._made_iterable:
            if len(parsed) > 1:
                warn(
                    f"a loader made with iterable=False delivers one batch at a time, to one place: all go "
                    f"to {parsed[0]}, none to the other {len(parsed) - 1} places"
                )
            parsed = parsed[:1]  # `next` returns one batch, as in Paddle
        if self._started is not None:
            warn("the source changed while an epoch runs: the next start() reads it")
        epochs = self._epochs
        ahead = 0 if epochs.policy is None else 1
        delivery = Delivery.of(parsed, prefetch=ahead, drop_last=self._drop_last, **self._outputs)
        if not self._copies:
            check_uncopied(delivery, makes=kind != "batches", static=self._outputs["static"])
        if epochs.source is not None and epochs.delivery.places == parsed:
            # A graph may have been captured over the addresses of the earlier source's batches.
            delivery = delivery._replace(statics=epochs.delivery.statics)
        if self._multiprocess:
            from gpuloader.sources.readers.parallel import multiprocess_reader

            # The queue is as long as the loader reads ahead, so that the process can run that far ahead.
            source = multiprocess_reader([source], queue_size=epochs.capacity)
        epochs.deliver_to(delivery)
        epochs.source, self._kind = (source, make_stager, items_a_batch), kind
        return self

    def __repr__(self) -> str:
        ahead = f"up to {self._epochs.capacity} batches ahead"
        parts = [
            f"a reader of {self._kind}" if self._kind else "no source yet",
            "nothing read ahead" if self._epochs.policy is None else ahead,
        ]
        if self._feeds is not None:
            parts[0] += f" with the fields {', '.join(one.name for one in self._feeds)}"
        if self._epochs.source is not None:
            parts.append(f"on {', '.join(device.name for device in self._epochs.delivery.devices)}")
        return f"<{type(self).__name__}: {'; '.join(parts)}>"

    @property
    def iterable(self) -> bool:
        """Whether ``for`` may loop over the loader; if not, `start` and `reset` it."""
        return self._made_iterable or self._feeds is None

    def __call__(self) -> Self:
        """Return the loader itself; a loop over it, or `next`, then begins a new epoch."""
        self._forget_taken()
        return self

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch and return its iterator.

        A loader that has no source, or was made with a feed_list and ``iterable=False``, raises LoaderError.
        """
        if not self._made_iterable:
            if not self.iterable:
                raise Misuse(
                    "this loader was made with iterable=False: call start(), take batches with next(loader) "
                    "until EOFException, then reset(); or make it with iterable=True to loop over it"
                )
            warn("this loader was made with iterable=False, but is looped over; make it with iterable=True")
        self._forget_taken()
        epoch = self._epochs.begin()
        self._looped = weakref.ref(epoch)  # leaving a loop drops its epoch, which ends it
        return epoch

    def _forget_taken(self) -> None:
        """End the epoch that `next` began, if there is one."""
        taken, self._taken, self._looped = self._taken, None, None
        if taken is not None:
            taken.close()

    def start(self) -> None:
        """Begin an epoch of a loader made with ``iterable=False``; raise LoaderError if one is running.

        After the end of an epoch, call `reset` first. Otherwise `start` warns and the epoch stays over, as
        in Paddle.
        """
        self._require_not_iterable("start()")
        if self._started is None:
            self._started = self._epochs.begin()
        elif self._ended:
            warn("start() without reset(): the epoch that has ended stays over; call reset(), then start()")
        else:
            raise Misuse("start() was called twice; call reset() between epochs")

    def reset(self) -> None:
        """End the epoch that `start` began, whether or not it has reached its end."""
        self._require_not_iterable("reset()")
        epoch, self._started, self._ended = self._started, None, False
        if epoch is not None:
            epoch.close()

    def _require_not_iterable(self, call: str) -> None:
        if self._made_iterable:
            raise Misuse(f"{call} is for loaders made with iterable=False; loop over this one instead")

    def next(self) -> Any:
        """Return the next step of the epoch that `start` began.

        An iterable loader returns the next step of its latest epoch: that of the latest ``iter(loader)``, or
        one that the first `next` begins. ``next(loader())`` is the first step of a new epoch.

        Raises
        ------
        EOFException
            The epoch is over; call `reset`.
        StopIteration
            The epoch of an iterable loader is over.
        LoaderError
            `start` was not called.

        Examples
        --------
        >>> from gpuloader import DataLoader, EOFException
        >>> loader = DataLoader.from_generator(capacity=2, iterable=False)
        >>> _ = loader.set_sample_generator(lambda: [(1,), (2,)], batch_size=2, places="cpu")
        >>> loader.start()
        >>> next(loader)
        [array([1, 2])]
        >>> try:
        ...     next(loader)
        ... except EOFException:
        ...     loader.reset()
        """
        if self._made_iterable:
            latest = self._taken if self._looped is None else self._looped()
            if latest is None:
                latest = self._taken = self._epochs.begin()
                self._looped = None
            return latest.__next__()
        if self._started is None:
            raise Misuse("no epoch has begun: call start() first")
        try:
            return self._started.__next__()
        except StopIteration:
            self._ended = True
            raise EOFException("the epoch has no further batch; call reset(), then start()") from None

    def __next__(self) -> Any:
        return self.next()

    def state_dict(self) -> dict[str, Any]:
        """Return the user's position in the latest epoch, as a dict that JSON can store.

        Only delivered batches count, not batches read ahead. A reader that is an object with ``state_dict``
        adds its own state.
        """
        return self._epochs.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next epoch resume at a state that this or another loader returned.

        A reader with its own ``load_state_dict`` continues there. Any other reader is read from its start,
        and the items already delivered are dropped. Anything but the state of a loader over a reader raises
        TypeError or ValueError.
        """
        position = read_state(state)
        if position.seed is not None:
            raise ValueError("this is the state of a DataLoader over a dataset, not over a reader")
        if position.own is not None and self._epochs.source is not None:
            check_takes_state(self._epochs.source[0])
        self._epochs.resume(position)

    def warm_up(self) -> None:
        """Prepare the first batch of the next epoch now, so that the epoch starts immediately.

        This begins to read. Everything else is as for `DataLoader.warm_up`.

        Examples
        --------
        >>> from gpuloader import DataLoader
        >>> loader = DataLoader.from_generator(capacity=2, return_list=True)
        >>> _ = loader.set_batch_generator(lambda: ([[n, n]] for n in range(2)), places="cpu")
        >>> loader.warm_up()
        >>> loader.stats().batches > 0, [numbers.tolist() for numbers, in loader]
        (True, [[0, 0], [1, 1]])
        """
        self._epochs.prepare()


# `DataLoader.from_generator`: make a loader over a reader, as in Paddle.


def from_generator(
    feed_list: Sequence[FeedSpec | str] | None = None,
    capacity: int | None = None,
    use_double_buffer: bool | str = True,
    iterable: bool = True,
    return_list: bool = False,
    use_multiprocess: bool = False,
    drop_last: bool = True,
    *,
    output: str | None = None,
    stream: object = None,
    static: bool = False,
    copy: bool = True,
) -> GeneratorLoader:
    """Return a loader that reads from a generator function, like Paddle's `DataLoader.from_generator`.

    Parameters
    ----------
    feed_list : list of FeedSpec or str, or None
        The fields, declared with `gpuloader.data`. Each step is then a list with one entry per place, and an
        entry is a dict from field name to array. None takes shapes and dtypes from the first batch; a step is
        then the flat list of arrays, or a list of such lists with several places.
    capacity : int
        The number of batches that may be read ahead, 1 or more. The loader uses host memory for that many
        batches and a few more, all reserved once the first batch is known.
    use_double_buffer : bool or 'thread'
        True reads ahead while the consumer computes, in a thread if that helps, and copies the next step to
        a GPU while the current one is computed on. 'thread' always reads in a thread. False runs everything
        in the consumer's thread and reads nothing ahead.
    iterable : bool
        True: loop over the loader. False: call `start`, then `next` until `EOFException`, then `reset`.
    return_list : bool
        False makes each entry a dict. True makes it a list in the order of feed_list.
    use_multiprocess : bool
        True runs the reader in its own process, which sends its items through a pipe. False runs it in this
        process.
    drop_last : bool
        True drops a last step that lacks a batch for any of several places. False delivers it.
    output, stream, static
        The library whose arrays make up a batch, the CUDA stream on which you use it, and whether every batch
        is delivered at the same addresses, as for `DataLoader`.
    copy : bool
        False delivers the arrays of a batch generator as they are, on a CPU place. The reader must then make
        new arrays for each batch, and not write to them once it has yielded them. True copies them.

    Returns
    -------
    GeneratorLoader
        A loader without a source: call one of its setters, then iterate.

    Raises
    ------
    ValueError
        The capacity is not an integer of 1 or more, or the feed list is empty, names an unknown field, or
        names a field twice.
    TypeError
        An entry of the feed list is neither a feed spec nor a name.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader.from_generator(capacity=4, return_list=True)
    >>> def batches():
    ...     for start in range(0, 6, 2):
    ...         yield [np.arange(start, start + 2)]
    >>> [numbers.tolist() for numbers, in loader.set_batch_generator(batches, places="cpu")]
    [[0, 1], [2, 3], [4, 5]]
    """
    return GeneratorLoader(
        feed_list, capacity, use_double_buffer, iterable, return_list, use_multiprocess, drop_last, output,
        stream, static, copy,
    )  # fmt: skip


# `DataLoader.from_dataset`: make a loader over a dataset of text files, as in Paddle.


@runtime_checkable
class FileDataset(Protocol):
    """What `from_dataset` reads: the datasets of `gpuloader.fluid.DatasetFactory`."""

    feeds: Sequence[FeedSpec]
    batch_size: int

    def read(self) -> Iterator[Any]:
        """Return an iterator over the samples of an epoch, each a tuple with one value per feed."""


def from_dataset(dataset: FileDataset, places: Any, drop_last: bool = True) -> GeneratorLoader:
    r"""Return a loader that reads a dataset of text files, like Paddle's `DataLoader.from_dataset`.

    Parameters
    ----------
    dataset : object
        A dataset made by `gpuloader.fluid.DatasetFactory`.
    places : place, str, or list of them
        Where batches land. Consecutive batches go to them in turn.
    drop_last : bool
        True drops an incomplete last batch, and a last step that lacks a batch for any of several places.
        False delivers both.

    Returns
    -------
    GeneratorLoader
        A loader whose steps are lists with one dict per place. Every loop reads the dataset from its start,
        in the order of its files.

    Examples
    --------
    >>> import tempfile
    >>> from gpuloader import DataLoader, data, fluid
    >>> dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    >>> dataset.set_batch_size(2)
    >>> dataset.set_use_var([data("x", [None, 2]), data("y", [None, 1], "int64")])
    >>> with tempfile.NamedTemporaryFile("w") as file:
    ...     _ = file.write("2 0.5 1.5 1 7\n2 2.5 3.5 1 8\n2 4.5 5.5 1 9\n")
    ...     file.flush()
    ...     dataset.set_filelist([file.name])
    ...     loader = DataLoader.from_dataset(dataset, places="cpu", drop_last=False)
    ...     print([step[0]["y"].ravel().tolist() for step in loader])
    [[7, 8], [9]]
    """
    if not isinstance(dataset, FileDataset):
        raise BadType(
            f"dataset must be one that gpuloader.fluid.DatasetFactory makes, got {type(dataset).__name__}; "
            "for other datasets, use DataLoader(dataset)"
        )
    parsed = parse_places(places)
    capacity = 2 * len(parsed)  # for each place one batch to copy while another is read
    loader = from_generator(dataset.feeds, capacity, drop_last=drop_last)
    return loader.set_sample_list_generator(batch(dataset.read, dataset.batch_size, drop_last), parsed)
