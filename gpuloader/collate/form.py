"""The form of a batch: what the user asked of collation, and what the first sample settles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.collate.structure import Structure
from gpuloader.fields.ragged import gather_fields
from gpuloader.fields.spec import Array, FeedSpec, as_numbers, cast
from gpuloader.transforms.program import Programmer


@dataclass(frozen=True, slots=True)
class Collation:
    """How samples become a batch.

    Attributes
    ----------
    feeds : tuple of FeedSpec or None
        The fields as declared; None: as the first sample shows them.
    function : callable or None
        The user's own ``collate_fn``: takes the list of samples (or one sample, if not `batched`).
    batched : bool
        False: each sample is delivered by itself, without a batch dimension.
    ragged : frozenset of str
        Fields of varying length, delivered as `Ragged`.
    pads : mapping of str to float
        Fields of varying length, delivered dense with short rows filled up.
    programmer : Programmer or None
        Works out what transforms do to a batch.
    on_host : bool
        Whether they run where the batch is fetched, for a CPU place, or behind its copy to a device.
    """

    feeds: tuple[FeedSpec, ...] | None = None
    function: Callable[[Any], Any] | None = None
    batched: bool = True
    ragged: frozenset[str] = frozenset()
    pads: Mapping[str, float] | None = None
    programmer: Programmer | None = None
    on_host: bool = True

    @property
    def whole(self) -> bool:
        """Whether a batch can only be written once all its samples are there and put together."""
        return self.function is not None or not self.batched

    @property
    def fixed(self) -> bool:
        """Whether the loader puts together batches of samples of which none varies in length."""
        varies = self.ragged or self.pads or any(feed.lod_level for feed in self.feeds or ())
        return not self.whole and not varies


@dataclass(frozen=True, slots=True)
class Form:
    """What all batches of a loader have in common.

    Attributes
    ----------
    structure : Structure
        How the fields make up a sample.
    feeds : tuple of FeedSpec
        One an array field of the structure.
    levels : tuple of int
        One an array field: 0 for a dense or padded one; a ragged one takes so many arrays more.
    declared : bool
        Whether the user declared the feeds, so that samples are converted to them.
    """

    structure: Structure
    feeds: tuple[FeedSpec, ...]
    levels: tuple[int, ...]
    declared: bool

    @property
    def varying(self) -> bool:
        """Whether some field varies in length, or was declared with a free dimension."""
        return any(feed.lod_level or None in feed.sample_shape for feed in self.feeds)


def declared_form(feeds: Sequence[FeedSpec], pads: Mapping[str, float] | None) -> Form:
    """Return the form of samples that are tuples with one value a feed."""
    names = [feed.name for feed in feeds]
    levels = tuple(0 if pads and feed.name in pads else feed.lod_level for feed in feeds)
    return Form(Structure.flat(names), tuple(feeds), levels, declared=True)


def settle_form(sample: Any, collation: Collation) -> Form:
    """Return the form that a dataset's first sample shows.

    Raises
    ------
    SampleError
        A field declared to vary in length is not there, or has no length.
    """
    pads = collation.pads or {}
    varying = collation.ragged | pads.keys()
    structure = Structure.of(sample, varying)
    names = {leaf.name for leaf in structure.leaves if leaf.is_array}
    if missing := sorted(varying - names):
        raise SampleError(f"no field {missing} to be of varying length; the sample has {sorted(names)}")
    feeds: list[FeedSpec] = []
    for leaf, value in zip(structure.leaves, structure.flatten(sample), strict=True):
        if not leaf.is_array:
            continue
        try:
            array = as_numbers(value)
            if leaf.name in varying:
                _check_varying(value, array)
                if leaf.name in pads:
                    check_fill(pads[leaf.name], array.dtype)
        except SampleError as error:
            error.field = leaf.name
            raise
        if leaf.name not in varying:
            feeds.append(FeedSpec(leaf.name, (None, *array.shape), array.dtype))
        else:
            feeds.append(FeedSpec(leaf.name, (None, *array.shape[1:]), array.dtype, lod_level=1))
    levels = tuple(0 if feed.name in pads else feed.lod_level for feed in feeds)
    return Form(structure, tuple(feeds), levels, declared=False)


def _check_varying(value: Any, array: Array) -> None:
    if not array.ndim:
        raise SampleError("expected an array of varying length, got a number")
    if not array.size and isinstance(value, list | tuple):
        raise SampleError(
            "the first sample's list is empty, so nothing says of which dtype the field is; give arrays, or "
            "declare it in a feed_list with lod_level=1"
        )


def check_fill(fill: float, dtype: np.dtype[Any]) -> None:
    """Raise `SampleError` if an array of `dtype` cannot hold what short rows are to be filled up with.

    >>> check_fill(0.5, np.dtype("int64"))
    Traceback (most recent call last):
    gpuloader.base.errors.SampleError: rows of int64 cannot be filled up with 0.5
    """
    try:
        held = cast(np.asarray(fill), dtype).item()
    except SampleError as error:
        raise SampleError(f"rows of {dtype} cannot be filled up with {fill!r}: {error.problem}") from None
    if dtype.kind in "iub" and held != fill:
        raise SampleError(f"rows of {dtype} cannot be filled up with {fill!r}")


def build_batch(
    structure: Structure, levels: Sequence[int], arrays: Sequence[Any], objects: Sequence[Any]
) -> Any:
    """Put delivered arrays and Python objects together in the form of a sample.

    >>> structure = Structure.of(([1.0], "cat"))
    >>> build_batch(structure, [0], ["images"], [["cat", "dog"]])
    [['images'], ['cat', 'dog']]
    """
    fields = gather_fields(levels, arrays) if any(levels) else arrays
    if not objects:
        return structure.build(fields)
    staged, kept = iter(fields), iter(objects)
    return structure.build([next(staged if leaf.is_array else kept) for leaf in structure.leaves])
