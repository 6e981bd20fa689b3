"""Ready values of any tree: arrays in them are staged, and everything else is kept as it is.

`stage_whole` stages the result of a ``collate_fn`` or an unbatched sample. A `NestedStager` stages the
batches of another loader, which may all differ. Both take a value apart by its tree, into `Parts`, and write
its arrays into a slot. What they find out about a value serves the next one, as its `BatchSignature`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuloader import foreign
from gpuloader.batches.schema import Collation
from gpuloader.batches.staged import END, Reserve, StagedBatch, begin_batch, complete, write_arrays
from gpuloader.batches.tree import Branch, Leaf, Node, Tree, is_proper_array, is_proper_value
from gpuloader.errors import SampleError
from gpuloader.fields.convert import as_numbers, cast, fit, fit_if_alike, matches
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import Array, FeedSpec, Spec, is_stageable
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.staging import FieldLayout, HostBytes, Layout, arrange, arrange_last

AS_IT_IS = Tree(Leaf("0", False), keeps_tuples=True)
"""The tree of a value that is not staged."""
_NOTHING = arrange(())


class Parts(NamedTuple):
    """A value in parts: the arrays of its array fields, several for a ragged one, and the other values.

    The layout is that of the arrays, one after another.
    """

    tree: Tree
    arrays: list[Array]
    levels: tuple[int, ...]
    objects: Sequence[Any]
    layout: Layout

    def in_memory_order(self) -> Parts:
        """Return these parts with dense arrays in memory's order; the layout says how to deliver them.

        So a batch in PyTorch's channels_last format keeps it, and is copied as one block.
        """
        arrays, found = [*self.arrays], []
        for number, array in enumerate(arrays):
            if array.ndim > 1 and not array.flags.c_contiguous:
                order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
                turned = array.transpose(order)
                if turned.flags.c_contiguous:
                    arrays[number] = turned
                    found.append((number, tuple(map(order.index, range(array.ndim)))))
        if not found:
            return self
        return self._replace(arrays=arrays, layout=arrange(_specs(arrays))._replace(turned=tuple(found)))

    def with_strides(self) -> Parts:
        """Return these parts with a layout that keeps the strides, and so the gaps between elements."""
        spans = []
        for array in self.arrays:
            last = sum((size - 1) * step for size, step in zip(array.shape, array.strides, strict=True))
            spans.append(((last // array.itemsize + 1 if array.size else 0,), array.dtype))
        layout = arrange(tuple(spans))
        fields = [
            field._replace(shape=array.shape, strides=array.strides)
            for field, array in zip(layout.fields, self.arrays, strict=True)
        ]
        return self._replace(layout=Layout(tuple(fields), layout.nbytes))


def _specs(arrays: Sequence[Array]) -> tuple[Spec, ...]:
    return tuple([(array.shape, array.dtype) for array in arrays])


def take_apart(tree: Tree, value: Any, feeds: Sequence[FeedSpec] | None = None) -> Parts:
    """Return the parts of a value of this tree; a sample is converted to the `feeds`, if there are any.

    Raises
    ------
    SampleError
        The value has another tree, or an array field does not hold numbers.
    """
    arrays: list[Array] = []
    levels: list[int] = []
    objects: list[Any] = []
    for field, (leaf, entry) in enumerate(zip(tree.leaves, tree.flatten(value), strict=True)):
        if not leaf.is_array:
            objects.append(entry)
            continue
        try:
            found = entry if feeds is None else _convert_sample(entry, feeds[field])
            parts = (found.values, *found.row_splits) if isinstance(found, Ragged) else (found,)
            arrays += map(as_numbers, parts)
        except SampleError as error:
            error.field = leaf.name
            raise
        levels.append(len(parts) - 1)
    return Parts(tree, arrays, tuple(levels), objects, arrange(_specs(arrays)))


def keep_whole(value: Any, number: int, reserve: Reserve) -> StagedBatch:
    """Return a batch that is just a value; nothing of it is staged."""
    return StagedBatch(reserve(0), _NOTHING, (), number, AS_IT_IS, (value,))


def stage_whole(
    value: Any, collation: Collation, number: int, reserve: Reserve, signature: BatchSignature | None = None
) -> tuple[StagedBatch, BatchSignature | None]:
    """Stage the arrays of a value; everything else stays a Python object.

    `signature` is that of an earlier value; the one returned with the batch serves the next value.

    With feeds, the value is a tuple or list with one entry per feed. An unbatched sample is converted to its
    feeds; the batch of a ``collate_fn`` keeps its dtypes.

    Without feeds, some values stay as they are: Python numbers, such as a count that a ``collate_fn`` returns
    along with its arrays; tensors that are not dense; and, if the collation keeps gradients, tensors that
    require one. NumPy numbers stay as they are in the result of a ``collate_fn``, and become arrays without
    dimensions in an unbatched sample. Containers keep their classes, except that tuples in an unbatched
    sample become lists.

    Raises
    ------
    SampleError
        The value's fields are not those declared, or one of them does not hold numbers.
    """
    feeds, by_user, as_returned = collation.feeds, collation.function is not None, collation.as_returned
    # A collate_fn returns batches of one kind except for the last, so most of them need no walk.
    parts = None if signature is None else signature.take_apart(value)
    if parts is None:
        if feeds is not None:
            tree = Tree.flat([feed.name for feed in feeds])
        else:
            staged_if, keeps = _find_staged(collation), by_user or as_returned
            tree = Tree.of(value, staged=staged_if, keeps_tuples=keeps, keeps_classes=as_returned)
        if as_returned:
            entries = zip(tree.leaves, tree.flatten(value), strict=True)
            if len({id(entry) for leaf, entry in entries if leaf.is_array}) < len(tree.array_names):
                tree = AS_IT_IS  # pickled together, so that a shared object stays shared
        if collation.warns:
            _warn_of_classes(tree, value)
        parts = take_apart(tree, value, None if collation.batched or by_user else feeds)
        if as_returned:
            parts = parts.with_strides()
        # Declared fields convert every value, so one value says nothing about the next.
        signature = None if feeds is not None else BatchSignature.of(value, parts)
    layout = parts.layout
    if not collation.copies:
        objects = tuple(parts.objects)
        batch = StagedBatch(reserve(0), layout, parts.levels, number, parts.tree, objects, own=parts.arrays)
        return batch, signature
    staged = begin_batch(collation, layout, parts.levels, number, reserve, parts.tree, parts.objects)
    write_arrays(parts.arrays, staged.slot.views(layout))
    return staged, signature


def _warn_of_classes(tree: Tree, value: Any) -> None:
    """Warn about tensors whose classes are lost."""
    for leaf, entry in zip(tree.leaves, tree.flatten(value), strict=True):
        if leaf.is_array:
            foreign.warn_of_class(entry, leaf.name)


def _find_staged(collation: Collation) -> Callable[[Any], bool]:
    """Return a function that says whether a value is staged, or stays a Python object."""
    if collation.as_returned:
        # Strides are kept, because the order in which PyTorch adds numbers up depends on them. A slot may be
        # half gaps, as for a crop; a few columns of a large table, or windows that overlap, are pickled.
        return lambda value: (
            foreign.is_plain_tensor(value)
            and value.numel() <= foreign.find_extent(value) <= 2 * value.numel()
        )
    if collation.function is None:
        return is_proper_value
    if not collation.keeps_gradients:
        return is_proper_array
    # Copied into a slot, a tensor would lose the graph that its gradient flows through.
    return lambda value: not foreign.needs_gradient(value) and is_proper_array(value)


def _convert_sample(value: Any, feed: FeedSpec) -> Array | Ragged:
    """Return a sample's value converted to its feed: an array, or `Ragged` for a feed of lod_level 2.

    As in Paddle, the samples may be whole batches, which then have the feed's own shape.
    """
    if isinstance(value, Ragged):
        return value
    if feed.lod_level == 2:
        return Ragged.from_samples(value, feed.dtype, feed.sample_shape)
    array = cast(as_numbers(value, feed.dtype), feed.dtype)
    batch = (None, *feed.sample_shape)
    if feed.lod_level or matches(array.shape, batch):
        return fit(array, batch)
    return (fit_if_alike if feed.keeps_shapes else fit)(array, feed.sample_shape)


PLAIN = (str, int, float, bool, type(None), bytes)
"""The classes of values that are never staged."""


_Axes = tuple[int, ...]


class BatchSignature(NamedTuple):
    """Identifies values that are taken apart in the same way: their tree, and the arrays in it.

    Only arrays, tensors and plain values have one; any other leaf would have to be checked again for whether
    it is staged. For each leaf, `fields` has its class and, if it is staged, dtype, shape, strides, and the
    order in which its dimensions are staged, if that is another.
    """

    tree: Tree
    layout: Layout
    fields: tuple[tuple[Any, Any, _Axes, _Axes, _Axes | None], ...]

    @classmethod
    def of(cls, value: Any, parts: Parts, host: Collection[str] = ()) -> BatchSignature | None:
        """Return the signature of a value in parts, if it has one; fields in `host` are never staged."""
        tree = parts.tree
        # A ragged field has a different length in every batch, and so does the layout.
        can_match = tree.has_plain_keys and not any(parts.levels)
        entries = tree.flatten(value, Branch.match) if can_match else None
        if entries is None:
            return None
        fields: list[tuple[Any, Any, _Axes, _Axes, _Axes | None]] = []
        arrays, turned = iter(enumerate(parts.arrays)), dict(parts.layout.turned)
        for leaf, entry in zip(tree.leaves, entries, strict=True):
            if leaf.is_array and (type(entry) is np.ndarray or foreign.is_tensor(entry)):
                number, array = next(arrays)
                order = None
                if number in turned:
                    array = array.transpose(turned[number])
                    order = tuple(map(turned[number].index, range(array.ndim)))
                fields.append((type(entry), array.dtype, array.shape, array.strides, order))
            elif not leaf.is_array and (type(entry) in PLAIN or leaf.name in host):
                fields.append((type(entry), None, (), (), None))
            else:
                return None
        return cls(tree, parts.layout, tuple(fields))

    def take_apart(self, value: Any) -> Parts | None:
        """Return the parts of a value that matches this signature; None for any other."""
        entries = self.tree.flatten(value, Branch.match)
        if entries is None or len(entries) != len(self.fields):
            return None
        arrays: list[Array] = []
        objects: list[Any] = []
        for entry, (kind, dtype, shape, strides, order) in zip(entries, self.fields):  # noqa: B905 - costs time
            if dtype is None:
                if type(entry) is not kind and type(entry) not in PLAIN:
                    return None
                objects.append(entry)
                continue
            if type(entry) is not kind:
                return None
            array = entry
            if kind is not np.ndarray:
                if entry.__dict__:  # attributes of the user's
                    return None
                try:
                    array = entry.numpy()
                except (RuntimeError, TypeError):  # its numbers are not what lies in its memory
                    return None
            if array.dtype is not dtype or array.shape != shape or array.strides != strides:
                return None
            arrays.append(array if order is None else array.transpose(order))
        # An object in two fields may have to stay one object. Plain values may be equal and so the same.
        if len({*map(id, entries)}) < len(entries):
            fields = zip(entries, self.fields, strict=True)
            if len({id(entry) for entry, (_, dtype, *_) in fields if dtype is not None}) < len(arrays):
                return None
        return Parts(self.tree, arrays, (0,) * len(arrays), objects, self.layout)


# Batches of other loaders.

SMALL = 32 << 10
"""Pinned arrays below this many bytes go through the slot: copying each separately would take longer."""
_MOST_KEPT = 64  # addresses of arrays


class Intake(NamedTuple):
    """What happens to the parts of a batch.

    Fields, and containers of fields, in `host` are passed through. `output` is the library whose arrays the
    user gets; None means that of the batches. If a batch `stays`, it remains in host memory as it is, except
    for arrays that `output` does not concern. `settle` takes the name of the library whose tensors are in a
    batch, None if there are only arrays, and returns the library of the very first batch. `is_page_locked`
    returns whether a range of memory, given its address and size, is pinned; None means that all arrays go
    through slots.
    """

    collation: Collation
    host: frozenset[str]
    output: str | None
    stays: bool
    settle: Callable[[str | None], str | None]
    is_page_locked: Callable[[int, int], bool] | None = None


class NestedStager:
    """Stages the batches of one pass; `draw` holds seed and epoch for transforms with random numbers."""

    def __init__(self, intake: Intake, draw: Draw) -> None:
        self._intake = intake
        self._draw = draw
        self._unchecked = intake.host
        self._settled = intake.output is not None
        self._library = intake.output
        self._arranged: Any = None
        self._layouts = _NOTHING, _NOTHING
        self._signature: BatchSignature | None = None
        self._large: Sequence[int] = ()  # the arrays that may be copied from where they lie
        self._pageable: set[tuple[int, int]] = set()

    def __call__(self, items: Iterator[Any], number: int, reserve: Reserve) -> StagedBatch | None:
        """Read the next batch and stage it; return None at the end."""
        batch = next(items, END)
        if batch is END:
            return None
        intake = self._intake
        parts = None if self._signature is None else self._signature.take_apart(batch)
        if parts is None:
            tree = self._find_tree(batch)
            _warn_of_classes(tree, batch)
            parts = take_apart(tree, batch)
            if intake.is_page_locked is not None:
                self._large = [at for at, array in enumerate(parts.arrays) if array.nbytes >= SMALL]
            # The first batch with arrays determines the library for all: a later one may have none to tell
            # from.
            if parts.arrays and not self._settled:
                owners = map(foreign.find_library, parts.tree.flatten(batch))
                library = next((one for one in owners if one not in (None, "numpy")), None)
                self._library = intake.settle(library)
                self._settled = True
            # A transform reads fields by their shapes, and JAX and Paddle arrays can only be in C order.
            if intake.collation.programmer is None and self._library not in ("jax", "paddle"):
                parts = parts.in_memory_order()
            self._signature = BatchSignature.of(batch, parts, intake.host)
        if intake.collation.programmer is None:
            return self._stage(parts, number, reserve)
        # Transforms draw for this epoch, whichever thread reads and whatever other loaders it serves.
        before = exchange_draw(self._draw)
        try:
            return self._stage(parts, number, reserve)
        finally:
            exchange_draw(before)

    def _find_tree(self, batch: Any) -> Tree:
        """Return the tree of a batch; its array fields are the arrays to stage."""
        intake = self._intake
        as_it_is = intake.stays and intake.output is None
        if as_it_is and not self._unchecked:
            return AS_IT_IS
        tree = Tree.of(batch, staged=self._is_staged, keeps_tuples=True, opens=True, kept=intake.host)
        if self._unchecked:
            _check_names(self._unchecked, tree)
            self._unchecked = frozenset()
        return AS_IT_IS if as_it_is else tree

    def _is_staged(self, value: Any) -> bool:
        intake = self._intake
        return is_copied(value) and not (intake.stays and foreign.find_library(value) == intake.output)

    def _is_apart(self, array: Array) -> bool:
        """Return whether a device can copy an array from where it lies, because it is pinned."""
        place = HostBytes(array).address, array.nbytes
        ask = self._intake.is_page_locked
        if place in self._pageable or ask is None:
            return False
        if ask(*place):
            return True
        # Loaders reuse memory, and asking the driver takes long. So memory that is not pinned is remembered
        # for a while. If it is pinned meanwhile, the array still goes through a slot, like any other.
        if len(self._pageable) >= _MOST_KEPT:
            self._pageable.clear()
        self._pageable.add(place)
        return False

    def _stage(self, parts: Parts, number: int, reserve: Reserve) -> StagedBatch:
        collation, arrays, levels = self._intake.collation, parts.arrays, parts.levels
        found = [at for at in self._large if arrays[at].flags.c_contiguous and self._is_apart(arrays[at])]
        if not found:
            staged = begin_batch(collation, parts.layout, levels, number, reserve, parts.tree, parts.objects)
            write_arrays(arrays, staged.slot.views(parts.layout))
            if collation.programmer is None:
                return staged
            return complete(collation, staged, number_samples(number, arrays))
        apart = tuple(found)
        # Layouts are reused, because a slot keeps its views for the same layout.
        arranged = parts.layout, apart, levels, parts.tree
        if arranged != self._arranged:
            # The random draws of transforms are copied with the batch, so they need space, too.
            drawn: Sequence[FieldLayout] = ()
            if collation.programmer is not None:
                program = collation.programmer.program(parts.tree.array_names, levels, parts.layout)
                drawn = program.copied.fields[len(arrays) :]
            draws = tuple((one.shape, one.dtype) for one in drawn)
            whole, inside = arrange_last((*_specs(arrays), *draws), apart)
            whole = whole._replace(turned=parts.layout.turned)
            self._arranged, self._layouts = arranged, (whole, inside)
        whole, inside = self._layouts
        # The device copies the slot's part and each separate array to their positions in a single layout, so
        # everything that follows on the device is the same as for a batch in one piece.
        slot = reserve(inside.nbytes)
        views = slot.views(inside)
        write_arrays([array for index, array in enumerate(arrays) if index not in apart], views)
        staged = StagedBatch(slot, whole, levels, number, parts.tree, tuple(parts.objects))
        staged.in_slot = inside.nbytes
        staged.apart = tuple((HostBytes(arrays[one]), whole.fields[one].offset) for one in apart)
        if collation.programmer is not None:
            program = collation.programmer.program(parts.tree.array_names, levels, whole, drawn=True)
            rest = iter(views)
            arrays = [arrays[one] if one in apart else next(rest) for one in range(len(whole.fields))]
            program.check(arrays)
            if program.drawn:
                collation.programmer.fill_draws(program, arrays, number_samples(number, arrays))
        return staged


def is_copied(value: Any) -> bool:
    """Return whether a value is an array of numbers in host memory, of any library; single numbers are not.

    >>> is_copied(np.zeros(2)), is_copied(np.float32(2)), is_copied("text"), is_copied(np.array(["text"]))
    (True, False, False, False)
    """
    if isinstance(value, np.ndarray):
        return is_stageable(value.dtype)
    if foreign.is_tensor(value):
        return foreign.can_stage(value)
    if isinstance(value, Ragged):
        return all(map(is_copied, (value.values, *value.row_splits)))
    # Single numbers are passed through: a step count is for the host, and 8 bytes are not worth a copy.
    is_array = all(hasattr(value, name) for name in ("dtype", "shape", "__array__"))
    if not is_array or isinstance(value, np.generic):
        return False
    try:
        elsewhere = hasattr(value, "__dlpack_device__") and not foreign.is_on_host(value)
        return not elsewhere and is_stageable(np.asarray(value).dtype)
    except Exception:  # another library may raise anything, for example for an array on several devices
        return False


def number_samples(number: int, arrays: list[Array]) -> Array:
    """Return substitutes for the indices of the samples of batch `number`, from that number and the row.

    >>> number_samples(2, [np.zeros((3, 5))]) - (2 << 32)
    array([0, 1, 2])
    """
    # The batch's number in the upper half keeps two batches from drawing the same numbers.
    most = max((len(array) for array in arrays if array.ndim), default=0)
    return np.arange(most, dtype=np.int64) + (number << 32)


def _check_names(names: Collection[str], tree: Tree) -> None:
    known, nodes = set[str](), list[Node]([tree.root])
    while nodes:
        node = nodes.pop()
        known.add(node.name)
        nodes += node.children if isinstance(node, Branch) else ()
    if missing := sorted(set(names) - known):
        raise SampleError(
            f"host names {missing}, but the first batch has no such fields; it has "
            f"{[leaf.name for leaf in tree.leaves]}"
        )
