"""Make a dataset of a table that is passed to a loader as it is."""

from __future__ import annotations

import copy
from typing import Any

from gpuloader.sources.array_rows import reads_like
from gpuloader.sources.dataset import ComposeDataset, ConcatDataset, Subset
from gpuloader.sources.recognizing import is_dict_of_columns, is_frame, is_instance, values_by_position
from gpuloader.sources.tables.table import TableDataset


def as_dataset(value: Any, *, by_key: bool = False) -> Any:
    """Return a dataset for a data frame, an Arrow table, a dict of columns, or a dataset of Hugging Face.

    Parameters
    ----------
    value : object
        What the user passed; anything else is returned as it is. Datasets of Hugging Face in a `Subset`,
        `ConcatDataset`, `ComposeDataset` or `MixDataset` are found too.
    by_key : bool
        Whether the user's own sampler may yield the keys of a dict, which is then a map-style dataset.

    Raises
    ------
    TypeError
        The value is a collection of datasets, or has not been read yet.
    ValueError, DataFileError, MissingPackage
        See `TableDataset`.

    Examples
    --------
    >>> len(as_dataset({"x": [1, 2, 3]})), as_dataset([1, 2, 3])
    (3, [1, 2, 3])
    """
    if is_instance(value, "datasets", "DatasetDict", "IterableDatasetDict"):
        splits = list(value)
        raise TypeError(f"expected one dataset, got a {type(value).__name__} of {splits}; pass one of them")
    if is_instance(value, "datasets", "Dataset"):
        # Imported late, because it needs pyarrow, which only programs that use Hugging Face must have.
        from gpuloader.sources.tables.huggingface import adapt_dataset

        return adapt_dataset(value)
    if is_instance(value, "datasets", "IterableDataset"):
        from gpuloader.sources.tables.huggingface_streams import adapt_stream

        return adapt_stream(value)
    if not by_key:
        value = values_by_position(value)
    if is_frame(value) or (is_dict_of_columns(value) and not by_key):
        return TableDataset(value)
    return _adapt_inside(value)


def _adapt_inside(value: Any) -> Any:
    """Return a dataset that is made of others with these adapted; the user's own stays as it is."""
    if reads_like(value, Subset):
        inner = as_dataset(value.dataset, by_key=True)
        if inner is value.dataset:
            return value
        changed = copy.copy(value)
        changed.dataset = inner
        return changed
    if not reads_like(value, ConcatDataset, ComposeDataset):
        return value
    datasets = [as_dataset(one, by_key=True) for one in value.datasets]
    if all(one is given for one, given in zip(datasets, value.datasets, strict=True)):
        return value
    changed = copy.copy(value)
    changed.datasets = datasets
    return changed
