"""What a `DataLoader` decides before its first batch: what to read, in which batches, by whom, to where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.api.options import OWN_BATCHES, Options, is_of_pictures
from gpuloader.batches.schema import Collation, check_fill
from gpuloader.checks import AUTO
from gpuloader.devices.opening import default_place
from gpuloader.devices.places import parse_places
from gpuloader.epoch.cache import check_cache
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.split import check_last, check_split
from gpuloader.fetch.contract import WorkerOptions, most_workers
from gpuloader.fields.spec import FeedSpec, resolve_feeds
from gpuloader.order.batching import Batching, as_sampler
from gpuloader.order.order import InOrder
from gpuloader.order.randomness import draw_seed
from gpuloader.order.samplers import Sampler, make_sampler
from gpuloader.order.worker_info import find_local_rank
from gpuloader.sources.describing import Source, check_alike, describe
from gpuloader.system.platforms import available_memory
from gpuloader.transforms.programmer import Programmer
from gpuloader.watch.autotuner import BUDGET

if TYPE_CHECKING:
    from gpuloader.batches.image_samples import PictureStage


def _draw_from_numpy() -> int:
    return int(np.random.randint(2**31))


@dataclass(frozen=True, slots=True)
class Framework:
    """What a framework's own loader does by default, so that a loader with its parameters does the same.

    Attributes
    ----------
    make_sampler : callable
        Makes the sampler of a loader that was passed none, from the dataset and `shuffle`.
    draw_seed : callable
        Returns the seed of a loader that was passed none, from the framework's global random state.
    divides_if_possible : bool
        Whether ``shard='auto'`` leaves alone what cannot be divided among ranks, instead of refusing it.
    """

    make_sampler: Callable[[Any, bool], Sampler[int]] = make_sampler
    draw_seed: Callable[[], int] = _draw_from_numpy
    divides_if_possible: bool = False


@dataclass(frozen=True, slots=True)
class LoadingPlan:
    """Everything about a loader that stays the same in all its epochs.

    Attributes
    ----------
    source : Source
        The dataset, and how it is read.
    batching : Batching
        Which samples make up a batch.
    collation : Collation
        How samples become a batch.
    workers : WorkerOptions
        Who fetches.
    delivery : Delivery
        Where batches land.
    names : tuple of str or None
        The keys of the dicts that the user gets; None for batches with the tree of a sample.
    cache : str or None
        Where samples are kept after the first epoch: 'host' or 'device'.
    draw_seed : callable
        Returns a seed, when an epoch first needs one that the user has not given.
    """

    source: Source
    batching: Batching
    collation: Collation
    workers: WorkerOptions
    delivery: Delivery
    names: tuple[str, ...] | None
    cache: str | None
    draw_seed: Callable[[], int]

    @property
    def size(self) -> int | None:
        """Samples per batch on one place; None if a batch sampler determines it."""
        return None if self.batching.size is None else -(-self.batching.size // self.delivery.shards)


def decide(options: Options, framework: Framework) -> LoadingPlan:
    """Return what the options of a loader amount to for its dataset, before anything starts.

    The steps depend on each other in this order: the source tells whether there are pictures, pictures choose
    the kind of workers, the batches of the ranks decide where they can be delivered, and only a loader whose
    places are known knows whether a GPU makes its pictures.

    Raises
    ------
    ValueError
        Options exclude each other, or do not fit the dataset.
    TypeError
        The dataset, a sampler or the fields have the wrong type.
    PlaceError
        A place needs a GPU that is missing.
    """
    chosen = as_sampler(options.sampler, options.batch_sampler)
    by_key = chosen is not None and not chosen.numbers
    source = describe(options.dataset, by_key=by_key, encoded=options.decode is not None)
    feeds = None if options.feed_list is None else resolve_feeds(options.feed_list)
    of_pictures, of_batches = split_transforms(options.transforms) if options.transforms else ([], [])
    stage = None
    if of_pictures or options.decode or source.holds_images:
        stage = _stage_pictures(of_pictures, options, feeds)

    tuned, deepens = options.num_workers == AUTO, options.prefetch == AUTO
    if tuned and source.iterable:
        raise ValueError(
            "num_workers='auto' needs a map-style dataset, because the batches of an iterable dataset depend "
            "on how many workers read it; pass a number"
        )
    # Threads for pictures: their decoders release the GIL, and pixels need not cross a pipe. Whoever asks for
    # a start method wants processes.
    in_threads = stage is not None and options.start_method is None
    workers = WorkerOptions(
        count=1 if tuned else int(options.num_workers),
        kind=options.worker_type or ("thread" if in_threads else "process"),
        prefetch_factor=options.prefetch_factor or 2,
        in_order=options.in_order,
        timeout=options.timeout,
        init=options.worker_init_fn,
        persistent=bool(options.persistent_workers and options.num_workers),
        start_method=options.start_method,
        respawn=options.on_worker_death == "respawn",
        most=most_workers() if tuned else 0,
        deepens=deepens,
        budget=_find_budget() if tuned or deepens else BUDGET,
        read_ahead=options.use_buffer_reader,
    )

    batching = Batching.choose(
        source.dataset,
        iterable=source.iterable,
        given=chosen,
        own_order=source.own_order,
        batch_size=options.batch_size,
        shuffle=bool(options.shuffle),
        drop_last=options.drop_last,
        seed=options.seed if options.generator is None else draw_seed(options.generator),
        make=framework.make_sampler,
    )
    uneven = options.uneven_ranks
    if framework.divides_if_possible and options.shard == AUTO:
        batching = batching.divide_if_possible(uneven, dataset=source.dataset, in_order=workers.in_order)
    else:
        batching = batching.divide(options.shard, uneven, dataset=source.dataset, in_order=workers.in_order)

    delivery = _choose_delivery(options, batching, workers)
    check_transform_places(options.transforms, delivery)
    equal = delivery.shards > 1 or (batching.sharding is not None and uneven == "pad")
    if options.on_bad == "skip":
        _check_skipping(stage, equal=equal)

    programmer = None
    if of_batches:
        if options.collate_fn is not None or options.batch_size is None:
            raise ValueError(f"transforms {OWN_BATCHES}")
        programmer = plan_transforms(of_batches, {one.field for one in of_pictures}, options.output)
    collation = Collation(
        feeds,
        options.collate_fn,
        options.batch_size is not None,
        frozenset(options.ragged),
        options.pad or {},
        programmer,
        delivery.on_host,
        delivery.on_host and options.output == "torch",
        stage,
        options.on_bad == "skip",
    )
    if feeds is not None and (options.ragged or options.pad):
        _check_declared(feeds, collation)
    # A picture made on a GPU is cut from a batch that lies whole in one slot of its own.
    if stage is not None and stage.chains and delivery.shards == 1 and not options.static:
        collation = make_on_device(collation, delivery.open_codecs if options.decode == "device" else None)

    cacheable = not source.iterable and collation.fixed and not (stage and stage.chains)
    cache = None if options.cache is None else check_cache(options.cache, cacheable=cacheable)
    # A collate_fn and declared feeds take care of differences between the parts of a dataset, and the user's
    # own sampler may draw each batch from one part.
    mixes = cache is not None or not (chosen is not None or _keeps_apart(source, batching))
    if mixes and not (source.iterable or collation.whole or feeds is not None):
        check_alike(source, collation.ragged | (collation.pads or {}).keys())
    names = None if options.return_list or feeds is None else tuple(feed.name for feed in feeds)
    return LoadingPlan(source, batching, collation, workers, delivery, names, cache, framework.draw_seed)


def _keeps_apart(source: Source, batching: Batching) -> bool:
    """Return whether every batch has samples of one dataset only, of those that `source` chains."""
    size, end = batching.size or 1, 0
    if size == 1:
        return True
    if not isinstance(batching.order(0, 0), InOrder):
        return False
    for part in source.chained[:-1]:
        end += len(part.dataset)
        if end % size:
            return False
    return True


def _find_budget() -> int:
    """Return the most bytes that slots may grow to while 'auto' options are tuned."""
    # Slots are page-locked, which takes memory away from the page cache and from the datasets of workers.
    available = available_memory()
    return BUDGET if available is None else min(BUDGET, available // 2)


# Where batches land.


def _choose_delivery(options: Options, batching: Batching, workers: WorkerOptions) -> Delivery:
    """Return where batches land, and how a step is divided among the places."""
    places = options.places
    if places is None:
        places = default_place(0 if batching.sharding is None else find_local_rank())
    parsed, uneven = parse_places(places), options.uneven_places
    shards = check_split(
        options.split,
        uneven,
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
    if shards > 1 and uneven == "error":
        check_last(batching.count_last(), shards)
    if options.static:
        _check_one_shape(batching, shards, uneven)
    ahead = 1 if options.prefetch == AUTO else int(options.prefetch)
    return Delivery.of(
        parsed,
        options.output,
        options.stream,
        prefetch=ahead if workers.read_ahead else 0,
        drop_last=options.drop_last or shards > 1,
        shards=shards,
        uneven=uneven,
        static=options.static,
        # Kernels on the copy stream would wait behind the model's, which fill the GPU; copies need no cores.
        urgent=bool(options.transforms) or options.cache == "device",
    )


def check_transform_places(transforms: Sequence[Any], delivery: Delivery) -> None:
    """Raise `ValueError` if transforms would have to run both on hosts and on GPUs."""
    if transforms and delivery.has_host and not delivery.on_host:
        raise ValueError(
            "transforms run where batches land, so places must be all GPUs or all host memory, got both"
        )


def _check_one_shape(batching: Batching, shards: int, uneven: str) -> None:
    """Raise `ValueError` if an epoch's last batch is known to be smaller on a place than the others."""
    size, last = batching.size, batching.count_last()
    if size is None or last is None or batching.count() < 2:
        return
    parts = [-(-samples // shards) if uneven == "pad" else samples // shards for samples in (size, last)]
    if parts[0] != parts[1]:
        raise ValueError(
            f"with static=True all batches must have one shape, but an epoch's last one has {last} samples "
            f"instead of {size}: pass drop_last=True, or a batch_size that divides the number of samples"
        )


# Fields and transforms.


def _check_declared(feeds: tuple[FeedSpec, ...], collation: Collation) -> None:
    """Raise `ValueError` if fields of varying length are not those that the feeds declare as such."""
    if collation.ragged:
        raise ValueError("ragged cannot be used with a feed_list; declare the fields with lod_level=1")
    pads = collation.pads or {}
    levels = {feed.name: feed.lod_level for feed in feeds}
    if wrong := sorted(name for name in pads if levels.get(name) != 1):
        raise ValueError(f"pad names {wrong}, which the feed_list does not declare with lod_level=1")
    for feed in feeds:
        if feed.name in pads:
            check_fill(pads[feed.name], feed.dtype)


def split_transforms(transforms: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the transforms of single pictures, and those of batches.

    Raises
    ------
    ValueError
        A transform of single pictures follows one that makes batches of the same field.
    """
    pictures: list[Any] = []
    others: list[Any] = []
    for transform in transforms:
        if not is_of_pictures(transform):
            others.append(transform)
            continue
        for before in others:
            if before.field == transform.field:
                raise ValueError(
                    f"{type(transform).__name__} is done to single pictures, and {type(before).__name__} to "
                    f"batches, so in transforms it must come before {type(before).__name__}"
                )
        pictures.append(transform)
    return pictures, others


def plan_transforms(transforms: list[Any], of_pictures: set[Any], output: str | None) -> Programmer:
    """Return what plans the transforms of batches; `of_pictures` are the fields of pictures."""
    # Imported late: its kernels are slow to import.
    from gpuloader.transforms.layouts import settle_layouts
    from gpuloader.transforms.normalizing import CHANNELS_LAST, fuse

    if output in ("jax", "paddle") and any(getattr(one, "to", "") == CHANNELS_LAST for one in transforms):
        raise ValueError(
            f"to='channels_last' needs arrays with strides, such as PyTorch's; with output={output!r}, "
            "choose to='HWC'"
        )
    return Programmer(settle_layouts(fuse(transforms), of_pictures), native=output == "torch")


# Pictures: which transforms are done to each, and who decodes.


def _stage_pictures(
    transforms: Sequence[Any], options: Options, feeds: Sequence[FeedSpec] | None
) -> PictureStage:
    """Return what is done to the pictures of each sample; raise `MissingPackage` without Pillow."""
    # Imported late, because only loaders of pictures need it.
    from gpuloader.batches.image_samples import PictureStage
    from gpuloader.sources.images.decoding import load_pillow

    load_pillow()
    names = None if feeds is None else tuple(feed.name for feed in feeds)
    return PictureStage.of(transforms, decodes=options.decode is not None, names=names)


def _check_skipping(stage: PictureStage | None, *, equal: bool) -> None:
    """Raise `ValueError` unless samples can be left out; `equal` batches have the size that ranks expect."""
    if stage is None:
        raise ValueError(
            "on_bad='skip' leaves out pictures that cannot be decoded, but this loader decodes none: pass "
            "decode='image', a transform of pictures, or a dataset of pictures"
        )
    if equal:
        raise ValueError(
            "on_bad='skip' makes shorter batches, so it cannot be combined with split='shards', nor with "
            "shard and uneven='pad': pass uneven='drop'"
        )


def make_on_device(collation: Collation, open_codecs: Callable[[], object] | None) -> Collation:
    """Return a collation whose pictures are made on the device that its batches go to, as far as it can.

    `open_codecs` opens what decodes on the devices, and raises if something is missing; None leaves decoding
    to the workers, which also make the pictures if a batch lands on a host or has to be complete before.
    """
    stage = collation.pictures
    if stage is None or collation.on_host or collation.whole or collation.feeds is not None:
        return collation
    # Imported late, because only loaders of pictures need it.
    from gpuloader.transforms.image_staging import fuse_resampling, plan_resampling
    from gpuloader.transforms.program import Decode

    before = collation.programmer
    transforms = [] if before is None else list(before.transforms)
    staged: dict[str | None, str] = {}
    for name, chain in stage.chains.items():
        made = plan_resampling(name, chain)
        if made is not None:
            staged[name] = made.interpolation
            fields = [one.field for one in transforms]
            at = fields.index(name) if name in fields else len(fields)
            transforms[at:at] = [made] if open_codecs is None else [Decode(name, collation.skips), made]
    if not staged:
        return collation
    if open_codecs is not None:
        open_codecs()
    native = before is not None and before.native
    programmer = Programmer(fuse_resampling(transforms), native=native)
    pictures = replace(stage, staged=staged, encoded=open_codecs is not None)
    return replace(collation, programmer=programmer, pictures=pictures)
