"""Datasets kept as arrays: read once, then gathered, on the host or where batches land."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.checks import check_word
from gpuloader.base.errors import LoaderError, StagingMemoryError
from gpuloader.base.platforms import available_memory
from gpuloader.collate.structure import Structure
from gpuloader.devices.base import Device, DeviceMemory
from gpuloader.fields.spec import Array
from gpuloader.order.order import InOrder, Shuffled
from gpuloader.order.permutation import SORTED_AT_MOST
from gpuloader.order.plan import DividedPlan, OrderedPlan, Plan
from gpuloader.pipeline.lane import Lane, upload
from gpuloader.sources.dataset import array_source
from gpuloader.staging.layout import Layout, arrange
from gpuloader.transforms.operations import GatherRows, Permute, Spec
from gpuloader.transforms.program import Program, Programmer, Step, Transform

CACHES = ("host", "device")


@dataclass(frozen=True, slots=True)
class ArraySource:
    """A dataset that is arrays.

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
        """Return the arrays a dataset reads from, None where it is no such dataset."""
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

    def outline(self) -> ArraySource:
        """Return arrays of the same shapes that hold one row each, and nothing of these."""
        rows = [np.zeros((1, *array.shape[1:]), array.dtype) for array in self.arrays]
        arrays = [np.broadcast_to(row, array.shape) for row, array in zip(rows, self.arrays, strict=True)]
        return ArraySource(tuple(arrays), self.rows, self.structure)

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
            "cache is for datasets with indices, in batches that the loader puts together of samples of "
            "fixed size: not beside collate_fn, ragged, pad or batch_size=None"
        )
    return str(cache)


def materialise(
    batches: Iterable[Any], count: int, reserve: Callable[[Sequence[Spec]], None] | None = None
) -> ArraySource:
    """Return all samples of a dataset as arrays, read batch by batch in their order.

    `reserve` is told what they will be, once the first batch shows it: what they are to be brought to may be
    too small, and reading all of them may take hours.

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
            if others := [leaf.name for leaf in structure.leaves if not leaf.is_array]:
                # In a batch such a field is a list, with one entry a sample.
                names = list(dict.fromkeys(name.rpartition(".")[0] for name in others))
                raise LoaderError(
                    f"the dataset has fields that are no arrays, which cannot be cached: {names}; leave "
                    "them out of the samples, or leave cache out"
                )
            specs = [((count, *part.shape[1:]), part.dtype) for part in structure.flatten(batch)]
            if reserve is not None:
                reserve(specs)
            arrays = _make_room(specs, count)
        parts = structure.flatten(batch)
        size = len(parts[0])
        for array, part in zip(arrays, parts, strict=True):
            array[filled : filled + size] = part
        filled += size
    if structure is None:
        raise LoaderError("the dataset is empty: there is nothing to cache")
    return ArraySource(tuple(arrays), None, structure)


def _make_room(specs: Sequence[Spec], count: int) -> list[Array]:
    nbytes = _count_bytes(specs)
    available = available_memory()
    if available is not None and nbytes > available:
        raise StagingMemoryError(
            f"{count:,} cached samples need {nbytes:,} bytes of host memory, {available:,} are available; "
            "leave cache out, or cache a Subset"
        )
    return [np.empty(shape, dtype) for shape, dtype in specs]


def _count_bytes(specs: Iterable[Spec]) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in specs)


@dataclass(frozen=True, slots=True)
class _Table:
    """What one lane computes batches with.

    Attributes
    ----------
    count : int
        Entries of the order that it holds, 0 for none.
    memory : DeviceMemory
        Where they lie.
    layout : Layout
        How.
    programmer : Programmer
        Works out programs that gather by them.
    """

    count: int
    memory: DeviceMemory
    layout: Layout
    programmer: Programmer

    @classmethod
    def make(cls, device: Device, count: int, make: Callable[[Any], Programmer]) -> _Table:
        layout = arrange((((count,), np.dtype(np.int64)),))
        if not count:
            return cls(0, None, layout, make(None))
        try:
            memory = device.alloc(layout.nbytes)
        except StagingMemoryError as error:
            raise StagingMemoryError(
                f"the order of an epoch, {layout.nbytes:,} bytes, does not fit on {device.name} beside the "
                f"cached arrays, use cache='host': {error}"
            ) from error
        [order] = device.arrays(memory, layout)
        return cls(count, memory, layout, make(order))

    def permuting(self, order: Shuffled) -> Program:
        """Return what writes an order's entries."""
        step = Step(Permute(order.count, order.seed, order.epoch), (), (0,), "order", "shuffle")
        return Program(self.layout, self.layout, (), (), (step,), self.layout, ())


class Resident:
    """A source's arrays on the devices of a loader's places, and beside them the order of each epoch.

    Where an epoch's order is ours, each lane computes it on its device before the epoch's first batch, and
    batches are gathered by their positions in it. Of other orders the numbers of rows come with each batch.

    Parameters
    ----------
    devices : sequence of Device
        One a place; the arrays are brought once to each.
    transforms : sequence of Transform
        What is done to batches behind the gathering.
    """

    def __init__(self, devices: Sequence[Device], transforms: Sequence[Transform]) -> None:
        self._devices = devices
        self._transforms = tuple(transforms)
        self._rows = 0
        self._room: dict[int, DeviceMemory] = {}  # of a device, of which several places may be
        self._gathers: list[list[GatherRows]] = []
        self._tables: weakref.WeakKeyDictionary[Lane, _Table] = weakref.WeakKeyDictionary()

    def reserve(self, specs: Sequence[Spec]) -> None:
        """Take memory on every device for arrays of these shapes and dtypes.

        Raises
        ------
        StagingMemoryError
            A device has too little; gives the numbers.
        """
        for device in self._devices:
            if id(device) in self._room:
                continue
            try:
                self._room[id(device)] = device.alloc(arrange(tuple(specs)).nbytes)
            except StagingMemoryError as error:
                raise StagingMemoryError(
                    f"a cache of {_count_bytes(specs):,} bytes does not fit on {device.name}, use "
                    f"cache='host': {error}"
                ) from error

    def bring(self, source: ArraySource) -> None:
        """Bring arrays whose row i is sample i to where memory was taken; raises as `reserve`."""
        self.reserve([(array.shape, array.dtype) for array in source.arrays])
        self._rows = len(source.arrays[0])
        there: dict[int, list[GatherRows]] = {}
        for device in self._devices:
            if id(device) not in there:
                there[id(device)] = source.gathers(upload(source.arrays, device, self._room[id(device)]))
        self._gathers = [there[id(device)] for device in self._devices]
        self._room.clear()

    def find_order(self, plan: Plan) -> InOrder | Shuffled | None:
        """Return the order whose consecutive positions are the plan's batches, if devices can have it.

        >>> resident = Resident([], [])
        >>> resident.bring(ArraySource((np.zeros(9),), None, Structure.flat(["0"])))
        >>> resident.find_order(OrderedPlan(InOrder(9), 2, drop_last=False))
        InOrder(count=9)
        """
        order = plan.order if isinstance(plan, OrderedPlan | DividedPlan) else None
        if isinstance(order, InOrder | Shuffled) and order.count <= self._rows:
            return order
        return None

    def begin(self, order: InOrder | Shuffled | None, lanes: Sequence[Lane]) -> None:
        """Have each lane, one a place, compute an epoch's order before its batches; None: they bring theirs.

        Raises
        ------
        StagingMemoryError
            A device has too little memory for the order: 8 bytes a sample.
        """
        for lane, gathers in zip(lanes, self._gathers, strict=True):
            count = _count_entries(order)
            table = self._tables.get(lane)
            if table is None or table.count != count:
                table = self._tables[lane] = _Table.make(
                    lane.device, count, partial(Programmer, self._transforms, gathers)
                )
            lane.programmer = table.programmer
            if isinstance(order, Shuffled) and count:
                lane.compute(table.permuting(order), table.memory)


def _count_entries(order: InOrder | Shuffled | None) -> int:
    """Return how many entries of an order lie on a device; one that is sorted is made as a whole."""
    if not isinstance(order, Shuffled):
        return 0
    return order.count if order.count <= SORTED_AT_MOST else len(order)
