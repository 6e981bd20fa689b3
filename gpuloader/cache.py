"""Data sets kept as arrays: read once, then gathered, on the host or where batches land."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_word
from gpuloader.collate.structure import Structure
from gpuloader.devices.base import Device
from gpuloader.errors import LoaderError, StagingMemoryError
from gpuloader.operations import GatherRows
from gpuloader.program import Programmer, Transform
from gpuloader.sources.dataset import array_source
from gpuloader.spec import Array
from gpuloader.staging.arena import available_memory
from gpuloader.transfer import upload

CACHES = ("host", "device")


@dataclass(frozen=True, slots=True)
class ArraySource:
    """A data set that is arrays.

    Attributes
    ----------
    arrays : tuple of numpy.ndarray
        The fields, all samples each.
    rows : numpy.ndarray or None
        Where the samples lie in them; None: sample i is row i.
    structure : Structure
        How they make up a sample.
    """

    arrays: tuple[Array, ...]
    rows: NDArray[np.int64] | None
    structure: Structure

    @classmethod
    def of(cls, dataset: object) -> ArraySource | None:
        """Return the arrays a data set reads from, None where it is no such data set."""
        found = array_source(dataset)
        if found is None:
            return None
        arrays, rows = found
        return cls(arrays, rows, Structure.flat([str(field) for field in range(len(arrays))]))

    def compact(self) -> ArraySource:
        """Return a source of the samples alone, where the arrays hold others beside them."""
        if self.rows is None:
            return self
        return ArraySource(tuple(array[self.rows] for array in self.arrays), None, self.structure)

    def gathers(self, resident: Sequence[Any] | None = None) -> list[GatherRows]:
        """Return what takes rows of the arrays, of those at `resident` if given."""
        sources = [None] * len(self.arrays) if resident is None else resident
        return [
            GatherRows(array.shape[1:], array.dtype, source)
            for array, source in zip(self.arrays, sources, strict=True)
        ]


def check_cache(cache: object, *, cacheable: bool) -> str | None:
    """Return a cache's name, or None.

    Raises
    ------
    ValueError
        The name is not known, or the loader reads what cannot be kept as arrays.

    >>> check_cache("host", cacheable=True)
    'host'
    """
    check_word("cache", cache, CACHES, optional=True)
    if cache is None:
        return None
    if not cacheable:
        raise ValueError(
            "cache is for data sets with indices, in batches that the loader puts together of samples of "
            "fixed size: not beside collate_fn, ragged, pad or batch_size=None"
        )
    return str(cache)


def materialise(batches: Iterable[Any], count: int) -> ArraySource:
    """Return all samples of a data set as arrays, read batch by batch in their order.

    Raises
    ------
    StagingMemoryError
        They are more than the memory there is; gives the numbers.
    LoaderError
        A sample has a field that is no array.
    """
    arrays: list[Array] = []
    structure: Structure | None = None
    filled = 0
    for batch in batches:
        if structure is None:
            structure = Structure.of(batch)
            if any(not leaf.is_array for leaf in structure.leaves):
                raise LoaderError("the data set has fields that are no arrays, which cannot be cached")
            arrays = _reserve(structure.flatten(batch), count)
        parts = structure.flatten(batch)
        size = len(parts[0])
        for array, part in zip(arrays, parts, strict=True):
            array[filled : filled + size] = part
        filled += size
    if structure is None:
        raise LoaderError("the data set is empty: there is nothing to cache")
    return ArraySource(tuple(arrays), None, structure)


def _reserve(parts: Sequence[Array], count: int) -> list[Array]:
    nbytes = sum(count * part[0].nbytes for part in parts)
    available = available_memory()
    if available is not None and nbytes > available:
        raise StagingMemoryError(
            f"{count:,} cached samples need {nbytes:,} bytes of host memory, {available:,} are available; "
            "leave cache out, or cache a Subset"
        )
    return [np.empty((count, *part.shape[1:]), part.dtype) for part in parts]


def resident_programmers(
    source: ArraySource, devices: Sequence[Device], transforms: Sequence[Transform]
) -> list[Programmer]:
    """Bring a source's arrays to every device and return what gathers batches there, one a device.

    Raises
    ------
    StagingMemoryError
        A device has too little memory; gives the numbers.
    """
    programmers: list[Programmer] = []
    for device in devices:
        try:
            resident = upload(source.arrays, device)
        except StagingMemoryError as error:
            nbytes = sum(array.nbytes for array in source.arrays)
            raise StagingMemoryError(
                f"a cache of {nbytes:,} bytes does not fit on {device.name}, use cache='host': {error}"
            ) from error
        programmers.append(Programmer(transforms, source.gathers(resident)))
    return programmers
