"""`ParquetDataset`: the rows of Parquet files, copied from Arrow's memory straight into slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import DataFileError, NoIndices, SourceError, import_package
from gpuloader.order.worker_info import ask_ranks, get_worker_info
from gpuloader.sources.block import Block, Part, Rows, number_rows
from gpuloader.sources.column_dataset import ColumnDataset
from gpuloader.sources.files.remote_files import RemoteFile, is_remote, open_source
from gpuloader.sources.files.table_shards import CHANGED, TableShards
from gpuloader.sources.tables.arrow import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_NBYTES, REMOTE_PIECE_NBYTES = 8 << 20, 1 << 20
"""Approximate bytes to decode at a time; fewer of remote files, of which several are read ahead."""

TOGETHER_NBYTES = 4 << 20
"""Stored bytes of small row groups to read together: separate requests would cost more than the bytes."""

FOOTERS_NBYTES = 8 << 20
"""Bytes of footers to keep, as stored; in memory, Arrow needs about seven times as much."""

HELD_NBYTES = 512 << 20
"""Bytes of decoded row groups to hold for random access."""

_SMALL = 1 << 20  # remote files up to this size keep their end, because it may hold all of their data


@dataclass(eq=False, repr=False)
class ParquetDataset(TableShards):
    """The rows of Parquet files; a sample is a dict with one value per column.

    One worker of one rank reads each row group, and only its selected columns. So without the loader's
    `shard`, each rank has its own row groups, and unequal row groups lead to unequal shares. With `shard`,
    every rank reads everything, and the loader divides the samples equally.

    Numbers and booleans are copied column by column from Arrow's memory into the loader's slots. Lists of
    fixed length and tensors become arrays of more dimensions. Lists of numbers of varying length need the
    loader's `ragged` or `pad`. Text, dates, lists of them and other values become one Python object per row.
    Each field of a struct follows the same rules, so its numbers become arrays, but always of int64 or
    float64, because structs become Python objects in between. Names of folders such as ``year=2024`` add no
    column.

    Memory: a worker holds the stored columns of one row group, or of several small ones with 4 MiB together,
    about 8 MiB of decoded rows, and up to 60 MB of footers. From remote files, it reads up to 16 such pieces
    at a time, with 32 MiB together and 2 MiB of decoded rows each. A `shuffle_buffer` adds that many decoded
    rows, and twice that while a window is assembled: 65,536 rows of 64 float32 and an int64 take 17 MB.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files, all with the same columns. A pattern such as ``data/*.parquet`` or a folder stands for the
        files that match, in order of their names; a remote folder ends with a slash. fsspec reads URLs with
        a scheme and takes credentials from its own configuration.
    columns : list of str or None
        The columns to read; None reads all.
    schema : pyarrow.Schema, dict or None
        The types of columns, such as ``{"price": "float32", "day": "int32"}``, to which all files are cast.
        By default, the first file's types; other files may differ from it in width or encoding, if their
        values fit without being rounded.
    filters : pyarrow.compute.Expression, list or None
        Which rows to read, such as ``[("year", ">", 2020)]``. Row groups whose statistics rule them out are
        skipped, except for short gaps of up to 1 MiB in remote files. The filter compares stored values, and
        may name columns that are not read.
    fill : dict or None
        Replacements for nulls, by column, such as ``{"age": -1}``. Without a replacement, a null among
        numbers is an error.
    map : callable or None
        Called with each sample, a dict, in the worker that reads it; returns what the loader gets.
    shuffle : bool
        True reads the row groups in an order drawn from `seed` and the epoch. False reads them in order.
    shuffle_buffer : int or None
        The number of rows, from several row groups, to shuffle together. None keeps the rows of a row group
        in order.
    seed : int
        The seed of all orders; must be the same on all ranks. It is independent of the loader's seed, but the
        epoch is the loader's.
    attempts : int
        How many times to try a read if connections drop. The waits in between grow to at most 5 s.
    timeout : float
        Seconds after which one attempt to read from a server has failed; 0 means no limit. By default, a
        server must also have answered once within 10 s.
    storage_options : dict or None
        Options for fsspec along with URLs, such as credentials. Workers receive them; nothing prints them.
    cache_dir : path or None
        A local folder for remote files. The first process of the machine that needs a file fetches it whole,
        and all read it there from then on. The contents of a URL must not change. Other files in the folder
        stay. None keeps no files.
    cache_size : int or None
        The most bytes of files to keep; the least recently used files are removed. None sets no limit.

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
        A file cannot be read or has changed since, or none matches a pattern.
    DataFileError
        A file is truncated, is not a Parquet file, lacks a column, or has a column whose kind differs from
        the first file's. Also raised while reading: a row group is damaged, has a null among its numbers, a
        value that does not fit or text that is not UTF-8, or the file has changed. The message names the
        file, the row group and the column.

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

    _pattern = "*.parquet"
    _listed = "_groups"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Of files: Arrow's metadata, and the parts of a remote file not to request again.
        self._footers: dict[int, tuple[Any, tuple[int, bytes] | None]] = {}
        found = self._ask_files(self._read_footer, range(len(self._urls)))
        self._choose(schema for schema, *_ in found)
        self._groups = [group for _, groups, _ in found for group in groups]
        self.rows = sum(group.rows for group in self._groups)
        counts = enumerate(count for *_, counts in found for count in counts)
        self._counts = {shard: count for shard, count in counts if count is not None}

    def __len__(self) -> int:
        if self.filters is not None or ask_ranks()[1] > 1:
            raise NoIndices(
                "a ParquetDataset has no length with filters, nor on several ranks, because each reads its "
                "own row groups; its attribute rows is the number in all files"
            )
        return self.rows

    def random_access(self, *, memory: int = HELD_NBYTES) -> ParquetRows:
        """Return the rows as a map-style dataset, which can be split, and shuffled as a whole.

        A batch decodes the row groups of its rows, unless the process already holds them. `memory` limits the
        bytes of decoded row groups that each process holds. Shuffling everything is fast if all of them fit;
        otherwise, let the dataset shuffle in windows. The dataset must have no `filters` and no `map`.

        Examples
        --------
        >>> import tempfile, pytest
        >>> from gpuloader import random_split
        >>> pa, pq = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pq.write_table(pa.table({"x": range(9)}), f"{folder}/a.parquet", row_group_size=2)
        ...     rows = ParquetDataset(f"{folder}/a.parquet").random_access()
        ...     train, test = random_split(rows, [6, 3], seed=0)
        ...     len(rows), rows[-1], rows[[7, 0]], test[[0, 1, 2]]["x"]
        (9, {'x': np.int64(8)}, {'x': array([7, 0])}, array([2, 3, 5]))
        """
        if self.filters is not None or self.map is not None:
            raise ValueError("a dataset with filters or map has no random access to its rows")
        return ParquetRows(self, list(self._counts.values()), check_count("memory", memory))

    def _read_footer(self, file: int) -> tuple[pa.Schema, list[Group], list[int | None]]:
        """Return a file's schema, its row groups, and how many rows each yields, if the footer tells."""
        with self._opened(file) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
            groups = _list_groups(metadata, file, set(self._find_columns(schema) or schema.names))
            if self.filters is None:
                return schema, groups, [group.rows for group in groups]
            if file == 0:  # otherwise this file is wrong, and not the filters
                self._check_filters(schema)
            import pyarrow.dataset

            # Arrow compares filters with the statistics of a file, not with a footer. So make one of it.
            metadata.write_metadata_file(sink := pyarrow.BufferOutputStream())
            whole = pyarrow.dataset.ParquetFileFormat().make_fragment(pyarrow.BufferReader(sink.getvalue()))
            kept = {group.id for group in whole.subset(self.filters).row_groups}
            return schema, groups, [None if group.number in kept else 0 for group in groups]

    def _find_columns(self, schema: pa.Schema) -> list[str] | None:
        """Return the columns to read from a file, with those that only the filters need; None means all."""
        text, names = str(self.filters), list(self._names or schema.names)
        if "FieldPath" in text:  # by their numbers
            return None
        for number, name in enumerate(schema.names):
            if name in text and name not in names:  # perhaps only as a part of another name, or as a value
                try:
                    self._check_filters(schema.remove(number))
                except ValueError:
                    names.append(name)
        return names

    def __getstate__(self) -> dict[str, Any]:
        # Each process reads the footers that it needs. Threads may add counts to the dict meanwhile.
        return {**self.__dict__, "_footers": {}, "_counts": dict(self._counts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of earlier releases lack the sizes of row groups; those are read one by one.
        groups = [one if isinstance(one, Group) else Group(*one) for one in state["_groups"]]
        rows = dict(enumerate(group.rows for group in groups))
        counts = rows if state.get("filters") is None else state.get("_counts", {})
        super().__setstate__({**state, "_footers": {}, "_groups": groups, "_counts": counts})

    def _together(self, order: Sequence[int], first: int) -> int:
        nbytes, gap, last, file = 0, 0, first, self._groups[order[first]].file
        remote = is_remote(self._urls[file])
        # Scattered parts of a remote file need a request each, so several are read ahead in parallel.
        scattered = remote and self._file_nbytes[file] > TOGETHER_NBYTES
        for at in range(first, len(order)):
            group = self._groups[order[at]]
            if self._counts.get(order[at]) == 0:
                gap += group.stored if remote else 0
                continue
            nbytes += gap + group.stored
            is_apart = gap > _SMALL or group.number - self._groups[order[last]].number != at - last
            if at > first and (group.file != file or nbytes > TOGETHER_NBYTES or (scattered and is_apart)):
                break
            gap, last = 0, at
        return last + 1 - first

    def _nbytes(self, shard: int) -> int:
        return self._groups[shard].stored

    @cached_property
    def _file_nbytes(self) -> NDArray[Any]:
        """The stored bytes of all row groups of each file."""
        return np.bincount([one.file for one in self._groups], [one.stored for one in self._groups])

    def _read(self, shards: Sequence[int], skip: int) -> Iterator[Any]:
        from pyarrow import Table, array

        file, filters, counts = self._groups[shards[0]].file, self.filters, self._counts
        remote = is_remote(url := self._urls[file])
        # From a remote file, also what lies between the others: more requests would cost more.
        kept = [one for one in shards if counts.get(one, 1) or (remote and self._groups[one].file == file)]
        groups = [self._groups[shard] for shard in kept]
        numbers, rows = [group.number for group in groups], [group.rows for group in groups]
        number = numbers[0] if len(kept) == 1 else None
        # Workers are parallel already, and so are the parts of remote files. Otherwise, Arrow reads the
        # columns of a row group in threads.
        threads = not remote and get_worker_info() is None
        most = REMOTE_PIECE_NBYTES if remote else PIECE_NBYTES
        at_once = max(sum(rows) * most // max(sum(group.decoded for group in groups), most), 1)
        stored = done = 0  # rows before and after the filter
        ends, found = np.cumsum(rows), np.zeros(len(rows), int)  # the same, up to the end of each row group
        try:
            with self._opened(file, number) as opened:
                there = range(opened.num_row_groups)
                if [opened.metadata.row_group(one).num_rows for one in numbers if one in there] != rows:
                    raise SourceError(CHANGED, url=url)
                columns = self.schema.names if filters is None else self._find_columns(opened.schema_arrow)
                for batch in opened.iter_batches(at_once, numbers, columns, threads):
                    table = Table.from_batches([batch])
                    if filters is not None:
                        places = np.arange(stored, stored := stored + len(batch))
                        table = table.append_column("gpuloader: row", array(places)).filter(filters)
                        found += np.searchsorted(table[-1], ends)
                        whole = np.diff(found[: np.searchsorted(ends, stored, side="right")], prepend=0)
                        counts |= zip(kept, whole.tolist(), strict=False)
                    rest = table[max(skip - done, 0) :]
                    if len(rest):
                        yield self._prepare(rest, file=url, row_group=number)
                    done += len(table)
        except DataFileError:
            if len(kept) == 1:
                raise
            # From here one by one, so that the error names the row group, after everything that is intact.
            done = max(done, skip)
            for shard in kept:
                if done < counts.get(shard, done + 1):
                    yield from self._read([shard], done)
                done = max(done - counts.get(shard, 0), 0)

    @contextmanager
    def _opened(self, file: int, row_group: int | None = None) -> Iterator[Any]:
        """Open a Parquet file and close it afterwards; raise Arrow's errors in between as `DataFileError`."""
        arrow = import_package("pyarrow", "reading Parquet files", "parquet")
        from pyarrow.parquet import ParquetFile

        url, problem = self._urls[file], "the file is truncated or not a Parquet file: "
        metadata, known = self._footers.get(file) or (None, None)
        with open_source(url, self._tries, known=known) as source:
            if known is None and isinstance(source, RemoteFile):
                known = source.keep_end()
            with self._reading(url, problem, arrow.ArrowException, OSError, row_group=row_group):
                # Given a path, Arrow reads a local file without going through Python.
                given = source if is_remote(url) else url
                with ParquetFile(given, metadata=metadata, pre_buffer=True) as opened:
                    if metadata is None:
                        # The end of a larger file holds little more than the footer.
                        known = (known[0], b"") if known and known[0] > _SMALL else known
                        self._keep(file, (opened.metadata, known))
                    yield opened

    def _keep(self, file: int, footer: tuple[Any, tuple[int, bytes] | None]) -> None:
        """Keep a footer, and drop the oldest ones beyond `FOOTERS_NBYTES`."""
        # Several threads run this, without a lock: a fork could copy a lock while it is held. Each of these
        # steps on the dict is atomic.
        self._footers.pop(file, None)
        self._footers[file] = footer
        nbytes = 0
        for number, (metadata, known) in reversed(list(self._footers.items())):
            nbytes += metadata.serialized_size + (len(known[1]) if known else 0)
            if nbytes > FOOTERS_NBYTES and number != file:
                self._footers.pop(number, None)


class ParquetRows(ColumnDataset):
    """The rows of Parquet files by number; made and described by `ParquetDataset.random_access`."""

    _decodes = True  # so that worker processes are used, although samples are read in columns

    def __init__(self, files: ParquetDataset, counts: Sequence[int], memory: int) -> None:
        self._files, self._memory = files, memory
        self._ends = np.cumsum(counts)
        self._length = files.rows
        self._held: dict[int, pa.Table] = {}  # by row group, the most recently used last

    def _take(self, rows: Rows) -> Block:
        from pyarrow import concat_tables

        numbers = number_rows(rows)
        owners = np.searchsorted(self._ends, numbers, side="right")
        found = [self._files.schema.empty_table()]
        for owner in np.unique(owners).tolist():
            group = self._decode(owner)
            found.append(group.take(numbers[owners == owner] - (self._ends[owner] - len(group))))
        places = np.argsort(np.argsort(owners, kind="stable"))
        columns = columns_of(concat_tables(found, promote_options="default").take(places))
        return Block([Part(columns, slice(0, len(numbers)))])

    def _decode(self, number: int) -> pa.Table:
        from pyarrow import concat_tables

        # Several threads run this. Each of these steps on the dict is atomic.
        group = self._held.pop(number, None)
        if group is not None:
            self._held[number] = group  # behind those that were used longer ago
            return group
        group = self._held[number] = concat_tables(self._files._read([number], 0), promote_options="default")
        for other, held in list(self._held.items()):
            if sum(one.nbytes for one in list(self._held.values())) <= self._memory or held is group:
                break
            self._held.pop(other, None)
        return group

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": {}}


@dataclass(frozen=True, slots=True)  # as it is in pickles of 0.2.0
class Group:
    """A row group: its file, its number in the file, its rows, and the approximate bytes of its columns."""

    file: int
    number: int
    rows: int
    stored: int = TOGETHER_NBYTES
    decoded: int = TOGETHER_NBYTES


def _list_groups(metadata: Any, file: int, names: Set[str]) -> list[Group]:
    """Return the row groups of file number `file`, counting only the columns with these names."""
    found = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # The share of these columns in the first row group stands for all: looking up each column of each group
    # takes as long as decoding small ones.
    columns = [first.column(number) for first in found[:1] for number in range(first.num_columns)]
    read = [column for column in columns if column.path_in_schema.partition(".")[0] in names]
    whole = max(sum(int(column.total_uncompressed_size) for column in columns), 1)
    stored = sum(int(column.total_compressed_size) for column in read) / whole
    decoded = sum(int(column.total_uncompressed_size) for column in read) / whole
    sizes = enumerate((int(group.num_rows), int(group.total_byte_size)) for group in found)
    return [Group(file, at, rows, int(size * stored), int(size * decoded)) for at, (rows, size) in sizes]
