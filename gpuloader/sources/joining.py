"""Samples of any form joined field by field, for datasets that are asked for several samples at once."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuloader.fields.spec import is_stageable
from gpuloader.fields.tensors import is_tensor
from gpuloader.sources.block import WholeList


def join_samples(samples: Sequence[Any]) -> Any:
    """Return samples of one form joined field by field, like a `TensorDataset` and a `TableDataset` do.

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
