"""Dividing a step among several places: the parts of a batch, and the masks that mark their padding."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import LoaderError
from gpuloader.fields.spec import Array
from gpuloader.staging.arena import Arena, PageLocker

SPLITS = ("batches", "shards")


def check_split(
    split: object,
    uneven: object,
    size: int | None,
    places: int,
    *,
    iterable: bool,
    single: bool = False,
    workers: int = 0,
    in_order: bool = True,
) -> int:
    """Check the options that divide a step, and return the parts per batch: 1 if each place gets its own.

    >>> check_split("shards", "error", 64, 8, iterable=False)
    8
    """
    if split == "batches" or places == 1:
        return 1
    # Parts are batches of their own, which consecutive places get in turn. So only the plan knows of them,
    # and whatever keeps consecutive batches apart or together decides whether a step is one batch.
    if not in_order:
        raise ValueError(
            "split='shards' needs in_order=True, so that the parts of a batch are delivered together"
        )
    if iterable and workers > 1:
        raise ValueError(
            f"split='shards' needs num_workers=0 or 1 for an iterable dataset: with {workers} workers, "
            "consecutive parts would come from different batches"
        )
    if single:
        raise ValueError("split='shards' cuts batches, but batch_size=None yields single samples")
    if size is not None and size % places and (uneven == "error" or iterable):
        others = "" if iterable else ", or uneven='drop' or 'pad'"
        raise ValueError(
            f"a batch of {size} samples cannot be cut into {places} equal parts; choose a batch_size that "
            f"{places} divides{others}"
        )
    if size is not None and size < places and uneven == "drop":
        raise ValueError(
            f"a batch of {size} samples cut into {places} equal parts with uneven='drop' would leave "
            f"nothing; choose a batch_size of {places} or more"
        )
    # Workers cut what they read, and only the end of an iterable dataset shows how large its last batch is.
    if iterable and uneven != "drop":
        raise ValueError(
            "split='shards' needs uneven='drop' for an iterable dataset, because the size of its last "
            "batch is unknown; this leaves out a last step that is not whole"
        )
    return places


def check_last(size: int | None, places: int) -> None:
    """Raise `ValueError` if an epoch's last batch, of `size` samples, does not divide among the places.

    >>> check_last(16, 4), check_last(None, 4)
    (None, None)
    """
    if size is not None and size % places:
        raise ValueError(
            f"an epoch's last batch, of {size} samples, cannot be cut into {places} equal parts; choose "
            "drop_last=True, or uneven='drop' or 'pad'"
        )


# The masks of batches that may end in repeated samples: True for samples that count, False for padding.


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of one batch in host memory, for a place's device to copy; nobody writes to it."""

    array: Array  # bool, read-only
    bytes: NDArray[np.uint8]  # the same memory
    address: int
    memory: object  # keeps it mapped


@dataclass(slots=True, eq=False)
class Masks:
    """The masks of one loader's batches; only the consumer calls it, from one thread at a time.

    >>> masks = Masks()
    >>> masks.get(2, 3).array, masks.get(0, 1).array
    (array([ True,  True, False]), array([False]))
    """

    # The memory holds as many True as False, so each mask is a window around the border between them and no
    # mask is ever written. Devices copy from it, so it is page-locked; it grows with the largest batch.

    locker: PageLocker | None = None
    _longest: int = 0
    _arena: Arena | None = None

    def get(self, own: int, size: int) -> Mask:
        """Return the mask of a batch of `size` samples whose first `own` are not padding."""
        if self._arena is None or size > self._longest:
            self._longest = max(size, 2 * self._longest, 1)
            self._arena = Arena(2 * self._longest, self.locker)
            self._arena.bytes[: self._longest], self._arena.bytes[self._longest :] = 1, 0
        start = self._longest - own
        window = self._arena.bytes[start : start + size]
        array = window.view(bool)
        array.flags.writeable = False  # because later batches share the memory
        return Mask(array, window, self._arena.address + start, self._arena)


def add_mask(batch: Any, mask: Any) -> Any:
    """Return a batch, which nobody else holds, with its mask: last in a list or tuple, or a dict's ``mask``.

    >>> add_mask(["images", "labels"], "mask"), add_mask({"image": "images"}, "mask")
    (['images', 'labels', 'mask'], {'image': 'images', 'mask': 'mask'})
    """
    if isinstance(batch, MutableMapping):
        if "mask" in batch:
            raise LoaderError(
                "the samples have a field 'mask', which is the key of the mask of a padded shard; rename the "
                "field, or choose uneven='drop'"
            )
        batch["mask"] = mask
        return batch
    if type(batch) in (list, tuple):
        return type(batch)((*batch, mask))
    return [batch, mask]
