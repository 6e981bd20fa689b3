"""Leases: a slot stays reserved until the user's last view of the delivered batch is gone."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.finalizers import calling
from gpuloader.staging.layout import Layout
from gpuloader.staging.ring import Slot

_ndarray, _asarray = np.ndarray, np.asarray  # looked up once, because they are called for every batch


class Lease:
    """A token that all views of a batch keep alive; when the last view dies, `owner` is appended to `freed`.

    The arrays have the lease as their base object, so slices, reshapes and views of views keep it alive. A
    reference to an array alone would not guarantee that. The finalizer runs in whatever thread drops the last
    view, perhaps while that thread holds a lock. So it only appends to a deque, which the loader checks on
    its next step, and runs no Python code, in which a Ctrl-C would be lost.
    """

    __slots__ = ("__array_interface__", "_release")

    def __init__(self, owner: Any, freed: deque[Any], interface: dict[str, Any] | None = None) -> None:
        self._release = partial(freed.append, owner)
        if interface is not None:
            self.__array_interface__ = interface

    __del__ = calling("_release")


def lease_views(slot: Slot, layout: Layout, freed: deque[Any]) -> list[NDArray[Any]]:
    """Return one array per field in a host slot; `slot` is appended to `freed` when the last view dies.

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
