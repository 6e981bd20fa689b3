"""How a step is divided among several places: a batch for each, or a part of one batch for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuloader.base.checks import check_word
from gpuloader.base.errors import LoaderError
from gpuloader.devices.base import Device
from gpuloader.fields.spec import Array, Indices
from gpuloader.order.division import part_of
from gpuloader.order.plan import DividedPlan, Plan, SampledPlan
from gpuloader.pipeline.lane import send
from gpuloader.staging.layout import arrange

SPLITS = ("batches", "shards")
REMAINDERS = ("error", "drop", "pad")
_MOST_MASKS = 64


def cut(indices: Indices, shards: int, remainder: str) -> tuple[list[Indices], list[int]]:
    """Return the equal parts of a batch, and how many samples of each are its own.

    Parameters
    ----------
    indices : sequence
        The batch.
    shards : int
        Parts.
    remainder : str
        What becomes of samples that do not divide evenly: 'error', 'drop', or 'pad': parts that have one less
        than others repeat their last sample, or the batch's where they have none.

    Raises
    ------
    LoaderError
        There is a remainder, and it is an error.

    Examples
    --------
    >>> cut(range(6), 2, "error")
    ([range(0, 3), range(3, 6)], [3, 3])
    >>> cut([7, 8, 9, 4, 5], 2, "drop")
    ([[7, 8], [9, 4]], [2, 2])
    >>> cut([7, 8, 9, 4, 5], 2, "pad")
    ([[7, 8, 9], [4, 5, 5]], [3, 2])
    """
    count = len(indices)
    rest = count % shards
    if rest and remainder == "error":
        raise LoaderError(
            f"a batch of {count} samples cannot be cut into {shards} equal parts; choose a batch size that "
            "the places divide, drop_last=True for the last batch, or remainder='drop' or 'pad'"
        )
    if rest and remainder == "pad":
        listed = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
        size = count // shards + 1
        spans = [part_of(count, shards, part) for part in range(shards)]
        pieces = [listed[begin : begin + own] for begin, own in spans]
        parts: list[Indices] = [(piece + (piece or listed)[-1:])[:size] for piece in pieces]
        return parts, [own for _, own in spans]
    size = count // shards
    return [indices[part * size : (part + 1) * size] for part in range(shards)], [size] * shards


@dataclass(slots=True)
class ShardedPlan:
    """A plan whose batches are parts of another's: consecutive ones, one a place, make up one of its batches.

    Attributes
    ----------
    plan : Plan
        Of whole batches.
    shards : int
        Parts of each.
    remainder : str
        As for `cut`.
    own : dict
        Part to how many samples are its own, and how many it has, until that is asked for.
    """

    plan: Plan
    shards: int
    remainder: str
    own: dict[int, tuple[int, int]] = field(default_factory=dict)

    def batches(self, start: int) -> Iterator[Indices]:
        """Yield the indices of part `start` and of every later one.

        A batch of fewer samples than there are parts, of which nothing is left, does not count.
        """
        # Of a batch sampler any batch may be one of those; of what the loader cuts itself, only the last.
        entered = 0 if isinstance(self.plan, SampledPlan) else start // self.shards
        number = entered * self.shards
        divided = self.plan if isinstance(self.plan, DividedPlan) else None
        for entry, indices in enumerate(self.plan.batches(entered), entered):
            parts, own = cut(indices, self.shards, self.remainder)
            if not len(parts[0]):
                continue
            if divided is not None:  # whose batch may itself end in samples that are repeated
                counted, _ = divided.take_own(entry)
                spans = [part_of(sum(own), self.shards, part) for part in range(self.shards)]
                own = [min(max(counted - begin, 0), count) for begin, count in spans]
            for part, count in zip(parts, own, strict=True):
                if number >= start:
                    if self.remainder == "pad" or (divided is not None and divided.pads):
                        self.own[number] = count, len(part)
                    yield part
                number += 1

    def take_own(self, number: int) -> tuple[int, int]:
        """Return how many samples of a part are its own and how many it has; once."""
        return self.own.pop(number)


class Masks:
    """Which samples of a part are its own, as boolean arrays on the part's device; made once each.

    Examples
    --------
    >>> from gpuloader.devices.host import HostDevice
    >>> Masks().get(HostDevice(), 2, 3)
    array([ True,  True, False])
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Device, int, int], Any] = {}

    def get(self, device: Device, own: int, size: int) -> Any:
        """Return the mask of a part of `size` samples, the first `own` of which are its own."""
        key = device, own, size
        if key not in self._made:
            if len(self._made) > _MOST_MASKS:  # batches of ever new sizes
                self._made.clear()

            def write(target: Array) -> None:
                target[:own], target[own:] = True, False

            layout = arrange((((size,), np.dtype(bool)),))
            [mask] = send([write], layout, device)
            if isinstance(mask, np.ndarray):
                mask.flags.writeable = False  # it is handed out again and again
            self._made[key] = mask
        return self._made[key]


def check_split(
    split: object,
    remainder: object,
    size: int | None,
    places: int,
    *,
    iterable: bool,
    single: bool = False,
    workers: int = 0,
    in_order: bool = True,
) -> int:
    """Return into how many parts a batch is cut: 1 where each place gets a batch of its own.

    Raises
    ------
    ValueError
        The words are none of those known, or `single` samples, the batches of an iterable dataset, or those
        of this size do not divide.

    >>> check_split("shards", "error", 64, 8, iterable=False)
    8
    """
    check_word("split", split, SPLITS)
    check_word("remainder", remainder, REMAINDERS)
    if split == "batches" or places == 1:
        return 1
    if not in_order:
        raise ValueError("the parts of a batch belong together: split='shards' needs in_order=True")
    if iterable and workers > 1:
        raise ValueError(
            f"each of {workers} workers gives batches of its own of an iterable dataset, so consecutive "
            "parts would not be of one batch: use one worker with split='shards'"
        )
    if single:
        raise ValueError("split='shards' cuts batches, and batch_size=None gives single samples")
    if size is not None and size % places and (remainder == "error" or iterable):
        raise ValueError(
            f"a batch of {size} samples cannot be cut into {places} equal parts; choose another batch_size, "
            "or remainder='drop' or 'pad'"
        )
    if size is not None and size < places and remainder == "drop":
        raise ValueError(f"of a batch of {size} samples cut into {places} equal parts nothing would be left")
    if iterable and remainder != "drop":
        raise ValueError(
            "how an iterable dataset ends is not known before: cut its batches with remainder='drop', "
            "which leaves out a last step that is not whole"
        )
    return places


def check_last(size: int | None, places: int) -> None:
    """Raise `ValueError` where an epoch's last batch, of that many samples, would leave a remainder.

    >>> check_last(16, 4), check_last(None, 4)
    (None, None)
    """
    if size is not None and size % places:
        raise ValueError(
            f"an epoch's last batch, of {size} samples, cannot be cut into {places} equal parts; choose "
            "drop_last=True, or remainder='drop' or 'pad'"
        )


def add_mask(batch: Any, mask: Any) -> Any:
    """Return a batch with its mask: the last of a list, or under ``mask`` in a dict.

    Raises
    ------
    LoaderError
        The dict has an entry of that name.

    Examples
    --------
    >>> add_mask(["images", "labels"], "mask"), add_mask({"image": "images"}, "mask")
    (['images', 'labels', 'mask'], {'image': 'images', 'mask': 'mask'})
    """
    if isinstance(batch, dict):
        if "mask" in batch:
            raise LoaderError(
                "the samples have a field 'mask', where the mask of a padded shard would go: call it "
                "something else, or choose remainder='drop' or, with shard, uneven='drop'"
            )
        return {**batch, "mask": mask}
    return [*batch, mask] if type(batch) is list else [batch, mask]
