"""A lease: what ties the memory of a delivered batch to the life of the user's last view of it."""

from __future__ import annotations

from collections import deque
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.staging.layout import Layout
from gpuloader.staging.ring import Slot

_ndarray, _asarray = np.ndarray, np.asarray  # looked up once: they are called for every batch


class Lease:
    """The token every view of a batch keeps alive; when the last view dies, its owner is free.

    It stands below the arrays as the owner of their memory, so slices, reshapes and views of views keep
    it, which no reference to an array itself could promise. The finalizer runs in whatever thread drops
    the last view, perhaps inside a lock that this very thread holds: it appends to a deque and does
    nothing else, and the loader looks there on its next step.

    Nothing of the finalizer is Python code, in which a Ctrl-C could arrive: Python prints what a finalizer
    raises and goes on, so the interrupt would be lost.
    """

    __slots__ = ("__array_interface__", "_release")

    def __init__(self, owner: Any, freed: deque[Any], interface: dict[str, Any] | None = None) -> None:
        self._release = partial(freed.append, owner)
        if interface is not None:
            self.__array_interface__ = interface

    __del__ = property(attrgetter("_release"))


def lease_views(slot: Slot, layout: Layout, freed: deque[Any]) -> list[NDArray[Any]]:
    """Return one array a field over a host slot; `slot` is appended to `freed` when the last view dies.

    Examples
    --------
    >>> from gpuloader.staging.layout import arrange
    >>> freed = deque()
    >>> slot = Slot(np.zeros(256, np.uint8), None)
    >>> [batch] = lease_views(slot, arrange((((2, 3), np.dtype("float32")),)), freed)
    >>> corner = batch[:1, :1].T
    >>> del batch; len(freed)
    0
    >>> del corner; freed.popleft() is slot
    True
    """
    region = _asarray(Lease(slot, freed, slot.interface))
    return [_ndarray(field.shape, field.dtype, region, field.offset) for field in layout.fields]
