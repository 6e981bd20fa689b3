"""Datasets, and datasets composed of others or split, as in Paddle's ``paddle.io``.

If a dataset has ``__getitems__(indices)``, which returns a list of samples in one call, the datasets composed
of it have it too.
"""

from __future__ import annotations

import itertools
import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader import foreign
from gpuloader.errors import BadType, BadTypeOrValue, BadValue, NoIndices, SampleError, describe_error
from gpuloader.order.order import Shuffled, as_indices, check_whole, interleave
from gpuloader.order.randomness import GeneratorLike
from gpuloader.sources import array_rows
from gpuloader.sources.block import Block, join_samples, number_rows
from gpuloader.system.iterators import refuse_read


def refuse_mix(dataset: object, reader: str, instead: str) -> None:
    """Raise `TypeError` for a dataset whose order `reader` would lose, such as a `MixDataset`."""
    # Refused here: read as a ConcatDataset, the mix would silently train on other proportions.
    if callable(getattr(dataset, "default_sampler", None)):
        raise BadType(
            f"{reader} would read the {type(dataset).__name__} without its weights: {instead}; to ignore the "
            "weights, pass ConcatDataset(mix.datasets)"
        )


def is_iterable(dataset: object) -> bool:
    """Return whether this is an ``IterableDataset``, of this package, PyTorch or Paddle."""
    # All of them also have a `__getitem__`, which only raises.
    return isinstance(dataset, (IterableDataset, *foreign.find_classes("IterableDataset")))


S = TypeVar("S", covariant=True)
Many = Callable[[Sequence[int]], list[Any]]
"""Reads the samples at several indices in one call."""


class Readable(Protocol[S]):
    """Anything with samples to read by index or key."""

    def __getitem__(self, index: Any, /) -> S:
        """Return the sample at an index or key."""


class MapStyle(Readable[S], Protocol[S]):
    """What a map-style dataset must have; a list has it, too."""

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
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index), to return a sample")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__, the number of samples")

    def __add__(self, other: MapStyle[Any]) -> Dataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[S]):
    """The base class of iterable datasets: a subclass defines `__iter__`.

    With ``worker_type='thread'``, several threads iterate over the same dataset at the same time. So each
    call of `__iter__` must keep its position in local variables, not on the dataset.

    If a subclass defines `__len__`, its loader has a length, too. ``a + b`` is the `ChainDataset` of two.

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


class _Combined(Dataset[S]):
    """Map-style datasets read as one; each is asked for many samples in one call where possible."""

    _instead_of_a_mix: ClassVar[str] = "concatenate its datasets first, then mix those"
    _read_one: Callable[[int], S]
    _read: Many

    def __init__(self, datasets: Iterable[MapStyle[Any]]) -> None:
        # Iterating over these yields keys, letters or samples.
        expected, kind = "datasets must be a list of datasets, got", type(datasets).__name__
        if isinstance(datasets, Mapping):
            raise BadType(f"{expected} a {kind}; pass its values")
        if isinstance(datasets, str | bytes):
            raise BadType(f"{expected} the text {datasets!r}")
        if isinstance(datasets, (Dataset, *foreign.find_classes("Dataset"))):
            raise BadType(f"{expected} the dataset {kind}; pass a list of it and others")
        self.datasets: list[MapStyle[Any]] = [
            check_map_style(f"dataset {position}", one) for position, one in enumerate(datasets)
        ]
        if not self.datasets:
            raise BadValue("datasets must hold at least one dataset, got none")
        for one in self.datasets:
            refuse_mix(one, f"a {type(self).__name__}", self._instead_of_a_mix)

    def __getitem__(self, index: Any) -> S:
        rows = array_rows.locate(self, index)
        if isinstance(rows, int):
            return self._read_one(rows)
        return cast("S", join_samples(self._read(number_rows(rows).tolist())))

    @property
    def __getitems__(self) -> Many:
        """Reads several samples at once; exists only if one of the datasets has it."""
        return pass_on(self, _Combined, self._read, self.datasets)


class ConcatDataset(_Combined[S]):
    """Map-style datasets one after another: a list of one or more, none of them a `MixDataset`.

    A slice, list, array or tensor of indices or booleans selects several samples, joined field by field.

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

    def __init__(self, datasets: Iterable[MapStyle[S]]) -> None:
        super().__init__(datasets)
        self.cumulative_sizes = self.cumsum(self.datasets)

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    @staticmethod
    def cumsum(sequence: Iterable[Sized]) -> list[int]:
        """Return, for each dataset, the number of samples in it and in those before it."""
        return list(itertools.accumulate(map(len, sequence)))

    def _read_one(self, position: int) -> S:
        which, within = self._find(position)
        return cast("S", self.datasets[which][within])

    def _find(self, position: int) -> tuple[int, int]:
        """Return the position of the dataset that holds a sample, and the sample's index in it."""
        which = bisect_right(self.cumulative_sizes, position)
        return which, position - (self.cumulative_sizes[which - 1] if which else 0)

    def _read(self, indices: Sequence[int]) -> list[Any]:
        # Each dataset is asked once per batch, because one call may be one request to a store.
        found = [self._find(array_rows.check_index(self, index)) for index in indices]
        samples: list[Any] = [None] * len(found)
        for which in {which for which, _ in found}:
            slots = [slot for slot, (owner, _) in enumerate(found) if owner == which]
            read = read_many(self.datasets[which], [found[slot][1] for slot in slots])
            for slot, sample in zip(slots, read, strict=True):
                samples[slot] = sample
        return samples


class ChainDataset(IterableDataset[S]):
    """Iterable datasets of this package, PyTorch or Paddle; each starts when the previous one ends.

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

    _checks: ClassVar[bool] = True  # check datasets when the chain is made, not when it is read

    _leaves_out: ClassVar[bool] = True

    def __init__(self, datasets: Iterable[Iterable[S]]) -> None:
        self.datasets = list(datasets)
        if not self._checks:
            return
        if not self.datasets:
            raise BadValue("datasets must hold at least one dataset, got none")
        for position, dataset in enumerate(self.datasets):
            self._check(position, dataset)

    @staticmethod
    def _check(position: int, dataset: object) -> None:
        if not is_iterable(dataset):
            raise BadType(
                f"dataset {position} must be an IterableDataset, got {type(dataset).__name__}; "
                "for map-style datasets, use ConcatDataset"
            )

    def __iter__(self) -> Iterator[S]:
        for position, dataset in enumerate(self.datasets):
            self._check(position, dataset)
            items = iter(dataset)
            # An iterator that was read before would end immediately, and the chain would silently be shorter.
            what = f"dataset {position} ({type(dataset).__name__}) returns"
            advice = "make a new iterator in every call, for example by writing __iter__ with yield"
            refuse_read(items, what, advice)
            yield from items

    def __len__(self) -> int:
        return sum(count_items(dataset) for dataset in self.datasets)


def count_items(dataset: object) -> int:
    """Return the length of an iterable dataset; raise `TypeError` if it has none."""
    # Always a TypeError, because `list` asks for a length, and does without one only after a TypeError. Also
    # a ValueError, because that is what Paddle raises for the length of a loader.
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


def check_map_style(name: str, dataset: object, *, by_key: bool = False, sized: bool = True) -> MapStyle[Any]:
    """Return `dataset` if it is map-style, else raise `TypeError`; `by_key` if keys or labels index it."""
    kind = type(dataset).__name__
    if is_iterable(dataset):
        raise BadType(f"{name} must be map-style, got the IterableDataset {kind}")
    found = foreign.name_table(dataset)
    if found == foreign.FRAME:
        raise TypeError(f"{name} must be map-style, got the table {kind}; pass TableDataset(table)")
    if found == foreign.COLUMNS and not by_key:
        raise TypeError(
            f"{name} must have samples at the indices 0, 1, 2, …, got a {kind} whose keys are text; if its "
            "values are columns, pass TableDataset(columns); if they are samples, pass list(samples.values())"
        )
    if not (hasattr(dataset, "__getitem__") and (isinstance(dataset, Sized) or not sized)):
        raise BadType(f"{name} must have __getitem__ and __len__, got {kind}")
    return cast("MapStyle[Any]", dataset if by_key else foreign.values_by_position(dataset))


def read_many(dataset: MapStyle[Any], indices: Sequence[int]) -> list[Any]:
    """Return the samples at `indices`, in one call if the dataset has ``__getitems__``."""
    read: Many | None = getattr(dataset, "__getitems__", None)
    if read is None:
        return [dataset[index] for index in indices]
    samples = list(read(indices))
    if len(samples) != len(indices):
        name = type(dataset).__name__
        raise SampleError(f"{name}.__getitems__ returned {len(samples)} samples for {len(indices)} indices")
    return samples


def pass_on(outer: object, kind: type, read: Many, inner: Iterable[object]) -> Many:
    """Return `read` if one of the `inner` datasets has ``__getitems__``, else raise `AttributeError`."""
    # Not if a subclass of `kind` overrides `__getitem__`, because that would not run.
    own = getattr(type(outer), "__getitem__", None) is not getattr(kind, "__getitem__", None)
    if own or not any(hasattr(one, "__getitems__") for one in inner):
        raise AttributeError(f"{type(outer).__name__!r} object has no attribute '__getitems__'")
    return read


# Parts of a dataset: the samples at given indices, and random splits.


class Subset(Dataset[S]):
    """The samples of a dataset at given indices, or at given keys of a dict-like dataset.

    Parameters
    ----------
    dataset : map-style dataset
        The dataset, read whenever a sample is requested.
    indices : sequence, NumPy array, tensor or slice
        The indices of the samples, in order; negative ones count from the end. For a dataset that has
        ``keys()``, and if they are text or tuples, these are keys, which are not checked.

    Attributes
    ----------
    indices : sequence, NumPy array or tensor
        The indices as they were passed; a range instead of a slice.

    Raises
    ------
    TypeError
        The dataset is not map-style, or is a `MixDataset`, whose weights would be lost. Or the indices are
        not whole numbers.
    IndexError
        An index is out of range.

    Notes
    -----
    As in PyTorch, indexing with a slice, or with a list, NumPy array or tensor of positions, asks the dataset
    for a list of indices. Samples of a list or a dict are joined field by field.

    Examples
    --------
    >>> part = Subset("abcde", [4, 0, -2])
    >>> part[0], part[-1], len(part)
    ('e', 'd', 3)
    >>> list(Subset({"cat": 1, "dog": 2}, ["dog"]))
    [2]
    """

    _by_key = False
    _follows_torch: ClassVar[bool] = False

    def __init__(self, dataset: MapStyle[S], indices: Sequence[Any] | NDArray[Any] | slice) -> None:
        refuse_mix(dataset, f"a {type(self).__name__}", "take subsets of its datasets first, then mix those")
        # As in PyTorch, the dataset may have no length, or be filled later.
        checks = not self._follows_torch or isinstance(indices, slice)
        self.dataset: MapStyle[S] = check_map_style("dataset", dataset, by_key=True, sized=checks)
        listed: Any = foreign.values_by_position(indices)
        if isinstance(indices, slice):
            listed = range(*indices.indices(len(dataset)))
        # Text and tuples are keys; one entry is enough to tell.
        by_key = isinstance(listed, Iterable) and isinstance(next(iter(listed), None), str | bytes | tuple)
        if not by_key and not (isinstance(listed, Sized) and not len(listed)):
            self.dataset = check_map_style("dataset", dataset, sized=checks)
        self._by_key = by_key or hasattr(self.dataset, "keys")
        if self._by_key:
            self.indices: Any = listed if hasattr(listed, "__getitem__") else list(listed)
            return
        # Kept as passed, because programs read the attribute. Checked now, not later in some worker.
        self.indices = listed
        known = range(-len(dataset), len(dataset)) if checks else listed
        if isinstance(listed, range) and (not listed or (listed[0] in known and listed[-1] in known)):
            return  # its ends tell about all of it, which may be more than memory holds
        rows = as_indices("indices", listed)
        if checks:
            array_rows.check_rows(dataset, rows, len(dataset))

    def __getitem__(self, index: Any) -> S:
        rows = array_rows.locate(self, index)
        if isinstance(rows, int):
            return self.dataset[self._at(rows)]
        # These do not accept a list of indices themselves.
        if self._by_key or isinstance(self.dataset, list | tuple | range | str):
            return cast("S", join_samples([self[row] for row in number_rows(rows).tolist()]))
        return self.dataset[[self._at(row) for row in number_rows(rows).tolist()]]

    def _at(self, position: int) -> Any:
        """Return the index or key at a position; an index is a Python integer, which all datasets accept."""
        found = self.indices[position]
        return found if self._by_key else int(found)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def __getitems__(self) -> Many:
        """Reads several samples at once; exists only if the dataset has it, or always as in PyTorch."""
        is_whole = self._follows_torch and type(self).__getitem__ is Subset.__getitem__
        return self._read if is_whole else pass_on(self, Subset, self._read, [self.dataset])

    def _read(self, indices: Sequence[int]) -> list[Any]:
        return read_many(self.dataset, [self._at(array_rows.check_index(self, index)) for index in indices])

    @property
    def take_block(self) -> Callable[[Sequence[int]], Block]:
        """Reads several samples in columns; exists only if the dataset has it."""
        take = None if self._by_key else array_rows.own_method(self.dataset, "take_block")
        if take is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'take_block'")

        def read(indices: Sequence[int]) -> Block:
            rows, listed = array_rows.as_rows(self, indices, len(self)), self.indices
            if isinstance(listed, np.ndarray):  # one by one, 256 may take longer than to read them
                return cast("Block", take(listed[rows]))
            return cast("Block", take([self._at(row) for row in number_rows(rows).tolist()]))

        return read

    def _array_rows(self) -> array_rows.ArrayRows | None:
        source = None if self._by_key else array_rows.find_arrays(self.dataset)
        if source is None:
            return None
        rows = find_rows(self)
        return source._replace(rows=rows if source.rows is None else source.rows[rows])


def find_rows(subset: Any) -> NDArray[np.int64]:
    """Return which rows of its dataset a subset has, counted from the front."""
    dataset = subset.dataset
    return array_rows.check_rows(dataset, as_indices("indices", subset.indices), len(dataset))


def _check_equal(kind: str, unit: str, given: Sequence[Sized]) -> None:
    lengths = list(map(len, given))
    for position, length in enumerate(lengths):
        if length != lengths[0]:
            raise BadValue(
                f"{kind}s must have the same number of {unit}, but {kind} 0 has {lengths[0]} {unit} and "
                f"{kind} {position} has {length}"
            )


# `TensorDataset`: the rows of arrays, or of PyTorch's tensors.


class TensorDataset(Dataset[tuple[Any, ...]]):
    """The rows of arrays: a sample is a tuple of one row from each array.

    Parameters
    ----------
    *arrays : array-like
        Arrays of numbers with the same number of rows, or one list of such arrays. They are not copied.
    tensors : list of array-like, optional
        Paddle's name for the list of arrays; excludes `arrays`.

    Attributes
    ----------
    tensors : tuple
        What was passed: PyTorch tensors unchanged, anything else as NumPy arrays.

    Raises
    ------
    TypeError
        There are no arrays, or one does not hold numbers, has masked elements or is not in host memory. Or a
        list of lists was passed, which may be rows.
    ValueError
        An array has no first dimension, or the numbers of rows differ.

    Notes
    -----
    As in PyTorch, a slice, or a list, NumPy array or tensor of indices or booleans, selects several rows at
    once. The rows of tensors are tensors.

    Examples
    --------
    >>> import numpy as np
    >>> dataset = TensorDataset(np.zeros((2, 3)), [[7], [8]])
    >>> dataset[1]
    (array([0., 0., 0.]), array([8]))
    >>> dataset[[1, 0]][1].tolist()
    [[8], [7]]
    """

    tensors: tuple[Any, ...]
    _follows_torch: ClassVar[bool] = False

    def __init__(
        self, *arrays: ArrayLike | Sequence[ArrayLike], tensors: Sequence[ArrayLike] | None = None
    ) -> None:
        if arrays and tensors is not None:
            raise BadType("pass the arrays either one by one or as tensors=, not both")
        arrays = arrays if tensors is None else (tensors,)
        given: Any = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], list | tuple) else arrays
        if not given:
            raise BadType("a TensorDataset needs at least one array, got none")
        if given is not arrays and all(isinstance(array, list | tuple) for array in given):
            raise BadType(
                f"a TensorDataset takes one array per field, got a list of {len(given)} lists; if these are "
                "rows, write TensorDataset(numpy.array(rows)), if they are fields, TensorDataset(*fields)"
            )
        rows = [array_rows.check_array(position, array) for position, array in enumerate(given)]
        _check_equal("array", "rows", rows)
        self.tensors = tuple(
            one if foreign.is_tensor(one) else array for one, array in zip(given, rows, strict=True)
        )

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The rows as NumPy arrays that share the memory of what was passed."""
        return tuple([foreign.as_array(tensor) for tensor in self.tensors])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        if self._follows_torch and type(index) is not int and all(map(foreign.is_tensor, self.tensors)):
            # None, True, a tensor of uint8 and others mean something to a tensor but not to our datasets.
            with suppress(IndexError, TypeError, ValueError):
                return tuple([tensor[index] for tensor in self.tensors])
        rows = array_rows.locate(self, index)
        return tuple([tensor[rows] for tensor in self.tensors])

    def __len__(self) -> int:
        return len(self.tensors[0])

    def _array_rows(self) -> array_rows.ArrayRows | None:
        # Rows of a custom class, which only indexing creates.
        return None if any(map(foreign.has_own_class, self.tensors)) else array_rows.ArrayRows(self.arrays)

    def __getstate__(self) -> dict[str, Any]:
        # As arrays, because worker processes share the memory of arrays but would copy tensors.
        were_tensors = [foreign.is_tensor(one) and not foreign.has_own_class(one) for one in self.tensors]
        pairs = zip(self.tensors, were_tensors, strict=True)
        shared = tuple([foreign.as_array(one) if was_tensor else one for one, was_tensor in pairs])
        return {**vars(self), "tensors": shared, "were_tensors": were_tensors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        pairs = zip(self.tensors, vars(self).pop("were_tensors"), strict=True)
        self.tensors = tuple([foreign.tensor_over(one) if was_tensor else one for one, was_tensor in pairs])


# Datasets side by side.


class ComposeDataset(_Combined[tuple[Any, ...]]):
    """Datasets of equal length side by side: a sample is a flat tuple of the fields of one sample from each.

    A slice, list, array or tensor of indices or booleans selects several samples, joined field by field.

    Raises
    ------
    TypeError
        A dataset is not map-style, or is a `MixDataset`, whose weights would be lost.
    ValueError
        There are no datasets, or their lengths differ.

    Examples
    --------
    >>> ComposeDataset([["a", "b"], [(1, 2), (3, 4)]])[1]
    ('b', 3, 4)
    """

    _instead_of_a_mix = "compose its datasets first, then mix those"

    def __init__(self, datasets: Iterable[MapStyle[Any]]) -> None:
        super().__init__(datasets)
        _check_equal("dataset", "samples", self.datasets)

    def __len__(self) -> int:
        return len(self.datasets[0])

    def _read_one(self, position: int) -> tuple[Any, ...]:
        return _flatten(dataset[position] for dataset in self.datasets)

    def _read(self, indices: Sequence[int]) -> list[Any]:
        positions = [array_rows.check_index(self, index) for index in indices]
        return list(map(_flatten, zip(*[read_many(one, positions) for one in self.datasets], strict=True)))


def _flatten(samples: Iterable[Any]) -> tuple[Any, ...]:
    fields = (sample if isinstance(sample, tuple | list) else (sample,) for sample in samples)
    return tuple(itertools.chain.from_iterable(fields))


# Disjoint random parts.


def random_split(
    dataset: MapStyle[S],
    lengths: Sequence[float],
    generator: int | GeneratorLike = None,
    *,
    seed: int | None = None,
    stratify: ArrayLike | None = None,
) -> list[Subset[S]]:
    """Split a map-style dataset at random into disjoint parts that together hold every sample.

    Parameters
    ----------
    dataset : map-style dataset
        The dataset to split.
    lengths : sequence of int or of float
        The lengths of the parts: counts that sum to the dataset's length, or fractions that sum to 1.
        Fractions are rounded down, and the remaining samples are dealt to the parts in turn.
    generator : int, numpy.random.Generator, numpy.random.RandomState or torch.Generator, optional
        A seed or a generator. A ``torch.Generator`` makes the split that PyTorch would make with it. None
        uses `seed`, or else NumPy's global random state.
    seed : int, optional
        A seed from 0 to 2**64 - 1; the same as passing it as `generator`.
    stratify : array-like, optional
        One label per sample, a number or text. Every part then has every label in the same proportion, as far
        as whole samples allow.

    Raises
    ------
    TypeError
        The dataset is not map-style, or is a `MixDataset`, whose weights would be lost. Or the generator is
        neither a seed nor a generator.
    ValueError
        A length is negative or not a number, or the sum is wrong. Or both a generator and a seed are given,
        or there is not one label per sample.

    Examples
    --------
    >>> train, test = random_split("abcde", [0.8, 0.2], seed=0)
    >>> len(train), len(test), sorted([*train, *test])
    (4, 1, ['a', 'b', 'c', 'd', 'e'])
    >>> rare = [label == 3 for label in range(10)] * 2
    >>> [sum(part) for part in random_split(rare, [0.5, 0.5], seed=0, stratify=rare)]
    [1, 1]
    """
    count = len(check_map_style("dataset", dataset))
    refuse_mix(dataset, "random_split", "split its datasets first, then mix the parts")
    sizes = _as_sizes(lengths, count)
    if seed is not None:
        if generator is not None:
            raise ValueError("pass either generator or seed, got both")
        generator = check_whole("seed", seed, 2**64)
    indices = _shuffle(count, generator)
    if stratify is not None:
        return [Subset(dataset, part) for part in _deal_by_label(indices, sizes, stratify)]
    stops = itertools.accumulate(sizes)
    return [Subset(dataset, indices[stop - size : stop]) for size, stop in zip(sizes, stops, strict=True)]


def _deal_by_label(
    indices: NDArray[np.int64], sizes: Sequence[int], labels: ArrayLike
) -> list[NDArray[np.int64]]:
    """Deal indices to parts of these sizes, each label's indices evenly; keep their order within a part."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) != len(indices):
        raise ValueError(
            f"stratify must have one label for each of the {len(indices)} samples, got shape {array.shape}"
        )
    try:
        _, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"stratify must have labels of one type, all numbers or all text: {error}") from None
    # Parts that are spread evenly over all indices are also spread evenly over those of each label.
    by_label = np.argsort(codes[indices], kind="stable")
    owners = np.empty(len(indices), np.int64)
    owners[by_label], _ = interleave(sizes, 0, len(indices))
    return [indices[owners == part] for part in range(len(sizes))]


def _as_sizes(lengths: Sequence[float], count: int) -> list[int]:
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, int | float | np.number) or not length >= 0:
            raise ValueError(f"lengths must be numbers of 0 or more, got {length!r}")
    if all(isinstance(length, int | np.integer) for length in lengths):
        sizes = [int(length) for length in lengths]
        if sum(sizes) != count:
            raise ValueError(f"the lengths {sizes} sum to {sum(sizes)}, but the dataset has {count} samples")
        return sizes
    if not math.isclose(sum(lengths), 1):
        raise ValueError(f"lengths that are fractions must sum to 1, got {list(lengths)}")
    sizes = [math.floor(count * fraction) for fraction in lengths]
    for turn in range(count - sum(sizes)):
        sizes[turn % len(sizes)] += 1
    return sizes


def _shuffle(count: int, generator: object) -> NDArray[np.int64]:
    if generator is None:
        return np.random.permutation(count).astype(np.int64, copy=False)
    if isinstance(generator, np.random.Generator | np.random.RandomState):
        return generator.permutation(count).astype(np.int64, copy=False)
    if isinstance(generator, int | np.integer):
        # Not NumPy's permutation, so that a split by seed is the same in every release of NumPy.
        return Shuffled(count, check_whole("generator", generator, 2**64), epoch=0).slice(0, count)
    if foreign.is_torch_generator(generator):
        # The split that PyTorch would make, so that a test set stays the same when a program moves to this
        # package.
        lib: Any = sys.modules["torch"]
        drawn = lib.randperm(count, generator=generator, device=generator.device)
        return cast("NDArray[np.int64]", drawn.cpu().numpy())
    kind = type(generator).__name__
    raise TypeError(f"generator must be a seed, a NumPy generator or a torch.Generator, got {kind}")
