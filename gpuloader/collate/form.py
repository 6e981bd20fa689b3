"""The form of a batch: the user's collation options, and the fields that the batch's first sample settles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.collate.leaves import all_leaves
from gpuloader.collate.structure import Structure
from gpuloader.fields.casting import cast
from gpuloader.fields.convert import IF_A_LIST, as_numbers
from gpuloader.fields.encoded import Encoded
from gpuloader.fields.ragged import gather_fields
from gpuloader.fields.regions import Region
from gpuloader.fields.spec import Array, FeedSpec

if TYPE_CHECKING:  # a worker process should import only what its loader uses
    from gpuloader.collate.pictures import PictureStage
    from gpuloader.transforms.programmer import Programmer


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

        Otherwise each sample is written as soon as the batch's first one has settled the form.
        """
        return not self.fixed or any(None in feed.sample_shape for feed in self.feeds or ())


@dataclass(frozen=True, slots=True)
class Form:
    """The structure and the fields of a batch, which all its samples share.

    Attributes
    ----------
    structure : Structure
        How the fields make up a sample.
    feeds : tuple of FeedSpec
        One spec per array field of the structure.
    levels : tuple of int
        One level per array field: 0 for a dense or padded field. A ragged field of level n has 1 + n arrays.
    declared : bool
        Whether the user declared the feeds. Samples are then converted to them.
    """

    structure: Structure
    feeds: tuple[FeedSpec, ...]
    levels: tuple[int, ...]
    declared: bool


def declared_form(feeds: Sequence[FeedSpec], pads: Mapping[str, float] | None) -> Form:
    """Return the form of samples that are tuples with one value per declared feed."""
    names = [feed.name for feed in feeds]
    levels = tuple(0 if pads and feed.name in pads else feed.lod_level for feed in feeds)
    return Form(Structure.flat(names), tuple(feeds), levels, declared=True)


def settle_form(samples: Sequence[Any], collation: Collation) -> Form:
    """Return the form inferred from a batch's first sample.

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
    structure = Structure.of(samples[0], varying)
    names = {leaf.name for leaf in structure.leaves if leaf.is_array}
    if missing := sorted(varying - names):
        raise SampleError(f"ragged or pad names {missing}, but the sample's array fields are {sorted(names)}")
    feeds: list[FeedSpec] = []
    pictures: dict[str, int] = {}
    for field, (leaf, value) in enumerate(zip(structure.leaves, structure.flatten(samples[0]), strict=True)):
        if not leaf.is_array:
            continue
        try:
            if leaf.name in varying:
                array = _find_steps(structure, field, samples)
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
    return Form(structure, tuple(feeds), levels, declared=False)


def _find_steps(structure: Structure, field: int, samples: Sequence[Any]) -> Array:
    """Return the first value of a field of varying length that has a dtype, which empty lists have not."""
    for index, leaves in enumerate(all_leaves(structure, samples)):
        value = leaves[field]
        try:
            array = as_numbers(value)
            if not array.ndim:
                advice = f"; {IF_A_LIST}" if structure.is_flat else ""
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
    gpuloader.base.errors.SampleError: cannot pad rows of int64 with 0.5
    """
    try:
        held = cast(np.asarray(fill), dtype).item()
    except SampleError as error:
        raise SampleError(f"cannot pad rows of {dtype} with {fill!r}: {error.problem}") from None
    if dtype.kind in "iub" and held != fill:
        raise SampleError(f"cannot pad rows of {dtype} with {fill!r}")


def build_batch(
    structure: Structure, levels: Sequence[int], arrays: Sequence[Any], objects: Sequence[Any]
) -> Any:
    """Return a batch in the form of a sample, built from delivered arrays and Python objects.

    >>> structure = Structure.of(([1.0], "cat"))
    >>> build_batch(structure, [0], ["images"], [["cat", "dog"]])
    [['images'], ['cat', 'dog']]
    """
    fields = gather_fields(levels, arrays) if any(levels) else arrays
    if not objects:
        return structure.build(fields)
    values = (*fields, *objects)
    return structure.build([values[place] for place in structure.places])
