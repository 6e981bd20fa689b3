"""Known forms: those of recent batches, so that a batch that looks like one of them needs no new form.

The form of a batch depends on nothing but the batch's own samples, whoever fetches it and whatever came
before. So a known form is used only if settling one by the batch's first sample would give an equal one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.collate.form import Collation, Form, declared_form, settle_form
from gpuloader.collate.rows import SampleRows
from gpuloader.collate.structure import Branch, Leaf, Node, is_array
from gpuloader.fields.convert import as_numbers
from gpuloader.fields.encoded import Encoded
from gpuloader.fields.regions import Region
from gpuloader.fields.spec import FeedSpec
from gpuloader.sources.block import WholeList

_MOST_FORMS = 8
_MOST_TABLES = 8
_SCALARS = {float: np.dtype(float), bool: np.dtype(bool), complex: np.dtype(complex)}
_INTEGER = np.dtype(np.int64)
_LARGEST = 2**63
_POINTER = 8


class KnownForm:
    """A form, and the tables by which samples of it are written into slots; threads share it.

    Attributes
    ----------
    form : Form
        The form.
    fullest : int
        The most samples of a batch that was full.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.fullest = 0
        specs = map(_spec_of, form.feeds, form.levels)
        self._specs = [next(specs) if leaf.is_array else None for leaf in form.structure.leaves]
        root = form.structure.root
        # Whether a sample's values are those of its leaves, so that nothing has to be taken apart.
        self._root = root if isinstance(root, Branch) and root.blank is None else None
        if not all(isinstance(child, Leaf) for child in getattr(root, "children", ())):
            self._root = None
        self._tables: dict[int, SampleRows] = {}
        self._arranging = threading.Lock()

    def is_settled_by(self, sample: Any) -> bool:
        """Return whether a batch with this first sample has this form; False also if that is unclear."""
        root = self._root
        values: Any
        if root is None:
            values = []
            if not _take_apart(self.form.structure.root, sample, values):
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
        objects = sum(not leaf.is_array for leaf in self.form.structure.leaves)
        return self.rows(1).layout_of(size).nbytes + size * objects * _POINTER > limit

    def rows(self, count: int) -> SampleRows:
        """Return the row table for a batch of `count` dense samples, with its layout arranged."""
        table = self._tables.get(count)
        if table is not None:
            return table
        with self._arranging:
            table = self._tables.get(count)
            if table is None:
                table = SampleRows(self.form.feeds, strict=not self.form.declared)
                table.arrange(count)
                if len(self._tables) >= _MOST_TABLES:  # a batch sampler may use a new batch size every time
                    self._tables.clear()
                self._tables[count] = table
        return table


class KnownForms:
    """The forms of recent batches; threads share them.

    Parameters
    ----------
    collation : Collation
        How samples become a batch. If it declares the fields, their form is the only one.
    """

    def __init__(self, collation: Collation) -> None:
        self._collation = collation
        self.recent: tuple[KnownForm, ...] = ()
        self.declared: KnownForm | None = None
        if collation.feeds is not None:
            self.declared = KnownForm(declared_form(collation.feeds, collation.pads))
        self._settling = threading.Lock()

    def find(self, samples: Sequence[Any]) -> KnownForm:
        """Return the form of a batch, given its first sample, and its others if they have been fetched.

        Raises
        ------
        SampleError
            The first sample has no form.
        """
        if self.declared is not None:
            return self.declared
        first = samples[0]
        for known in self.recent:
            if known.is_settled_by(first):
                return known
        form = settle_form(samples, self._collation)
        with self._settling:
            for known in self.recent:
                if known.form == form:
                    return known
            known = KnownForm(form)
            self.recent = (known, *self.recent[: _MOST_FORMS - 1])
        return known


_Spec = tuple[np.dtype[Any], tuple[int | None, ...], int]
"""A field's dtype and shape, and 0, 1 if it varies in length, or the level of `Region` or `Encoded`.

The shape of a field that varies is that of one of its steps.
"""


def _spec_of(feed: FeedSpec, level: int) -> _Spec:
    return feed.dtype, feed.sample_shape, max(feed.lod_level, level)  # a padded field has level 0


def _take_apart(node: Node, value: Any, found: list[Any]) -> bool:
    """Append the values of a sample's leaves to `found`; return False if its structure is not the node's."""
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
        except SampleError:  # settling the form raises it again, and says where
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
