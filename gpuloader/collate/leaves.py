"""Splits samples into leaves: arrays go into the slot, other objects are collected separately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpuloader.base.errors import SampleError
from gpuloader.collate.structure import Structure

ObjectColumns = dict[int, list[Any]]
"""Maps a field's number to its Python objects, one per sample."""


def object_columns(structure: Structure, count: int) -> ObjectColumns:
    """Return an empty column for each field that is not an array.

    >>> object_columns(Structure.of((1, "cat")), 2)
    {1: [None, None]}
    """
    return {field: [None] * count for field, leaf in enumerate(structure.leaves) if not leaf.is_array}


def array_leaves(
    structure: Structure, samples: Iterator[Any], start: int, objects: ObjectColumns
) -> Iterator[Any]:
    """Yield the array fields of each sample; put the other fields into `objects`, starting at row `start`.

    Raises
    ------
    SampleError
        A sample has a different structure; the error names the sample.
    """
    if structure.is_flat and not objects:
        return samples  # `SampleRows.write` checks their length anyway
    return _array_leaves(structure, samples, start, objects)


def all_leaves(structure: Structure, samples: Iterable[Any], start: int = 0) -> Iterator[Sequence[Any]]:
    """Yield the fields of each sample; raises what `array_leaves` raises."""
    for index, sample in enumerate(samples, start):
        try:
            yield structure.flatten(sample)
        except SampleError as error:
            error.index = index
            raise


def _array_leaves(
    structure: Structure, samples: Iterator[Any], start: int, objects: ObjectColumns
) -> Iterator[Any]:
    for index, leaves in enumerate(all_leaves(structure, samples, start), start):
        if objects:
            for field, column in objects.items():
                column[index] = leaves[field]
            yield [value for field, value in enumerate(leaves) if field not in objects]
        else:
            yield leaves
