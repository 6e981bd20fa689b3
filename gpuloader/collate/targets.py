"""Where the samples of a batch are written: one target for each field of a slot."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.collate.packing import Packer, exact_types, list_packers, number_packers
from gpuloader.fields.spec import Array
from gpuloader.staging.layout import FieldLayout

UNFIT = (TypeError, ValueError, OverflowError, NotImplementedError, RuntimeWarning, struct.error)
"""What writing a sample raises if it does not fit its field as it is, and has to be converted."""

Target = tuple[int, Any, Sequence[slice | int], Any, frozenset[type], dict[type, Packer], Any]
"""Where one field's samples are written: (field, region, places, numbers, kinds, packers, memory).

Each of these writes sample i, or raises one of `UNFIT` if the sample does not fit:
``region[places[i]] = array``; ``numbers[i] = number``, if the number's type is one of `kinds`; and
``packers[type(value)](memory, i, value)``, for other numbers and for lists.
"""


class CheckedRows:
    """The rows of a field whose samples have more than one dimension, or a dtype without a buffer format.

    An array of exactly the row's dtype and shape is written; anything else raises TypeError. NumPy would
    broadcast or convert it silently, but that decision is up to `SampleRows.convert`.
    """

    def __init__(self, rows: Array) -> None:
        self._rows = rows
        self._shape = rows.shape[1:]

    def __setitem__(self, index: int, value: Array) -> None:
        if value.dtype == self._rows.dtype and value.shape == self._shape:
            self._rows[index] = value
        else:
            raise TypeError


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The parts of a field's `Target` that do not depend on the slot.

    Attributes
    ----------
    flat : bool
        Whether a sample has at most one dimension, so that it is written through a flat view.
    places : sequence
        The position of each sample in the region.
    kinds : frozenset of type
        The types of numbers that are assigned as they are.
    packers : dict of type to callable
        How to write values of other types; those that are missing, too, have to be converted.
    numbers_only : bool
        Whether no array is accepted as it is, so that one of a single number is not taken for that number.
    """

    flat: bool
    places: Sequence[slice | int]
    kinds: frozenset[type] = frozenset()
    packers: dict[type, Packer] = dataclasses.field(default_factory=dict)
    numbers_only: bool = False


def row_places(field: FieldLayout, strict: bool) -> RowPlaces:
    """Return the places of a field's samples; `strict` refuses what would have to be reshaped."""
    count, elements = field.shape[0], math.prod(field.shape[1:])
    # Structured dtypes have no buffer format, nor do those of other packages, such as bfloat16.
    if len(field.shape) > 2 or not count or not elements or field.dtype.isbuiltin != 1:
        return RowPlaces(False, range(count))
    places = [slice(start, start + elements) for start in range(0, count * elements, elements)]
    single = len(field.shape) == 1
    kinds: frozenset[type] = frozenset()
    packers: dict[type, Packer] = {}
    if elements == 1 and (single or not strict):
        kinds = exact_types(field.dtype, strict=strict)
        packers |= number_packers(field.dtype, strict=strict)
    if not (single and strict):
        packers |= list_packers(field.dtype, elements, strict=strict)
    return RowPlaces(True, places, kinds, packers, single and strict)


def make_target(field: int, rows: Array, row: RowPlaces) -> Target:
    """Return where to write the samples of field number `field`, given the field's view of a slot."""
    if not row.flat:
        return field, CheckedRows(rows), row.places, None, row.kinds, row.packers, None
    flat = rows.reshape(-1)
    numbers = flat.data
    region = numbers.toreadonly() if row.numbers_only else numbers
    memory = flat.view(np.uint8).data if row.packers else None
    return field, region, row.places, numbers, row.kinds, row.packers, memory
