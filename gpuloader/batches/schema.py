"""The schema of a batch: its tree and its fields, which the batch's first sample settles.

The user's options are one `Collation`, made once. A batch's first sample settles its `Schema`: `infer_schema`
walks the sample, and takes a dtype and a shape from each array in it. A batch's schema depends only on its
own samples, whoever fetches it and whatever came before. So `SchemaCache` keeps the schemas of recent
batches, and uses one only if inferring it from the new first sample would give an equal one. With declared
feeds there is a single schema, known before the first sample.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuloader.batches.rows import IN_FEEDS, SAMPLE_TYPES, SampleRows, fields_of
from gpuloader.batches.tree import Branch, Tree, all_leaves, is_array, is_object
from gpuloader.errors import SampleError
from gpuloader.fields.convert import IF_A_LIST, Conversion, as_numbers, check_fill, convert, convert_alike
from gpuloader.fields.ragged import Padding, name_extras
from gpuloader.fields.spec import FeedSpec
from gpuloader.foreign import is_plain_tensor, warn_of_class
from gpuloader.sources.images.regions import Encoded, Region
from gpuloader.staging import Layout

if TYPE_CHECKING:
    from gpuloader.batches.image_samples import ImageStage
    from gpuloader.transforms.program import Programmer


class Fallback(NamedTuple):
    """A framework's own function that makes a batch of samples if writing them into rows would differ.

    `is_for` decides by a batch's first sample. The function also makes batches whose samples do not fit
    together.
    """

    collate: Callable[[list[Any]], Any]
    is_for: Callable[[Any], bool]


@dataclass(slots=True, eq=False, repr=False)
class Collation:
    """How samples become a batch.

    `feeds` are the declared fields; without them, the first sample of each batch determines the fields. The
    user's ``collate_fn``, `function`, takes the list of samples, or a single sample if not `batched`: samples
    are then delivered one by one, without a batch dimension. Fields of varying length are delivered as
    `Ragged`, or dense if `pads` has a value that fills up short rows. The `programmer` plans what the
    transforms do to a batch: where it is fetched if `on_host` (a CPU place), otherwise after its copy to a
    device. `images` is what is done to the images of each sample; `skips` leaves out samples that raise. With
    `keeps_gradients`, tensors of the function that require a gradient are delivered as they are; otherwise
    they are staged like any other, without it. With `as_returned`, everything that the function returns is
    delivered as it is: its classes, NumPy arrays, and shared objects. `fallback` makes the batches it is for,
    and those whose samples do not fit together. `warns` warns about classes of tensors that a slot does not
    keep. With `copies` unset, arrays of a function or an unbatched sample are delivered as they are. `flat`
    samples are tuples with one array per field, as readers yield them.

    Attributes
    ----------
    whole : bool
        Whether a batch can be written only after all its samples have been fetched and collated.
    fixed : bool
        Whether the loader itself stacks the samples, and none of their fields varies in length.
    keeps : bool
        Whether all samples of a batch are kept until the last one has been fetched. Otherwise each sample is
        written as soon as the batch's first one has settled the schema.
    """

    feeds: tuple[FeedSpec, ...] | None = None
    function: Callable[[Any], Any] | None = None
    batched: bool = True
    ragged: frozenset[str] = frozenset()
    pads: Mapping[str, Padding] = field(default_factory=dict)
    programmer: Programmer | None = None
    on_host: bool = True
    keeps_gradients: bool = False
    images: ImageStage | None = None
    skips: bool = False
    as_returned: bool = False
    fallback: Fallback | None = None
    warns: bool = False
    flat: bool = False
    copies: bool = True
    whole: bool = field(init=False)
    fixed: bool = field(init=False)
    keeps: bool = field(init=False)

    def __post_init__(self) -> None:
        # Decided here, once: every batch asks for some of these.
        self.whole = self.function is not None or not self.batched
        stages_regions = self.images is not None and bool(self.images.staged)
        varies, is_open = bool(self.ragged or self.pads), False
        for feed in self.feeds or ():
            varies, is_open = varies or feed.lod_level > 0, is_open or None in feed.shape[1:]
        self.fixed = not (self.whole or varies or stages_regions)
        # A reader may reuse its buffer for the next sample, so its samples are not kept.
        self.keeps = not self.fixed or (is_open and not self.flat)


_FieldSpec = tuple[np.dtype[Any], tuple[int | None, ...], int]
"""A field's dtype and shape, and 0, 1 if it varies in length, or the level of `Region` or `Encoded`.

The shape of a field that varies is the shape of one of its steps.
"""
NUMBERS: dict[type, np.dtype[Any]] = {kind: np.dtype(kind) for kind in (bool, int, float)}
# Classes and dtypes of plain tensors, with the dtypes that they settle: an array over the first sample of
# each batch takes longer than all other checks of it.
_TENSORS: set[tuple[type, Any, np.dtype[Any]]] = set()
_LARGEST = np.iinfo(int).max
_MOST_SCHEMAS = 8
_MOST_TABLES = 8
_POINTER = 8
_CHUNK_NBYTES = 1 << 20


class Fitting(NamedTuple):
    """Columns of dense arrays and plain objects that fit a schema, and which of its fields they are."""

    columns: Mapping[str, Any]
    arrays: Sequence[Any]  # in the order of the schema's fields
    objects: Sequence[Any]


@dataclass(slots=True, repr=False)
class Schema:
    """The tree and the fields of a batch, and the tables that write samples of them; threads share it.

    There is one spec and one level for each array field of the tree: 0 for a dense or padded field; a ragged
    field of level n has 1 + n arrays. Samples are converted to fields that the user `declared`; their free
    dimensions have the sizes in `shapes`. A schema that `keeps_dtypes` refuses arrays of another dtype, and
    `flat` samples are tuples of arrays. The fields named `extras`, lengths and masks of padded fields, come
    last in the batch, whose tree and levels are `batch_tree` and `batch_levels`. A `chunk` is the number of
    samples to fetch before they are written; `fullest` is the most samples of a full batch so far, and
    `fitting` are the columns that fitted last.
    """

    tree: Tree
    feeds: tuple[FeedSpec, ...]
    levels: tuple[int, ...]
    declared: bool = False
    keeps_dtypes: bool = False
    flat: bool = False
    shapes: tuple[tuple[int, ...], ...] | None = None
    extras: tuple[str, ...] = ()
    batch_tree: Tree = field(init=False, compare=False)
    batch_levels: tuple[int, ...] = field(init=False, compare=False)
    fields: SampleRows = field(init=False, compare=False)
    chunk: int = field(default=1, compare=False)
    fullest: int = field(default=0, compare=False)
    fitting: Fitting | None = field(default=None, compare=False)
    _specs: list[_FieldSpec | None] = field(default_factory=list, compare=False)
    _tables: dict[int, SampleRows] = field(default_factory=dict, compare=False)
    _latest: tuple[int, Layout] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.batch_tree = self.tree.extend(self.extras) if self.extras else self.tree
        self.batch_levels = (*self.levels, *[0] * len(self.extras))
        nbytes, specs = 1, []
        for feed, level in zip(self.feeds, self.levels, strict=True):
            shape: Any = feed.shape[1:]
            specs.append((feed.dtype, shape, max(feed.lod_level, level)))  # a padded field has level 0
            nbytes += 0 if None in shape else feed.dtype.itemsize * math.prod(shape)
        rest = iter(specs)
        for leaf in self.tree.leaves:
            self._specs.append(next(rest) if leaf.is_array else None)
        # A chunk stays in the processor's cache until it is written, and its memory is reused for the next.
        # Small samples come in one chunk, so that none of our code runs inside the loop over the dataset. For
        # samples of 150 kB, 1 MiB takes a fifth less time than chunks of one, and a quarter less than one for
        # the whole batch, if the dataset makes its samples.
        self.chunk = max(_CHUNK_NBYTES // nbytes, 1)
        # A declared field may change a value as Paddle does: reshape it, parse it, drop a fraction. In
        # undeclared fields, every number must stay as it is.
        conversion: Conversion = convert if self.declared else convert_alike
        if self.keeps_dtypes:
            conversion = partial(convert_alike, keeps_dtype=True)
        elif self.flat and not self.declared:
            conversion = partial(convert_alike, advice=IN_FEEDS)
        self.fields = SampleRows(self.feeds, conversion, self.shapes, self.keeps_dtypes)

    def __reduce__(self) -> tuple[Any, ...]:
        names = "tree", "feeds", "levels", "declared", "keeps_dtypes", "flat", "shapes", "extras"
        return Schema, tuple(getattr(self, name) for name in names)

    def is_settled_by(self, sample: Any) -> bool:
        """Return whether a batch with this first sample has this schema; also False if that is unclear."""
        is_flat = self.flat and isinstance(sample, SAMPLE_TYPES)
        values, specs = sample if is_flat else self.tree.flatten(sample, Branch.match), self._specs
        if values is None or len(values) != len(specs):
            return False
        # No strict=True: this runs for every batch. That is also why arrays and NumPy numbers are compared
        # without `_settle`.
        for value, spec in zip(values, specs):  # noqa: B905
            if spec is None:
                if not (type(value) is str or is_object(value)):
                    return False
            elif type(value) is np.ndarray or isinstance(value, np.generic):
                dtype, shape, level = spec
                if value.dtype != dtype or (value.shape[1:] if level else value.shape) != shape:
                    return False
                if level > 1 or (level and not value.ndim):
                    return False
            elif type(value) in NUMBERS and -_LARGEST <= value <= _LARGEST:
                if spec != (NUMBERS[type(value)], (), 0):
                    return False
            elif (type(value), getattr(value, "dtype", None), spec[0]) in _TENSORS and not (
                spec[2] or value.is_nested or value.requires_grad
            ):
                if value.shape != spec[1]:
                    return False
            else:
                varies = spec[2] == 1
                if not (is_flat or is_array(value) or (varies and isinstance(value, list | tuple) and value)):
                    return False
                try:
                    if _settle(value, varies=varies) != spec:
                        return False
                    if is_plain_tensor(value):
                        _TENSORS.add((type(value), value.dtype, spec[0]))
                except SampleError:  # inferring the schema raises it again, and says where
                    return False
        return True

    def is_large(self, size: int, limit: int) -> bool:
        """Return whether a full batch takes more than `limit` bytes, and no full one was that large yet."""
        if size <= self.fullest:
            return False
        objects = self._specs.count(None)  # a column of objects is a list, with a pointer for each
        return self.fields.layout_of(size).nbytes + size * objects * _POINTER > limit

    def lay_out(self, count: int) -> Layout:
        """Return the layout of a batch of `count` dense samples, the same object for the same count."""
        latest = self._latest
        if latest is None or latest[0] != count:
            latest = self._latest = count, self.rows(1).layout_of(count)
        return latest[1]

    def rows(self, count: int) -> SampleRows:
        """Return the row table for a batch of `count` dense samples, with its layout arranged."""
        table = self._tables.get(count)
        if table is None:
            table = SampleRows(self.feeds, self.fields.conversion, self.shapes, self.keeps_dtypes, count)
            if len(self._tables) >= _MOST_TABLES:  # a batch sampler may use a new batch size every time
                self._tables.clear()
            table = self._tables.setdefault(count, table)  # a slot keeps the targets of one table
        return table


def _settle(value: Any, *, varies: bool, advice: str = "") -> _FieldSpec:
    """Return what a sample's value settles of its field, which `varies` in length or not."""
    if not varies and isinstance(value, Region | Encoded):
        # Every image has its own size, so the image itself settles what varies.
        return value.dtype, value.step, value.level
    array = as_numbers(value)
    if varies and not array.ndim:
        raise SampleError(f"expected an array of varying length, got a number{advice}")
    return array.dtype, array.shape[1:] if varies else array.shape, int(varies)


class SchemaCache:
    """The schemas of recent batches; threads share them.

    If the collation declares the fields, their schema, `declared`, is the only one.
    """

    def __init__(self, collation: Collation) -> None:
        self._collation = collation
        self.recent: tuple[Schema, ...] = ()
        self.declared: Schema | None = None
        self._open: Schema | None = None  # declared, with free dimensions that each batch settles
        if (feeds := collation.feeds) is not None:
            levels = tuple(0 if feed.name in collation.pads else feed.lod_level for feed in feeds)
            tree = Tree.flat([feed.name for feed in feeds])
            self.declared = Schema(tree, tuple(feeds), levels, declared=True)
            if any(None in feed.sample_shape for feed in feeds) and not collation.keeps:
                self.declared, self._open = None, self.declared
        self._settling = threading.Lock()

    def find(self, samples: Sequence[Any]) -> Schema:
        """Return the schema of a batch, given its first sample, and its others if they have been fetched.

        Raises
        ------
        SampleError
            The first sample has no schema; the error names it.
        """
        if self.declared is not None:
            return self.declared
        first = samples[0]
        if self._open is not None:  # the sizes of free dimensions are those of the batch's first sample
            convert, feeds = self._open.fields.convert, self._open.feeds
            shapes = tuple([convert(at, 0, one).shape for at, one in enumerate(fields_of(first, feeds))])
            for known in self.recent:
                if known.shapes == shapes:
                    return known
            schema = replace(self._open, shapes=shapes)
        else:
            # Latest first: most datasets have one schema, and those that alternate have few.
            for known in self.recent:
                if known.is_settled_by(first):
                    return known
            try:
                schema = infer_schema(samples, self._collation)
            except SampleError as error:
                if error.index is None:
                    error.index = 0
                raise
        with self._settling:  # threads that settle the same schema at once must get the same object
            for known in self.recent:
                if known == schema:  # the sample left it unclear, for example by a class with attributes
                    return known
            self.recent = (schema, *self.recent[: _MOST_SCHEMAS - 1])
        return schema


def infer_schema(samples: Sequence[Any], collation: Collation) -> Schema:
    """Return the schema inferred from a batch's first sample.

    The other samples are given if they have been fetched: an empty list has no dtype, so a field that varies
    in length takes its dtype from the first sample whose list is not empty.

    Raises
    ------
    SampleError
        The first sample lacks a field that ragged or pad names, or that field has no length.
    """
    pads = collation.pads
    varying = collation.ragged | pads.keys()
    if collation.flat:
        values = fields_of(samples[0], None)
        tree = Tree.flat([str(number) for number in range(len(values))])
    else:
        tree = Tree.of(samples[0], varying)
        values = tree.flatten(samples[0])
    if varying and (missing := sorted(varying - set(tree.array_names))):
        fields = sorted(set(tree.array_names))
        problem = f"ragged, pad or Boxes names {missing}, but the sample's array fields are {fields}"
        raise SampleError(f"{problem}; only numbers can vary in length")
    feeds: list[FeedSpec] = []
    levels: list[int] = []
    for number, (leaf, value) in enumerate(zip(tree.leaves, values, strict=True)):
        if not leaf.is_array:
            continue
        if collation.warns:
            warn_of_class(value, leaf.name)
        try:
            if leaf.name in varying:
                dtype, shape, level = _find_steps(tree, number, samples)
                if leaf.name in pads:
                    pad = pads[leaf.name]
                    check_fill(pad.value, dtype)
                    if pad.axes[-1] > len(shape):
                        raise SampleError(
                            f"pad has axis {pad.axes[-1]}, but the sample has {len(shape) + 1} dimensions"
                        )
                    shape = tuple([None if at in pad.axes else size for at, size in enumerate(shape, 1)])
            else:
                dtype, shape, level = _settle(value, varies=False)
        except SampleError as error:
            error.field = leaf.name
            raise
        feeds.append(FeedSpec(leaf.name, (None, *shape), dtype, lod_level=min(level, 2)))
        levels.append(0 if leaf.name in pads else level)
    keeps, flat = collation.fallback is not None, collation.flat
    extras = name_extras((feed.name for feed in feeds), pads) if pads else ()
    return Schema(tree, tuple(feeds), tuple(levels), keeps_dtypes=keeps, flat=flat, extras=extras)


def _find_steps(tree: Tree, field: int, samples: Sequence[Any]) -> _FieldSpec:
    """Return what the first value of a field of varying length settles; empty lists have no dtype."""
    for index, leaves in enumerate(all_leaves(tree, samples)):
        value = leaves[field]
        try:
            found = _settle(value, varies=True, advice=f"; {IF_A_LIST}" if tree.is_flat else "")
        except SampleError as error:
            error.index = index
            raise
        if not isinstance(value, list | tuple) or as_numbers(value).size:
            return found
    raise SampleError(
        "cannot infer a dtype: the lists of all samples of the batch are empty; use arrays, or declare the "
        "field in feed_list with lod_level=1"
    )
