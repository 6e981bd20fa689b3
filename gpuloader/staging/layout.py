"""The position of each field in a slot: pure arithmetic, so memory needs are known before anything runs."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIGNMENT = 256
"""Alignment of every field in bytes: enough for any vector load, and that of CUDA's own allocator."""


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One field's part of a slot."""

    offset: int  # bytes from the start of the slot, a multiple of `ALIGNMENT`
    shape: tuple[int, ...]  # of the whole batch
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrangement of one batch's fields in a slot."""

    fields: tuple[FieldLayout, ...]  # in the order of the feed list
    nbytes: int  # from the start of the first field to the end of the last, all moved by one copy
    # The numbers of the fields that are delivered with another order of dimensions than they have in memory,
    # each with that order, as for `numpy.transpose`.
    turned: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def turn(self, arrays: list[Any]) -> list[Any]:
        """Return the arrays of the fields, in memory's order of dimensions, as they are delivered.

        >>> field = FieldLayout(0, (2, 4, 4, 3), np.dtype("float32"))
        >>> [image] = Layout((field,), 384, ((0, (0, 3, 1, 2)),)).turn([np.zeros(field.shape)])
        >>> image.shape
        (2, 3, 4, 4)
        """
        for number, axes in self.turned:
            arrays[number] = arrays[number].transpose(axes)
        return arrays


def arrange(fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]) -> Layout:
    """Return the layout of the given ``(shape, dtype)`` pairs, one after another, each aligned.

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


def arrange_last(
    fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...], last: Collection[int]
) -> tuple[Layout, Layout]:
    """Return the layout of fields of which those with these numbers lie last, and that of the others.

    >>> byte = np.dtype("uint8")
    >>> whole, others = arrange_last((((300,), byte), ((5,), byte)), last=[0])
    >>> [field.offset for field in whole.fields], whole.nbytes, others.nbytes
    ([256, 0], 556, 5)
    """
    others = [number for number in range(len(fields)) if number not in last]
    order = [*others, *sorted(last)]
    placed = arrange(tuple(fields[number] for number in order))
    found = dict(zip(order, placed.fields, strict=True))
    whole = Layout(tuple(found[number] for number in range(len(fields))), placed.nbytes)
    return whole, arrange(tuple(fields[number] for number in others))


def align(nbytes: int) -> int:
    """Round `nbytes` up to the next multiple of `ALIGNMENT`.

    >>> align(0), align(1), align(256)
    (0, 256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
