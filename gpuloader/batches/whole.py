"""Stages whole values of any tree: the result of a ``collate_fn``, or an unbatched sample."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.batches.schema import Collation
from gpuloader.batches.stream import StagedBatch, write_arrays
from gpuloader.batches.tree import Tree, is_proper_array, is_proper_value
from gpuloader.errors import SampleError
from gpuloader.fields.convert import as_numbers, cast, fit, fit_if_alike, matches
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import Array, FeedSpec, is_stageable
from gpuloader.fields.tensors import needs_gradient
from gpuloader.staging.layout import Layout, arrange
from gpuloader.staging.ring import Slot


@dataclass(frozen=True, slots=True)
class Parts:
    """A value in parts.

    Attributes
    ----------
    tree : Tree
        How the parts make up the value.
    arrays : list of numpy.ndarray
        The arrays of the array fields, several for a ragged one.
    levels : tuple of int
        The lod_level of each array field.
    objects : tuple
        The values of the other fields.
    """

    tree: Tree
    arrays: list[Array]
    levels: tuple[int, ...]
    objects: tuple[Any, ...]


def take_apart(tree: Tree, value: Any, convert: Callable[[int, Any], Any] | None = None) -> Parts:
    """Return the parts of a value of this tree.

    `convert` takes the number and the value of each array field, and returns what to stage.

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
            found = entry if convert is None else convert(field, entry)
            parts = (found.values, *found.row_splits) if isinstance(found, Ragged) else (found,)
            arrays += map(as_numbers, parts)
        except SampleError as error:
            error.field = leaf.name
            raise
        levels.append(len(parts) - 1)
    return Parts(tree, arrays, tuple(levels), tuple(objects))


def stage_whole(value: Any, collation: Collation, number: int, reserve: Callable[[int], Slot]) -> StagedBatch:
    """Stage the arrays of a value; everything else stays a Python object.

    With feeds, the value is a tuple or list with one entry per feed. An unbatched sample is converted to its
    feeds; the batch of a ``collate_fn`` keeps its dtypes.

    Without feeds, Python's numbers stay what they are, such as a count that a ``collate_fn`` returns along
    with its arrays, and so do tensors that are not dense, and those that require a gradient if the collation
    keeps it. NumPy's numbers stay in the result of a ``collate_fn``, and are arrays without dimensions in an
    unbatched sample. Containers keep their classes, except that tuples in an unbatched sample become lists.

    Raises
    ------
    SampleError
        The value's fields are not those declared, or one of them does not hold numbers.
    """
    plain = _take_plain_apart(value, collation)
    if plain is not None:
        parts, layout = plain
    else:
        parts = _take_any_apart(value, collation)
        layout = arrange(tuple((array.shape, array.dtype) for array in parts.arrays))
    slot = reserve(layout.nbytes)
    write_arrays(parts.arrays, slot.views(layout))
    return StagedBatch(slot, layout, parts.levels, number, parts.tree, parts.objects)


def _take_any_apart(value: Any, collation: Collation) -> Parts:
    feeds, by_user = collation.feeds, collation.function is not None
    if feeds is None:
        staged = _find_staged(collation)
        return take_apart(Tree.of(value, staged=staged, may_be_empty=True, keeps_tuples=by_user), value)
    tree = Tree.flat([feed.name for feed in feeds])
    if collation.batched or by_user:
        return take_apart(tree, value)
    return take_apart(tree, value, lambda field, entry: _convert_sample(entry, feeds[field]))


def _take_plain_apart(value: Any, collation: Collation) -> tuple[Parts, Layout] | None:
    """Return parts and layout of arrays without nesting; None for all other values."""
    if collation.feeds is not None or (flat := open_flat(value)) is None:
        return None
    keys, entries = flat
    fields = []
    for entry in entries:
        if type(entry) is not np.ndarray:
            return None
        fields.append((entry.shape, entry.dtype))
    kind: Any = type(value)
    known = _plan_plain(kind, keys, tuple(fields), collation.function is not None)
    if known is None:
        return None
    tree, layout = known
    return Parts(tree, [*entries], (0,) * len(fields), ()), layout


def open_flat(value: Any) -> tuple[tuple[str, ...] | None, Collection[Any]] | None:
    """Return keys and entries of a tuple, a list or a dict with string keys; None for all other values.

    A tuple or a list has None as its keys. Subclasses are other values. So are dicts with other keys: 1 and
    True are equal, but not the same.

    >>> open_flat({"a": 1, "b": 2}), open_flat((3,)), open_flat({1: 2}), open_flat("text")
    ((('a', 'b'), dict_values([1, 2])), (None, (3,)), None, None)
    """
    kind = type(value)
    if kind is dict:
        keys = (*value,)
        return (keys, value.values()) if all(type(key) is str for key in keys) else None
    return (None, value) if kind is tuple or kind is list else None


@functools.lru_cache(maxsize=64)
def _plan_plain(
    kind: Any,
    keys: tuple[str, ...] | None,
    fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...],
    keeps_tuples: bool,
) -> tuple[Tree, Layout] | None:
    if not all(is_stageable(dtype) and dtype.isnative for _, dtype in fields):
        return None
    arrays = [np.empty(0, dtype) for _, dtype in fields]
    value = kind(arrays) if keys is None else dict(zip(keys, arrays, strict=True))
    tree = Tree.of(value, staged=is_proper_array, may_be_empty=True, keeps_tuples=keeps_tuples)
    return tree, arrange(fields)


def _find_staged(collation: Collation) -> Callable[[Any], bool]:
    """Return a function that says whether a value is staged, or stays a Python object."""
    if collation.function is None:
        return is_proper_value
    if not collation.keeps_gradients:
        return is_proper_array
    return lambda value: not needs_gradient(value) and is_proper_array(value)


def _convert_sample(value: Any, feed: FeedSpec) -> Array | Ragged:
    """Return a sample's value converted to its feed: an array, or `Ragged` for a feed of lod_level 2.

    As in Paddle, the samples may be whole batches, which then have the shape of the feed itself.
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
