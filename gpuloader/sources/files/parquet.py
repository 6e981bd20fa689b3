"""`ParquetDataset`: the rows of Parquet files, from Arrow's memory straight into slots."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuloader.base.checks import check_count
from gpuloader.base.errors import DataFileError, LoaderError, missing_package
from gpuloader.order.worker_info import get_worker_info
from gpuloader.sources.block import Block, Column, Part
from gpuloader.sources.files.arrow import check_values, columns_of
from gpuloader.sources.files.opening import ATTEMPTS, as_urls, is_remote, open_source
from gpuloader.sources.files.shards import ShardDataset

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

PIECE_NBYTES = 1 << 20
"""About so many bytes are decoded at a time: they are still in the processor's cache when they are copied."""

_READERS = 16  # files whose footers are read at the same time: that is waiting, mostly


class ParquetDataset(ShardDataset[dict[str, Any], Any, Any]):
    """The rows of Parquet files; a sample is a dict of one value a column.

    Row groups are the unit of reading: each is read by one worker of one rank, and only the columns asked
    for are. So ranks have parts of the dataset without the loader's `shard`, and of unequal length where
    their row groups are; with it every rank reads everything, and equal parts are dealt.

    Numbers and booleans go from Arrow's memory into the loader's slots column by column, lists of fixed
    length and tensors as arrays of more dimensions. Lists of numbers of varying length are for the loader's
    `ragged` or `pad`. Text, dates, lists of them and whatever else become Python objects, one a row; of a
    struct each field does for itself, numbers again as arrays.

    Memory: a worker holds the columns of a row group as they are stored, and about 1 MiB of decoded rows;
    with a `shuffle_buffer` so many decoded rows more, twice while they are put together: of 65,536 rows of 64
    float32 and an int64, 17 MB.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files, all of one schema; those with a scheme are read through fsspec, whose own configuration
        has credentials and the like.
    columns : list of str or None
        Which columns; None: all.
    shuffle : bool
        Read the row groups in an order drawn from `seed` and epoch.
    shuffle_buffer : int or None
        Rows that are shuffled at a time, drawn from several row groups; None: rows stay in their order.
    seed : int
        Of the orders; the same on all ranks. It is not the loader's, whose epoch counts.
    attempts : int
        How often to ask for what a dropped connection did not bring, with growing waits of 5 s at most.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of the columns read.
    rows : int
        Of all row groups; ranks and workers have row groups, so their shares need not be equal.

    Raises
    ------
    MissingPackage
        pyarrow is not installed, or fsspec where a URL needs it.
    SourceError
        A file cannot be read.
    DataFileError
        One is truncated, is no Parquet file, lacks a column, or has another schema than the first; while
        reading, a row group is damaged, has a null among its numbers or text that is no UTF-8, or the file
        has changed. Names file, row group and column.

    Examples
    --------
    >>> import tempfile, numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> pa, pq = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    >>> folder = tempfile.TemporaryDirectory()
    >>> table = pa.table({"label": np.arange(6), "name": list("abcdef")})
    >>> pq.write_table(table, f"{folder.name}/a.parquet", row_group_size=4)
    >>> dataset = ParquetDataset(f"{folder.name}/a.parquet", shuffle=True, shuffle_buffer=6)
    >>> [batch["name"] for batch in DataLoader(dataset, places="cpu", batch_size=4)]
    [['b', 'e', 'a', 'c'], ['d', 'f']]
    >>> folder.cleanup()
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        shuffle: bool = False,
        shuffle_buffer: int | None = None,
        seed: int = 0,
        attempts: int = ATTEMPTS,
    ) -> None:
        super().__init__(shuffle=shuffle, shuffle_buffer=shuffle_buffer, seed=seed)
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, got {columns!r}")
        self._urls = as_urls(urls)
        self._attempts = check_count("attempts", attempts)
        with ThreadPoolExecutor(min(_READERS, len(self._urls))) as pool:
            footers = list(pool.map(self._read_footer, self._urls))
        self.schema = _choose(footers[0][0], columns, self._urls[0])
        for url, (schema, _) in zip(self._urls, footers, strict=True):
            _check_schema(self.schema, schema, url, self._urls[0])
        self._groups = [
            (file, group, count)
            for file, (_, counts) in enumerate(footers)
            for group, count in enumerate(counts)
        ]
        self.rows = sum(sum(counts) for _, counts in footers)

    @property
    def shards(self) -> int:
        """How many row groups there are."""
        return len(self._groups)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.iter_blocks(1):
            yield from block

    def iter_blocks(self, size: int) -> Iterator[Block]:
        """Yield the samples of this worker's row groups in columns, `size` at a time, at last fewer.

        Raises as the class does.
        """
        for parts in self._takes(size):
            yield Block([Part(columns, rows) for columns, rows in parts])

    def _read_footer(self, url: str) -> tuple[pa.Schema, list[int]]:
        with _opened(url, self._attempts) as file:
            counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            return file.schema_arrow, counts

    def _read(self, shard: int, skip: int) -> Iterator[Any]:
        from pyarrow import Table

        number, group, count = self._groups[shard]
        # Workers are so many already; one thread reads a row group's columns at the same time.
        threads = get_worker_info() is None
        with _opened(self._urls[number], self._attempts, group) as file:
            if group >= file.num_row_groups or file.metadata.row_group(group).num_rows != count:
                raise DataFileError(
                    "it has changed since the dataset was made; make a new one", file=self._urls[number]
                )
            rows = _count_rows_at_once(file.metadata.row_group(group), set(self.schema.names))
            for batch in file.iter_batches(rows, [group], self.schema.names, use_threads=threads):
                rest = batch[min(skip, len(batch)) :]
                skip -= len(batch) - len(rest)
                if len(rest):
                    piece = Table.from_batches([rest])
                    check_values(piece, file=self._urls[number], row_group=group)
                    yield piece

    def _gather(self, pieces: Sequence[Any]) -> Mapping[str, Column]:
        from pyarrow import concat_tables

        # Whether a column may have nulls is not the same in all files: none of them has.
        return columns_of(concat_tables(pieces, promote_options="default"))


@contextmanager
def _opened(url: str, attempts: int, row_group: int | None = None) -> Iterator[Any]:
    """Open a Parquet file, and close it; what Arrow finds wrong with it meanwhile is a `DataFileError`."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise missing_package("reading Parquet files", "pyarrow", "parquet") from None
    with open_source(url, attempts) as source:
        try:
            # Arrow itself reads a local file without Python in between.
            with ParquetFile(source if is_remote(url) else url, pre_buffer=True) as file:
                yield file
        except (LoaderError, MemoryError):  # which Arrow's own error of this kind is as well
            raise
        except (ArrowException, OSError) as error:
            raise DataFileError(
                f"it is truncated or no Parquet file: {error}", file=url, row_group=row_group
            ) from error


def _count_rows_at_once(group: Any, names: Set[str]) -> int:
    """Return how many rows of a row group to decode at a time, by what its footer says of its columns."""
    columns = [group.column(number) for number in range(group.num_columns)]
    read = [column for column in columns if column.path_in_schema.partition(".")[0] in names]
    nbytes = max(sum(int(column.total_uncompressed_size) for column in read), PIECE_NBYTES)
    return max(PIECE_NBYTES * int(group.num_rows) // nbytes, 1)


def _choose(schema: pa.Schema, columns: Sequence[str] | None, url: str) -> pa.Schema:
    """Return the part of a schema that is read."""
    from pyarrow import schema as make_schema

    known = Counter(schema.names)
    if not known:
        raise DataFileError("there are no columns", file=url)
    names = schema.names if columns is None else list(columns)
    for name in names:
        if name not in known:
            raise DataFileError(f"there is no such column; there are {schema.names}", file=url, column=name)
        if known[name] > 1:
            raise DataFileError("several columns have this name; choose others", file=url, column=name)
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"columns must be different names, one or more, got {names}")
    return make_schema([schema.field(name) for name in names])


def _check_schema(expected: pa.Schema, found: pa.Schema, url: str, first: str) -> None:
    kinds: dict[str, list[pa.DataType]] = {}
    for field in found:
        kinds.setdefault(field.name, []).append(field.type)
    for field in expected:
        if field.name not in kinds:
            raise DataFileError(f"there is no such column, unlike in {first}", file=url, column=field.name)
        kind, *others = kinds[field.name]
        if others:
            raise DataFileError("several columns have this name", file=url, column=field.name)
        if kind != field.type:
            raise DataFileError(
                f"expected {field.type} as in {first}, got {kind}", file=url, column=field.name
            )
