"""Finds out what a loader is asked to read. Done once: every later module takes the `Source` from here.

In: whatever the user passed as dataset. Tables, dicts of columns and Hugging Face datasets are adapted.
Out: a `Source`: the dataset to read, how it is read, and which datasets it is composed of.
"""

from __future__ import annotations

import copy
import itertools
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader import foreign
from gpuloader.errors import BadType, SampleError
from gpuloader.fields.convert import find_kind
from gpuloader.sources import dataset as datasets
from gpuloader.sources.array_rows import READING, ArrayRows, find_arrays, own_method, reads_like
from gpuloader.sources.block import Block, SampleFields, name_dtype, of_arrays
from gpuloader.sources.mix import MixedStreams
from gpuloader.system.iterators import refuse_read

if TYPE_CHECKING:
    from gpuloader.sources.tables.huggingface import Reads

TakeBlock = Callable[[Sequence[int]], Block]
"""Reads the samples at several indices in columns."""

READ_ONCE = (
    "pass a generator function to DataLoader.from_generator, or an object whose __iter__ makes a new iterator"
)


def has_state(*owners: object) -> bool:
    """Return whether all of these can return their state and resume from it.

    >>> has_state([1, 2])
    False
    """
    names = "state_dict", "load_state_dict"
    return all(callable(getattr(one, name, None)) for one in owners for name in names)


_SUBSET, _CHAIN, _SIDE_BY_SIDE = "subset", "chain", "side by side"
_COMPOSED: dict[type, str] = {datasets.Subset: _SUBSET, datasets.ConcatDataset: _CHAIN}
_COMPOSED |= dict.fromkeys((datasets.ComposeDataset, MixedStreams), _SIDE_BY_SIDE)
_FOREIGN = {kind.__name__: how for kind, how in _COMPOSED.items()} | {"StackDataset": _SIDE_BY_SIDE}


@dataclass(eq=False, repr=False)
class Source:
    """A dataset, and how a loader reads it.

    A map-style dataset is read in the first of these ways that it offers and the loader's options allow: rows
    of `arrays`, columns through `take_block`, several samples through `read_many`, one by one. An iterable
    dataset is read in blocks if it has them, otherwise item by item.
    """

    dataset: Any
    iterable: bool = False  # whether it has no indices and can only be iterated
    in_blocks: bool = False  # whether an iterable dataset yields blocks of items through `iter_blocks`
    holds_images: bool = False  # whether it, or a part of it, says that its samples have images
    chained: tuple[Source, ...] = ()  # the datasets that it reads one after another
    inner: Source | None = None  # the dataset that it is a subset of
    # Read the samples at several indices together: as a list, and in columns.
    read_many: datasets.Many | None = None
    take_block: TakeBlock | None = None
    tell_fields: Callable[[], SampleFields] | None = None  # returns what is known about the samples
    # Makes the sampler of a dataset that has its own order, such as a `MixDataset`.
    own_order: Callable[[bool], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A worker process reads samples, not columns, and a Subset's `take_block` does not pickle.
        names = ("dataset", "iterable", "in_blocks", "holds_images", "chained", "inner")
        return {name: vars(self)[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, read_many=_find_many(state["dataset"], state["inner"]))

    @cached_property
    def arrays(self) -> ArrayRows | None:
        """The arrays whose rows are the samples; None if Python code must read them."""
        return find_arrays(self.dataset)

    @property
    def decodes(self) -> bool:
        """Whether reading in columns takes long enough to be worth worker processes."""
        return getattr(self.dataset, "_decodes", False) is True or bool(self.inner and self.inner.decodes)

    @cached_property
    def keeps_state(self) -> bool:
        """Whether the dataset has its own state and can resume there."""
        return has_state(self.dataset)

    @cached_property
    def fields(self) -> SampleFields | None:
        """What is known about the samples without reading any; None if nothing is."""
        dataset, arrays = self.dataset, self.arrays
        if arrays is not None:
            kind = "value" if arrays.bare else "tuple" if arrays.names is None else "dict"
            return of_arrays(kind, arrays.names, arrays.arrays)
        if self.tell_fields is not None:
            return self.tell_fields()
        if self.inner is not None:
            return None if self.inner.chained else self.inner.fields
        if reads_like(dataset, *foreign.find_classes("TensorDataset")):
            kind, tensors = "tuple", dataset.tensors
        elif isinstance(dataset, np.ndarray) or foreign.is_tensor(dataset):
            kind, tensors = "value", (dataset,)
        else:
            return None
        if not all(map(foreign.can_stage, tensors)):
            return None
        return of_arrays(kind, None, [foreign.as_array(one) for one in tensors])

    def name_part(self, index: object) -> str:
        """Return which of the chained datasets holds the sample at `index`; empty if none are chained.

        >>> describe(datasets.ConcatDataset(["ab", "cd"])).name_part(2), describe("ab").name_part(1)
        ('dataset 1 (str)', '')
        """
        numbers: list[int] = []
        source = self
        while isinstance(index, int | np.integer):
            # Look through all wrappers, so that the error names the dataset that the user has to look at.
            if source.inner is not None:
                index, source = source.dataset.indices[index], source.inner
                continue
            if not source.chained:
                break
            ends = list(itertools.accumulate(len(part.dataset) for part in source.chained))
            index = int(index) + (ends[-1] if index < 0 else 0)
            number = bisect_right(ends, index)
            if not 0 <= number < len(ends):
                return ""  # the index is out of range, and the error is about that
            numbers.append(number)
            index -= ends[number - 1] if number else 0
            source = source.chained[number]
        if not numbers:
            return ""
        return f"dataset {'.'.join(map(str, numbers))} ({type(source.dataset).__name__})"


def describe(value: Any, *, by_key: bool = False, encoded: bool = False, reads: Reads = "columns") -> Source:
    """Return what a loader reads if `value` is passed as its dataset; no sample is read.

    With `by_key`, the user's own sampler may yield the keys of a dict; the first index then tells whether the
    dict's values are samples or columns. `encoded` leaves the images of Hugging Face encoded, and `reads`
    says how its datasets are read.

    Raises `TypeError` if the value is not a dataset, or if a PyTorch or Paddle dataset is composed of a
    `MixDataset`; `ReaderError` for a generator that has been read already; and the errors of `TableDataset`.

    >>> describe({"x": [1, 2, 3]}).dataset
    <TableDataset: 3 rows of x (int64)>
    >>> describe([1, 2]).iterable, describe(iter([1, 2])).iterable
    (False, True)
    """
    composed = dict(_COMPOSED)
    for name, how in _FOREIGN.items():
        composed.update(dict.fromkeys(foreign.find_classes(name), how))
    source = _describe(_adapt(value, by_key, encoded, reads), composed, encoded, reads)
    dataset = source.dataset
    if datasets.is_iterable(dataset):
        chained: tuple[Source, ...] = ()
        if isinstance(dataset, (datasets.ChainDataset, *foreign.find_classes("ChainDataset"))):
            chain: Any = dataset
            chained = tuple([Source(one, iterable=True) for one in chain.datasets])
        return replace(source, iterable=True, chained=chained)
    # A class that also has `__iter__` is map-style, as in PyTorch, which iterates only an IterableDataset.
    if hasattr(dataset, "__getitem__"):
        return source
    if not isinstance(dataset, Iterable):
        raise TypeError(
            f"a dataset must have __getitem__ and __len__, or __iter__; got {type(dataset).__name__}, which "
            "has neither (for a generator function, use DataLoader.from_generator)"
        )
    refuse_read(dataset, "the dataset is", READ_ONCE)
    return replace(source, iterable=True)


def by_chunks(source: Source) -> Source:
    """Return what a loader with ``shuffle="chunks"`` reads: a dataset that keeps chunks, and its own order.

    Raises `TypeError` unless the source has arrays stored in chunks, or is a subset of a source that has.
    """
    members, inside = None, source
    while inside.inner is not None:
        rows, inside = datasets.find_rows(inside.dataset), inside.inner
        members = rows if members is None else rows[members]
    make = own_method(inside.dataset, "_by_chunks", READING | {"take_block"})
    if make is None:
        raise BadType(
            "shuffle='chunks' is for arrays stored in chunks: a ZarrDataset, an HDF5Dataset or a Subset of "
            f"one, got {type(source.dataset).__name__}; pass shuffle=True, to the dataset if it is a stream"
        )
    dataset = make(members)
    found = describe(dataset if members is None else datasets.Subset(dataset, members))
    return replace(found, own_order=lambda _: dataset.sample_chunks(members))


def _describe(
    dataset: Any, composed: Mapping[type, str], encoded: bool, reads: Reads, *, adapts: bool = True
) -> Source:
    """Describe a dataset and those in it; `adapts` allows replacing them by adapted ones."""
    kind = next(filter(composed.__contains__, type(dataset).__mro__), object)
    how, overrides = composed.get(kind, ""), not reads_like(dataset, kind)
    inside: Any = ()
    if how == _SUBSET:
        inside = [getattr(dataset, "dataset", None)]
    elif how == _SIDE_BY_SIDE or (how == _CHAIN and not overrides):
        inside = getattr(dataset, "datasets", ())
        inside = list(inside.values() if isinstance(inside, Mapping) else inside)
    adapts = adapts and kind in _COMPOSED and not overrides
    holds_images = getattr(dataset, "holds_pictures", False) is True
    parts: list[Source] = []
    for one in inside:
        # This package's datasets refuse a mix when they are made; PyTorch's and Paddle's do not know it.
        reader = f"a {type(dataset).__name__}"
        datasets.refuse_mix(one, reader, "split or concatenate its datasets first, then mix those")
        # By key, because the composed dataset asks for the samples; it reads a dict by its keys.
        adapted = _adapt(one, True, encoded, reads) if adapts and not isinstance(one, Mapping) else one
        part = _describe(adapted, composed, encoded, reads, adapts=adapts)
        parts.append(part)
        holds_images = holds_images or (part.holds_images and not overrides)
    if adapts and any(part.dataset is not one for part, one in zip(parts, inside, strict=True)):
        dataset = copy.copy(dataset)  # leaves the user's own unchanged
        if how == _SUBSET:
            dataset.dataset = parts[0].dataset
        else:
            dataset.datasets = [part.dataset for part in parts]
    own_order = getattr(dataset, "default_sampler", None)
    # A subclass overrides how samples are read, so its parts tell nothing about its samples.
    inner = parts[0] if how == _SUBSET and not overrides else None
    return Source(
        dataset,
        in_blocks=own_method(dataset, "iter_blocks", overriding={"__iter__"}) is not None,
        holds_images=holds_images,
        chained=tuple(parts) if how == _CHAIN and not overrides else (),
        inner=inner,
        read_many=_find_many(dataset, inner),
        take_block=own_method(dataset, "take_block"),
        tell_fields=own_method(dataset, "_sample_fields"),
        own_order=own_order if callable(own_order) else None,
    )


def _find_many(dataset: Any, inner: Source | None) -> datasets.Many | None:
    """Return the function that reads several samples together; None if it would only read one by one."""
    # PyTorch's Subset always has the method. Reading one by one lets errors name samples.
    alone = inner is not None and inner.read_many is None
    return None if alone else getattr(dataset, "__getitems__", None)


def _adapt(value: Any, by_key: bool, encoded: bool, reads: Reads) -> Any:
    """Return a dataset for a data frame, an Arrow table, a dict of columns, or a dataset of Hugging Face."""
    if foreign.is_instance(value, "datasets", "DatasetDict", "IterableDatasetDict"):
        splits = list(value)
        raise TypeError(f"expected one dataset, got a {type(value).__name__} of {splits}; pass one of them")
    streams = foreign.is_instance(value, "datasets", "IterableDataset")
    if streams or foreign.is_instance(value, "datasets", "Dataset"):
        # Imported late, because it needs pyarrow, which only programs that use Hugging Face must have.
        from gpuloader.sources.tables.huggingface import adapt_dataset, adapt_stream, keep_encoded

        value = keep_encoded(value) if encoded else value
        return adapt_stream(value, reads) if streams else adapt_dataset(value, reads)
    # To a collate_fn of PyTorch, each table of a list is a sample.
    found = "" if type(value) is list and reads == "rows" and not encoded else foreign.name_table(value)
    if found == foreign.SERIES:
        return value if by_key else value.array  # an array is read by position, not by label
    if found == foreign.COLUMNS and by_key:
        return KeysOrRows(value)
    if not found:
        return value
    from gpuloader.sources.tables.table import TableDataset  # imported late: only tables need it

    return TableDataset(value)


class KeysOrRows:
    """A dict whose values are samples if it is read by key, or columns if it is read by row number.

    >>> dataset = KeysOrRows({"x": [1, 2], "y": [3, 4]})
    >>> dataset["y"], dataset[-1]
    ([3, 4], {'x': np.int64(2), 'y': np.int64(4)})
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries
        self._table: Any = None

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or not hasattr(index, "__index__"):
            return self._entries[index]
        if self._table is None:
            self._table = _adapt(self._entries, by_key=False, encoded=False, reads="columns")
        return self._table[index]

    def __len__(self) -> int:
        return len(self._entries)


# Whether chained datasets fit into one batch.


def check_alike(source: Source, varying: Collection[str] = ()) -> None:
    """Raise `SampleError` if chained datasets have samples that certainly do not fit into one batch.

    Arrays and tables reveal dtypes and shapes; other datasets reveal nothing. Fields in `varying` may differ
    in shape.

    >>> from gpuloader import ConcatDataset, TensorDataset
    >>> parts = [TensorDataset(np.zeros(2, "float32")), TensorDataset(np.zeros(2, "int64"))]
    >>> check_alike(describe(ConcatDataset(parts)))
    Traceback (most recent call last):
    gpuloader.errors.SampleError: field '0': dataset 0 (TensorDataset) has float32, but dataset 1 (Te...
    """
    known = list(_known_parts(source, ""))
    for second, found in known[1:]:
        first, wanted = known[0]
        if wanted.kind != found.kind or sorted(wanted.fields) != sorted(found.fields):
            raise SampleError(
                f"{first} has samples that are {wanted.describe()}, but {second} has {found.describe()}, and "
                "a batch may mix them: make their fields the same, or pass a collate_fn"
            )
        for name, (dtype, shape) in wanted.fields.items():
            other, other_shape = found.fields[name]
            # Integers of different sizes pass, because their values usually fit into either.
            fits = dtype == other
            if dtype is not None and other is not None:
                fits = fits or find_kind(dtype) == find_kind(other) == "i"
            if not fits:
                raise SampleError(
                    f"{first} has {name_dtype(dtype)}, but {second} has {name_dtype(other)}, and a batch may "
                    "mix them: convert one of them, declare the field in feed_list, or pass a collate_fn",
                    field=name,
                )
            if None not in (shape, other_shape) and shape != other_shape and name not in varying:
                raise SampleError(
                    f"{first} has the shape {shape}, but {second} has {other_shape}, and a batch may mix "
                    "them: make their shapes the same, name the field in pad or ragged if its length varies, "
                    "or pass a collate_fn",
                    field=name,
                )


def _known_parts(source: Source, number: str) -> Iterator[tuple[str, SampleFields]]:
    """Yield the name and the fields of every chained dataset that is not empty and whose fields are known."""
    for position, part in enumerate(source.chained):
        at = f"{number}.{position}" if number else str(position)
        if part.chained:
            yield from _known_parts(part, at)
        elif len(part.dataset) and part.fields is not None:
            yield f"dataset {at} ({type(part.dataset).__name__})", part.fields
