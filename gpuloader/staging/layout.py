"""Where each field lies in a slot: pure arithmetic, so a pipeline's bytes are known before it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIGNMENT = 256
"""Bytes; every field starts at a multiple of it, which suits any vector load and CUDA's own allocator."""


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One field's part of a slot.

    Attributes
    ----------
    offset : int
        Bytes from the start of the slot, a multiple of `ALIGNMENT`.
    shape : tuple of int
        Shape of the whole batch of this field.
    dtype : numpy.dtype
        Of its elements.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the fields of one batch lie in a slot.

    Attributes
    ----------
    fields : tuple of FieldLayout
        In the order of the feed list.
    nbytes : int
        From the start of the first field to the end of the last: what one copy moves.
    """

    fields: tuple[FieldLayout, ...]
    nbytes: int


def arrange(fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]) -> Layout:
    """Lay the given ``(shape, dtype)`` pairs one behind the other, each aligned.

    Examples
    --------
    >>> layout = arrange((((32, 784), np.dtype("float32")), ((32, 1), np.dtype("int64"))))
    >>> [field.offset for field in layout.fields], layout.nbytes
    ([0, 100352], 100608)
    """
    placed = []
    end = 0
    for shape, dtype in fields:
        offset = align(end)
        placed.append(FieldLayout(offset, shape, dtype))
        end = offset + math.prod(shape) * dtype.itemsize
    return Layout(tuple(placed), end)


def align(nbytes: int) -> int:
    """Round `nbytes` up to the next multiple of `ALIGNMENT`.

    >>> align(0), align(1), align(256)
    (0, 256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
