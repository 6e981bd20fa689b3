"""Streams of Hugging Face, divided among workers and ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuloader.order.randomness import current_draw
from gpuloader.order.worker_info import find_share
from gpuloader.sources.block import Block, Part
from gpuloader.sources.dataset_base import IterableDataset
from gpuloader.sources.frameworks import has_told_torch
from gpuloader.sources.indexing import as_rows
from gpuloader.sources.tables.arrow import check_nulls, columns_of
from gpuloader.sources.tables.huggingface import TABLES, choose_dtypes, lies_in_columns


def adapt_stream(dataset: Any) -> HuggingFaceStream:
    """Return a `datasets.IterableDataset` in the form in which a loader reads it."""
    form, options = _format_of(dataset)
    features = dataset.features
    is_arrow = getattr(getattr(dataset, "_ex_iterable", None), "iter_arrow", None) is not None
    if is_arrow and features is not None and lies_in_columns(features, form, options):
        return HuggingFaceTables(dataset)
    # In the formats for tables, a sample would be a table of one row.
    return HuggingFaceStream(dataset.with_format(None) if form in TABLES else dataset)


class HuggingFaceStream(IterableDataset[Any]):
    """The samples of a `datasets.IterableDataset`, divided among the workers of all ranks.

    With at least as many shards as workers on all ranks together, each worker reads its own shards. With
    fewer, each worker reads the whole stream and keeps its share of the samples; or, in worker processes that
    have imported torch, where Hugging Face itself divides the shards, some workers have nothing to read. The
    epoch is the loader's, so a stream that shuffles does so anew in each. A stream that
    ``split_dataset_by_node`` has divided among ranks is divided among the workers of its rank only.

    Parameters
    ----------
    dataset : datasets.IterableDataset
        The stream.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._part: Any = None
        self._resumed: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        number, count = find_share(of_ranks=self._of_ranks)
        if has_told_torch():  # Hugging Face itself divides the shards among torch's workers
            _, workers = find_share(of_ranks=False)
            count //= workers
            number %= count
        part, left = self._open(number, count)
        return itertools.islice(part, number if left > 1 else 0, None, left)

    def _open(self, number: int, count: int, *, in_tables: bool = False) -> tuple[Any, int]:
        """Return this worker's part of the stream, and how many workers share the samples of that part."""
        by_shards = count <= self.dataset.num_shards
        # A dataset of its own, because its epoch and its state are set; also if it is the whole stream.
        part = self.dataset.shard(*((count, number) if by_shards else (1, 0)), contiguous=False)
        if in_tables:
            part = part.with_format("arrow")
        draw = current_draw()
        part.set_epoch(0 if draw.seed is None else draw.epoch)
        if self._resumed is not None:
            part.load_state_dict(self._resumed)
        self._part, self._resumed = part, None
        return part, 1 if by_shards else count

    @property
    def _of_ranks(self) -> bool:
        """Whether all ranks share the stream; False if ``split_dataset_by_node`` has divided it."""
        return getattr(self.dataset, "_distributed", None) is None

    @property
    def state_dict(self) -> Any:
        """Returns the position of the latest pass; exists only if the stream can resume exactly."""
        self._check_resumable("state_dict")
        return lambda: {} if self._part is None else self._part.state_dict()

    @property
    def load_state_dict(self) -> Any:
        """Makes the next pass resume at a state; exists only if the stream can resume exactly."""
        self._check_resumable("load_state_dict")
        return self._resume

    def _resume(self, state: Mapping[str, Any]) -> None:
        self._resumed = state or None

    def _check_resumable(self, name: str) -> None:
        """Raise `AttributeError` for a stream with a shuffle buffer, whose contents its state leaves out."""
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
