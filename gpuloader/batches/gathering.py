"""Batches from arrays in memory: one vectorized ``take`` per field, straight into the slot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.schema import Collation
from gpuloader.batches.staged import BatchBuilder, Reserve, StagedBatch, begin_batch, complete
from gpuloader.batches.tree import Leaf, Tree
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array, Indices, Spec
from gpuloader.order.order import Stretch
from gpuloader.sources.array_rows import ArrayRows, IndexedRows
from gpuloader.staging import Layout, arrange

_PIECE = 32 << 10  # bytes of a strided array to gather at once


class Gatherer:
    """Assembles batches from arrays that share their first dimension; any thread may call it.

    `rows` has the row of each sample in the arrays; None if sample i is row i. From the `collation`, only the
    transforms and the names of the feeds are used. `tree` says how the arrays make up a sample; None means a
    tuple.
    """

    def __init__(
        self,
        arrays: Sequence[Array],
        rows: IndexedRows | None,
        collation: Collation | None = None,
        tree: Tree | None = None,
    ) -> None:
        self._collation = collation or Collation()
        self._arrays = tuple(arrays)
        self._rows = rows
        self._count = len(arrays[0]) if rows is None else len(rows)
        feeds = self._collation.feeds
        if feeds is not None:  # transforms refer to fields by the feeds' names
            tree = Tree.flat([feed.name for feed in feeds])
        self._tree = tree or Tree.flat([str(field) for field in range(len(arrays))])
        self._levels = (0,) * len(arrays)
        self._layouts: dict[int, Layout] = {}
        # For an array that is not contiguous and aligned, NumPy's take would copy the whole array per batch.
        self._takes = tuple(array.flags.c_contiguous and array.flags.aligned for array in self._arrays)

    def layout(self, count: int) -> Layout:
        """Return the layout of a batch of `count` samples."""
        layout = self._layouts.get(count)
        if layout is None:
            if len(self._layouts) > 8:  # a batch sampler may use a new batch size every time
                self._layouts.clear()
            layout = self._layouts[count] = arrange(self._specs(count))
        return layout

    def _specs(self, count: int) -> tuple[Spec, ...]:
        return tuple(((count, *array.shape[1:]), array.dtype) for array in self._arrays)

    def begin(self, number: int, indices: Indices, reserve: Reserve) -> Gathering:
        """Begin batch `number`, of the samples at `indices`; the caller then fetches its parts.

        Raises
        ------
        SampleError
            An index is not an integer, or is out of range.
        """
        try:
            rows = self._find_rows(indices)
        except SampleError as error:
            locate(error, number, indices)
            raise
        return Gathering(self, indices, rows, self._reserve(self.layout(len(rows)), number, reserve))

    def check_all(self) -> None:
        """Run the transforms' checks on all samples at once, for batches that are gathered on a device.

        Transforms' checks run on the host, so otherwise they would never see the samples of such batches.

        Raises
        ------
        SampleError
            A transform refused a sample; the error names it.
        """
        if self._collation.programmer is None:
            return
        from gpuloader.transforms.program import Programmer

        names, layout = self._tree.array_names, self.layout(self._count)
        try:
            program = Programmer(self._collation.programmer.transforms).program(names, self._levels, layout)
        except SampleError:
            return  # a transform does not fit its field; the first batch raises that error
        try:
            program.check(list(self._arrays))
        except SampleError as error:
            # All samples together are not a batch, so the row is the sample's index in the dataset.
            error.index, error.dataset_index = None, error.index
            raise

    def _reserve(self, layout: Layout, number: int, reserve: Reserve) -> StagedBatch:
        return begin_batch(self._collation, layout, self._levels, number, reserve, self._tree)

    def assemble(self, number: int, indices: Indices, reserve: Reserve) -> StagedBatch:
        """Take and stage batch `number`; raises what `begin` raises."""
        # Not by `begin`, `fetch` and `finish`, because a batch of small arrays takes no longer than these
        # calls.
        try:
            rows = self._find_rows(indices)
            staged = self._reserve(self.layout(len(rows)), number, reserve)
            self.take(rows, staged.slot.views(staged.layout))
            return complete(self._collation, staged, indices)
        except SampleError as error:
            locate(error, number, indices)
            raise

    def _find_rows(self, indices: Indices) -> range | NDArray[Any]:
        """Return the rows of the samples, after checking that all of them exist."""
        count = self._count
        if type(indices) is range and indices.step > 0 and indices.start >= 0 and indices.stop <= count:
            rows: range | NDArray[Any] = indices
        else:
            found = _as_integers(indices)
            # Read as unsigned, negative indices are the largest, so one comparison finds both kinds.
            if found.size and found.view(np.uint64).max() >= count:
                # Negative ones count from the end, as in Python.
                found = np.where(found < 0, found + count, found)
                outside = np.flatnonzero((found < 0) | (found >= count))
                if outside.size:
                    at = int(outside[0])
                    problem = f"the sampler's index {indices[at]} is out of range for {count} samples"
                    raise SampleError(problem, index=at)
            rows = found
        # A subset, or datasets joined, have their own numbering.
        if self._rows is None:
            return rows
        return self._rows[rows.start : rows.stop : rows.step] if type(rows) is range else self._rows[rows]

    def take(self, rows: range | NDArray[Any], targets: Sequence[Array]) -> None:
        """Write the given rows of each array into its target."""
        # In sequence, the rows are one block, which NumPy copies at the memory's speed.
        if type(rows) is range and rows.step == 1:
            for array, target in zip(self._arrays, targets, strict=True):
                np.copyto(target, array[rows.start : rows.stop])
            return
        if type(rows) is range:
            rows = np.arange(rows.start, rows.stop, rows.step)
        for array, target, takes in zip(self._arrays, targets, self._takes):  # noqa: B905 - costs time
            if takes:
                # All rows exist. Without mode "clip", NumPy would buffer the result to check them first.
                array.take(rows, 0, target, "clip")
            else:
                _copy_rows(array, rows, target)


class RowStager(Gatherer):
    """Stages only the row numbers of a batch, for arrays that are already on the device.

    If the epoch's order is there as well, a batch is a `Stretch` of it, and only the stretch's first and last
    position are staged: 16 bytes, whatever the size of the batch.
    """

    @cached_property
    def _draws(self) -> bool:
        programmer = self._collation.programmer
        return programmer is not None and any(one.draws for one in programmer.transforms)

    def _specs(self, count: int) -> tuple[Spec, ...]:
        return (((count,), np.dtype(np.int64)),)

    def take(self, rows: range | NDArray[Any], targets: Sequence[Array]) -> None:
        """Write the row numbers."""
        if type(rows) is range:
            rows = np.arange(rows.start, rows.stop, rows.step)
        targets[0][...] = rows

    def assemble(self, number: int, indices: Indices | Stretch, reserve: Reserve) -> StagedBatch:
        """Stage batch `number`; raises what `begin` raises."""
        if not isinstance(indices, Stretch):
            return super().assemble(number, indices, reserve)
        try:
            staged = self._reserve(_span_layout(indices.count), number, reserve)
            _, span = staged.slot.views(staged.layout)
            span[0], span[1] = indices.first, indices.last
            # Only random draws need the indices. Without them, the host never has to compute the permutation.
            return complete(self._collation, staged, indices if self._draws else ())
        except SampleError as error:
            error.batch = number
            raise


class Gathering(BatchBuilder):
    """One batch of arrays that is being written into a slot."""

    def __init__(
        self, gatherer: Gatherer, indices: Indices, rows: range | NDArray[Any], staged: StagedBatch
    ) -> None:
        self._gatherer = gatherer
        self._indices = indices
        self._rows = rows
        self._staged = staged
        self.nbytes = staged.layout.nbytes

    def fetch(self, start: int, stop: int) -> None:
        """Take rows `start` to `stop` of the batch."""
        views = self._staged.slot.views(self._staged.layout)
        self._gatherer.take(self._rows[start:stop], [view[start:stop] for view in views])

    def finish(self) -> StagedBatch:
        """Return the staged batch; all its rows must have been taken."""
        return complete(self._gatherer._collation, self._staged, self._indices)

    def locate(self, error: SampleError) -> None:
        """Add the batch and the sample's index to an error."""
        locate(error, self._staged.number, self._indices)


def locate(error: SampleError, number: int, indices: Indices) -> None:
    """Add the batch and the sample's index to an error."""
    error.batch = number
    if error.index is not None:
        error.dataset_index = int(indices[error.index])


def _copy_rows(array: Array, rows: NDArray[Any], target: Array) -> None:
    """Write rows of an array of any strides into a target."""
    step = _PIECE // max(target[:1].nbytes, 1)
    if step < 2:
        for position, row in enumerate(rows.tolist()):
            target[position] = array[row]
        return
    # NumPy copies the selected rows once more, so select only as many as stay in the cache.
    for start in range(0, len(rows), step):
        target[start : start + step] = array[rows[start : start + step]]


def tree_of(source: ArrayRows) -> Tree:
    """Return how the arrays of a dataset make up a sample.

    >>> tree_of(ArrayRows((np.zeros(2),), names=("label",))).build(["labels"])
    {'label': 'labels'}
    """
    if source.bare:
        return Tree(Leaf("0", True))
    if source.names is not None:
        return Tree.flat(source.names, dict)
    return Tree.flat([str(field) for field in range(len(source.arrays))])


@lru_cache(maxsize=8)
def _span_layout(count: int) -> Layout:
    # The first array has no bytes; its shape carries the number of samples. The second holds the positions.
    return arrange((((count, 0), np.dtype(np.uint8)), ((2,), np.dtype(np.int64))))


def _as_integers(indices: Indices) -> NDArray[np.int64]:
    """Return indices as an array of int64; raise `SampleError` for anything but a list of integers."""
    if isinstance(indices, np.ndarray) and indices.dtype == np.int64 and indices.ndim == 1:
        return indices
    try:
        found = np.asarray(indices)
    except ValueError:  # lists of different lengths
        found = np.empty((0, 0))
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        raise SampleError(f"expected integers as indices, got {list(indices)[:4]}")
    if found.dtype.kind == "u" and found.size and found.max() > np.iinfo(np.int64).max:
        raise SampleError(f"the dataset has no sample {found.max()}")
    return found.astype(np.int64)
