"""`ArrowDataset`: the rows of files in Arrow's own format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from gpuloader.errors import DataFileError, SourceError
from gpuloader.sources.block import Rows
from gpuloader.sources.files.remote_files import RemoteFile, open_source
from gpuloader.sources.files.table_shards import CHANGED, TableShards

_MOST_READERS, _MOST_ENDS = 16, 128
"""Files to keep open during a pass, and ends of remote files to keep, which hold their footers."""

_OTHERS = {
    b"\xff\xff\xff\xff": "Arrow's format of streams; read it with pyarrow.ipc.open_stream, or "
    "datasets.load_from_disk if Hugging Face wrote it, and pass the loader that",
    b"FEA1": "the format of Feather's version 1; read it with pyarrow.feather.read_table, and write it again",
}
"""What files of other formats are, and how to read them, by their first bytes."""


@dataclass(eq=False, repr=False)
class ArrowDataset(TableShards):
    """The rows of Arrow IPC files, also called Feather; a sample is a dict with one value per column.

    A shard is a record batch, and one worker of one rank reads it. Values are those of a `ParquetDataset`. To
    shuffle everything, memory-map an uncompressed file and pass the table to the loader instead.

    Memory: a worker holds one record batch, or a few of remote files, a `shuffle_buffer`, and the last 64 KiB
    of up to 128 remote files. During a pass, up to 16 files stay open.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files, all with the same columns. A pattern such as ``data/*.feather`` stands for the files that
        match, in order of their names, and a folder for those that end in ``.arrow`` or ``.feather``.
    columns, schema, filters, fill, map
        As for `ParquetDataset`; `filters` names columns that are in the files.
    shuffle, shuffle_buffer, seed, attempts, timeout, storage_options, cache_dir, cache_size
        As for `ParquetDataset`; record batches are what is shuffled.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the columns read.

    Raises
    ------
    MissingPackage, SourceError, DataFileError
        As for `ParquetDataset`.

    Examples
    --------
    >>> import tempfile, numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> pa, feather = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.feather"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     feather.write_feather(pa.table({"x": np.arange(5)}), f"{folder}/a.arrow", chunksize=2)
    ...     loader = DataLoader(ArrowDataset(folder), places="cpu", batch_size=3)
    ...     [batch["x"].tolist() for batch in loader]
    [[0, 1, 2], [3, 4]]
    """

    _pattern = "*.arrow *.feather"
    _listed = "_batches"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._readers: dict[tuple[Any, ...], tuple[BinaryIO, Any]] = {}
        self._ends: dict[str, tuple[int, bytes]] = {}
        self._batches: list[tuple[str, int]] = []
        self._passes: set[tuple[int, object]] = set()  # those that are running, in which process
        schemas = []
        for url in self._urls:
            with self._opened(url) as opened:
                schemas.append(opened.schema)
                self._batches += [(url, number) for number in range(opened.num_record_batches)]
        self._choose(schemas)
        self._check_filters(schemas[0])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_readers": {}, "_ends": {}, "_passes": set()}

    def _takes(self, size: int) -> Iterator[list[tuple[Any, Rows]]]:
        running = os.getpid(), object()
        self._passes.add(running)
        try:
            yield from super()._takes(size)
        finally:
            self._passes.discard(running)
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close readers, first those used longest ago: all but a few during a pass, and then all."""
        most = _MOST_READERS if any(process == os.getpid() for process, _ in list(self._passes)) else 0
        keys = list(self._readers)
        for key in keys[: max(len(keys) - most, 0)]:
            source, _ = self._readers.pop(key, (None, None))
            if source is not None:  # another thread was not faster
                source.close()

    def _read(self, shards: Sequence[int], skip: int) -> Iterator[Any]:
        from pyarrow import Table

        url, number = self._batches[shards[0]]
        with self._opened(url) as opened:
            if number >= opened.num_record_batches:
                raise SourceError(CHANGED, url=url)
            table = Table.from_batches([opened.get_batch(number)])
            if self.filters is not None:
                table = table.filter(self.filters)
        if skip < len(table):
            yield self._prepare(table[skip:], file=url)

    @contextmanager
    def _opened(self, url: str) -> Iterator[Any]:
        """Lend a reader of a file, which stays open for the next record batches of the pass."""
        from pyarrow import ArrowException, ipc

        known = self._ends.get(url)
        # Several threads run this, and a reader is for one of them, because it has a position in the file. So
        # a fork must not share it either. Each of these steps on the dicts is atomic.
        key = os.getpid(), url
        problem = "the file is truncated or not a file of Arrow's IPC format: "
        with self._reading(url, problem, ArrowException, OSError):
            source, reader = self._readers.pop(key, (None, None))
            try:
                if source is None:
                    # Not memory-mapped: another process that truncates the file would crash this one.
                    source = open_source(url, self._tries, known=known)
                    if known is None and isinstance(source, RemoteFile):
                        self._ends[url] = source.keep_end()
                        for one in list(self._ends)[:-_MOST_ENDS]:
                            self._ends.pop(one, None)
                    reader = ipc.open_file(source)
                yield reader
                other = self._readers.pop(key, None)  # of another thread
                self._readers[key], source = (source, reader), other and other[0]
                # A thread that reads ahead may come here after the pass has ended.
                self._close_if_unused()
            except ArrowException as error:
                with open_source(url, self._tries) as again:
                    if told := _OTHERS.get(again.read(4)):
                        raise DataFileError(f"the file has {told}", file=url) from error
                raise
            finally:
                if source is not None:
                    source.close()
