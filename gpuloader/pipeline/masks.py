"""The masks of batches that may end in repeated samples: True for samples that count, False for padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloader.fields.spec import Array
from gpuloader.staging.arena import Arena, PageLocker


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of one batch in host memory, for a place's device to copy; nobody writes to it.

    Attributes
    ----------
    array : numpy.ndarray
        The mask, bool, read-only.
    bytes : numpy.ndarray
        The same memory as uint8.
    address : int
        The start address of that memory.
    memory : object
        The object that keeps the memory mapped.
    """

    array: Array
    bytes: NDArray[np.uint8]
    address: int
    memory: object


class Masks:
    """The masks of one loader's batches, all of them windows of one stretch of host memory.

    The memory holds as many True as False, so each mask is the window around the border between them. Devices
    copy from it, so it is page-locked; it grows with the largest batch.

    Only the consumer calls it, from one thread at a time.

    Parameters
    ----------
    locker : PageLocker or None
        The device that page-locks the memory; None if no device copies from it.

    Examples
    --------
    >>> masks = Masks()
    >>> masks.get(2, 3).array, masks.get(0, 1).array
    (array([ True,  True, False]), array([False]))
    """

    def __init__(self, locker: PageLocker | None = None) -> None:
        self._locker = locker
        self._longest = 0
        self._arena: Arena | None = None

    def get(self, own: int, size: int) -> Mask:
        """Return the mask of a batch of `size` samples whose first `own` are not padding."""
        if self._arena is None or size > self._longest:
            self._longest = max(size, 2 * self._longest, 1)
            self._arena = Arena(2 * self._longest, self._locker)
            self._arena.bytes[: self._longest], self._arena.bytes[self._longest :] = 1, 0
        start = self._longest - own
        window = self._arena.bytes[start : start + size]
        array = window.view(bool)
        array.flags.writeable = False  # because later batches share the memory
        return Mask(array, window, self._arena.address + start, self._arena)
