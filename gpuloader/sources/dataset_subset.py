"""Parts of a dataset: the samples at given indices, and random splits."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.order.computed import Indices, as_indices, check_whole
from gpuloader.order.generators import GeneratorLike, is_torch_generator
from gpuloader.order.order import Shuffled
from gpuloader.sources.dataset_base import (
    Dataset,
    Many,
    MapStyle,
    S,
    check_index,
    check_map_style,
    pass_on,
    read_many,
    select_many,
)
from gpuloader.sources.dataset_tensors import TensorDataset

Arrays = tuple[NDArray[Any], ...]


class Subset(Dataset[S]):
    """The samples of a dataset at given indices, or at given keys of one that is like a dict.

    Parameters
    ----------
    dataset : map-style dataset
        The dataset, read whenever a sample is requested.
    indices : sequence, NumPy array, tensor or slice
        The indices of the samples, in order; negative ones count from the end. For a dataset that has
        ``keys()``, and for text and tuples, these are keys, which are not checked.

    Attributes
    ----------
    indices : sequence, NumPy array or tensor
        The indices as they were passed; a range instead of a slice.

    Raises
    ------
    TypeError
        The dataset is not map-style, or the indices are not whole numbers.
    IndexError
        An index is out of range.

    Notes
    -----
    As in PyTorch, a slice, or a list, NumPy array or tensor of positions, asks the dataset for a list of
    indices at once, which a `TensorDataset` understands.

    Examples
    --------
    >>> part = Subset("abcde", [4, 0, -2])
    >>> part[0], part[-1], len(part)
    ('e', 'd', 3)
    >>> list(Subset({"cat": 1, "dog": 2}, ["dog"]))
    [2]
    """

    _by_key = False

    def __init__(self, dataset: MapStyle[S], indices: Sequence[Any] | NDArray[Any] | slice) -> None:
        self.dataset: MapStyle[S] = check_map_style("dataset", dataset)
        count = len(dataset)
        listed: Any = range(*indices.indices(count)) if isinstance(indices, slice) else indices
        self._by_key = hasattr(dataset, "keys") or _are_keys(listed)
        if self._by_key:
            self.indices: Any = listed if hasattr(listed, "__getitem__") else list(listed)
            return
        self.indices = listed
        rows = as_indices("indices", listed)
        outside = np.flatnonzero((rows < -count) | (rows >= count))
        if outside.size:
            raise IndexError(
                f"{type(dataset).__name__} of {count} samples has no sample {rows[outside[0]]}, "
                f"listed at position {outside[0]} of the indices"
            )

    def __getitem__(self, index: Any) -> S:
        many = select_many(index)
        if many is None:
            return self.dataset[self._at(check_index(self, index))]
        return self.dataset[[self._at(position) for position in np.arange(len(self))[many].tolist()]]

    def _at(self, position: int) -> Any:
        """Return the index or key at a position; an index is a Python integer, which every dataset takes."""
        found = self.indices[position]
        return found if self._by_key else int(found)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def __getitems__(self) -> Many:
        """Reads several samples at once; exists only if the dataset has it."""
        return pass_on(self, Subset, self._read, [self.dataset])

    def _read(self, indices: Sequence[int]) -> list[Any]:
        return read_many(self.dataset, [self._at(check_index(self, index)) for index in indices])


def _are_keys(indices: object) -> bool:
    return isinstance(indices, Iterable) and isinstance(next(iter(indices), None), str | bytes | tuple)


def random_split(
    dataset: MapStyle[S],
    lengths: Sequence[float],
    generator: int | GeneratorLike = None,
) -> list[Subset[S]]:
    """Split a dataset at random into disjoint parts that together hold every sample.

    Parameters
    ----------
    dataset : map-style dataset
        The dataset to split.
    lengths : sequence of int or of float
        The lengths of the parts: counts that sum to the dataset's length, or fractions that sum to 1.
        Fractions are rounded down, and the remaining samples are dealt to the parts in turn.
    generator : int, numpy.random.Generator, numpy.random.RandomState or torch.Generator, optional
        A seed or a generator. A ``torch.Generator`` makes the split that PyTorch would make with it. None
        uses NumPy's global random state.

    Raises
    ------
    TypeError
        The dataset is not map-style, or the generator is neither a seed nor a generator.
    ValueError
        A length is negative or not a number, or the sum is wrong.

    Examples
    --------
    >>> train, test = random_split("abcde", [0.8, 0.2], generator=0)
    >>> len(train), len(test), sorted([*train, *test])
    (4, 1, ['a', 'b', 'c', 'd', 'e'])
    """
    count = len(check_map_style("dataset", dataset))
    sizes = _as_sizes(lengths, count)
    indices = _shuffle(count, generator)
    starts = itertools.accumulate(sizes, initial=0)
    return [
        Subset(dataset, indices[start : start + size]) for start, size in zip(starts, sizes, strict=False)
    ]


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


def _shuffle(count: int, generator: object) -> Indices:
    if generator is None:
        return np.random.permutation(count).astype(np.int64, copy=False)
    if isinstance(generator, np.random.Generator | np.random.RandomState):
        return generator.permutation(count).astype(np.int64, copy=False)
    if isinstance(generator, int | np.integer):
        return Shuffled(count, check_whole("generator", generator, 2**64), epoch=0).slice(0, count)
    if is_torch_generator(generator):
        lib: Any = sys.modules["torch"]
        drawn: Indices = lib.randperm(count, generator=generator, device=generator.device).cpu().numpy()
        return drawn
    raise TypeError(
        "generator must be a seed, a NumPy generator or a torch.Generator, got " + type(generator).__name__
    )


def array_source(dataset: object) -> tuple[Arrays, Indices | None] | None:
    """Return the arrays that a dataset reads from, and the row of each sample.

    Parameters
    ----------
    dataset : object
        Any dataset.

    Returns
    -------
    tuple or None
        The arrays of a `TensorDataset`, or of the one under a `Subset` (of a `Subset` …), and the row of
        every sample, or None if sample i is row i. None for any other dataset, for a subclass whose own
        code must read the samples, and for arrays in a foreign byte order, which must be converted.

    Examples
    --------
    >>> (array,), rows = array_source(Subset(TensorDataset([[5, 6, 7]]), [-1, 0]))
    >>> array, rows
    (array([5, 6, 7]), array([2, 0]))
    """
    if isinstance(dataset, TensorDataset) and _reads_as(dataset, TensorDataset):
        found = dataset.arrays
        return (found, None) if all(array.dtype.isnative for array in found) else None
    if not (isinstance(dataset, Subset) and _reads_as(dataset, Subset)):
        return None
    source = array_source(dataset.dataset)
    if source is None or dataset._by_key:
        return None
    arrays, inner = source
    indices = as_indices("indices", dataset.indices)
    rows = np.where(indices < 0, indices + len(dataset.dataset), indices)
    return arrays, rows if inner is None else inner[rows]


def _reads_as(dataset: object, kind: type) -> bool:
    return all(
        getattr(type(dataset), name, None) is getattr(kind, name, None)
        for name in ("__getitem__", "__getitems__", "__len__")
    )
