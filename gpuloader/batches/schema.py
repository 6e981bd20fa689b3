"""Transforms within collation: room for their results, their random draws, and on a CPU place their work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.batches.rows import SampleRows
from gpuloader.batches.stream import StagedBatch
from gpuloader.batches.tree import Branch, Leaf, Node, Tree, all_leaves, is_array
from gpuloader.errors import SampleError
from gpuloader.fields.convert import IF_A_LIST, as_numbers, cast
from gpuloader.fields.image_regions import Encoded, Region
from gpuloader.fields.ragged import gather_fields
from gpuloader.fields.spec import Array, FeedSpec, Indices
from gpuloader.order.order import Stretch
from gpuloader.sources.block import WholeList
from gpuloader.staging.layout import Layout

if TYPE_CHECKING:
    from gpuloader.batches.image_samples import PictureStage
    from gpuloader.transforms.program import Program, Spec
    from gpuloader.transforms.programmer import Programmer


# The schema of a batch: the user's collation options, and the fields that the batch's first sample settles.


@dataclass(frozen=True, slots=True)
class Collation:
    """How samples become a batch.

    Attributes
    ----------
    feeds : tuple of FeedSpec or None
        The declared fields; None infers them from the first sample of each batch.
    function : callable or None
        The user's ``collate_fn``. It takes the list of samples, or a single sample if not `batched`.
    batched : bool
        Whether samples are stacked. If False, each sample is delivered alone, without a batch dimension.
    ragged : frozenset of str
        The fields of varying length to deliver as `Ragged`.
    pads : mapping of str to float
        The fields of varying length to deliver dense, each with the value that fills up short rows.
    programmer : Programmer or None
        Plans what the transforms do to a batch; None if there are no transforms.
    on_host : bool
        Whether transforms run where the batch is fetched (a CPU place) or after its copy to a device.
    keeps_gradients : bool
        Whether tensors that the function returns are delivered as they are if they require a gradient. If
        not, they are staged like any other, without it.
    pictures : PictureStage or None
        What is done to the pictures of each sample; None for nothing.
    skips : bool
        Whether to leave out samples whose pictures cannot be decoded.
    """

    feeds: tuple[FeedSpec, ...] | None = None
    function: Callable[[Any], Any] | None = None
    batched: bool = True
    ragged: frozenset[str] = frozenset()
    pads: Mapping[str, float] | None = None
    programmer: Programmer | None = None
    on_host: bool = True
    keeps_gradients: bool = False
    pictures: PictureStage | None = None
    skips: bool = False

    @property
    def whole(self) -> bool:
        """Whether a batch can be written only after all its samples have been fetched and collated."""
        return self.function is not None or not self.batched

    @property
    def fixed(self) -> bool:
        """Whether the loader itself stacks the samples, and none of their fields varies in length."""
        varies = self.ragged or self.pads or any(feed.lod_level for feed in self.feeds or ())
        return not self.whole and not varies and not self.stages_regions

    @property
    def stages_regions(self) -> bool:
        """Whether regions of pictures are staged, of which a GPU makes the pictures."""
        return self.pictures is not None and bool(self.pictures.staged)

    @property
    def gathers(self) -> bool:
        """Whether batches of arrays can be gathered from their rows without making samples."""
        return self.fixed and self.pictures is None

    @property
    def keeps(self) -> bool:
        """Whether all samples of a batch are kept until the last one has been fetched.

        Otherwise each sample is written as soon as the batch's first one has settled the schema.
        """
        return not self.fixed or any(None in feed.sample_shape for feed in self.feeds or ())


@dataclass(frozen=True, slots=True)
class Schema:
    """The tree and the fields of a batch, which all its samples share.

    Attributes
    ----------
    tree : Tree
        How the fields make up a sample.
    feeds : tuple of FeedSpec
        One spec per array field of the tree.
    levels : tuple of int
        One level per array field: 0 for a dense or padded field. A ragged field of level n has 1 + n arrays.
    declared : bool
        Whether the user declared the feeds. Samples are then converted to them.
    """

    tree: Tree
    feeds: tuple[FeedSpec, ...]
    levels: tuple[int, ...]
    declared: bool


def declared_schema(feeds: Sequence[FeedSpec], pads: Mapping[str, float] | None) -> Schema:
    """Return the schema of samples that are tuples with one value per declared feed."""
    names = [feed.name for feed in feeds]
    levels = tuple(0 if pads and feed.name in pads else feed.lod_level for feed in feeds)
    return Schema(Tree.flat(names), tuple(feeds), levels, declared=True)


def infer_schema(samples: Sequence[Any], collation: Collation) -> Schema:
    """Return the schema inferred from a batch's first sample.

    Parameters
    ----------
    samples : sequence
        The batch's first sample, and the others if they have been fetched. An empty list has no dtype, so
        a field that varies in length takes its dtype from the first sample whose list is not empty.
    collation : Collation
        How samples become a batch.

    Raises
    ------
    SampleError
        The first sample lacks a field that ragged or pad names, or that field has no length.
    """
    pads = collation.pads or {}
    varying = collation.ragged | pads.keys()
    tree = Tree.of(samples[0], varying)
    names = {leaf.name for leaf in tree.leaves if leaf.is_array}
    if missing := sorted(varying - names):
        raise SampleError(f"ragged or pad names {missing}, but the sample's array fields are {sorted(names)}")
    feeds: list[FeedSpec] = []
    pictures: dict[str, int] = {}
    for field, (leaf, value) in enumerate(zip(tree.leaves, tree.flatten(samples[0]), strict=True)):
        if not leaf.is_array:
            continue
        try:
            if leaf.name in varying:
                array = _find_steps(tree, field, samples)
                if leaf.name in pads:
                    check_fill(pads[leaf.name], array.dtype)
                feeds.append(FeedSpec(leaf.name, (None, *array.shape[1:]), array.dtype, lod_level=1))
            elif isinstance(value, Region | Encoded):
                feeds.append(FeedSpec(leaf.name, (None, *value.step), value.dtype, lod_level=2))
                pictures[leaf.name] = value.level
            else:
                array = as_numbers(value)
                feeds.append(FeedSpec(leaf.name, (None, *array.shape), array.dtype))
        except SampleError as error:
            error.field = leaf.name
            raise
    levels = tuple(0 if feed.name in pads else pictures.get(feed.name, feed.lod_level) for feed in feeds)
    return Schema(tree, tuple(feeds), levels, declared=False)


def _find_steps(tree: Tree, field: int, samples: Sequence[Any]) -> Array:
    """Return the first value of a field of varying length that has a dtype, which empty lists have not."""
    for index, leaves in enumerate(all_leaves(tree, samples)):
        value = leaves[field]
        try:
            array = as_numbers(value)
            if not array.ndim:
                advice = f"; {IF_A_LIST}" if tree.is_flat else ""
                raise SampleError(f"expected an array of varying length, got a number{advice}")
        except SampleError as error:
            error.index = index
            raise
        if array.size or not isinstance(value, list | tuple):
            return array
    raise SampleError(
        "cannot infer a dtype: the lists of all samples of the batch are empty; use arrays, or declare the "
        "field in feed_list with lod_level=1"
    )


def check_fill(fill: float, dtype: np.dtype[Any]) -> None:
    """Raise `SampleError` if an array of `dtype` cannot hold the value that fills up short rows.

    >>> check_fill(0.5, np.dtype("int64"))
    Traceback (most recent call last):
    gpuloader.errors.SampleError: cannot pad rows of int64 with 0.5
    """
    try:
        held = cast(np.asarray(fill), dtype).item()
    except SampleError as error:
        raise SampleError(f"cannot pad rows of {dtype} with {fill!r}: {error.problem}") from None
    if dtype.kind in "iub" and held != fill:
        raise SampleError(f"cannot pad rows of {dtype} with {fill!r}")


def build_batch(tree: Tree, levels: Sequence[int], arrays: Sequence[Any], objects: Sequence[Any]) -> Any:
    """Return a batch in the schema of a sample, built from delivered arrays and Python objects.

    >>> tree = Tree.of(([1.0], "cat"))
    >>> build_batch(tree, [0], ["images"], [["cat", "dog"]])
    [['images'], ['cat', 'dog']]
    """
    fields = gather_fields(levels, arrays) if any(levels) else arrays
    if not objects:
        return tree.build(fields)
    values = (*fields, *objects)
    return tree.build([values[place] for place in tree.places])


# Known schemas: those of recent batches, so that a batch that looks like one of them needs no new schema.
#
# The schema of a batch depends on nothing but the batch's own samples, whoever fetches it and whatever came
# before. So a known schema is used only if settling one by the batch's first sample would give an equal one.

_MOST_SCHEMAS = 8
_MOST_TABLES = 8
_SCALARS = {float: np.dtype(float), bool: np.dtype(bool), complex: np.dtype(complex)}
_INTEGER = np.dtype(np.int64)
_LARGEST = 2**63
_POINTER = 8


class CachedSchema:
    """A schema, and the tables by which samples of it are written into slots; threads share it.

    Attributes
    ----------
    schema : Schema
        The schema.
    fullest : int
        The most samples of a batch that was full.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.fullest = 0
        specs = map(_spec_of, schema.feeds, schema.levels)
        self._specs = [next(specs) if leaf.is_array else None for leaf in schema.tree.leaves]
        root = schema.tree.root
        # Whether a sample's values are those of its leaves, so that nothing has to be taken apart.
        self._root = root if isinstance(root, Branch) and root.blank is None else None
        if not all(isinstance(child, Leaf) for child in getattr(root, "children", ())):
            self._root = None
        self._tables: dict[int, SampleRows] = {}
        self._arranging = threading.Lock()

    def is_settled_by(self, sample: Any) -> bool:
        """Return whether a batch with this first sample has this schema; False also if that is unclear."""
        root = self._root
        values: Any
        if root is None:
            values = []
            if not _take_apart(self.schema.tree.root, sample, values):
                return False
        else:
            values, kind = sample, root.kind
            if type(sample) is not kind:
                return False
            if root.keys is not None:
                if (*values,) != root.keys:
                    return False
                values = [values[key] for key in root.keys]
        specs = self._specs
        if len(values) != len(specs):
            return False
        # No strict=True: this runs for every batch.
        for value, spec in zip(values, specs):  # noqa: B905
            if type(value) is np.ndarray and spec is not None:
                dtype, shape, level = spec
                if value.dtype != dtype or (value.shape[1:] if level else value.shape) != shape:
                    return False
                if level > 1 or (level and not value.ndim):
                    return False
            elif not _is_like(value, spec):
                return False
        return True

    def is_large(self, size: int, limit: int) -> bool:
        """Return whether a full batch takes more than `limit` bytes, and none as large has been full yet."""
        if size <= self.fullest:
            return False
        objects = sum(not leaf.is_array for leaf in self.schema.tree.leaves)
        return self.rows(1).layout_of(size).nbytes + size * objects * _POINTER > limit

    def rows(self, count: int) -> SampleRows:
        """Return the row table for a batch of `count` dense samples, with its layout arranged."""
        table = self._tables.get(count)
        if table is not None:
            return table
        with self._arranging:
            table = self._tables.get(count)
            if table is None:
                table = SampleRows(self.schema.feeds, strict=not self.schema.declared)
                table.arrange(count)
                if len(self._tables) >= _MOST_TABLES:  # a batch sampler may use a new batch size every time
                    self._tables.clear()
                self._tables[count] = table
        return table


class SchemaCache:
    """The schemas of recent batches; threads share them.

    Parameters
    ----------
    collation : Collation
        How samples become a batch. If it declares the fields, their schema is the only one.
    """

    def __init__(self, collation: Collation) -> None:
        self._collation = collation
        self.recent: tuple[CachedSchema, ...] = ()
        self.declared: CachedSchema | None = None
        if collation.feeds is not None:
            self.declared = CachedSchema(declared_schema(collation.feeds, collation.pads))
        self._settling = threading.Lock()

    def find(self, samples: Sequence[Any]) -> CachedSchema:
        """Return the schema of a batch, given its first sample, and its others if they have been fetched.

        Raises
        ------
        SampleError
            The first sample has no schema.
        """
        if self.declared is not None:
            return self.declared
        first = samples[0]
        for known in self.recent:
            if known.is_settled_by(first):
                return known
        schema = infer_schema(samples, self._collation)
        with self._settling:
            for known in self.recent:
                if known.schema == schema:
                    return known
            known = CachedSchema(schema)
            self.recent = (known, *self.recent[: _MOST_SCHEMAS - 1])
        return known


_Spec = tuple[np.dtype[Any], tuple[int | None, ...], int]
"""A field's dtype and shape, and 0, 1 if it varies in length, or the level of `Region` or `Encoded`.

The shape of a field that varies is that of one of its steps.
"""


def _spec_of(feed: FeedSpec, level: int) -> _Spec:
    return feed.dtype, feed.sample_shape, max(feed.lod_level, level)  # a padded field has level 0


def _take_apart(node: Node, value: Any, found: list[Any]) -> bool:
    """Append the values of a sample's leaves to `found`; return False if its tree is not the node's."""
    if isinstance(node, Leaf):
        found.append(value)
        return True
    kind: object = type(value)
    if kind is not node.kind or len(value) != len(node.children) or node.blank is not None:
        return False
    if node.keys is not None:
        if (*value,) != node.keys:
            return False
        value = [value[key] for key in node.keys]
    for child, entry in zip(node.children, value, strict=True):
        if type(child) is Leaf:
            found.append(entry)
        elif not _take_apart(child, entry, found):
            return False
    return True


def _is_like(value: Any, spec: _Spec | None) -> bool:
    """Return whether a value would settle a field of this dtype and shape; for None, one of objects."""
    kind = type(value)
    if spec is None:
        return kind is str or is_object(value)
    wanted, step, level = spec
    if isinstance(value, Region | Encoded):
        return value.level == level and value.dtype == wanted and value.step == step
    if level > 1:
        return False
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    if kind is int and -_LARGEST <= value < _LARGEST:
        dtype = _INTEGER
    elif kind in _SCALARS:
        dtype = _SCALARS[kind]
    elif isinstance(value, np.generic):
        dtype = value.dtype
    elif is_array(value) or (level and isinstance(value, list | tuple) and value):
        try:
            array = as_numbers(value)
        except SampleError:  # settling the schema raises it again, and says where
            return False
        dtype, shape = array.dtype, array.shape
    else:
        return False
    if level:
        return dtype == wanted and bool(shape) and shape[1:] == step
    return dtype == wanted and shape == step


def is_object(value: Any) -> bool:
    """Return whether a value is a field by itself, and stays a Python object.

    >>> is_object("cat"), is_object(3), is_object(["cat"])
    (True, False, False)
    """
    if isinstance(value, WholeList):
        return True
    return not isinstance(value, Mapping | list | tuple) and not is_array(value)


def room_for(collation: Collation, tree: Tree, levels: Sequence[int], layout: Layout) -> int:
    """Return the bytes a slot needs for a batch of this layout, including what its transforms need."""
    program = _program(collation, tree, levels, layout)
    if program is None:
        return layout.nbytes
    return (program.room if collation.on_host else program.copied).nbytes


def complete(collation: Collation, staged: StagedBatch, keys: Indices | Stretch) -> StagedBatch:
    """Write the transforms' random draws for the samples with these keys; on a CPU place, run the transforms.

    Raises
    ------
    SampleError
        A transform does not accept its field.
    """
    assert staged.tree is not None
    program = _program(collation, staged.tree, staged.levels, staged.layout)
    if program is None or collation.programmer is None:
        return staged
    arrays = staged.slot.views(program.room if collation.on_host else program.copied)
    _prepare(collation.programmer, program, arrays, keys)
    if collation.on_host:
        program.run_on_host(arrays)
        staged.layout, staged.levels = program.delivered, program.levels
    else:
        staged.layout = program.copied
    return staged


def list_draws(collation: Collation, tree: Tree, levels: Sequence[int], layout: Layout) -> tuple[Spec, ...]:
    """Return the shapes and dtypes of the random draws that are copied with a batch of this layout."""
    program = _program(collation, tree, levels, layout)
    drawn = () if program is None else program.copied.fields[len(layout.fields) :]
    return tuple((one.shape, one.dtype) for one in drawn)


def complete_apart(
    collation: Collation, staged: StagedBatch, arrays: list[Array], keys: Indices
) -> StagedBatch:
    """Write the transforms' random draws for a batch of which a device copies some arrays from elsewhere.

    The arrays are the batch's, wherever they lie, and those of `list_draws`; raises like `complete`.
    """
    assert staged.tree is not None
    if collation.programmer is not None:
        names = staged.tree.array_names
        program = collation.programmer.program(names, staged.levels, staged.layout, drawn=True)
        _prepare(collation.programmer, program, arrays, keys)
    return staged


def _prepare(programmer: Programmer, program: Program, arrays: list[Array], keys: Indices | Stretch) -> None:
    """Check the staged arrays, and write the draws."""
    program.check(arrays)
    programmer.fill_draws(program, arrays, keys)


def _program(collation: Collation, tree: Tree, levels: Sequence[int], layout: Layout) -> Program | None:
    if collation.programmer is None:
        return None
    return collation.programmer.program(tree.array_names, levels, layout, drawn=False)
