"""Datasets cached as arrays, on the host or on devices: read once, then gathered for each batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuloader.batches.gathering import tree_of
from gpuloader.batches.tree import Tree
from gpuloader.devices.base import Device, DeviceMemory
from gpuloader.epoch.lane import Lane
from gpuloader.epoch.sending import upload
from gpuloader.errors import LoaderError, SampleError, StagingMemoryError
from gpuloader.fields.convert import IF_IT_VARIES, describe_field
from gpuloader.fields.spec import Array, Spec
from gpuloader.kernels.shuffle import shuffle
from gpuloader.order.order import InOrder, Shuffled
from gpuloader.order.plan import OrderedPlan, Plan
from gpuloader.order.randomness import SORTED_AT_MOST
from gpuloader.sources.array_rows import IndexedRows
from gpuloader.sources.describing import Source
from gpuloader.staging import Layout, arrange
from gpuloader.system.finalizers import LivingKeys
from gpuloader.system.platforms import available_memory
from gpuloader.transforms.program import BatchProgram, KernelCall, Programmer, RowSource, Step, Transform

_ONE_SCHEMA = "a cache needs all samples to have one form; leave cache out, or give them one in the dataset"


@dataclass(frozen=True, slots=True)
class ArraySource:
    """A dataset that consists of arrays."""

    arrays: tuple[Array, ...]  # one per field, with the samples along the first axis
    rows: IndexedRows | None  # the row of each sample in the arrays; None if sample i is row i
    tree: Tree  # how the fields make up a sample

    @classmethod
    def of(cls, source: Source) -> ArraySource | None:
        """Return the arrays that a dataset reads from, or None if it does not consist of arrays."""
        found = source.arrays
        return None if found is None else cls(found.arrays, found.rows, tree_of(found))

    def compact(self) -> ArraySource:
        """Return a source whose arrays hold its samples and nothing else."""
        if self.rows is None:
            return self
        rows = self.rows[:]
        return ArraySource(tuple(array[rows] for array in self.arrays), None, self.tree)

    def outline(self) -> ArraySource:
        """Return a source with the same shapes and dtypes but no data: each array stores one row of zeros."""
        rows = [np.zeros((1, *array.shape[1:]), array.dtype) for array in self.arrays]
        arrays = [np.broadcast_to(row, array.shape) for row, array in zip(rows, self.arrays, strict=True)]
        return ArraySource(tuple(arrays), self.rows, self.tree)

    def gathers(self, resident: Sequence[Any] | None = None) -> list[RowSource]:
        """Return sources of rows: the arrays' device copies in `resident`, or none yet."""
        sources = [None] * len(self.arrays) if resident is None else resident
        pairs = zip(self.arrays, sources, strict=True)
        return [(array.shape[1:], array.dtype, source) for array, source in pairs]


def materialise(
    batches: Iterable[Any], count: int, reserve: Callable[[Sequence[Spec]], None] | None = None
) -> ArraySource:
    """Read all samples of a dataset, batch by batch in order, and return them as arrays.

    `reserve` is called with the arrays' shapes and dtypes once the first batch has shown them. Raises
    `SampleError` if a sample differs from the first one, `StagingMemoryError` if the host has too little
    memory, and `LoaderError` if a sample has a field that is not an array, or there are no samples.
    """
    arrays: list[Array] = []
    tree: Tree | None = None
    filled = 0
    for batch in _advise(batches):
        if tree is None:
            tree = Tree.of(batch)
            if others := [leaf.name for leaf in tree.leaves if not leaf.is_array]:
                # In a batch such a field is a list with one entry per sample.
                names = list(dict.fromkeys(name.rpartition(".")[0] for name in others))
                raise LoaderError(
                    f"the dataset has fields that are not arrays and cannot be cached: {names}; leave them "
                    "out of the samples, or leave cache out"
                )
            specs = [((count, *part.shape[1:]), part.dtype) for part in tree.flatten(batch)]
            if reserve is not None:  # fail now if a device has too little memory: reading may take hours
                reserve(specs)
            nbytes, available = _count_bytes(specs), available_memory()
            if available is not None and nbytes > available:
                raise StagingMemoryError(
                    f"{count:,} cached samples need {nbytes:,} bytes of host memory, but only {available:,} "
                    "are available; leave cache out, or cache a Subset"
                )
            arrays = [np.empty(shape, dtype) for shape, dtype in specs]
        parts = _check_alike(tree, arrays, batch, filled)
        size = len(parts[0])
        for array, part in zip(arrays, parts, strict=True):
            array[filled : filled + size] = part
        filled += size
    if tree is None:
        raise LoaderError("the dataset is empty: there is nothing to cache")
    return ArraySource(tuple(arrays), None, tree)


def _advise(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; add advice about caches to errors about samples of different shapes."""
    try:
        yield from batches
    except SampleError as error:
        error.problem = error.problem.replace(IF_IT_VARIES, _ONE_SCHEMA)
        raise


def _check_alike(tree: Tree, arrays: Sequence[Array], batch: Any, filled: int) -> Sequence[Any]:
    """Return the fields of a batch whose samples have the form of the `filled` samples before them."""
    found = Tree.of(batch)
    if found != tree:
        problem = f"expected {tree.describe()} as in sample 0, got {found.describe()}; {_ONE_SCHEMA}"
        raise SampleError(problem, dataset_index=filled)
    parts: Sequence[Any] = tree.flatten(batch)
    for leaf, array, part in zip(tree.leaves, arrays, parts, strict=True):
        if array.dtype != part.dtype or array.shape[1:] != part.shape[1:]:
            expected, got = (describe_field(one.shape[1:], one.dtype) for one in (array, part))
            problem = f"expected {expected} as in sample 0, got {got}; {_ONE_SCHEMA}"
            raise SampleError(problem, dataset_index=filled, field=leaf.name)
    return parts


def _count_bytes(specs: Iterable[Spec]) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in specs)


def _allocate(device: Device, nbytes: int, what: str, beside: str = "") -> DeviceMemory:
    try:
        return device.alloc(nbytes)
    except StagingMemoryError as error:
        problem = f"{what} does not fit on {device.name}{beside}; use cache='host': {error}"
        raise StagingMemoryError(problem) from error


@dataclass(frozen=True, slots=True)
class _Table:
    """The order of an epoch in device memory, and the programs that gather one lane's batches by it."""

    count: int  # the entries of the order; 0 if the device holds none
    memory: DeviceMemory
    layout: Layout
    programmer: Programmer

    @classmethod
    def make(cls, device: Device, count: int, make: Callable[[Any], Programmer]) -> _Table:
        layout = arrange((((count,), np.dtype(np.int64)),))
        if not count:
            return cls(0, None, layout, make(None))
        what = f"an epoch's order of {layout.nbytes:,} bytes"
        memory = _allocate(device, layout.nbytes, what, beside=" alongside the cached arrays")
        [order] = device.arrays(memory, layout)
        return cls(count, memory, layout, make(order))


class Resident:
    """A dataset's arrays on the devices of a loader's places, with the order of each epoch.

    If the loader itself determines an epoch's order, each lane computes it on its device before the first
    batch, and gathers batches by their positions in it. With any other order, each batch carries its row
    numbers. Each device gets one copy of the arrays.
    """

    # A batch is a run of consecutive positions, and the host stages only the first and the last: 16 bytes for
    # any batch size. Computing the order batch by batch would take no memory, but one more launch per batch;
    # next to rows that are on the device anyway, 8 bytes per row are cheaper. A dataset that does not fit is
    # an error, and no part of it is spilled: steps would have two speeds, depending on whether their rows
    # cross the bus. cache='host' has one speed.

    def __init__(self, devices: Sequence[Device], transforms: Sequence[Transform]) -> None:
        self._devices = devices
        self._transforms = tuple(transforms)
        self._rows = 0
        self._reserved: dict[Device, DeviceMemory] = {}  # places may share a device
        self._gathers: list[list[RowSource]] = []
        self._tables: LivingKeys[Lane, _Table] = LivingKeys()

    def reserve(self, specs: Sequence[Spec]) -> None:
        """Allocate memory on every device for arrays of these shapes and dtypes."""
        for device in self._devices:
            if device not in self._reserved:
                nbytes, what = arrange(tuple(specs)).nbytes, f"a cache of {_count_bytes(specs):,} bytes"
                self._reserved[device] = _allocate(device, nbytes, what)

    def bring(self, source: ArraySource) -> None:
        """Copy arrays to every device; row i is sample i. Raises the errors of `reserve`."""
        self.reserve([(array.shape, array.dtype) for array in source.arrays])
        self._rows = len(source.arrays[0])
        there = {
            device: source.gathers(upload(source.arrays, device, memory))
            for device, memory in self._reserved.items()
        }
        self._gathers = [there[device] for device in self._devices]
        self._reserved.clear()

    def find_order(self, plan: Plan) -> InOrder | Shuffled | None:
        """Return the order that the plan's batches are stretches of, if devices can compute it.

        >>> resident = Resident([], [])
        >>> resident.bring(ArraySource((np.zeros(9),), None, Tree.flat(["0"])))
        >>> resident.find_order(OrderedPlan(InOrder(9), 2, drop_last=False))
        InOrder(count=9)
        """
        if not isinstance(plan, OrderedPlan) or plan.wraps:  # a wrapped last batch is not a stretch
            return None
        order = plan.order
        return order if isinstance(order, InOrder | Shuffled) and order.count <= self._rows else None

    def begin(self, order: InOrder | Shuffled | None, lanes: Sequence[Lane]) -> None:
        """Make each lane compute an epoch's order on its device; None if batches carry their row numbers."""
        count = 0
        if isinstance(order, Shuffled):
            # A small order is sorted by hashes, on the host and on the device, so it is computed whole. The
            # host's would be 2 MB at most to upload, but the GPU would wait milliseconds for it. Any stretch
            # of a large order can be computed by itself.
            count = order.count if order.count <= SORTED_AT_MOST else len(order)
        for lane, gathers in zip(lanes, self._gathers, strict=True):
            table = self._tables.get(lane)
            if table is None or table.count != count:
                table = _Table.make(lane.device, count, partial(Programmer, self._transforms, gathers))
                self._tables.set(lane, table)
            lane.programmer = table.programmer
            # Without user code between two batches, the current device stays the same, so a lane may issue
            # the next batch without checking it again.
            are_ours = (type(one).__module__.startswith("gpuloader.") for one in self._transforms)
            lane.runs_only_ours = order is not None and all(are_ours)
            if isinstance(order, Shuffled) and count:
                # On the copy stream, this lies between the last gathers of the previous order and the first
                # of this one. So it needs no event, and the same 8 bytes per sample serve every epoch.
                numbers = {"count": order.count, "seed": order.seed, "epoch": order.epoch, "stop": count}
                call = KernelCall((), (((count,), np.dtype(np.int64)),), shuffle, numbers)
                step = Step(call, (), (0,), "order", "shuffle")
                program = BatchProgram(table.layout, table.layout, (), (), (step,), table.layout, ())
                lane.compute(program, table.memory)
