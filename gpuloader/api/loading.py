"""What a `DataLoader` decides before its first batch: what to read, in which batches, by whom, to where."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain as chained
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuloader.api.options import CHUNKS, OWN_BATCHES, Options, check_uncopied, find_unit
from gpuloader.batches.schema import Collation, Fallback
from gpuloader.checks import AUTO
from gpuloader.devices.places import default_place, parse_places
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import Iteration
from gpuloader.fetch.contract import BUDGET, WorkerOptions, most_workers
from gpuloader.fields.convert import check_fill
from gpuloader.fields.ragged import as_pad, list_targets
from gpuloader.fields.spec import FeedSpec, resolve_feeds
from gpuloader.order.batching import Batching, as_sampler, yields_numbers
from gpuloader.order.order import InOrder
from gpuloader.order.randomness import draw_seed
from gpuloader.order.samplers import make_sampler
from gpuloader.order.worker_info import find_local_rank
from gpuloader.sources.describing import Source, by_chunks, check_alike, describe
from gpuloader.sources.skipping import leaves_out
from gpuloader.system.platforms import available_memory

if TYPE_CHECKING:
    from gpuloader.batches.image_samples import ImageStage
    from gpuloader.devices.base import Device
    from gpuloader.sources.images.annotations import Annotation
    from gpuloader.sources.tables.huggingface import Reads
    from gpuloader.transforms.program import Programmer


_ByField = dict[str | None, tuple[Any, ...]]
"""The transforms of single images, by field; None is a sample's first image."""


def _draw_seed() -> int:
    # 31 bits: that many NumPy's legacy generator draws alike on all systems. If it was not imported, nobody
    # has seeded it, and importing it takes three quarters of the time to a program's first batch.
    if "numpy.random" not in sys.modules:
        return int.from_bytes(os.urandom(4), "little") >> 1
    return np.random.randint(2**31)


class Framework(NamedTuple):
    """What a framework's own loader does by default, so that ours with the same parameters does the same."""

    # Makes the default sampler of a loader, from the dataset, `shuffle` and the generator. None makes one of
    # this package's samplers, with a seed that the loader draws from the generator.
    make_sampler: Callable[..., Iterable[int]] | None = None
    # Returns the default seed of a loader, from the framework's global random state.
    draw_seed: Callable[[], int] = _draw_seed
    # Whether shard='auto' leaves alone what cannot be divided among ranks. A program that has only changed
    # its import did not ask for sharding, so it must run as before.
    divides_if_possible: bool = False
    # Whether each epoch draws a seed, from the generator if one was passed, unless the user gives one.
    follows_torch: bool = False
    # Whether values in host memory keep their type: the results of a collate_fn, and unbatched samples after
    # `convert`, the framework's own function. `fallback` makes the batches that cannot be collated as rows.
    keeps_values: bool = False
    convert: Callable[[Any], Any] | None = None
    fallback: Fallback | None = None
    # What `pin_memory` does to a batch in host memory.
    pin: Callable[[Any], Any] | None = None
    iteration: type[Iteration] = Iteration  # the class of the loader's iterators
    find: Callable[..., Source] = describe  # finds out how a dataset is read; a loader that opens again knows


class LoadingPlan(NamedTuple):
    """Everything about a loader that stays the same in all its epochs."""

    source: Source  # the dataset, and how it is read
    batching: Batching  # which samples make up a batch; the rank is found when an epoch begins
    collation: Collation  # how samples become a batch
    workers: WorkerOptions  # who fetches
    delivery: Delivery  # where batches land
    size: int | None  # samples per batch on one place; None if a batch sampler determines it
    names: tuple[str, ...] | None  # keys of the dicts that the user gets; None to nest batches like samples
    draw_seed: Callable[[], int]  # asked when an epoch needs a seed that the user has not given
    follows_torch: bool  # whether every epoch draws a new one
    transposed: bool  # whether columns of text that come from a list or tuple are tuples
    changes: tuple[Callable[[Any], Any], ...]  # of each batch, before the user gets it


def decide(options: Options, framework: Framework) -> LoadingPlan:
    """Return what the options of a loader amount to for its dataset, before anything starts.

    The order of the steps matters. The source tells whether there are images; images determine the kind of
    workers; the batches of the ranks determine where they can be delivered; and the places determine whether
    a GPU makes the images.
    """
    given = as_sampler(options.sampler, options.batch_sampler)
    by_key = given is not None and not yields_numbers(given.given)
    # A collate_fn written for the framework's loader expects the samples exactly as the dataset returns them.
    by_rows = options.collate_fn is not None or options.batch_size is None
    reads: Reads = "columns"
    if framework.keeps_values and by_rows:
        reads = "rows"
    # The framework's loader has none of these options, which are about columns.
    elif framework.keeps_values and not (
        options.pad or options.ragged or options.transforms or options.feed_list or options.decode
    ):
        reads = "as torch"
    source = framework.find(options.dataset, by_key=by_key, encoded=options.decode is not None, reads=reads)
    in_chunks = options.shuffle == CHUNKS
    if in_chunks:  # a cache is filled in order, from the dataset itself
        chunks = by_chunks(source)
        source = chunks if options.cache is None else replace(source, own_order=chunks.own_order)
    feeds = None if options.feed_list is None else resolve_feeds(options.feed_list)
    of_images, of_batches, along = split_transforms(options.transforms)
    stage = None
    if of_images or options.decode or source.holds_images:
        # Imported late, because only loaders of images need it.
        from gpuloader.batches.image_samples import ImageStage
        from gpuloader.sources.images.decoding import load_pillow

        load_pillow()
        declared = None if feeds is None else tuple(map(attrgetter("name"), feeds))
        stage = ImageStage(of_images, options.decode is not None, declared, along=along)

    follows_torch = framework.follows_torch and options.seed is None
    workers = _choose_workers(options, source, in_threads=stage is not None or in_chunks)
    generator, seed, draw = options.generator, options.seed, framework.draw_seed
    make = framework.make_sampler and partial(framework.make_sampler, generator=generator)
    if follows_torch and generator is not None:
        draw = partial(draw_seed, generator)
    elif generator is not None:
        seed = draw_seed(generator)
    batching = Batching.choose(
        source.dataset,
        iterable=source.iterable,
        given=given,
        own_order=source.own_order,
        batch_size=options.batch_size,
        shuffle=bool(options.shuffle),
        drop_last=options.drop_last,
        seed=seed,
        make=make or make_sampler,
    )
    uneven = options.uneven or "pad"
    insists = not (framework.divides_if_possible and options.shard == AUTO)
    batching = batching.divide(
        options.shard, uneven, dataset=source.dataset, in_order=workers.in_order, insists=insists
    )
    delivery = _choose_delivery(options, batching, workers)
    if options.on_bad == "skip":
        _check_skipping(
            ends=source.iterable and stage is None and not leaves_out(source.dataset),
            equal=delivery.shards > 1 or (batching.sharding is not None and uneven == "pad"),
        )
    collation = _choose_collation(options, framework, feeds, stage, (of_images, of_batches), delivery)

    if options.cache is not None:
        conflicts = {
            "an iterable dataset": source.iterable,
            "collate_fn": options.collate_fn is not None,
            "batch_size=None": options.batch_size is None,
            "on_bad='skip'": options.on_bad == "skip",
            "ragged": options.ragged,
            "pad": options.pad,
            "transforms of single images, such as Resize or ColorJitter": stage and stage.chains,
            "fields of varying length": not collation.fixed,
        }
        if conflict := next(filter(conflicts.get, conflicts), None):
            raise ValueError(
                "cache needs a map-style dataset with samples of fixed size; it cannot be combined with "
                f"{conflict}"
            )
    # If a batch could mix parts of a dataset that differ, raise now and not after hours. Declared feeds and
    # functions adapt the parts, and a user's sampler may draw from one part at a time.
    adapts = source.iterable or collation.whole or feeds is not None or collation.fallback is not None
    mixes = source.chained and given is None and not _keeps_apart(source, batching)
    if not adapts and (options.cache is not None or mixes):
        check_alike(source, collation.ragged | collation.pads.keys())
    names = None if options.return_list or feeds is None else tuple(map(attrgetter("name"), feeds))
    size = None if batching.size is None else -(-batching.size // delivery.shards)
    transposed = framework.keeps_values and not collation.whole
    pin = framework.pin if options.pin_memory and delivery.on_host else None
    changes = *([] if pin is None else [pin]), *([list_targets] if options.targets else [])
    # fmt: off
    return LoadingPlan(
        source, batching, collation, workers, delivery, size, names, draw, follows_torch, transposed, changes
    )
    # fmt: on


def _choose_workers(options: Options, source: Source, *, in_threads: bool) -> WorkerOptions:
    """Return who fetches; `in_threads` is the default unless the user has chosen."""
    tuned, deepens = options.num_workers == AUTO, options.prefetch == AUTO
    if tuned and source.iterable:
        raise ValueError(
            "num_workers='auto' needs a map-style dataset, because the batches of an iterable dataset depend "
            "on how many workers read it; pass a number"
        )
    # Threads for images: their decoders release the GIL, and pixels need not cross a pipe. For chunks: each
    # process would decode all of them. Passing a start method means wanting processes.
    kind = options.worker_type or ("thread" if in_threads and options.start_method is None else "process")
    # Slots are pinned, which takes memory away from the page cache and from the datasets of workers.
    available = available_memory() if tuned or deepens else None
    return WorkerOptions(
        count=1 if tuned else int(options.num_workers),
        kind=kind,
        prefetch_factor=options.prefetch_factor or 2,
        in_order=options.in_order,
        timeout=options.timeout,
        init=options.worker_init_fn,
        persistent=bool(options.persistent_workers and options.num_workers),
        start_method=options.start_method,
        respawn=options.on_worker_death == "respawn",
        most=most_workers() if tuned else 0,
        deepens=deepens,
        budget=BUDGET if available is None else min(BUDGET, available // 2),
        read_ahead=options.use_buffer_reader,
    )


def _choose_collation(
    options: Options,
    framework: Framework,
    feeds: tuple[FeedSpec, ...] | None,
    stage: ImageStage | None,
    transforms: tuple[_ByField, list[Any]],
    delivery: Delivery,
) -> Collation:
    """Return how samples become a batch, with the transforms of images and of batches."""
    of_images, of_batches = transforms
    programmer = None
    if options.transforms:
        if of_batches and (options.collate_fn is not None or options.batch_size is None):
            raise ValueError(f"transforms {OWN_BATCHES}")
        programmer = plan_transforms(of_batches, of_images, options.output, delivery)
    function, as_tensors = options.collate_fn, delivery.on_host and options.output == "torch"
    # Otherwise a batch has to be copied: to a GPU, into arrays of another library, or into declared fields.
    as_returned = framework.keeps_values and as_tensors and feeds is None
    if as_returned and function is None and options.batch_size is None:
        function = framework.convert
    ragged = frozenset(options.ragged)
    pads = {field: as_pad(pad) for field, pad in options.pad.items()} if options.pad else {}
    if stage is not None and stage.along and feeds is None and function is None and options.batch_size:
        from gpuloader.sources.images.annotations import varying_names

        # Boxes outside the cropped image are dropped, so their number always varies.
        ragged |= varying_names(chained.from_iterable(stage.along.values())) - pads.keys()
    by_rows_only = programmer is not None or stage is not None or options.cache is not None
    collation = Collation(
        feeds,
        function,
        options.batch_size is not None,
        ragged,
        pads,
        programmer,
        delivery.on_host,
        as_tensors,
        stage,
        options.on_bad == "skip",
        as_returned,
        framework.fallback if as_returned and not by_rows_only else None,
        framework.keeps_values and (by_rows_only or not as_returned),
        copies=options.copy,
    )
    if not options.copy:
        check_uncopied(delivery, makes=not collation.whole, static=options.static)
        if options.num_workers and options.worker_type != "thread":
            raise ValueError(
                "copy=False needs batches that are made in this process: pass num_workers=0, or "
                "worker_type='thread'"
            )
    if feeds is not None and (options.ragged or options.pad):
        _check_declared(feeds, collation)
    # A GPU can make images only if a batch lies whole in one slot and no collate_fn has to see it first.
    is_whole = delivery.shards == 1 and not (options.static or collation.whole or feeds is not None)
    if stage is not None and stage.chains and is_whole and not delivery.on_host:
        collation = make_on_device(collation, stage, delivery.devices if options.decode == "device" else ())
    return collation


def _keeps_apart(source: Source, batching: Batching) -> bool:
    """Return whether each batch takes its samples from only one of the datasets that `source` chains."""
    size = batching.size or 1
    if size == 1 or not isinstance(batching.any_order, InOrder):
        return size == 1
    # In the dataset's order, a part whose length is a multiple of the batch size ends with a whole batch.
    return all(len(part.dataset) % size == 0 for part in source.chained[:-1])


# Where batches land.


def _choose_delivery(options: Options, batching: Batching, workers: WorkerOptions) -> Delivery:
    """Return where batches land, and how a step is divided among the places."""
    places = options.places
    if places is None:
        # A loader that divides its data has one GPU: that of its rank on this machine.
        places = default_place(0 if batching.sharding is None else find_local_rank())
    parsed, uneven = parse_places(places), options.remainder
    if uneven is None:
        # Ranks fill up only the last step of an epoch; places would repeat a part of every batch. So nothing
        # is padded here unless the user says 'pad', and 'repeat', which concerns ranks, changes nothing.
        uneven = options.uneven if options.uneven in ("drop", "pad") else "error"
    shards = 1
    if options.split == "shards" and len(parsed) > 1:
        shards = len(parsed)
        _check_shards(shards, uneven, batching, workers)
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
        # Kernels would wait behind the model's, which fill the GPU. Copies need no cores.
        urgent=bool(options.transforms) or options.cache == "device",
    )


def _check_shards(shards: int, uneven: str, batching: Batching, workers: WorkerOptions) -> None:
    """Raise `ValueError` unless every batch can be cut into parts for the places, all in one step."""
    size, iterable = batching.size, batching.iterable
    # Parts are batches of their own, delivered to the places in turn. Only the plan knows which belong
    # together, so whatever separates consecutive batches would separate a step.
    if not workers.in_order:
        raise ValueError(
            "split='shards' needs in_order=True, so that the parts of a batch are delivered together"
        )
    if iterable and workers.count > 1:
        raise ValueError(
            f"split='shards' needs num_workers=0 or 1 for an iterable dataset: with {workers.count} workers, "
            "consecutive parts would come from different batches"
        )
    if batching.single:
        raise ValueError("split='shards' cuts batches, but batch_size=None yields single samples")
    if size is not None and size % shards and (uneven == "error" or iterable):
        others = "" if iterable else ", or uneven='drop' or 'pad'"
        raise ValueError(
            f"a batch of {size} samples cannot be cut into {shards} equal parts; choose a batch_size that "
            f"{shards} divides{others}"
        )
    if size is not None and size < shards and uneven == "drop":
        raise ValueError(
            f"a batch of {size} samples cut into {shards} equal parts with uneven='drop' would leave "
            f"nothing; choose a batch_size of {shards} or more"
        )
    # Workers cut what they read, and the size of an iterable dataset's last batch is known only at its end.
    if iterable and not (uneven == "drop" or (uneven == "error" and batching.drop_last)):
        raise ValueError(
            "split='shards' needs drop_last=True or uneven='drop' for an iterable dataset, because the size "
            "of its last batch is unknown; both leave out a last step that is not whole"
        )
    if batching.is_dealt:
        raise ValueError(
            "split='shards' cannot cut the batches of a batch_sampler that shard deals to ranks: pass "
            "sampler and batch_size, or split='batches'"
        )
    if uneven == "error":  # the last batch's size is known now for all orders that this package makes
        last = batching.count_last()
        if last is not None and last % shards:
            raise ValueError(
                f"an epoch's last batch, of {last} samples, cannot be cut into {shards} equal parts; choose "
                "drop_last=True, or uneven='drop' or 'pad'"
            )


def _check_one_shape(batching: Batching, shards: int, uneven: str) -> None:
    """Raise `ValueError` if an epoch's last batch is known to be smaller on a place than the others."""
    size, last = batching.size, batching.count_last()
    if size is None or last is None or batching.settle().count() < 2:
        return
    parts = [-(-samples // shards) if uneven == "pad" else samples // shards for samples in (size, last)]
    if parts[0] != parts[1]:
        raise ValueError(
            f"with static=True all batches must have one shape, but an epoch's last one has {last} samples "
            f"instead of {size}: pass drop_last=True, or a batch_size that divides the number of samples"
        )


# Fields and transforms.


def _check_declared(feeds: tuple[FeedSpec, ...], collation: Collation) -> None:
    """Raise `ValueError` unless the fields of varying length are those that the feeds declare as such."""
    if collation.ragged:
        raise ValueError("ragged cannot be used with a feed_list; declare the fields with lod_level=1")
    pads = collation.pads
    levels = {feed.name: feed.lod_level for feed in feeds}
    if wrong := sorted(name for name in pads if levels.get(name) != 1):
        raise ValueError(f"pad names {wrong}, which the feed_list does not declare with lod_level=1")
    for feed in feeds:
        if feed.name in pads:
            pad = pads[feed.name]
            check_fill(pad.value, feed.dtype)
            if pad.lengths or pad.mask or pad.axes != (0,):
                raise ValueError(
                    f"pad of the field {feed.name!r} is {pad}, but a feed_list declares all fields of a "
                    "batch and which axes vary: pass no feed_list, or Padding without axes, lengths and mask"
                )


def split_transforms(
    transforms: Sequence[Any],
) -> tuple[_ByField, list[Any], dict[str | None, tuple[Annotation, ...]]]:
    """Return the transforms of single images by field, those of batches, and what moves along with images.

    The transforms of batches must follow those of images.
    """
    images: _ByField = {}
    others: list[Any] = []
    along: dict[str | None, tuple[Annotation, ...]] = {}
    moving: dict[str | None, frozenset[str]] = {}  # the names of the fields in `along`
    for transform in transforms:
        if find_unit(transform) == "batches":
            others.append(transform)
            continue
        name, moved = transform.field, frozenset[str]()
        annotations: tuple[Annotation, ...] = ()
        if not isinstance(name, str | None):
            # Imported late, because most images have nothing that moves along.
            from gpuloader.sources.images.annotations import names_of, split_fields

            name, annotations = split_fields(name)
            moved = names_of(annotations)
        for before in others:
            if before.field == name or before.field in moved:
                raise ValueError(
                    f"{type(transform).__name__} is done to single images, and {type(before).__name__} to "
                    f"batches, so in transforms it must come before {type(before).__name__}"
                )
        if getattr(transform, "moves", True):
            if along.setdefault(name, annotations) != annotations:
                raise ValueError(
                    f"the transforms of {name!r} differ in what moves along with it: {annotations} in "
                    f"{type(transform).__name__}, and {along[name]} before; name the same fields in all of "
                    "them"
                )
            moving[name] = moved
        images[name] = (*images.get(name, ()), transform)
    seen: set[str | None] = {*images}
    for moved in moving.values():
        if both := sorted(moved & seen):
            raise ValueError(f"{both} move along with an image; they cannot be images or follow another one")
        seen |= moved
    return images, others, dict(filter(itemgetter(1), along.items()))


def plan_transforms(
    transforms: list[Any], of_images: Iterable[Any], output: str | None, delivery: Delivery
) -> Programmer | None:
    """Return a programmer for the transforms of batches, None without any; `of_images` names image fields.

    Raises `ValueError` if transforms would have to run both on hosts and on GPUs, or do not fit together.
    """
    if delivery.has_host and not delivery.on_host:
        raise ValueError(
            "transforms run where batches land, so places must be all GPUs or all host memory, got both"
        )
    if not transforms:
        return None
    # Imported late: kernels are slow to import, and most loaders have no transforms.
    from gpuloader.transforms.batch_transforms import CHANNELS_LAST, fuse, settle_layouts
    from gpuloader.transforms.program import Programmer

    # Channels last is an order of strides, which arrays of these libraries do not have.
    if output in ("jax", "paddle") and any(getattr(one, "to", "") == CHANNELS_LAST for one in transforms):
        raise ValueError(
            f"to='channels_last' needs arrays with strides, such as PyTorch's; with output={output!r}, "
            "choose to='HWC'"
        )
    return Programmer(settle_layouts(fuse(transforms), of_images), native=output == "torch")


# Images: which transforms are done to each, and who decodes.


def _check_skipping(*, ends: bool, equal: bool) -> None:
    """Raise `ValueError` unless samples can be left out; `equal` batches have the size that ranks expect.

    A dataset that `ends` when it raises has no next sample.
    """
    if ends:
        raise ValueError(
            "on_bad='skip' leaves out samples of a dataset with indices or in files, and images that the "
            "loader decodes; an iterator that has raised has ended, so catch the exception in its __iter__"
        )
    if equal:
        raise ValueError(
            "on_bad='skip' makes shorter batches, so it cannot be combined with split='shards', nor with "
            "shard and uneven='pad': pass split='batches' and uneven='drop'"
        )


def make_on_device(collation: Collation, stage: ImageStage, decoders: Sequence[Device]) -> Collation:
    """Return a collation that makes as much of its images as possible on the device.

    `decoders` are the devices that decode the images, none of them if workers do. Raises the errors of
    `Device.codec`.
    """
    # Imported late, because only loaders of images need it.
    from gpuloader.transforms.batch_transforms import fuse
    from gpuloader.transforms.image_staging import Decode, plan_resampling
    from gpuloader.transforms.program import Programmer

    before = collation.programmer
    transforms = [] if before is None else list(before.transforms)
    # Resampling replaces the chain, ahead of the first transform of the same field.
    staged: dict[str | None, Any] = {}
    for name, chain in stage.chains.items():
        made = plan_resampling(name, chain)
        if made is not None:
            staged[name] = made
            fields = list(map(attrgetter("field"), transforms))
            at = fields.index(name) if name in fields else len(fields)
            transforms[at:at] = [Decode(name, collation.skips), made] if decoders else [made]
    if not staged:
        return collation
    for device in decoders:
        device.codec()  # as late as this: without a chain to run there, nvImageCodec is not needed
    programmer = Programmer(fuse(transforms), native=before is not None and before.native)
    images = replace(stage, staged=staged, encoded=bool(decoders))
    return replace(collation, programmer=programmer, images=images)
