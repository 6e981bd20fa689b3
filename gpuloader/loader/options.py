"""Checks of a `DataLoader`'s options, made before anything starts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.base.checks import AUTO, check_count, check_word
from gpuloader.base.once import refuse_read
from gpuloader.collate.form import Collation, check_fill
from gpuloader.devices.interop import check_output
from gpuloader.devices.opening import default_place
from gpuloader.devices.places import parse_places
from gpuloader.fetch.worker_options import WorkerOptions
from gpuloader.fields.spec import FeedSpec
from gpuloader.loader.picture_options import is_of_pictures, split_transforms
from gpuloader.loader.spent import OF_DATASETS
from gpuloader.order.agreement import find_classes
from gpuloader.order.batching import Batching
from gpuloader.order.order import InOrder
from gpuloader.order.ranks import find_local_rank
from gpuloader.order.sampler import Sampler
from gpuloader.pipeline.delivery import Delivery
from gpuloader.pipeline.split import check_last, check_split
from gpuloader.sources.dataset import IterableDataset
from gpuloader.sources.frameworks import is_iterable_only
from gpuloader.sources.parts import chained, refuse_hidden_mix
from gpuloader.sources.sample_fields import check_alike
from gpuloader.transforms.programmer import Programmer

if TYPE_CHECKING:
    from gpuloader.collate.pictures import PictureStage

_MOST_SEED = 2**64 - 1
_OF_POSITIONS = (
    "SequentialSampler",
    "SequenceSampler",
    "RandomSampler",
    "WeightedRandomSampler",
    "DistributedSampler",
)
_OWN_BATCHES = "need batches that the loader collates itself: pass no collate_fn, and an integer batch_size"


def check_collation(
    *,
    feeds: tuple[FeedSpec, ...] | None,
    collate_fn: Callable[[Any], Any] | None,
    batched: bool,
    ragged: Iterable[str],
    pad: Mapping[str, float] | None,
    transforms: Sequence[Any] = (),
    on_host: bool = True,
    output: str | None = None,
    pictures: PictureStage | None = None,
    skips: bool = False,
) -> Collation:
    """Return how to collate samples.

    Raises
    ------
    ValueError
        Fields are padded or ragged with a ``collate_fn`` or with ``batch_size=None``, a field is both padded
        and ragged, or the feeds do not declare a padded field with ``lod_level=1``.
    TypeError
        ``collate_fn`` is not callable, or the fields are not given by name.
    """
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn must be callable, got {type(collate_fn).__name__}")
    if isinstance(ragged, str) or not isinstance(ragged, Iterable):
        raise TypeError(f"ragged must be a list of field names, got {ragged!r}")
    names, pads = frozenset(ragged), _check_pads(pad)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"ragged must be a list of field names, got {ragged!r}")
    if (names or pads) and (collate_fn is not None or not batched):
        raise ValueError(f"ragged and pad {_OWN_BATCHES}")
    if both := sorted(names & pads.keys()):
        raise ValueError(f"the fields {both} are in both ragged and pad; choose one for each")
    if feeds is not None:
        if names:
            raise ValueError("ragged cannot be used with a feed_list; declare the fields with lod_level=1")
        levels = {feed.name: feed.lod_level for feed in feeds}
        if wrong := sorted(name for name in pads if levels.get(name) != 1):
            raise ValueError(f"pad names {wrong}, which the feed_list does not declare with lod_level=1")
        for feed in feeds:
            if feed.name in pads:
                check_fill(pads[feed.name], feed.dtype)
    singly, others = split_transforms(transforms)
    if others and (collate_fn is not None or not batched):
        raise ValueError(f"transforms {_OWN_BATCHES}")
    programmer = None
    if others:
        # Imported late: its kernels are slow to import.
        from gpuloader.transforms.layouts import settle_layouts
        from gpuloader.transforms.pictures import CHANNELS_LAST, fuse

        if output in ("jax", "paddle") and any(getattr(one, "to", "") == CHANNELS_LAST for one in others):
            raise ValueError(
                f"to='channels_last' needs arrays with strides, such as PyTorch's; with output={output!r}, "
                "choose to='HWC'"
            )
        settled = settle_layouts(fuse(others), {one.field for one in singly})
        programmer = Programmer(settled, native=output == "torch")
    keeps_gradients = on_host and output == "torch"
    return Collation(
        feeds, collate_fn, batched, names, pads, programmer, on_host, keeps_gradients, pictures, skips
    )


def check_parts(
    dataset: object, batching: Batching, collation: Collation, *, chosen: bool, cached: bool
) -> None:
    """Check that the datasets that a dataset is composed of can share a batch, as far as is known.

    Parameters
    ----------
    dataset : object
        The dataset.
    batching : Batching
        Which samples make up a batch.
    collation : Collation
        How samples become a batch. A ``collate_fn`` and a feed_list take care of differences.
    chosen : bool
        Whether a sampler of the user's chooses the samples of a batch, perhaps from one dataset at a time.
    cached : bool
        Whether all samples share the arrays of a cache.

    Raises
    ------
    SampleError
        Two datasets that are read one after another have different fields, dtypes or shapes.
    TypeError
        A dataset of another package is composed of a `MixDataset`.
    """
    refuse_hidden_mix(dataset)
    if collation.whole or collation.feeds is not None:
        return
    if cached or not (chosen or _keeps_apart(chained(dataset), batching)):
        check_alike(dataset, collation.ragged | (collation.pads or {}).keys())


def _keeps_apart(parts: Sequence[Sized], batching: Batching) -> bool:
    """Return whether every batch has samples of one dataset only."""
    size = batching.size or 1
    ends = itertools.accumulate(map(len, parts[:-1]))
    return size == 1 or (isinstance(batching.order(0, 0), InOrder) and all(end % size == 0 for end in ends))


def check_transforms(transforms: object, *, batches_only: bool = False) -> list[Any]:
    """Return the transforms as a list.

    Raises
    ------
    TypeError
        They are not a list, or an entry is not a transform, or is one of single pictures with `batches_only`.
    """
    if not isinstance(transforms, Iterable):
        raise TypeError(f"transforms must be a list of transforms, got {type(transforms).__name__}")
    listed = list(transforms)
    for transform in listed:
        of_batches = all(hasattr(transform, name) for name in ("field", "draws", "bind", "draw", "check"))
        if isinstance(transform, type) or not (of_batches or is_of_pictures(transform)):
            got = type(transform).__name__
            if isinstance(transform, type):
                got = f"the class {transform.__name__}; pass an instance of it"
            raise TypeError(f"expected a transform, got {got}; see gpuloader.transforms")
        if batches_only and not of_batches:
            raise TypeError(
                f"{type(transform).__name__} is done to single pictures before they are a batch: pass it to "
                "a gpuloader.DataLoader"
            )
    return listed


def check_delivery(
    *,
    places: Any,
    batching: Batching,
    workers: WorkerOptions,
    transforms: Sequence[Any],
    split: str,
    remainder: str,
    output: str | None,
    stream: object,
    prefetch: int | str,
    drop_last: bool,
    static: bool = False,
    urgent: bool = False,
) -> Delivery:
    """Return where batches land, and how a step is divided among the places.

    Raises
    ------
    ValueError
        A place or an option's value is unknown, batches cannot be cut into equal shards, transforms would
        have to run both on hosts and on GPUs, or `static` batches would differ in shape.
    PlaceError
        A place needs a GPU that is missing.
    """
    if places is None:
        places = default_place(0 if batching.sharding is None else find_local_rank())
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
    if shards > 1 and batching.is_dealt:
        raise ValueError(
            "split='shards' cannot cut the batches of a batch_sampler that shard deals to ranks: pass "
            "sampler and batch_size, or split='batches'"
        )
    if shards > 1 and remainder == "error":
        check_last(batching.count_last(), shards)
    if static:
        check_one_shape(batching, shards, remainder)
    ahead = 1 if prefetch == AUTO else check_count("prefetch", prefetch)
    delivery = Delivery.of(
        parsed,
        check_output(output),
        stream,
        prefetch=ahead if workers.read_ahead else 0,
        drop_last=drop_last or shards > 1,
        shards=shards,
        remainder=remainder,
        static=static,
        urgent=urgent,
    )
    check_transform_places(transforms, delivery)
    return delivery


def check_transform_places(transforms: Sequence[Any], delivery: Delivery) -> None:
    """Raise `ValueError` if transforms would have to run both on hosts and on GPUs."""
    if transforms and delivery.has_host and not delivery.on_host:
        raise ValueError(
            "transforms run where batches land, so places must be all GPUs or all host memory, got both"
        )


def check_priority(priority: object, *, runs_kernels: bool) -> bool:
    """Return whether the copy stream has a high priority; raise `ValueError` if the word is unknown.

    >>> check_priority(None, runs_kernels=True), check_priority("normal", runs_kernels=True)
    (True, False)
    """
    check_word("copy_priority", priority, ("high", "normal"), optional=True)
    return runs_kernels if priority is None else priority == "high"


def check_one_shape(batching: Batching, shards: int, remainder: str) -> None:
    """Raise `ValueError` if an epoch's last batch is known to be smaller on a place than the others."""
    size, last = batching.size, batching.count_last()
    if size is None or last is None or batching.count() < 2:
        return
    parts = [-(-samples // shards) if remainder == "pad" else samples // shards for samples in (size, last)]
    if parts[0] != parts[1]:
        raise ValueError(
            f"with static=True all batches must have one shape, but an epoch's last one has {last} samples "
            f"instead of {size}: pass drop_last=True, or a batch_size that divides the number of samples"
        )


def check_dataset(dataset: object) -> bool:
    """Return whether a dataset is iterable rather than map-style.

    Raises
    ------
    TypeError
        The dataset is neither.
    ReaderError
        The dataset is a generator that has been read already.

    >>> check_dataset([1, 2]), check_dataset(iter([1, 2]))
    (False, True)
    """
    if isinstance(dataset, IterableDataset) or is_iterable_only(dataset):
        return True
    if hasattr(dataset, "__getitem__"):
        return False
    if isinstance(dataset, Iterable):
        refuse_read(dataset, "the dataset is", OF_DATASETS)
        return True
    raise TypeError(
        f"a dataset must have __getitem__ and __len__, or __iter__; got {type(dataset).__name__}, which has "
        "neither (for a generator function, use DataLoader.from_generator)"
    )


def may_ask_by_key(*samplers: object) -> bool:
    """Return whether one of the user's samplers may yield something else than numbers.

    >>> may_ask_by_key(None, [3, 1]), may_ask_by_key(["a.jpg"], None), may_ask_by_key([[2, 3]])
    (False, True, False)
    """
    return not all(map(_yields_numbers, samplers))


def _yields_numbers(sampler: Any) -> bool:
    """Return whether a sampler or batch sampler surely yields numbers, as far as that is known without it."""
    if sampler is None or isinstance(sampler, Sampler):
        return True
    if type(sampler) in find_classes(*_OF_POSITIONS):
        return True
    if type(sampler) in find_classes("BatchSampler", "SubsetRandomSampler"):
        return _yields_numbers(getattr(sampler, "sampler", None) or sampler.indices)
    if not (hasattr(sampler, "__getitem__") and hasattr(sampler, "__len__") and len(sampler)):
        return False
    first = next(iter(sampler))
    return hasattr(first, "__index__") or (not isinstance(first, str) and _yields_numbers(first))


def check_seed(seed: object) -> int | None:
    """Return the seed as an int; None stays None. Raise `ValueError` unless it fits in 64 bits."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _MOST_SEED:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    return int(seed)


def _check_pads(pad: object) -> dict[str, float]:
    if pad is None:
        return {}
    if not isinstance(pad, Mapping) or not all(isinstance(name, str) for name in pad):
        raise TypeError(f"pad must map field names to fill values, got {pad!r}")
    for name, fill in pad.items():
        if not isinstance(fill, int | float | np.number):
            raise TypeError(f"pad must fill field {name!r} with a number, got {fill!r}")
    return dict(pad)
