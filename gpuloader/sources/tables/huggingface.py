"""Hugging Face datasets, read from their Arrow columns."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuloader.order.randomness import current_draw
from gpuloader.order.worker_info import find_share
from gpuloader.sources import column_dataset, frameworks
from gpuloader.sources.array_rows import as_rows
from gpuloader.sources.block import Block, Column, Part, Rows, SampleFields, of_columns
from gpuloader.sources.dataset import IterableDataset
from gpuloader.sources.tables.arrow import check_nulls, column_of, columns_of, is_nested

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("arrow", "pandas", "polars")
TENSORS = ("numpy", "torch", "tensorflow", "jax")


Reads = Literal["columns", "rows", "as torch"]
"""How such datasets are read: 'as torch' in columns if PyTorch's loader makes the same batches of them."""


def adapt_dataset(dataset: Any, reads: Reads = "columns") -> Any:
    """Return a `datasets.Dataset` in the form in which a loader reads it.

    That is a `HuggingFaceRows` if every column can be read as Arrow stores it. If a function transforms the
    samples or images have to be decoded, Hugging Face's own code makes the samples. It also does if they are
    read 'as torch' and PyTorch's loader would make other batches of the columns.

    Raises
    ------
    DataFileError
        A column of numbers has a null; the message names the column.
    """
    form = dataset.format
    if reads == "rows":  # a collate_fn gets what the dataset itself returns
        return dataset
    in_columns = lies_in_columns(dataset.features, form["type"], form["format_kwargs"])
    if reads == "as torch":
        # The columns without the format come as Python objects.
        is_whole = not form["output_all_columns"] or len(form["columns"]) == len(dataset.column_names)
        columns = map(dataset.features.arrow_schema.field, form["columns"])
        in_columns = in_columns and is_whole and is_alike_in_torch(form["type"], columns)
    if in_columns and hasattr(dataset, "_indices"):
        return HuggingFaceRows(dataset)
    if form["type"] in TABLES:
        # In these formats a batch is a table, which Hugging Face does not split into samples.
        return dataset.with_format(None, form["columns"], form["output_all_columns"])
    return dataset


def keep_encoded(dataset: Any) -> Any:
    """Return a dataset or stream of Hugging Face whose images stay encoded, as they are stored."""
    for name, feature in (dataset.features or {}).items():
        if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
            dataset = dataset.cast_column(name, type(feature)(decode=False))
    return dataset


def lies_in_columns(features: Mapping[str, Any], form: str | None, options: Mapping[str, Any]) -> bool:
    """Return whether all values can be read as Arrow stores them, without a transform or decoding."""
    known = form is None or form in TABLES or (form in TENSORS and not options)
    return known and not any(map(_decodes, features.values()))


def is_alike_in_torch(form: str | None, columns: Iterable[pa.Field]) -> bool:
    """Return whether PyTorch's loader makes the same batches of columns in a format, or none at all."""
    # Without a format, a list of numbers becomes a list of tensors, and a number loses its stored width. In
    # the format "numpy", text and numbers keep the types of NumPy. PyTorch's loader refuses other formats.
    return form not in (None, "numpy") and not any(is_nested(column.type) for column in columns)


class HuggingFaceRows(column_dataset.ColumnDataset):
    """The rows of a `datasets.Dataset`, copied column by column from Arrow's memory.

    The dataset's format selects the columns. It also sets the dtypes if it is a format for tensors: int64 and
    float32. In any other format, numbers keep the dtype in which they are stored.

    Parameters
    ----------
    dataset : datasets.Dataset
        The dataset. Its format must not change afterwards.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        table = dataset.data.table
        for name in self._names:
            check_nulls(table.column(name), name)

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset}  # each process opens the files itself

    @property
    def _length(self) -> int:  # type: ignore[override]  # a dataset of Hugging Face may not change it either
        return len(self.dataset)

    def _sample_fields(self) -> SampleFields:
        return of_columns(self._columns, self._dtypes)

    def _take(self, rows: Rows) -> Block:
        if self._order is not None:
            chosen = Block([Part({"row": self._order}, rows)]).columns()["row"]
            rows = as_rows(self, chosen, self.dataset.data.num_rows)
        return Block([Part(self._columns, rows, self._dtypes)])

    @property
    def _names(self) -> list[str]:
        """The columns of a sample: first the formatted ones, then those passed on unchanged."""
        form, names = self.dataset.format, self.dataset.column_names
        names = sorted(names, key=lambda name: name not in form["columns"])
        return names if form["output_all_columns"] else names[: len(form["columns"])]

    @cached_property
    def _columns(self) -> Mapping[str, Column]:
        table = self.dataset.data.table
        return {name: column_of(table.column(name), name) for name in self._names}

    @cached_property
    def _order(self) -> Column | None:
        """The row of each sample, if the dataset was shuffled, sorted, filtered or selected from."""
        order = self.dataset._indices
        return None if order is None else column_of(order.column(0), "indices")

    @cached_property
    def _dtypes(self) -> Mapping[str, np.dtype[Any]]:
        form = self.dataset.format
        if form["type"] not in TENSORS or not len(self):
            return {}
        sample = next(iter(Block([Part(self._columns, slice(0, 1))])))
        return choose_dtypes(form["type"], {name: sample[name] for name in form["columns"]})


def choose_dtypes(form: str | None, sample: Mapping[str, Any]) -> dict[str, np.dtype[Any]]:
    """Return the dtypes to which a format converts the fields of a sample, as Hugging Face does."""
    if form not in TENSORS:
        return {}
    is_short = form == "jax" and not sys.modules["jax"].config.jax_enable_x64
    whole: np.dtype[Any] = np.dtype(np.int32 if is_short else np.int64)
    by_kind: dict[str, np.dtype[Any]] = {"i": whole, "u": whole, "f": np.dtype(np.float32)}
    kinds = {name: getattr(getattr(value, "dtype", None), "kind", "") for name, value in sample.items()}
    return {name: by_kind[kind] for name, kind in kinds.items() if kind in by_kind}


def _decodes(feature: Any) -> bool:
    """Return whether values of a feature must be decoded, like images and sounds, also within lists."""
    if hasattr(feature, "decode_example"):
        return bool(getattr(feature, "decode", True))
    if isinstance(feature, Mapping):
        return any(map(_decodes, feature.values()))
    if isinstance(feature, list | tuple):
        return any(map(_decodes, feature))
    inner = getattr(feature, "feature", None)
    return inner is not None and _decodes(inner)


# Streams of Hugging Face, divided among workers and ranks.


def adapt_stream(dataset: Any, reads: Reads = "columns") -> HuggingFaceStream:
    """Return a `datasets.IterableDataset` in the form in which a loader reads it, as `adapt_dataset` does."""
    if reads == "rows":
        return HuggingFaceStream(dataset)
    form, options = _format_of(dataset)
    features = dataset.features
    is_arrow = getattr(getattr(dataset, "_ex_iterable", None), "iter_arrow", None) is not None
    in_columns = is_arrow and features is not None and lies_in_columns(features, form, options)
    if in_columns and (reads == "columns" or is_alike_in_torch(form, features.arrow_schema)):
        return HuggingFaceTables(dataset)
    # In the formats for tables, a sample would be a table of one row.
    return HuggingFaceStream(dataset.with_format(None) if form in TABLES else dataset)


class HuggingFaceStream(IterableDataset[Any]):
    """The samples of a `datasets.IterableDataset`, divided among the workers of all ranks.

    If there are at least as many shards as workers on all ranks together, each worker reads its own shards.
    If there are fewer, each worker reads the whole stream and keeps its share of the samples. The exception
    are worker processes that have imported torch: there Hugging Face itself divides the shards, and some
    workers have nothing to read. The epoch is the loader's, so a stream that shuffles does so differently in
    each. A stream that ``split_dataset_by_node`` has divided among ranks is divided only among its rank's
    workers.

    Parameters
    ----------
    dataset : datasets.IterableDataset
        The stream.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._part: Any = None
        self._resumed: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        raise TypeError("a stream of Hugging Face has no length; load it without streaming to get one")

    def __iter__(self) -> Iterator[Any]:
        number, count = find_share(of_ranks=self._of_ranks)
        if frameworks.has_told_torch():  # Hugging Face itself divides the shards among torch's workers
            _, workers = find_share(of_ranks=False)
            count //= workers
            number %= count
        reader = None if self._resumed is None else self._resumed.get("part", (number, count))[0]
        part, left = self._open(number, count)
        # A state is right behind a sample of its reader, which may be another rank's.
        first = number if reader is None else number - reader + left - 1
        return itertools.islice(part, first if left > 1 else 0, None, left)

    def _open(self, number: int, count: int, *, in_tables: bool = False) -> tuple[Any, int]:
        """Return this worker's part of the stream, and how many workers share the samples of that part."""
        by_shards = count <= self.dataset.num_shards
        # A separate dataset even for the whole stream, because its epoch and its state are set.
        part = self.dataset.shard(*((count, number) if by_shards else (1, 0)), contiguous=False)
        if in_tables:
            part = part.with_format("arrow")
        draw = current_draw()
        part.set_epoch(0 if draw.seed is None else draw.epoch)
        if self._resumed is not None:
            if (readers := self._resumed.get("part", (number, count))[1]) != count:
                raise ValueError(f"{readers} workers of all ranks shared it, got {count}; use as many")
            part.load_state_dict(self._resumed)
        self._part, self._resumed = (part, [number, count]), None
        return part, 1 if by_shards else count

    @property
    def _of_ranks(self) -> bool:
        """Whether all ranks share the stream; False if ``split_dataset_by_node`` has divided it."""
        return getattr(self.dataset, "_distributed", None) is None

    @property
    def state_dict(self) -> Any:
        """Returns the position of the latest pass; exists only if the stream can resume exactly."""
        self._check_resumable("state_dict")
        return lambda: {} if self._part is None else {**self._part[0].state_dict(), "part": self._part[1]}

    @property
    def load_state_dict(self) -> Any:
        """Makes the next pass resume at a state; exists only if the stream can resume exactly."""
        self._check_resumable("load_state_dict")
        return self._resume

    def _resume(self, state: Mapping[str, Any]) -> None:
        self._resumed = state or None

    def _check_resumable(self, name: str) -> None:
        """Raise `AttributeError` for a stream with a shuffle buffer, because its state omits the buffer."""
        if not hasattr(self.dataset, name) or "BufferShuffled" in _name_steps(self.dataset):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _name_steps(dataset: Any) -> str:
    """Return the names of the classes that a stream's samples pass through."""
    names, steps = [], [getattr(dataset, "_ex_iterable", None)]
    while steps:
        step = steps.pop()
        if step is not None:
            names.append(type(step).__name__)
            steps += [getattr(step, "ex_iterable", None), *getattr(step, "ex_iterables", ())]
    return " ".join(names)


def _format_of(dataset: Any) -> tuple[str | None, Mapping[str, Any]]:
    """Return the type of a stream's format, and its options."""
    form = getattr(dataset, "_formatting", None)
    return getattr(form, "format_type", None), getattr(form, "format_kwargs", {}) or {}


class HuggingFaceTables(HuggingFaceStream):
    """A stream whose samples come as Arrow tables; its columns are copied from their memory."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.iter_blocks(1):
            yield from block

    def iter_blocks(self, size: int) -> Iterator[Block]:
        """Yield the samples in columns, `size` per block; the last block may be shorter.

        Raises
        ------
        DataFileError
            A column of numbers has a null; the message names the column.
        """
        number, count = find_share(of_ranks=self._of_ranks)
        part, left = self._open(number, count, in_tables=True)
        form, _ = _format_of(self.dataset)
        for table in part.iter(size * left):
            for name in table.column_names:
                check_nulls(table.column(name), name)
            rows = as_rows(table, np.arange(number if left > 1 else 0, len(table), left), len(table))
            if not isinstance(rows, np.ndarray) or rows.size:
                columns = columns_of(table)
                first = next(iter(Block([Part(columns, slice(0, 1))])))
                yield Block([Part(columns, rows, choose_dtypes(form, first))])


# The names of these classes in errors: users know only those of Hugging Face. Pickles use the qualified
# names.
HuggingFaceRows.__name__ = "datasets.Dataset"
HuggingFaceStream.__name__ = HuggingFaceTables.__name__ = "datasets.IterableDataset"
