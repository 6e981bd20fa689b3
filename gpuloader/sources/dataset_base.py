"""The base classes of datasets, what ``+`` makes of two, and checks that several datasets share."""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np

from gpuloader.errors import BadType, BadTypeOrValue, BadValue, NoIndices, SampleError, describe_error
from gpuloader.fields.spec import is_stageable
from gpuloader.foreign import COLUMNS, FRAME, find_classes, is_tensor, name_table, values_by_position
from gpuloader.sources.array_rows import check_index, locate
from gpuloader.sources.block import WholeList, each_row
from gpuloader.system.iterators import refuse_read

# Datasets that are read in an order of their own, such as a `MixDataset`, must not lose it inside others.


def refuse_mix(dataset: object, reader: str, instead: str) -> None:
    """Raise `TypeError` if a dataset has an order of its own, in which `reader` would not read it.

    >>> from gpuloader import MixDataset
    >>> mix = MixDataset(["ab", "cd"], [1, 2])
    >>> refuse_mix(mix, "a Subset", "take subsets first")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.errors.BadType: a Subset would read the MixDataset without its weights: take subsets fi...
    """
    # Refused where it happens: read as a ConcatDataset, the mix would train on other proportions in silence.
    if callable(getattr(dataset, "default_sampler", None)):
        raise BadType(
            f"{reader} would read the {type(dataset).__name__} without its weights: {instead}; to do without "
            "the weights, pass ConcatDataset(mix.datasets)"
        )


def is_iterable(dataset: object) -> bool:
    """Return whether this is an ``IterableDataset``, of this package, PyTorch or Paddle."""
    # All of them have a `__getitem__` too, which only raises.
    return isinstance(dataset, (IterableDataset, *find_classes("IterableDataset")))


# Samples of any schema joined field by field, for datasets that are asked for several samples at once.


def join_samples(samples: Sequence[Any]) -> Any:
    """Return samples of one schema joined field by field, like a `TensorDataset` and a `TableDataset` do.

    Numbers, arrays and tensors are stacked, and tuples, lists and dicts are joined entry by entry. Anything
    else becomes a list, and so do samples that differ in type, shape, keys or length.

    >>> join_samples([{"x": np.array([1, 2]), "name": "a"}, {"x": np.array([3, 4]), "name": "b"}])
    {'x': array([[1, 2],
           [3, 4]]), 'name': ['a', 'b']}
    """
    if not samples:
        return []
    first = samples[0]
    if any(type(sample) is not type(first) for sample in samples):
        return list(samples)
    if isinstance(first, Mapping):
        if any(sample.keys() != first.keys() for sample in samples):
            return list(samples)
        return {key: join_samples([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list) and not isinstance(first, WholeList):
        if any(len(sample) != len(first) for sample in samples):
            return list(samples)
        fields = [join_samples(entries) for entries in zip(*samples, strict=True)]
        return fields if isinstance(first, list) else tuple(fields)
    if is_tensor(first):
        alike = all((one.shape, one.dtype) == (first.shape, first.dtype) for one in samples)
        return sys.modules["torch"].stack(list(samples)) if alike else list(samples)
    if not isinstance(first, int | float | complex | np.generic | np.ndarray) or not _are_alike(samples):
        return list(samples)
    joined = np.asarray(samples)
    return joined if is_stageable(joined.dtype) else list(samples)


def _are_alike(values: Sequence[Any]) -> bool:
    return len({(np.shape(value), getattr(value, "dtype", None)) for value in values}) == 1


S = TypeVar("S", covariant=True)
Many = Callable[[Sequence[int]], list[Any]]
"""Reads the samples at several indices in one call."""


class Readable(Protocol[S]):
    """Anything with samples to read by index or key."""

    def __getitem__(self, index: Any, /) -> S:
        """Return the sample at an index, or at a key."""


class MapStyle(Protocol[S]):
    """What a map-style dataset must have; a list has it too."""

    def __getitem__(self, index: Any, /) -> S:
        """Return the sample at an index, or at a key."""

    def __len__(self) -> int:
        """Return the number of samples."""


class Dataset(Generic[S]):
    """The base class of map-style datasets: a subclass defines `__getitem__` and `__len__`.

    ``a + b`` is the `ConcatDataset` of two.

    Examples
    --------
    >>> class Squares(Dataset[int]):
    ...     def __getitem__(self, index):
    ...         return index**2
    ...
    ...     def __len__(self):
    ...         return 10
    >>> Squares()[3], len(Squares() + Squares())
    (9, 20)
    """

    def __getitem__(self, index: int) -> S:
        raise NotImplementedError(
            f"{type(self).__name__} must define __getitem__(index), which returns a sample"
        )

    def __len__(self) -> int:
        raise NotImplementedError(
            f"{type(self).__name__} must define __len__, which returns the number of samples"
        )

    def __add__(self, other: MapStyle[Any]) -> Dataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[S]):
    """The base class of iterable datasets: a subclass defines `__iter__`.

    With ``worker_type='thread'``, several threads iterate over the same dataset at once. So each call of
    `__iter__` must keep its position in local variables, not on the dataset.

    A subclass that defines `__len__` gives its loader a length too. ``a + b`` is the `ChainDataset` of two.

    Examples
    --------
    >>> class Countdown(IterableDataset[int]):
    ...     def __iter__(self):
    ...         return iter([3, 2, 1])
    >>> list(Countdown())
    [3, 2, 1]
    >>> list(Countdown() + Countdown())
    [3, 2, 1, 3, 2, 1]
    """

    def __iter__(self) -> Iterator[S]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__, which yields samples")

    def __getitem__(self, index: int) -> S:
        raise NoIndices(
            f"{type(self).__name__} is an IterableDataset: it can only be iterated, and has no sample {index}"
        )

    def __len__(self) -> int:
        # `list` asks for the length, and continues without one only after a TypeError.
        raise NoIndices(
            f"{type(self).__name__} is an IterableDataset: it can only be iterated, and has no length "
            "unless it defines __len__"
        )

    def __add__(self, other: Iterable[Any]) -> Dataset[Any]:  # type: ignore[override]  # as in PyTorch
        return ChainDataset([self, other])


class ConcatDataset(Dataset[S]):
    """Map-style datasets one after another: a list of one or more, none of them a `MixDataset`.

    A slice, or a list, array or tensor of indices or booleans, selects several samples at once. They come
    joined field by field.

    Attributes
    ----------
    datasets : list
        The datasets.
    cumulative_sizes : list of int
        For each dataset, the number of samples in it and in those before it.

    Raises
    ------
    TypeError
        A dataset is not map-style, or is a `MixDataset`, whose weights would be lost.
    ValueError
        There are no datasets.

    Examples
    --------
    >>> both = ConcatDataset(["ab", "cde"])
    >>> both[2], both[-1], both[1:4], len(both)
    ('c', 'e', ['b', 'c', 'd'], 5)
    """

    _instead_of_a_mix: ClassVar[str] = "concatenate its datasets first, then mix those"

    def __init__(self, datasets: Iterable[MapStyle[S]]) -> None:
        self.datasets: list[MapStyle[S]] = check_all(self, datasets, self._instead_of_a_mix)
        self.cumulative_sizes = self.cumsum(self.datasets)

    def __getitem__(self, index: Any) -> S:
        rows = locate(self, index)
        if isinstance(rows, int):
            which, position = self._find(rows)
            return self.datasets[which][position]
        joined: S = join_samples(self._read(list(each_row(rows))))
        return joined

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    @staticmethod
    def cumsum(sequence: Iterable[Sized]) -> list[int]:
        """Return, for each dataset, the number of samples in it and in those before it."""
        return list(itertools.accumulate(map(len, sequence)))

    @property
    def __getitems__(self) -> Many:
        """Reads several samples at once; exists only if one of the datasets has it."""
        return pass_on(self, ConcatDataset, self._read, self.datasets)

    def _find(self, index: int) -> tuple[int, int]:
        """Return the position of the dataset that holds a sample, and the sample's index in it."""
        position = check_index(self, index)
        which = bisect_right(self.cumulative_sizes, position)
        return which, position - (self.cumulative_sizes[which - 1] if which else 0)

    def _read(self, indices: Sequence[int]) -> list[Any]:
        # Each dataset is asked once, for all of its samples in the batch: one call may be one request to a
        # store.
        found = [self._find(index) for index in indices]
        samples: list[Any] = [None] * len(found)
        for which in {which for which, _ in found}:
            slots = [slot for slot, (owner, _) in enumerate(found) if owner == which]
            read = read_many(self.datasets[which], [found[slot][1] for slot in slots])
            for slot, sample in zip(slots, read, strict=True):
                samples[slot] = sample
        return samples


class ChainDataset(IterableDataset[S]):
    """Iterable datasets, of this package, PyTorch or Paddle, each of which starts when the previous one ends.

    Raises
    ------
    TypeError
        A dataset is not an `IterableDataset`.
    ValueError
        There are no datasets.

    Examples
    --------
    >>> class Letters(IterableDataset[str]):
    ...     def __iter__(self):
    ...         return iter("ab")
    >>> list(ChainDataset([Letters(), Letters()]))
    ['a', 'b', 'a', 'b']
    """

    def __init__(self, datasets: Iterable[Iterable[S]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise BadValue("datasets must hold at least one dataset, got none")
        for position, dataset in enumerate(self.datasets):
            if not is_iterable(dataset):
                raise BadType(
                    f"dataset {position} must be an IterableDataset, got {type(dataset).__name__}; "
                    "for map-style datasets, use ConcatDataset"
                )

    def __iter__(self) -> Iterator[S]:
        for position, dataset in enumerate(self.datasets):
            items = iter(dataset)
            # An iterator that was read before would end at once, and the chain would be shorter in silence.
            what = f"dataset {position} ({type(dataset).__name__}) returns"
            refuse_read(
                items, what, "make a new iterator in every call, for example by writing __iter__ with yield"
            )
            yield from items

    def __len__(self) -> int:
        return sum(count_items(dataset) for dataset in self.datasets)


def count_items(dataset: object) -> int:
    """Return the length of an iterable dataset; raise `TypeError` if it has none."""
    # Always a TypeError, because `list` asks for a length, and does without one only after a TypeError. It is
    # a ValueError too, which Paddle raises for the length of a loader.
    name = type(dataset).__name__
    if not isinstance(dataset, Sized):
        raise BadTypeOrValue(
            f"an iterable dataset has no length unless it defines __len__, and {name} does not"
        )
    try:
        return len(dataset)
    except TypeError as error:
        raise BadTypeOrValue(str(error)) from error
    except Exception as error:  # Paddle's own class raises RuntimeError
        problem = f"the length of the iterable dataset is unknown: {name}.__len__ raised"
        raise BadTypeOrValue(f"{problem} {describe_error(error)}") from error


def check_map_style(name: str, dataset: object, *, by_key: bool = False) -> MapStyle[Any]:
    """Return `dataset` if it is map-style, else raise `TypeError`; `by_key` if it is read by key or label."""
    kind = type(dataset).__name__
    if is_iterable(dataset):
        raise BadType(f"{name} must be map-style, got the IterableDataset {kind}")
    found = name_table(dataset)
    if found == FRAME:
        raise TypeError(f"{name} must be map-style, got the table {kind}; pass TableDataset(table)")
    if found == COLUMNS and not by_key:
        raise TypeError(
            f"{name} must have samples at the indices 0, 1, 2, …, got a {kind} whose keys are text; if its "
            "values are columns, pass TableDataset(columns); if they are samples, pass list(samples.values())"
        )
    if not (hasattr(dataset, "__getitem__") and isinstance(dataset, Sized)):
        raise BadType(f"{name} must have __getitem__ and __len__, got {kind}")
    return cast("MapStyle[Any]", dataset if by_key else values_by_position(dataset))


def read_many(dataset: MapStyle[Any], indices: Sequence[int]) -> list[Any]:
    """Return the samples at `indices`, in one call if the dataset has ``__getitems__``."""
    read: Many | None = getattr(dataset, "__getitems__", None)
    if read is None:
        return [dataset[index] for index in indices]
    samples = list(read(indices))
    if len(samples) != len(indices):
        raise SampleError(
            f"{type(dataset).__name__}.__getitems__ returned {len(samples)} samples "
            f"for {len(indices)} indices"
        )
    return samples


def pass_on(outer: object, kind: type, read: Many, inner: Iterable[object]) -> Many:
    """Return `read`, the ``__getitems__`` of a dataset composed of others, or raise `AttributeError`.

    `outer` has it if one of the `inner` datasets does.
    """
    # Unless a subclass of `kind` overrides `__getitem__`, which would then not run.
    own = getattr(type(outer), "__getitem__", None) is not getattr(kind, "__getitem__", None)
    if own or not any(hasattr(one, "__getitems__") for one in inner):
        raise AttributeError(f"{type(outer).__name__!r} object has no attribute '__getitems__'")
    return read


def check_all(outer: object, datasets: Iterable[object], instead_of_a_mix: str) -> list[MapStyle[Any]]:
    """Return the datasets that `outer` is composed of as a list, checked."""
    # Iterating over these yields keys, letters or samples instead of datasets.
    expected = "datasets must be a list of datasets"
    if isinstance(datasets, Mapping):
        raise BadType(f"{expected}, got a {type(datasets).__name__}; pass its values")
    if isinstance(datasets, str | bytes):
        raise BadType(f"{expected}, got the text {datasets!r}")
    if isinstance(datasets, (Dataset, *find_classes("Dataset"))):
        raise BadType(f"{expected}, got the dataset {type(datasets).__name__}; pass a list of it and others")
    checked = [check_map_style(f"dataset {position}", one) for position, one in enumerate(datasets)]
    if not checked:
        raise BadValue("datasets must hold at least one dataset, got none")
    for one in checked:
        refuse_mix(one, f"a {type(outer).__name__}", instead_of_a_mix)
    return checked
