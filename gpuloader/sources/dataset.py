"""Datasets, and datasets composed of others, as in Paddle's ``paddle.io``.

If a dataset has ``__getitems__(indices)``, which returns a list of samples in one call, so do the datasets
composed of it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpuloader.sources.dataset_base import (
    Dataset,
    IterableDataset,
    Many,
    MapStyle,
    S,
    TensorDataset,
    check_index,
    check_map_style,
    pass_on,
    read_many,
)
from gpuloader.sources.dataset_subset import Subset, random_split

__all__ = [
    "ChainDataset",
    "ComposeDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "MapStyle",
    "Subset",
    "TensorDataset",
    "random_split",
]


class ComposeDataset(Dataset[tuple[Any, ...]]):
    """Datasets side by side: a sample is a flat tuple of the fields of one sample from each dataset.

    Parameters
    ----------
    datasets : sequence of map-style datasets
        One or more datasets of equal length.

    Raises
    ------
    TypeError
        A dataset is not map-style.
    ValueError
        There are no datasets, or their lengths differ.

    Examples
    --------
    >>> ComposeDataset([["a", "b"], [(1, 2), (3, 4)]])[1]
    ('b', 3, 4)
    """

    def __init__(self, datasets: Iterable[MapStyle[Any]]) -> None:
        self.datasets = _check_all(datasets)
        lengths = [len(dataset) for dataset in self.datasets]
        for position, length in enumerate(lengths):
            if length != lengths[0]:
                raise ValueError(
                    f"datasets must have equal lengths, but dataset 0 has {lengths[0]} samples "
                    f"and dataset {position} has {length}"
                )

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        position = check_index(self, index)
        return _flatten(dataset[position] for dataset in self.datasets)

    def __len__(self) -> int:
        return len(self.datasets[0])

    @property
    def __getitems__(self) -> Many:
        """Reads several samples at once; exists only if one of the datasets has it."""
        return pass_on(self, ComposeDataset, self._read, self.datasets)

    def _read(self, indices: Sequence[int]) -> list[Any]:
        positions = [check_index(self, index) for index in indices]
        return [
            _flatten(row) for row in zip(*(read_many(one, positions) for one in self.datasets), strict=True)
        ]


def _flatten(samples: Iterable[Any]) -> tuple[Any, ...]:
    fields = (sample if isinstance(sample, tuple | list) else (sample,) for sample in samples)
    return tuple(itertools.chain.from_iterable(fields))


class ChainDataset(IterableDataset[S]):
    """Iterable datasets one after another.

    Parameters
    ----------
    datasets : sequence of IterableDataset
        One or more datasets; each starts when the previous one has ended.

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

    def __init__(self, datasets: Iterable[IterableDataset[S]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets must hold at least one dataset, got none")
        for position, dataset in enumerate(self.datasets):
            if not isinstance(dataset, IterableDataset):
                raise TypeError(
                    f"dataset {position} must be an IterableDataset, got {type(dataset).__name__}; "
                    "for map-style datasets, use ConcatDataset"
                )

    def __iter__(self) -> Iterator[S]:
        for dataset in self.datasets:
            yield from dataset


class ConcatDataset(Dataset[S]):
    """Map-style datasets one after another.

    Parameters
    ----------
    datasets : sequence of map-style datasets
        One or more datasets.

    Raises
    ------
    TypeError
        A dataset is not map-style.
    ValueError
        There are no datasets.

    Examples
    --------
    >>> both = ConcatDataset(["ab", "cde"])
    >>> both[2], both[-1], len(both)
    ('c', 'e', 5)
    """

    def __init__(self, datasets: Iterable[MapStyle[S]]) -> None:
        self.datasets: list[MapStyle[S]] = _check_all(datasets)
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> S:
        which, position = self._find(index)
        return self.datasets[which][position]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

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
        found = [self._find(index) for index in indices]
        samples: list[Any] = [None] * len(found)
        for which in {which for which, _ in found}:
            slots = [slot for slot, (owner, _) in enumerate(found) if owner == which]
            read = read_many(self.datasets[which], [found[slot][1] for slot in slots])
            for slot, sample in zip(slots, read, strict=True):
                samples[slot] = sample
        return samples


def _check_all(datasets: Iterable[object]) -> list[MapStyle[Any]]:
    checked = [check_map_style(f"dataset {position}", one) for position, one in enumerate(datasets)]
    if not checked:
        raise ValueError("datasets must hold at least one dataset, got none")
    return checked
