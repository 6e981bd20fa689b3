"""The options of a loader that are about pictures: which transforms are done to each, and who decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuloader.base.checks import check_word
from gpuloader.fields.spec import FeedSpec
from gpuloader.sources.pictures.holding import holds_pictures

if TYPE_CHECKING:
    from gpuloader.collate.form import Collation
    from gpuloader.collate.pictures import PictureStage


def find_stage(
    dataset: object, transforms: Sequence[Any], decode: str | None, feeds: Sequence[FeedSpec] | None
) -> PictureStage | None:
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
    if not (pictures or decode or holds_pictures(dataset)):
        return None
    # Imported late, because only loaders of pictures need it.
    from gpuloader.collate.pictures import PictureStage
    from gpuloader.sources.pictures.decoding import load_pillow

    load_pillow()
    names = None if feeds is None else tuple(feed.name for feed in feeds)
    return PictureStage.of(pictures, decodes=decode is not None, names=names)


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
    from gpuloader.transforms.decoding import Decode
    from gpuloader.transforms.programmer import Programmer
    from gpuloader.transforms.staging import fuse_resampling, plan_resampling

    before = collation.programmer
    transforms = [] if before is None else list(before.transforms)
    staged: dict[str | None, str] = {}
    for name, chain in stage.chains.items():
        made = plan_resampling(name, chain)
        if made is not None:
            staged[name] = made.interpolation
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


def check_on_bad(on_bad: str, stage: PictureStage | None, *, equal: bool) -> bool:
    """Return whether samples with pictures that cannot be decoded are left out.

    Parameters
    ----------
    on_bad : str
        The user's word.
    stage : PictureStage or None
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


def choose_worker_type(given: str | None, stage: PictureStage | None, start_method: str | None) -> str:
    """Return which workers to use: threads for pictures, whose decoders release the GIL, else processes.

    >>> choose_worker_type(None, None, None), choose_worker_type("thread", None, None)
    ('process', 'thread')
    """
    if given is not None:
        return given
    return "process" if stage is None or start_method is not None else "thread"
