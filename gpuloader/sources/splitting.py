"""`random_split`: splits a map-style dataset into disjoint random parts, optionally by label."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.foreign import is_torch_generator
from gpuloader.order.order import Shuffled, check_whole, interleave
from gpuloader.order.randomness import GeneratorLike
from gpuloader.sources.dataset import MapStyle, S, Subset, check_map_style, refuse_mix


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
    if is_torch_generator(generator):
        # The split that PyTorch would make, so that a test set stays the same when a program moves to this
        # package.
        lib: Any = sys.modules["torch"]
        drawn = lib.randperm(count, generator=generator, device=generator.device)
        return cast("NDArray[np.int64]", drawn.cpu().numpy())
    kind = type(generator).__name__
    raise TypeError(f"generator must be a seed, a NumPy generator or a torch.Generator, got {kind}")
