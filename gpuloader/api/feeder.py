"""`DataFeeder`: convert minibatches of samples to named arrays on a place, by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gpuloader.batches.columns import split_columns
from gpuloader.batches.rows import SampleRows
from gpuloader.checks import check_count
from gpuloader.devices import places
from gpuloader.epoch.sending import send
from gpuloader.errors import FeedError, SampleError
from gpuloader.fields.ragged import gather_fields
from gpuloader.fields.spec import FeedSpec, Program, resolve_feeds
from gpuloader.sources.readers.decorators import Reader, check_reader, iterate
from gpuloader.staging import arrange
from gpuloader.system.iterators import group

Feed = dict[str, Any]


class DataFeeder:
    """Turns minibatches of samples into dicts of arrays on a place, like Paddle's `DataFeeder`.

    Parameters
    ----------
    feed_list : list of FeedSpec or str
        The fields, in the order of a sample's values.
    place : place or str
        Where the arrays land.
    program : Program or None
        Where to look up names: the `gpuloader.fluid.Program` that was the current one when `gpuloader.data`
        declared them. None means the current program.

    Raises
    ------
    TypeError
        An entry of the list is neither a feed spec nor a name.
    ValueError
        A name is unknown or listed twice, or the place is unknown or missing.

    Examples
    --------
    >>> from gpuloader import CPUPlace, data
    >>> feeds = [data("image", [None, 2, 2]), data("label", [None, 1], "int64")]
    >>> feeder = DataFeeder(feeds, CPUPlace())
    >>> batch = feeder.feed([([0, 1, 2, 3], [9]), ([4, 5, 6, 7], [1])])
    >>> batch["image"].shape, batch["label"].tolist()
    ((2, 2, 2), [[9], [1]])
    """

    def __init__(
        self, feed_list: Sequence[FeedSpec | str], place: Any, program: Program | None = None
    ) -> None:
        self._feeds = resolve_feeds(feed_list, program)
        self._place = places.parse_place(place)
        places.open_device(self._place)  # a missing GPU is an error here, not at the first batch

    def feed(self, iterable: Iterable[Any]) -> Feed:
        """Return the samples of one minibatch as arrays by field name.

        Parameters
        ----------
        iterable : iterable of samples
            Each sample is a list or tuple with one value per field. No samples make arrays of length zero.

        Returns
        -------
        dict
            Maps each name to an array, or to a `Ragged` if the field has a lod_level.

        Raises
        ------
        FeedError
            A sample does not fit its fields. The message names the sample, the field, what was expected and
            what was found.
        """
        return self._feed(iterable, self._place)

    def feed_parallel(
        self, iterable: Iterable[Iterable[Any]], num_places: int | None = None
    ) -> Iterator[Feed]:
        """Yield one dict per device, from one minibatch per device.

        Parameters
        ----------
        iterable : iterable of minibatches
            One for each device.
        num_places : int or None
            The number of devices. None means all of the place's kind; on the CPU it means the environment
            variable CPU_NUM, or 1 if that is not set.

        Raises
        ------
        ValueError
            The number of minibatches differs from the number of devices.

        Examples
        --------
        >>> from gpuloader import data
        >>> feeder = DataFeeder([data("x", [None, 1])], "cpu")
        >>> [one["x"].tolist() for one in feeder.feed_parallel([[(1,)], [(2,)]], num_places=2)]
        [[[1.0]], [[2.0]]]
        """
        chosen = self._places(num_places)
        batches = list(iterable)
        if len(batches) != len(chosen):
            raise ValueError(f"expected one minibatch for each of {len(chosen)} devices, got {len(batches)}")
        for batch, place in zip(batches, chosen, strict=True):
            yield self._feed(batch, place)

    def decorate_reader(
        self, reader: Reader, multi_devices: bool, num_places: int | None = None, drop_last: bool = True
    ) -> Callable[[], Iterator[Any]]:
        """Turn a reader of minibatches into a reader of feeds.

        Parameters
        ----------
        reader : callable
            Returns minibatches.
        multi_devices : bool
            False yields one dict per item. True yields lists of dicts, one per device.
        num_places : int or None
            The number of devices, as for `feed_parallel`.
        drop_last : bool
            Whether to drop minibatches that do not fill a last group.

        Raises
        ------
        ReaderError
            The reader is not a function without arguments.
        ValueError
            Raised while reading with ``drop_last=False``: the last group is not full.

        Examples
        --------
        >>> from gpuloader import data
        >>> feeder = DataFeeder([data("x", [None, 1])], "cpu")
        >>> feeds = feeder.decorate_reader(lambda: [[(1,)], [(2,)], [(3,)]], multi_devices=True, num_places=2)
        >>> [len(group) for group in feeds()]
        [2]
        """
        check_reader(reader)
        if not multi_devices:
            return lambda: (self.feed(batch) for batch in iterate(reader))

        def feed_groups() -> Iterator[list[Feed]]:
            count = len(self._places(num_places))
            for batches in group(iterate(reader), count, drop_last):
                if len(batches) < count:
                    raise ValueError(
                        f"the last group holds {len(batches)} minibatches for {count} devices; "
                        "pass drop_last=True or make the number of minibatches a multiple of the devices"
                    )
                yield list(self.feed_parallel(batches, num_places))

        return feed_groups

    def _places(self, num_places: int | None) -> Sequence[places.Place]:
        # Paddle counts CPU "devices" by this variable, and old programs set it.
        count = None if num_places is None else check_count("num_places", num_places)
        if isinstance(self._place, places.CUDAPlace):
            return places.cuda_places(None if count is None else list(range(count)))
        if count is None and isinstance(self._place, places.CPUPlace | places.CUDAPinnedPlace):
            count = places.read_cpu_num()
        return [self._place] * (count or 1)

    def _feed(self, iterable: Iterable[Any], place: places.Place) -> Feed:
        # Laid out like a loader's batch, so that one copy brings all fields to the device.
        try:
            columns = split_columns(list(iterable), SampleRows(self._feeds))
        except SampleError as error:
            raise FeedError(error.problem, index=error.index, field=error.field) from error
        layout = arrange(tuple((column.shape, column.dtype) for column in columns))
        writers = [column.write for column in columns]
        levels = [feed.lod_level for feed in self._feeds]
        fields = gather_fields(levels, send(writers, layout, places.open_device(place)))
        return {feed.name: field for feed, field in zip(self._feeds, fields, strict=True)}
