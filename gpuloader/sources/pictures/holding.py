"""Which datasets have pictures as fields of their samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuloader.order.agreement import find_classes
from gpuloader.sources.array_rows import reads_like
from gpuloader.sources.dataset import ComposeDataset, ConcatDataset, Subset

_OF_TORCH = ("Subset", "ConcatDataset", "ComposeDataset", "StackDataset")


def holds_pictures(dataset: object) -> bool:
    """Return whether a dataset has pictures, or is composed of one that has; no sample is read.

    A dataset says so with its attribute ``holds_pictures``, as an `ImageFolder` does.

    >>> holds_pictures([1, 2])
    False
    """
    if getattr(dataset, "holds_pictures", False) is True:
        return True
    if not reads_like(dataset, Subset, ConcatDataset, ComposeDataset, *find_classes(*_OF_TORCH)):
        return False
    inner = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    if isinstance(inner, Mapping):
        inner = inner.values()
    return isinstance(inner, Iterable) and any(map(holds_pictures, inner))
