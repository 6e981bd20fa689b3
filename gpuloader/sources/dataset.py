"""Datasets, and datasets composed of others, as in Paddle's ``paddle.io``.

If a dataset has ``__getitems__(indices)``, which returns a list of samples in one call, so do the datasets
composed of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from gpuloader.base.errors import BadValue
from gpuloader.sources.block import each_row
from gpuloader.sources.dataset_base import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Many,
    MapStyle,
    Readable,
    S,
    check_all,
    pass_on,
    read_many,
)
from gpuloader.sources.dataset_subset import Subset, random_split
from gpuloader.sources.dataset_tensors import TensorDataset
from gpuloader.sources.indexing import check_index, locate
from gpuloader.sources.joining import join_samples

__all__ = [
    "ChainDataset",
    "ComposeDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "MapStyle",
    "Readable",
    "S",
    "Subset",
    "TensorDataset",
    "random_split",
]


class ComposeDataset(Dataset[tuple[Any, ...]]):
    """Datasets side by side: a sample is a flat tuple of the fields of one sample from each dataset.

    A slice, or a list, array or tensor of indices or booleans, selects several samples at once. They come
    joined field by field.

    Parameters
    ----------
    datasets : sequence of map-style datasets
        One or more datasets of equal length.

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

    def __init__(self, datasets: Iterable[MapStyle[Any]]) -> None:
        self.datasets = check_all(self, datasets, "compose its datasets first, then mix those")
        lengths = [len(dataset) for dataset in self.datasets]
        for position, length in enumerate(lengths):
            if length != lengths[0]:
                raise BadValue(
                    f"datasets must have equal lengths, but dataset 0 has {lengths[0]} samples "
                    f"and dataset {position} has {length}"
                )

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        rows = locate(self, index)
        if isinstance(rows, int):
            return _flatten(dataset[rows] for dataset in self.datasets)
        joined: tuple[Any, ...] = join_samples(self._read(list(each_row(rows))))
        return joined

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
