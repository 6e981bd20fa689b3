"""The datasets that a dataset is composed of, whether this package, PyTorch or Paddle composes it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuloader.order.agreement import find_classes
from gpuloader.sources.array_rows import reads_like
from gpuloader.sources.dataset import ComposeDataset, ConcatDataset, Subset
from gpuloader.sources.own_order import refuse_mix


def refuse_hidden_mix(dataset: object) -> None:
    """Raise `TypeError` if a dataset of PyTorch or Paddle is composed of a `MixDataset`.

    Those of this package refuse it when they are made.

    >>> refuse_hidden_mix("abc")
    """
    kinds = (Subset, ComposeDataset, *find_classes("Subset", "ComposeDataset", "StackDataset"))
    inner = chained(dataset)
    if not inner and isinstance(dataset, kinds):
        found: Any = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
        inner = list(found.values() if isinstance(found, Mapping) else found)
    for one in inner:
        reader = f"a {type(dataset).__name__}"
        refuse_mix(one, reader, "split or concatenate its datasets first, then mix those")
        refuse_hidden_mix(one)


def chained(dataset: object) -> Sequence[Any]:
    """Return the datasets that a dataset reads one after another; none if it is not such a dataset.

    A class derived from one of those that are known counts as another class if it reads in another way.

    >>> chained(ConcatDataset(["ab", "cd"])), chained("ab")
    (['ab', 'cd'], ())
    """
    if reads_like(dataset, ConcatDataset, *find_classes("ConcatDataset")):
        found: Sequence[Any] = getattr(dataset, "datasets", ())
        return found
    return ()


def name_part(dataset: Any, index: object) -> str:
    """Return which of the datasets that `dataset` chains holds a sample; empty if it is not composed so.

    Parameters
    ----------
    dataset : object
        The dataset. The indices of a subset are followed.
    index : object
        The index of the sample in it.

    Examples
    --------
    >>> name_part(ConcatDataset(["ab", "cd"]), 2), name_part("ab", 1)
    ('dataset 1 (str)', '')
    """
    found = _find(dataset, index)
    if not found:
        return ""
    numbers, part = found
    return f"dataset {'.'.join(map(str, numbers))} ({type(part).__name__})"


def _find(dataset: Any, index: object) -> tuple[list[int], Any] | None:
    """Return the numbers of the datasets on the way to a sample, and the last of them."""
    numbers: list[int] = []
    while isinstance(index, int | np.integer):
        if reads_like(dataset, Subset, *find_classes("Subset")):
            dataset, index = dataset.dataset, dataset.indices[index]
            continue
        parts = chained(dataset)
        if not parts:
            break
        ends = np.cumsum([len(part) for part in parts]).tolist()
        index = int(index) + (ends[-1] if index < 0 else 0)
        number = bisect_right(ends, index)
        if not 0 <= number < len(parts):
            return None
        numbers.append(number)
        index -= ends[number - 1] if number else 0
        dataset = parts[number]
    return (numbers, dataset) if numbers else None
