"""The look of batches without nesting: one that looks like the batch before it is taken apart at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.collate.stream import StagedBatch
from gpuloader.collate.structure import Branch, Structure
from gpuloader.collate.whole import open_flat
from gpuloader.fields.spec import Array
from gpuloader.fields.tensors import is_tensor
from gpuloader.staging.layout import Layout

PLAIN = (str, int, float, bool, type(None), bytes)
"""The classes of values that are never staged."""


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a batch that was staged: a dict, tuple or list of arrays, tensors and plain values.

    Attributes
    ----------
    kind : type
        The class of the batch.
    keys : tuple of str or None
        The keys of a dict.
    fields : tuple of (type, numpy.dtype or None, tuple of int, bool)
        For each entry its class, and for one that is staged its dtype, its shape, and whether it is large.
    structure, layout, levels : Structure, Layout, tuple of int
        What such a batch is staged with.
    """

    kind: Any
    keys: tuple[str, ...] | None
    fields: tuple[tuple[Any, Any, tuple[int, ...], bool], ...]
    structure: Structure
    layout: Layout
    levels: tuple[int, ...]

    @classmethod
    def of(
        cls, batch: Any, staged: StagedBatch, arrays: Sequence[Array], host: Collection[str], large: int
    ) -> Look | None:
        """Return the look of a batch; None if batches must be looked at one by one.

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
        flat, structure = open_flat(batch), staged.structure
        if flat is None or structure is None or any(staged.levels):
            return None
        keys, entries = flat
        if not isinstance(structure.root, Branch) or len(structure.leaves) != len(entries):
            return None
        fields: list[tuple[Any, Any, tuple[int, ...], bool]] = []
        rest = iter(arrays)
        for leaf, entry in zip(structure.leaves, entries, strict=True):
            if leaf.is_array:
                array = next(rest)
                if not (type(entry) is np.ndarray or is_tensor(entry)):
                    return None
                fields.append((type(entry), array.dtype, array.shape, array.nbytes >= large))
            elif type(entry) in PLAIN or leaf.name in host:
                fields.append((type(entry), None, (), False))
            else:
                return None
        return cls(type(batch), keys, tuple(fields), structure, staged.layout, staged.levels)

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
