"""What a `DataLoader` is asked, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuloader.base.checks import AUTO, check_count
from gpuloader.collate.form import Collation, check_fill
from gpuloader.devices.interop import check_output
from gpuloader.devices.opening import default_place
from gpuloader.devices.places import parse_places
from gpuloader.fetch.worker_options import WorkerOptions
from gpuloader.fields.spec import FeedSpec
from gpuloader.order.batching import Batching
from gpuloader.order.ranks import find_local_rank
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.split import check_last, check_split
from gpuloader.sources.dataset import IterableDataset
from gpuloader.sources.frameworks import is_iterable_only
from gpuloader.transforms.program import Programmer, Transform

_MOST_SEED = 2**64 - 1
_OWN_BATCHES = "batches that the loader puts together itself: not beside collate_fn or batch_size=None"


def check_collation(
    *,
    feeds: tuple[FeedSpec, ...] | None,
    collate_fn: Callable[[Any], Any] | None,
    batched: bool,
    ragged: Iterable[str],
    pad: Mapping[str, float] | None,
    transforms: Sequence[Transform] = (),
    on_host: bool = True,
) -> Collation:
    """Return what was asked of collation.

    Raises
    ------
    ValueError
        Padded or ragged fields with a ``collate_fn``, without batches, or in both ways at once; a field
        that the feeds do not declare of level 1.
    TypeError
        ``collate_fn`` cannot be called, or the fields are not names.
    """
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn must be callable, got {type(collate_fn).__name__}")
    if isinstance(ragged, str) or not isinstance(ragged, Iterable):
        raise TypeError(f"ragged must be a list of field names, got {ragged!r}")
    names, pads = frozenset(ragged), _check_pads(pad)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"ragged must be a list of field names, got {ragged!r}")
    if (names or pads) and (collate_fn is not None or not batched):
        raise ValueError(f"ragged and pad are for {_OWN_BATCHES}")
    if both := sorted(names & pads.keys()):
        raise ValueError(f"the fields {both} are both in ragged and in pad; choose one")
    if feeds is not None:
        if names:
            raise ValueError("with a feed_list, declare ragged fields by lod_level=1 instead")
        levels = {feed.name: feed.lod_level for feed in feeds}
        if wrong := sorted(name for name in pads if levels.get(name) != 1):
            raise ValueError(f"pad names {wrong}, which the feed_list does not declare with lod_level=1")
        for feed in feeds:
            if feed.name in pads:
                check_fill(pads[feed.name], feed.dtype)
    if transforms and (collate_fn is not None or not batched):
        raise ValueError(f"transforms are for {_OWN_BATCHES}")
    programmer = None
    if transforms:
        from gpuloader.transforms.pictures import fuse  # whose kernels take their time to import

        programmer = Programmer(fuse(transforms))
    return Collation(feeds, collate_fn, batched, names, pads, programmer, on_host)


def check_transforms(transforms: object) -> list[Transform]:
    """Return transforms as a list.

    Raises
    ------
    TypeError
        They are not a list, or hold something else.
    """
    if not isinstance(transforms, Iterable):
        raise TypeError(f"transforms must be a list of transforms, got {type(transforms).__name__}")
    listed = list(transforms)
    for transform in listed:
        if not all(hasattr(transform, name) for name in ("field", "draws", "bind", "draw", "check")):
            got = type(transform).__name__
            if isinstance(transform, type):
                got = f"the class {transform.__name__}; make one of it"
            raise TypeError(f"expected a transform, got {got}; see gpuloader.transforms")
    return listed


def check_delivery(
    *,
    places: Any,
    batching: Batching,
    workers: WorkerOptions,
    transforms: Sequence[Transform],
    split: str,
    remainder: str,
    output: str | None,
    stream: object,
    prefetch: int | str,
    use_buffer_reader: bool,
    drop_last: bool,
) -> Delivery:
    """Return where batches land, and how a step is divided among the places.

    Raises
    ------
    ValueError
        A place or a word is unknown, batches cannot be cut as asked, or transforms would have to run both on
        hosts and on GPUs.
    PlaceError
        A place needs a GPU that is missing.
    """
    if places is None:
        places = default_place(0 if batching.division is None else find_local_rank())
    parsed = parse_places(places)
    shards = check_split(
        split,
        remainder,
        batching.size,
        len(parsed),
        iterable=batching.iterable,
        single=batching.single,
        workers=workers.count,
        in_order=workers.in_order,
    )
    if shards > 1 and remainder == "error":
        check_last(batching.count_last(), shards)
    ahead = 1 if prefetch == AUTO else check_count("prefetch", prefetch)
    delivery = Delivery.of(
        parsed,
        check_output(output),
        stream,
        prefetch=ahead if use_buffer_reader else 0,
        drop_last=drop_last or shards > 1,
        shards=shards,
        remainder=remainder,
    )
    if transforms and delivery.has_host and not delivery.on_host:
        raise ValueError("transforms run where batches land: give places that are all GPUs, or all hosts")
    return delivery


def check_dataset(dataset: object) -> bool:
    """Return whether a dataset is iterable rather than indexed.

    Raises
    ------
    TypeError
        It is neither.

    >>> check_dataset([1, 2]), check_dataset(iter([1, 2]))
    (False, True)
    """
    if isinstance(dataset, IterableDataset) or is_iterable_only(dataset):
        return True
    if hasattr(dataset, "__getitem__"):
        return False
    if isinstance(dataset, Iterable):
        return True
    raise TypeError(
        f"a dataset has __getitem__ and __len__, or __iter__; got {type(dataset).__name__}, which has "
        "neither (for a generator function use DataLoader.from_generator)"
    )


def check_seed(seed: object) -> int | None:
    """Return a seed of 64 bits, or None where none is given."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _MOST_SEED:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    return int(seed)


def _check_pads(pad: object) -> dict[str, float]:
    if pad is None:
        return {}
    if not isinstance(pad, Mapping) or not all(isinstance(name, str) for name in pad):
        raise TypeError(f"pad must map field names to what to fill up with, got {pad!r}")
    for name, fill in pad.items():
        if not isinstance(fill, int | float | np.number):
            raise TypeError(f"pad must fill up field {name!r} with a number, got {fill!r}")
    return dict(pad)
