"""`ParquetDataset`: the rows of Parquet files, copied from Arrow's memory straight into slots."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuloader.errors import DataFileError, LoaderError, missing_package
from gpuloader.order.worker_info import get_worker_info
from gpuloader.sources.block import Block, Column, Part
from gpuloader.sources.files.remote_files import ATTEMPTS, TIMEOUT, Tries, as_urls, is_remote, open_source
from gpuloader.sources.files.shards import ShardDataset
from gpuloader.sources.tables.arrow import check_values, columns_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

PIECE_NBYTES = 1 << 20
"""Bytes to decode at a time, roughly: few enough to be in the CPU's cache when they are copied."""

_READERS = 16  # threads that read footers, which is mostly waiting


class ParquetDataset(ShardDataset[dict[str, Any], Any, Any]):
    """The rows of Parquet files; a sample is a dict with one value per column.

    One worker of one rank reads each row group, and only the selected columns of it. So without the loader's
    `shard`, each rank has its own row groups, and row groups of unequal size make shares of unequal length.
    With `shard`, every rank reads everything, and the loader divides the samples equally.

    Numbers and booleans are copied column by column from Arrow's memory into the loader's slots. Lists of
    fixed length and tensors become arrays of more dimensions. Lists of numbers of varying length need the
    loader's `ragged` or `pad`. Text, dates, lists of them and other values become one Python object per row.
    Each field of a struct follows the same rules, so its numbers become arrays.

    Memory: a worker holds the stored columns of one row group and about 1 MiB of decoded rows. A
    `shuffle_buffer` adds that many decoded rows, and twice that while a window is assembled: 65,536 rows of
    64 float32 and an int64 take 17 MB.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files, all with the same schema. fsspec reads URLs with a scheme and takes credentials from its
        own configuration.
    columns : list of str or None
        The columns to read; None reads all.
    shuffle : bool
        True reads the row groups in an order drawn from `seed` and the epoch. False reads them in turn.
    shuffle_buffer : int or None
        The number of rows, from several row groups, to shuffle together. None keeps the rows of a row group
        in order.
    seed : int
        The seed of all orders; must be the same on all ranks. It is independent of the loader's seed, but the
        epoch is the loader's.
    attempts : int
        How many times to try a read over connections that drop. The waits in between grow to 5 s at most.
    timeout : float
        Seconds after which one attempt to read from a server has failed; 0 means no limit.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the columns read.
    rows : int
        The number of rows in all files. Ranks and workers divide row groups, so their shares may be unequal.

    Raises
    ------
    MissingPackage
        pyarrow is not installed, or fsspec is not and a URL needs it.
    SourceError
        A file cannot be read.
    DataFileError
        A file is truncated, is not a Parquet file, lacks a column, or has another schema than the first. Also
        raised while reading if a row group is damaged, has a null among its numbers or text that is not
        UTF-8, or if the file has changed. The message names the file, the row group and the column.

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
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(shuffle=shuffle, shuffle_buffer=shuffle_buffer, seed=seed)
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, got {columns!r}")
        self._urls = as_urls(urls)
        self._tries = Tries.of(attempts, timeout)
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
        """The number of row groups."""
        return len(self._groups)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.iter_blocks(1):
            yield from block

    def iter_blocks(self, size: int) -> Iterator[Block]:
        """Yield the samples of this worker's row groups in columns, `size` per block, the last maybe fewer.

        Raises the errors of the class.
        """
        for parts in self._takes(size):
            yield Block([Part(columns, rows) for columns, rows in parts])

    def _read_footer(self, url: str) -> tuple[pa.Schema, list[int]]:
        with _opened(url, self._tries) as file:
            counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            return file.schema_arrow, counts

    def _read(self, shard: int, skip: int) -> Iterator[Any]:
        from pyarrow import Table

        number, group, count = self._groups[shard]
        # Workers are parallel already. Without them, Arrow reads the columns of a row group in threads.
        threads = get_worker_info() is None
        with _opened(self._urls[number], self._tries, group) as file:
            if group >= file.num_row_groups or file.metadata.row_group(group).num_rows != count:
                raise DataFileError(
                    "the file has changed since the dataset was made; make a new dataset",
                    file=self._urls[number],
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

        # Files may disagree on whether a column is nullable; `check_values` has excluded nulls.
        return columns_of(concat_tables(pieces, promote_options="default"))


@contextmanager
def _opened(url: str, tries: Tries, row_group: int | None = None) -> Iterator[Any]:
    """Open a Parquet file and close it afterwards; raise Arrow's errors in between as `DataFileError`."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise missing_package("reading Parquet files", "pyarrow", "parquet") from None
    with open_source(url, tries) as source:
        try:
            # Given a path, Arrow reads a local file without going through Python.
            with ParquetFile(source if is_remote(url) else url, pre_buffer=True) as file:
                yield file
        except (LoaderError, MemoryError):  # Arrow's ArrowMemoryError is a MemoryError too
            raise
        except (ArrowException, OSError) as error:
            raise DataFileError(
                f"the file is truncated or not a Parquet file: {error}", file=url, row_group=row_group
            ) from error


def _count_rows_at_once(group: Any, names: Set[str]) -> int:
    """Return how many rows of a row group to decode at a time, from the column sizes in the footer."""
    columns = [group.column(number) for number in range(group.num_columns)]
    read = [column for column in columns if column.path_in_schema.partition(".")[0] in names]
    nbytes = max(sum(int(column.total_uncompressed_size) for column in read), PIECE_NBYTES)
    return max(PIECE_NBYTES * int(group.num_rows) // nbytes, 1)


def _choose(schema: pa.Schema, columns: Sequence[str] | None, url: str) -> pa.Schema:
    """Return the schema of the selected columns."""
    from pyarrow import schema as make_schema

    known = Counter(schema.names)
    if not known:
        raise DataFileError("the file has no columns", file=url)
    names = schema.names if columns is None else list(columns)
    for name in names:
        if name not in known:
            raise DataFileError(f"no column of this name; the file has {schema.names}", file=url, column=name)
        if known[name] > 1:
            raise DataFileError("several columns have this name; choose others", file=url, column=name)
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"columns must be one or more different names, got {names}")
    return make_schema([schema.field(name) for name in names])


def _check_schema(expected: pa.Schema, found: pa.Schema, url: str, first: str) -> None:
    kinds: dict[str, list[pa.DataType]] = {}
    for field in found:
        kinds.setdefault(field.name, []).append(field.type)
    for field in expected:
        if field.name not in kinds:
            raise DataFileError(f"no column of this name, unlike in {first}", file=url, column=field.name)
        kind, *others = kinds[field.name]
        if others:
            raise DataFileError("several columns have this name", file=url, column=field.name)
        if kind != field.type:
            raise DataFileError(
                f"expected {field.type} as in {first}, got {kind}", file=url, column=field.name
            )
