"""Parts of a dataset: the samples at given indices, and random splits."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.order.computed import Indices, as_indices, check_whole
from gpuloader.order.generators import GeneratorLike, is_torch_generator
from gpuloader.order.interleave import interleave
from gpuloader.order.order import Shuffled
from gpuloader.sources.array_rows import ArrayRows, array_source, own_method
from gpuloader.sources.block import Block, each_row
from gpuloader.sources.dataset_base import (
    Dataset,
    Many,
    MapStyle,
    S,
    check_map_style,
    pass_on,
    read_many,
)
from gpuloader.sources.indexing import check_index, check_rows, locate
from gpuloader.sources.joining import join_samples
from gpuloader.sources.own_order import refuse_mix
from gpuloader.sources.recognizing import values_by_position


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
        The dataset is not map-style, or is a `MixDataset`, whose weights would be lost. Or the indices are
        not whole numbers.
    IndexError
        An index is out of range.

    Notes
    -----
    As in PyTorch, a slice, or a list, NumPy array or tensor of positions, asks the dataset for a list of
    indices at once, which all datasets of this package understand. Samples of a list or a dict are joined
    field by field.

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
        refuse_mix(dataset, f"a {type(self).__name__}", "take subsets of its datasets first, then mix those")
        count = len(check_map_style("dataset", dataset, by_key=True))
        listed: Any = values_by_position(indices)
        if isinstance(indices, slice):
            listed = range(*indices.indices(count))
        by_key = _are_keys(listed)
        is_empty = isinstance(listed, Sized) and not len(listed)
        self.dataset: MapStyle[S] = check_map_style("dataset", dataset, by_key=by_key or is_empty)
        self._by_key = by_key or hasattr(self.dataset, "keys")
        if self._by_key:
            self.indices: Any = listed if hasattr(listed, "__getitem__") else list(listed)
            return
        self.indices = listed
        check_rows(dataset, as_indices("indices", listed), count)

    def __getitem__(self, index: Any) -> S:
        rows = locate(self, index)
        if isinstance(rows, int):
            return self.dataset[self._at(rows)]
        if self._by_key or isinstance(self.dataset, list | tuple | range | str):
            joined: S = join_samples([self[row] for row in each_row(rows)])
            return joined
        return self.dataset[[self._at(row) for row in each_row(rows)]]

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

    @property
    def take_block(self) -> Callable[[Sequence[int]], Block]:
        """Reads several samples in columns; exists only if the dataset has it."""
        take = None if self._by_key else own_method(self.dataset, "take_block")
        if take is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'take_block'")
        return lambda indices: take([self._at(check_index(self, index)) for index in indices])

    def _array_rows(self) -> ArrayRows | None:
        source = None if self._by_key else array_source(self.dataset)
        if source is None:
            return None
        rows = check_rows(self.dataset, as_indices("indices", self.indices), len(self.dataset))
        return source._replace(rows=rows if source.rows is None else source.rows[rows])


def _are_keys(indices: object) -> bool:
    return isinstance(indices, Iterable) and isinstance(next(iter(indices), None), str | bytes | tuple)


def random_split(
    dataset: MapStyle[S],
    lengths: Sequence[float],
    generator: int | GeneratorLike = None,
    *,
    seed: int | None = None,
    stratify: ArrayLike | None = None,
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
    starts = itertools.accumulate(sizes, initial=0)
    return [
        Subset(dataset, indices[start : start + size]) for start, size in zip(starts, sizes, strict=False)
    ]


def _deal_by_label(indices: Indices, sizes: Sequence[int], labels: ArrayLike) -> list[Indices]:
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
    # Parts that are spread evenly over all indices are spread evenly over those of each label too.
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
