"""Make a dataset of a table that is passed to a loader as it is."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from gpuloader.sources.array_rows import reads_like
from gpuloader.sources.dataset import ComposeDataset, ConcatDataset, Subset
from gpuloader.sources.recognizing import is_dict_of_columns, is_frame, is_instance, values_by_position
from gpuloader.sources.tables.table import TableDataset


def as_dataset(value: Any, *, by_key: bool = False, encoded: bool = False) -> Any:
    """Return a dataset for a data frame, an Arrow table, a dict of columns, or a dataset of Hugging Face.

    Parameters
    ----------
    value : object
        What the user passed; anything else is returned as it is. Datasets of Hugging Face in a `Subset`,
        `ConcatDataset`, `ComposeDataset` or `MixDataset` are found too.
    by_key : bool
        Whether the user's own sampler may yield the keys of a dict. Whether its values are samples or columns
        is then known from the first index.
    encoded : bool
        Whether to leave the pictures of a dataset of Hugging Face encoded.

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
        from gpuloader.sources.tables.huggingface import adapt_dataset, keep_encoded

        return adapt_dataset(keep_encoded(value) if encoded else value)
    if is_instance(value, "datasets", "IterableDataset"):
        from gpuloader.sources.tables.huggingface import keep_encoded
        from gpuloader.sources.tables.huggingface_streams import adapt_stream

        return adapt_stream(keep_encoded(value) if encoded else value)
    if is_frame(value):
        return TableDataset(value)
    if is_dict_of_columns(value):
        return KeysOrRows(value) if by_key else TableDataset(value)
    return _adapt_inside(value if by_key else values_by_position(value), encoded)


class KeysOrRows:
    """A dict whose values are samples, if it is read by key, or columns, if it is read by row number.

    >>> dataset = KeysOrRows({"x": [1, 2], "y": [3, 4]})
    >>> dataset["y"], dataset[-1]
    ([3, 4], {'x': np.int64(2), 'y': np.int64(4)})
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries
        self._table: TableDataset | None = None

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or not hasattr(index, "__index__"):
            return self._entries[index]
        if self._table is None:
            self._table = TableDataset(self._entries)
        return self._table[index]

    def __len__(self) -> int:
        return len(self._entries)


def _adapt_inside(value: Any, encoded: bool) -> Any:
    """Return a dataset that is made of others with these adapted; the user's own stays as it is."""
    if reads_like(value, Subset):
        inner = _adapt_part(value.dataset, encoded)
        if inner is value.dataset:
            return value
        changed = copy.copy(value)
        changed.dataset = inner
        return changed
    if not reads_like(value, ConcatDataset, ComposeDataset):
        return value
    datasets = [_adapt_part(one, encoded) for one in value.datasets]
    if all(one is given for one, given in zip(datasets, value.datasets, strict=True)):
        return value
    changed = copy.copy(value)
    changed.datasets = datasets
    return changed


def _adapt_part(value: Any, encoded: bool) -> Any:
    """Return one of the datasets that another is made of, adapted; a dict there is read by its keys."""
    return value if isinstance(value, Mapping) else as_dataset(value, by_key=True, encoded=encoded)
