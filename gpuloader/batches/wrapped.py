"""Stages ready batches of any nesting, as other loaders yield them; what is no array is handed through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from gpuloader.batches.schema import Collation, complete, complete_apart, list_draws, room_for
from gpuloader.batches.stream import Apart, StagedBatch, fill_slot, write_arrays
from gpuloader.batches.tree import Branch, Leaf, Node, Tree
from gpuloader.batches.whole import Parts, open_flat, take_apart
from gpuloader.devices.foreign import is_on_host
from gpuloader.devices.outputs import find_library
from gpuloader.errors import SampleError
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import Array, is_stageable
from gpuloader.fields.tensors import can_stage, is_tensor
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.staging.layout import Layout, arrange, arrange_last
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter

# The signature of batches without nesting: one that looks like the batch before it is taken apart at once.

PLAIN = (str, int, float, bool, type(None), bytes)
"""The classes of values that are never staged."""


@dataclass(frozen=True, slots=True)
class BatchSignature:
    """The signature of a batch that was staged: a dict, tuple or list of arrays, tensors and plain values.

    Attributes
    ----------
    kind : type
        The class of the batch.
    keys : tuple of str or None
        The keys of a dict.
    fields : tuple of (type, numpy.dtype or None, tuple of int, bool)
        For each entry its class, and for one that is staged its dtype, its shape, and whether it is large.
    tree, layout, levels : Tree, Layout, tuple of int
        What such a batch is staged with.
    """

    kind: Any
    keys: tuple[str, ...] | None
    fields: tuple[tuple[Any, Any, tuple[int, ...], bool], ...]
    tree: Tree
    layout: Layout
    levels: tuple[int, ...]

    @classmethod
    def of(
        cls, batch: Any, staged: StagedBatch, arrays: Sequence[Array], host: Collection[str], large: int
    ) -> BatchSignature | None:
        """Return the signature of a batch; None if batches must be looked at one by one.

        Parameters
        ----------
        batch : object
            The batch.
        staged : StagedBatch
            The same batch in its slot, without transforms.
        arrays : sequence of numpy.ndarray
            The arrays that were written there.
        host : collection of str
            The names of fields that are never staged.
        large : int
            The bytes from which on an array is large.
        """
        flat, tree = open_flat(batch), staged.tree
        if flat is None or tree is None or any(staged.levels):
            return None
        keys, entries = flat
        if not isinstance(tree.root, Branch) or len(tree.leaves) != len(entries):
            return None
        fields: list[tuple[Any, Any, tuple[int, ...], bool]] = []
        rest = iter(arrays)
        for leaf, entry in zip(tree.leaves, entries, strict=True):
            if leaf.is_array:
                array = next(rest)
                if not (type(entry) is np.ndarray or is_tensor(entry)):
                    return None
                fields.append((type(entry), array.dtype, array.shape, array.nbytes >= large))
            elif type(entry) in PLAIN or leaf.name in host:
                fields.append((type(entry), None, (), False))
            else:
                return None
        return cls(type(batch), keys, tuple(fields), tree, staged.layout, staged.levels)

    def take_apart(self, batch: Any) -> tuple[list[Array], tuple[Any, ...], list[Array]] | None:
        """Return a batch's arrays, its other values, and its large arrays; None if it looks different."""
        if type(batch) is not self.kind or len(batch) != len(self.fields):
            return None
        if self.keys is not None:
            if (*batch,) != self.keys:
                return None
            batch = batch.values()
        arrays: list[Array] = []
        objects: list[Any] = []
        large: list[Array] = []
        for entry, (kind, dtype, shape, is_large) in zip(batch, self.fields):  # noqa: B905 - costs time
            if dtype is None:
                if type(entry) is not kind and type(entry) not in PLAIN:
                    return None
                objects.append(entry)
                continue
            if type(entry) is not kind:
                return None
            array = entry if kind is np.ndarray else _as_it_lies(entry)
            if array is None or array.dtype is not dtype or array.shape != shape:
                return None
            if not array.flags.c_contiguous:
                return None
            arrays.append(array)
            if is_large:
                large.append(array)
        return arrays, tuple(objects), large


def _as_it_lies(tensor: Any) -> Array | None:
    """Return a tensor's memory as an array; None for a tensor that takes more than that."""
    try:
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


SMALL = 32 << 10
"""Bytes below which a page-locked array goes through the slot: a copy of its own would take longer."""
Turned = tuple[tuple[int, tuple[int, ...]], ...]
"""The arrays to turn when they are delivered, as for `Layout`."""
_END = object()
_AS_IT_IS = Tree(Leaf("0", False), keeps_tuples=True)
_MOST_KEPT = 64  # addresses of arrays


@dataclass(frozen=True, slots=True)
class Intake:
    """What happens to the parts of a batch.

    Attributes
    ----------
    collation : Collation
        The transforms, if there are any.
    host : frozenset of str
        Names of the fields, and of containers of fields, that are handed through.
    output : str or None
        The library whose arrays the user gets; None means that of the batches.
    stays : bool
        Whether batches stay in host memory as they are, except for arrays that `output` is not about.
    settle : callable
        Takes the name of the library whose tensors are in a batch, None if there are only arrays, and returns
        the library of the first batch of all.
    is_page_locked : callable or None
        Returns whether the memory at an address, of some size, is page-locked. None means that all arrays go
        through slots.
    """

    collation: Collation
    host: frozenset[str]
    output: str | None
    stays: bool
    settle: Callable[[str | None], str | None]
    is_page_locked: Callable[[int, int], bool] | None = None


class NestedStager:
    """Stages the batches of one pass. Batches may differ from one another in everything.

    Parameters
    ----------
    intake : Intake
        What happens to the parts of a batch.
    ring : Ring
        The source of slots.
    meter : Meter
        Counts where the time goes.
    draw : Draw
        The seed and the epoch, for transforms that draw random numbers.
    """

    def __init__(self, intake: Intake, ring: Ring, meter: Meter, draw: Draw) -> None:
        self._intake = intake
        self._ring = ring
        self._meter = meter
        self._draw = draw
        self._unchecked = intake.host
        self._known: dict[Any, Tree] = {}
        self._settled = intake.output is not None
        self._library = intake.output
        self._key: Any = None
        self._layouts = arrange(()), arrange(())
        self._signature: BatchSignature | None = None
        self._pageable: set[tuple[int, int]] = set()

    def __call__(self, items: Iterator[Any], number: int) -> StagedBatch | None:
        """Read the next batch and stage it; return None at the end."""
        begun = perf_counter_ns()
        batch = next(items, _END)
        if batch is _END:
            return None
        signature = self._signature
        if signature is not None and (found := signature.take_apart(batch)) is not None:
            arrays, objects, large = found
            if not any(map(self._is_apart, large)):
                slot = fill_slot(
                    partial(write_arrays, arrays), signature.layout, self._ring, self._meter, begun
                )
                return StagedBatch(slot, signature.layout, signature.levels, number, signature.tree, objects)
        parts = take_apart(self._open(batch), batch)
        if parts.arrays and not self._settled:
            self._settle(parts.tree, batch)
        before = exchange_draw(self._draw)
        try:
            turned = self._turn(parts.arrays)
            apart = self._find_apart(parts.arrays)
            staged = self._stage(parts, turned, apart, number, begun)
        finally:
            exchange_draw(before)
        plain = self._intake.collation.programmer is None and not (turned or apart)
        self._signature = (
            BatchSignature.of(batch, staged, parts.arrays, self._intake.host, SMALL) if plain else None
        )
        return staged

    def _open(self, batch: Any) -> Tree:
        """Return the tree of a batch, whose array fields are the arrays to stage."""
        intake = self._intake
        as_it_is = intake.stays and intake.output is None
        if as_it_is and not self._unchecked:
            return _AS_IT_IS
        signature = self._flat_signature(batch)
        if signature is not None and signature in self._known:
            return self._known[signature]
        tree = Tree.of(
            batch, staged=self._is_staged, may_be_empty=True, keeps_tuples=True, opens=True, kept=intake.host
        )
        if signature is not None and not self._unchecked:
            if len(self._known) > 32:
                self._known.clear()
            self._known[signature] = tree
        if self._unchecked:
            _check_names(self._unchecked, tree)
            self._unchecked = frozenset()
        return _AS_IT_IS if as_it_is else tree

    def _flat_signature(self, batch: Any) -> Any:
        """Return what the tree of a batch without nesting follows from; None for any other batch."""
        flat = open_flat(batch)
        if flat is None:
            return None
        keys, entries = flat
        staged = []
        for entry in entries:
            if type(entry) is np.ndarray or is_tensor(entry):
                staged.append(self._is_staged(entry))
            elif type(entry) in PLAIN:
                staged.append(False)
            else:
                return None
        return type(batch), keys, tuple(staged)

    def _is_staged(self, value: Any) -> bool:
        intake = self._intake
        return is_copied(value) and not (intake.stays and find_library(value) == intake.output)

    def _settle(self, tree: Tree, batch: Any) -> None:
        found = map(find_library, tree.flatten(batch))
        self._library = self._intake.settle(next((one for one in found if one not in (None, "numpy")), None))
        self._settled = True

    def _turn(self, arrays: list[Array]) -> Turned:
        """Put the dimensions of dense arrays into memory's order; return how to deliver them.

        So a batch in PyTorch's channels_last format keeps it, and is copied as one block.
        """
        if self._intake.collation.programmer is not None or self._library in ("jax", "paddle"):
            return ()
        found = []
        for number, array in enumerate(arrays):
            if array.ndim > 1 and not array.flags.c_contiguous:
                order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
                turned = array.transpose(order)
                if turned.flags.c_contiguous:
                    arrays[number] = turned
                    found.append((number, tuple(map(order.index, range(array.ndim)))))
        return tuple(found)

    def _find_apart(self, arrays: list[Array]) -> tuple[int, ...]:
        """Return the numbers of the arrays that a device can copy from where they lie."""
        if self._intake.is_page_locked is None:
            return ()
        return tuple(
            number
            for number, array in enumerate(arrays)
            if array.nbytes >= SMALL and array.flags.c_contiguous and self._is_apart(array)
        )

    def _is_apart(self, array: Array) -> bool:
        """Return whether a device can copy an array from where it lies, because it is page-locked.

        Loaders use memory again, and asking the driver takes long. So what is not page-locked is remembered
        for a while. If it is by then, the array takes the way through a slot, like any other.
        """
        place = _address(array), array.nbytes
        ask = self._intake.is_page_locked
        if ask is None or place in self._pageable:
            return False
        if ask(*place):
            return True
        if len(self._pageable) >= _MOST_KEPT:
            self._pageable.clear()
        self._pageable.add(place)
        return False

    def _stage(
        self, parts: Parts, turned: Turned, apart: tuple[int, ...], number: int, begun: int
    ) -> StagedBatch:
        collation, tree, levels = self._intake.collation, parts.tree, parts.levels
        whole, inside = self._arrange(parts, turned, apart)
        written = [array for index, array in enumerate(parts.arrays) if index not in apart]

        room = inside.nbytes if apart else room_for(collation, tree, levels, whole)
        slot = fill_slot(partial(write_arrays, written), inside, self._ring, self._meter, begun, room)
        staged = StagedBatch(slot, whole, levels, number, tree, parts.objects)
        if collation.programmer is None and not apart:
            return staged
        keys = number_samples(number, parts.arrays)
        try:
            if not apart:
                return complete(collation, staged, keys)
            staged.apart = tuple(
                Apart(_as_bytes(parts.arrays[one]), _address(parts.arrays[one]), whole.fields[one].offset)
                for one in apart
            )
            staged.in_slot = inside.nbytes
            self._meter.nbytes += whole.nbytes - inside.nbytes
            views = iter(slot.views(inside))
            arrays = [parts.arrays[one] if one in apart else next(views) for one in range(len(whole.fields))]
            return complete_apart(collation, staged, arrays, keys)
        except BaseException:
            self._ring.release(slot)
            raise

    def _arrange(self, parts: Parts, turned: Turned, apart: tuple[int, ...]) -> tuple[Layout, Layout]:
        """Return where the arrays lie on a device, and those of them that are in the slot."""
        specs = tuple((array.shape, array.dtype) for array in parts.arrays)
        drawn = self._intake.collation.programmer is not None
        key = specs, turned, apart, parts.levels, tuple(parts.tree.array_names) if drawn else ()
        if key != self._key:
            whole = inside = arrange(specs)
            if apart:
                draws = list_draws(self._intake.collation, parts.tree, parts.levels, whole)
                whole, inside = arrange_last((*specs, *draws), apart)
            if turned:
                whole = replace(whole, turned=turned)
            self._key, self._layouts = key, (whole, inside)
        return self._layouts


def is_copied(value: Any) -> bool:
    """Return whether a value is an array of numbers in host memory, of any library; single numbers are not.

    >>> is_copied(np.zeros(2)), is_copied(np.float32(2)), is_copied("text"), is_copied(np.array(["text"]))
    (True, False, False, False)
    """
    if isinstance(value, np.ndarray):
        return is_stageable(value.dtype)
    if is_tensor(value):
        return can_stage(value)
    if isinstance(value, Ragged):
        return all(map(is_copied, (value.values, *value.row_splits)))
    if isinstance(value, np.generic) or not all(
        hasattr(value, name) for name in ("dtype", "shape", "__array__")
    ):
        return False
    try:
        elsewhere = hasattr(value, "__dlpack_device__") and not is_on_host(value)
        return not elsewhere and is_stageable(np.asarray(value).dtype)
    except Exception:  # another library may raise anything, such as for an array on several devices
        return False


def number_samples(number: int, arrays: list[Array]) -> Array:
    """Return stand-ins for the indices of the samples of batch `number`, which depend on it and on the row.

    >>> number_samples(2, [np.zeros((3, 5))]) - (2 << 32)
    array([0, 1, 2])
    """
    most = max((len(array) for array in arrays if array.ndim), default=0)
    return np.arange(most, dtype=np.int64) + (number << 32)


def _check_names(names: Collection[str], tree: Tree) -> None:
    known = set(_list_names(tree.root))
    if missing := sorted(set(names) - known):
        raise SampleError(
            f"host names {missing}, but the first batch has no such fields; it has "
            f"{[leaf.name for leaf in tree.leaves]}"
        )


def _list_names(node: Node) -> Iterator[str]:
    yield node.name
    if not isinstance(node, Leaf):
        for child in node.children:
            yield from _list_names(child)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _as_bytes(array: Array) -> Any:
    return array.reshape(-1).view(np.uint8)
