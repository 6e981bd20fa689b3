"""`ParquetDataset`: the rows of Parquet files, copied from Arrow's memory straight into slots."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpuloader.errors import DataFileError, LoaderError, import_package
from gpuloader.order.worker_info import get_worker_info
from gpuloader.sources.files.remote_files import (
    RemoteFile,
    as_urls,
    find_files,
    is_remote,
    open_source,
)
from gpuloader.sources.files.shards import TableShards
from gpuloader.sources.tables.arrow import check_values

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_NBYTES = 1 << 20
"""Bytes to decode at a time, roughly: few enough to be in the CPU's cache when they are copied."""

TOGETHER_NBYTES = 4 << 20
"""Stored bytes of small row groups to read together: a request for each would cost more than its bytes."""

FOOTERS_NBYTES = 8 << 20
"""Bytes of footers to keep, as stored; in memory, Arrow takes about seven times as many."""

_SMALL = 1 << 20  # bytes of a remote file whose end is kept, because all of its data may lie there
_END = 64 << 10  # bytes at a file's end that Arrow reads to find the footer
_READERS = 16  # threads that read footers, which is mostly waiting


@dataclass(eq=False, repr=False)
class ParquetDataset(TableShards):
    """The rows of Parquet files; a sample is a dict with one value per column.

    One worker of one rank reads each row group, and only the selected columns of it. So without the loader's
    `shard`, each rank has its own row groups, and row groups of unequal size make shares of unequal length.
    With `shard`, every rank reads everything, and the loader divides the samples equally.

    Numbers and booleans are copied column by column from Arrow's memory into the loader's slots. Lists of
    fixed length and tensors become arrays of more dimensions. Lists of numbers of varying length need the
    loader's `ragged` or `pad`. Text, dates, lists of them and other values become one Python object per row.
    Each field of a struct follows the same rules, so its numbers become arrays.

    Memory: a worker holds the stored columns of one row group, or of several small ones with 4 MiB together,
    about 1 MiB of decoded rows, and up to 60 MB of footers. Of remote files, up to 16 such reads are under
    way, with 32 MiB together and 2 MiB of decoded rows each. A `shuffle_buffer` adds that many decoded rows,
    and twice that while a window is assembled: 65,536 rows of 64 float32 and an int64 take 17 MB.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files, all with the same schema. A pattern such as ``data/*.parquet`` or a folder stands for the
        files that match, in order of their names; a remote folder ends with a slash. fsspec reads URLs with
        a scheme and takes credentials from its own configuration.
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
        Seconds after which one attempt to read from a server has failed; 0 means no limit. By default, a
        server must also have answered once within 10 s.
    storage_options : dict or None
        What to give to fsspec with URLs, such as credentials. Workers get it, and nothing shows it.
    cache_dir : path or None
        A local folder for remote files. Each is fetched whole by the first process of the machine that needs
        it, and read there from then on; what a URL holds must not change. None keeps no files.
    cache_size : int or None
        The bytes of files to keep; those used longest ago are removed. None sets no limit.

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
        A file cannot be read, or none matches a pattern.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._urls = find_files(as_urls(self.urls), "*.parquet", self._tries)
        self._footers: dict[int, Footer] = {}
        with ThreadPoolExecutor(min(_READERS, len(self._urls))) as pool:
            found = list(pool.map(self._read_footer, range(len(self._urls))))
        first = found[0][0]
        self.schema = self._choose(dict(zip(first.names, first.types, strict=True)))
        for url, (schema, _) in zip(self._urls, found, strict=True):
            _check_schema(self.schema, schema, url, self._urls[0])
        self._groups = [group for _, groups in found for group in groups]
        self._counts = [group.rows for group in self._groups]
        self.rows = sum(self._counts)

    @property
    def shards(self) -> int:
        """The number of row groups."""
        return len(self._groups)

    def _read_footer(self, file: int) -> tuple[pa.Schema, list[Group]]:
        with self._opened(file) as opened:
            schema = opened.schema_arrow
            return schema, _list_groups(opened.metadata, file, set(self._names or schema.names))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": {}}  # a process reads those that it needs

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of earlier releases do not say how large row groups are: those are read one by one.
        groups = [one if isinstance(one, Group) else Group(*one) for one in state["_groups"]]
        counts = [group.rows for group in groups]
        super().__setstate__({**state, "_footers": {}, "_groups": groups, "_counts": counts})

    def _together(self, order: Sequence[int], first: int) -> int:
        nbytes, file = 0, self._groups[order[first]].file
        # Scattered parts of a remote file need a request each: then they are read ahead, several at a time.
        scattered = is_remote(self._urls[file]) and self._file_nbytes[file] > TOGETHER_NBYTES
        for at in range(first, len(order)):
            group = self._groups[order[at]]
            nbytes += group.stored
            if at > first and (
                group.file != file
                or nbytes > TOGETHER_NBYTES
                or (scattered and group.number != self._groups[order[at - 1]].number + 1)
            ):
                return at - first
        return len(order) - first

    def _nbytes(self, shard: int) -> int:
        return self._groups[shard].stored

    @cached_property
    def _file_nbytes(self) -> Counter[int]:
        """The stored bytes of all row groups of each file."""
        found = Counter[int]()
        for group in self._groups:
            found[group.file] += group.stored
        return found

    def _read(self, shards: Sequence[int], skip: int) -> Iterator[Any]:
        from pyarrow import Table

        groups = [self._groups[shard] for shard in shards]
        file, number = groups[0].file, groups[0].number if len(groups) == 1 else None
        # Workers are parallel already, and so are the parts of remote files. Otherwise, Arrow reads the
        # columns of a row group in threads.
        threads = not is_remote(self._urls[file]) and get_worker_info() is None
        at_once = sum(group.rows for group in groups) * PIECE_NBYTES
        at_once //= max(sum(group.decoded for group in groups), PIECE_NBYTES)
        done = 0
        try:
            with self._opened(file, number) as opened:
                numbers = [group.number for group in groups]
                there = range(opened.num_row_groups)
                if [opened.metadata.row_group(one).num_rows for one in numbers if one in there] != [
                    group.rows for group in groups
                ]:
                    problem = "the file has changed since the dataset was made; make a new dataset"
                    raise DataFileError(problem, file=self._urls[file])
                for batch in opened.iter_batches(
                    max(at_once, 1), numbers, self.schema.names, use_threads=threads
                ):
                    rest = batch[max(skip - done, 0) :]
                    if len(rest):
                        piece = Table.from_batches([rest])
                        check_values(piece, file=self._urls[file], row_group=number)
                        yield piece
                    done += len(batch)
        except DataFileError:
            if len(shards) == 1:
                raise
            # One by one from here, so that the error names the row group, after all that is whole.
            done = max(done, skip)
            for shard, group in zip(shards, groups, strict=True):
                if done < group.rows:
                    yield from self._read([shard], done)
                done = max(done - group.rows, 0)

    @contextmanager
    def _opened(self, file: int, row_group: int | None = None) -> Iterator[Any]:
        """Open a Parquet file and close it afterwards; raise Arrow's errors in between as `DataFileError`."""
        arrow = import_package("pyarrow", "reading Parquet files", "parquet")
        from pyarrow.parquet import ParquetFile

        url = self._urls[file]
        kept = self._footers.get(file)
        known, stamp = kept.known if kept else None, None
        with open_source(url, self._tries, known=known) as source:
            if isinstance(source, RemoteFile):
                known = known or source.keep_end(_END)
            else:
                status = os.fstat(source.fileno())
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                if kept and kept.stamp != stamp:
                    kept = None
            try:
                # Given a path, Arrow reads a local file without going through Python.
                with ParquetFile(
                    source if is_remote(url) else url, metadata=kept and kept.metadata, pre_buffer=True
                ) as opened:
                    if kept is None:
                        # The end of a file that is not small holds little but the footer.
                        if known and known[0] > _SMALL:
                            known = known[0], b""
                        self._keep(file, Footer(opened.metadata, stamp, known))
                    yield opened
            except (LoaderError, MemoryError):  # Arrow's ArrowMemoryError is a MemoryError too
                raise
            except (arrow.ArrowException, OSError) as error:
                raise DataFileError(
                    f"the file is truncated or not a Parquet file: {error}", file=url, row_group=row_group
                ) from error

    def _keep(self, file: int, footer: Footer) -> None:
        """Keep a footer, and drop the oldest ones beyond `FOOTERS_NBYTES`."""
        # Threads do this together, without a lock that a fork could copy while it is held: each of these
        # steps on the dict is one step for them.
        self._footers.pop(file, None)
        self._footers[file] = footer
        nbytes = 0
        for number, one in reversed(list(self._footers.items())):
            nbytes += one.nbytes
            if nbytes > FOOTERS_NBYTES and one is not footer:
                self._footers.pop(number, None)


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: its file, its number there, its rows, and about how many bytes its columns take."""

    file: int
    number: int
    rows: int
    stored: int = TOGETHER_NBYTES
    decoded: int = TOGETHER_NBYTES


@dataclass(frozen=True, slots=True)
class Footer:
    """What is known of a file: Arrow's metadata, and what need not be requested of a remote file again."""

    metadata: Any
    stamp: tuple[int, ...] | None  # of a local file, which changes when the file does
    known: tuple[int, bytes] | None

    @property
    def nbytes(self) -> int:
        """The size of what is kept, as it is stored."""
        return int(self.metadata.serialized_size) + (len(self.known[1]) if self.known else 0)


def _list_groups(metadata: Any, file: int, names: Set[str]) -> list[Group]:
    """Return the row groups of file number `file`, of which the columns with some names are read."""
    found = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if not found:
        return []
    # The share of these columns in the first row group stands for all: to ask for each column of each group
    # takes as long as to decode small ones.
    columns = [found[0].column(number) for number in range(found[0].num_columns)]
    read = [column for column in columns if column.path_in_schema.partition(".")[0] in names]
    whole = max(sum(int(column.total_uncompressed_size) for column in columns), 1)
    stored = sum(int(column.total_compressed_size) for column in read) / whole
    decoded = sum(int(column.total_uncompressed_size) for column in read) / whole
    sizes = [(int(group.num_rows), int(group.total_byte_size)) for group in found]
    return [
        Group(file, number, rows, int(size * stored), int(size * decoded))
        for number, (rows, size) in enumerate(sizes)
    ]


def _check_schema(expected: pa.Schema, found: pa.Schema, url: str, first: str) -> None:
    for field in expected:
        kinds = [other.type for other in found if other.name == field.name]
        if not kinds:
            problem = f"no column of this name, unlike in {first}"
        elif len(kinds) > 1:
            problem = "several columns have this name"
        elif kinds[0] != field.type:
            problem = f"expected {field.type} as in {first}, got {kinds[0]}"
        else:
            continue
        raise DataFileError(problem, file=url, column=field.name)
