"""Checks of a `DataLoader`'s options, made before anything starts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.batches.schema import Collation, check_fill
from gpuloader.checks import AUTO, check_count, check_word
from gpuloader.devices.opening import default_place
from gpuloader.devices.outputs import check_output
from gpuloader.devices.places import parse_places
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.split import check_last, check_split
from gpuloader.fetch.fetching import METHODS, WorkerOptions
from gpuloader.fields.spec import FeedSpec
from gpuloader.order.batching import Batching
from gpuloader.order.order import InOrder
from gpuloader.order.randomness import GeneratorLike, draw_seed
from gpuloader.order.ranks import find_local_rank
from gpuloader.order.samplers import Sampler
from gpuloader.sources.describing import Source, check_alike
from gpuloader.system.imported import find_classes
from gpuloader.transforms.programmer import Programmer

if TYPE_CHECKING:
    from gpuloader.batches.image_samples import ImageStage


# The options of a loader that are about pictures: which transforms are done to each, and who decodes.


def find_stage(
    transforms: Sequence[Any],
    decode: str | None,
    feeds: Sequence[FeedSpec] | None,
    *,
    holds_images: bool,
) -> ImageStage | None:
    """Return what a loader does to the pictures of each sample; None if there are none.

    Raises
    ------
    ValueError
        `decode` is unknown, or a transform of pictures follows one of batches.
    MissingPackage
        Pillow is not installed.
    """
    check_word("decode", decode, ("image", "device"), optional=True)
    pictures, _ = split_transforms(transforms)
    if not (pictures or decode or holds_images):
        return None
    # Imported late, because only loaders of pictures need it.
    from gpuloader.batches.image_samples import ImageStage
    from gpuloader.sources.images.decoding import load_pillow

    load_pillow()
    names = None if feeds is None else tuple(feed.name for feed in feeds)
    return ImageStage.of(pictures, decodes=decode is not None, names=names)


def make_on_device(
    collation: Collation, *, whole: bool, codecs: Callable[[], object] | None = None
) -> Collation:
    """Return a collation whose pictures are made on the device that its batches go to, as far as it can.

    Workers make the pictures if there is no device, if they must be made before their batch is, and if a
    batch is not `whole`: if it is cut for several devices, or must lie where the one before lay.

    Parameters
    ----------
    collation : Collation
        How samples become a batch.
    whole : bool
        Whether batches are delivered as they are.
    codecs : callable or None
        Opens what decodes pictures on the devices, and raises if something is missing. None leaves decoding
        to the workers.
    """
    stage = collation.pictures
    excluded = collation.on_host or collation.whole or collation.feeds is not None or not whole
    if stage is None or not stage.chains or excluded:
        return collation
    # Imported late, because only loaders of pictures need it.
    from gpuloader.transforms.image_staging import fuse_resampling, plan_resampling
    from gpuloader.transforms.program import Decode
    from gpuloader.transforms.programmer import Programmer

    before = collation.programmer
    transforms = [] if before is None else list(before.transforms)
    staged: dict[str | None, Any] = {}
    for name, chain in stage.chains.items():
        made = plan_resampling(name, chain)
        if made is not None:
            staged[name] = made
            fields = [one.field for one in transforms]
            at = fields.index(name) if name in fields else len(fields)
            transforms[at:at] = [made] if codecs is None else [Decode(name, collation.skips), made]
    if not staged:
        return collation
    if codecs is not None:
        codecs()
    native = before is not None and before.native
    programmer = Programmer(fuse_resampling(transforms), native=native)
    pictures = replace(stage, staged=staged, encoded=codecs is not None)
    return replace(collation, programmer=programmer, pictures=pictures)


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
        before = next((one for one in others if one.field == transform.field), None)
        if before is not None:
            raise ValueError(
                f"{type(transform).__name__} is done to single pictures, and {type(before).__name__} to "
                f"batches, so in transforms it must come before {type(before).__name__}"
            )
        pictures.append(transform)
    return pictures, others


def is_of_pictures(transform: object) -> bool:
    """Return whether a transform is done to single pictures, before their batch is made.

    >>> from gpuloader.transforms import Cast, Resize
    >>> is_of_pictures(Resize(None, 8)), is_of_pictures(Cast(None, "float32"))
    (True, False)
    """
    return not isinstance(transform, type) and all(hasattr(transform, name) for name in ("field", "extend"))


def check_on_bad(on_bad: str, stage: ImageStage | None, *, equal: bool) -> bool:
    """Return whether samples with pictures that cannot be decoded are left out.

    Parameters
    ----------
    on_bad : str
        The user's word.
    stage : ImageStage or None
        What is done to pictures.
    equal : bool
        Whether batches must have the size that all ranks and places expect.

    Raises
    ------
    ValueError
        The word is unknown, or samples cannot be left out.

    >>> check_on_bad("raise", None, equal=True)
    False
    """
    check_word("on_bad", on_bad, ("raise", "skip"))
    if on_bad == "raise":
        return False
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
    return True


def choose_worker_type(given: str | None, stage: ImageStage | None, start_method: str | None) -> str:
    """Return which workers to use: threads for pictures, whose decoders release the GIL, else processes.

    >>> choose_worker_type(None, None, None), choose_worker_type("thread", None, None)
    ('process', 'thread')
    """
    if given is not None:
        return given
    return "process" if stage is None or start_method is not None else "thread"


# PyTorch's ways to write a loader's options, translated into this package's.

_DROP_IN = "or import DataLoader from gpuloader.torch, which takes PyTorch's arguments in PyTorch's order"


def read_positions(
    feed_list: Any, places: Any, return_list: object, batch_size: int | None, shuffle: bool | None
) -> tuple[Any, Any, int | None, bool]:
    """Return feed_list, places, batch_size and shuffle, also of a call ``DataLoader(dataset, 32, True)``.

    PyTorch's second and third arguments are batch_size and shuffle, ours are feed_list and places, as in
    Paddle. A number is never a feed_list and a bool never a place, so both orders can be told apart.

    Raises
    ------
    TypeError
        The call mixes both orders, or continues in PyTorch's after shuffle.

    >>> read_positions(32, True, True, 1, False)
    (None, None, 32, True)
    """
    shuffled = False if shuffle is None else shuffle
    if isinstance(feed_list, bool) or not isinstance(feed_list, int | np.integer):
        if isinstance(places, bool):
            raise TypeError(f"places must be places, got {places!r}; write shuffle={places!r}, {_DROP_IN}")
        return feed_list, places, batch_size, shuffled
    if batch_size != 1 or return_list is not True:
        raise TypeError(
            f"the second argument is {feed_list}, which is PyTorch's batch_size, but later arguments do not "
            f"follow PyTorch's order here: pass all arguments after the dataset by name, {_DROP_IN}"
        )
    if isinstance(places, bool):
        if shuffled:
            raise TypeError("shuffle was passed twice: as the third argument and by name")
        places, shuffled = None, places
    return None, places, int(feed_list), shuffled


def resolve_seed(seed: Any, generator: int | GeneratorLike) -> Any:
    """Return the seed, or one drawn from a generator.

    Raises
    ------
    ValueError
        Both were passed.
    TypeError
        The generator is of another type.

    >>> resolve_seed(5, None), 0 <= resolve_seed(None, np.random.default_rng()) < 2**63
    (5, True)
    """
    if generator is None:
        return seed
    if seed is not None:
        raise ValueError("seed and generator both determine everything random: pass one of them")
    if isinstance(generator, int | np.integer):
        raise TypeError(f"generator must be a generator of random numbers, got {generator!r}; write seed=")
    return draw_seed(generator)


def resolve_start_method(start_method: str | None, context: Any) -> str | None:
    """Return how processes start: the `start_method`, or that of a multiprocessing context.

    Parameters
    ----------
    start_method : str or None
        Our option.
    context : str, multiprocessing context or None
        PyTorch's option ``multiprocessing_context``.

    Raises
    ------
    ValueError
        They contradict each other, or the context has an unknown name.
    TypeError
        The context is neither a name nor a multiprocessing context.

    >>> resolve_start_method(None, "spawn"), resolve_start_method("fork", None)
    ('spawn', 'fork')
    """
    if context is None:
        return start_method
    read = getattr(context, "get_start_method", None)
    method = read() if callable(read) else context
    if not isinstance(method, str):
        raise TypeError(
            "multiprocessing_context must be a start method or a context of multiprocessing, got "
            f"{type(context).__name__}"
        )
    check_word("multiprocessing_context", method, METHODS)
    if start_method not in (None, method):
        raise ValueError(
            f"start_method={start_method!r} contradicts the multiprocessing_context for {method!r}: pass one"
        )
    return method


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
    pictures: ImageStage | None = None,
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
        from gpuloader.transforms.batch_transforms import CHANNELS_LAST, fuse, settle_layouts

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
    source: Source, batching: Batching, collation: Collation, *, chosen: bool, cached: bool
) -> None:
    """Check that the datasets that a dataset is composed of can share a batch, as far as is known.

    Parameters
    ----------
    source : Source
        The dataset and its parts.
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
    """
    if source.iterable or collation.whole or collation.feeds is not None:
        return
    if cached or not (chosen or _keeps_apart(source.chained, batching)):
        check_alike(source, collation.ragged | (collation.pads or {}).keys())


def _keeps_apart(parts: Sequence[Source], batching: Batching) -> bool:
    """Return whether every batch has samples of one dataset only."""
    size = batching.size or 1
    ends = itertools.accumulate(len(part.dataset) for part in parts[:-1])
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
