"""`CSVDataset` and `JSONLDataset`: the lines of text files, parsed by Arrow.

A shard is a range of bytes, and consists of the lines that begin in it. So workers and ranks can share even
one file, and each reads little more than its own bytes. A compressed file is one shard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gpuloader.errors import DataFileError
from gpuloader.sources.files.remote_files import check_names, is_remote, open_source
from gpuloader.sources.files.table_shards import TableShards

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_NBYTES = 1 << 20
"""Bytes of text to parse at a time; also the bytes of a shard, unless files are small or very large."""

_LEAST_NBYTES, _PARTS, _MOST_PARTS = 64 << 10, 32, 1 << 16
"""The fewest bytes of a shard of local files, and the fewest and most shards to aim for."""

_LINE = 64 << 10  # bytes within which a line should end; a longer line takes more reads
_LONGEST_LINE = 256 << 20  # without a limit, a file without line breaks would fill the memory

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
"""Maps the first bytes of compressed files to Arrow's name for the compression; file names do not matter."""


class TextFile(NamedTuple):
    """A file: its stored size, how it is compressed, where its first row begins, and the columns it names."""

    size: int
    packed: str | None
    first: int = 0
    names: tuple[str, ...] | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class TextDataset(TableShards):
    """The base of datasets of text lines: which bytes form a shard, and how they are read."""

    _quote: bytes = field(default=b"", init=False)  # between two, a line break belongs to a value
    _listed: ClassVar[str] = "_parts"
    _blank: bytes = field(default=b" \t\r\n", init=False)  # what a line without a row consists of

    def __post_init__(self) -> None:
        super().__post_init__()
        import pyarrow as pa

        self._files = self._ask_files(self._look_at, self._urls)
        total = sum(one.size for one in self._files)
        least = PIECE_NBYTES if any(map(is_remote, self._urls)) else _LEAST_NBYTES
        nbytes = max(total // _MOST_PARTS, min(max(total // _PARTS, least), PIECE_NBYTES))
        self._parts: list[tuple[int, int, int]] = []
        for number, file in enumerate(self._files):
            size = sys.maxsize if file.packed else file.size
            step = max(size, 1) if file.packed or self._quote else nbytes
            for start in range(file.first, size, step):
                self._parts.append((number, start, min(start + step, size)))
        types = self._given
        if self._parts and (self._names is None or not set(self._names) <= set(types)):
            number, start, stop = self._parts[0]
            file = self._files[number]
            with self._opened(file, self._urls[number], start, max(stop, file.size)) as pieces:
                # Lines of JSON's null name no columns.
                schemas = (self._parse(text, file, None).schema for text in pieces)
                first = next(filter(len, schemas), pa.schema([]))
            types = dict(zip(first.names, first.types, strict=True)) | types
        headers = [types if file.names is None else file.names for file in self._files]
        self._choose(pa.schema([(name, types.get(name, pa.null())) for name in names]) for names in headers)
        self._check_filters(self.schema)

    def _look_at(self, url: str) -> TextFile:
        """Return what must be known about a file before its rows are read."""
        self._check_unchanged(url)
        with open_source(url, self._tries) as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(0)
            head = source.read(4)
        if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\xfd7zX")):  # UTF-16, or a file of xz
            raise DataFileError("text must be UTF-8, plain or packed by gzip, bzip2 or Zstandard", file=url)
        return TextFile(size, next((name for magic, name in _PACKED.items() if head.startswith(magic)), None))

    def _parse(self, text: bytes, file: TextFile, schema: pa.Schema | None) -> pa.Table:
        """Return whole lines as a table with the columns and types of a schema; None infers all."""
        raise NotImplementedError

    def _nbytes(self, shard: int) -> int:
        file, start, stop = self._parts[shard]
        return super()._nbytes(shard) if self._files[file].packed else stop - start

    def _read(self, shards: Sequence[int], skip: int) -> Iterator[Any]:
        number, start, stop = self._parts[shards[0]]
        url, file = self._urls[number], self._files[number]
        with self._opened(file, url, start, stop) as pieces:
            for text in pieces:
                if not text.lstrip(self._blank):  # copies nothing if the first byte is not blank
                    continue
                piece = self._parse(text, file, self.schema)
                if self.filters is not None:
                    piece = piece.filter(self.filters)
                rest, skip = piece[skip:], max(skip - len(piece), 0)
                if len(rest):
                    yield self._prepare(rest, file=url)

    @contextmanager
    def _opened(self, file: TextFile, url: str, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Open a file; yield the lines that begin in a range of it, several whole lines at a time.

        Arrow's errors in between are raised with the file and the position.
        """
        import pyarrow as pa

        known = (file.size, b"") if is_remote(url) and not file.packed else None
        problem = f"in the lines from byte {start:,} on: "
        advice = (
            "; if values do not have the type of those in the first lines, pass schema with the right type; "
            "if text is not UTF-8, convert it, for example with iconv, or pass schema with the type 'binary'"
        )
        reading = self._reading(url, problem, pa.ArrowException, OSError, UnicodeDecodeError, advice=advice)
        with reading, open_source(url, self._tries, buffered=known is None, known=known) as source:
            if file.packed:
                with pa.CompressedInputStream(source, file.packed) as stream:
                    stream.read(start)  # the header
                    yield _lines(stream.read, start, stop, self._quote)
            else:
                source.seek(start - (start > file.first))
                yield _lines(source.read, start, stop, self._quote, within=start > file.first)


def _lines(
    read: Callable[[int], bytes], start: int, stop: int, quote: bytes, *, within: bool = False
) -> Iterator[bytes]:
    """Yield the lines that begin in a range of a file, at least one line and about 1 MiB at a time.

    `read` returns the next bytes, from the range's start on. `within` a file, it starts one byte earlier, so
    that the rest of a line that begins before the range is left out.
    """
    held, at = b"", start - within
    while True:
        more = read(min(PIECE_NBYTES, max(stop - at, 0)) + max(_LINE, len(held)))
        held, at = held + more, at + len(more)
        if within:
            end = held.find(b"\n") + 1
            if not end and more and at < stop:
                held = b""
                continue
            within, held = False, held[end:] if end else b""
        begun = at - len(held)
        if begun >= stop or not more:
            if begun < stop and held:
                yield held
            return
        if at < stop:
            end = held.rfind(b"\n") + 1  # of the last whole row
            while quote and held.count(quote, 0, end) % 2:
                end = held.rfind(b"\n", 0, held.rfind(quote, 0, end)) + 1
        else:
            end = held.find(b"\n", stop - 1 - begun) + 1
            while quote and held.count(quote, 0, end) % 2:
                end = held.find(b"\n", end) + 1
        if end:
            yield held[:end]
            if at >= stop:
                return
            held = held[end:]
        elif len(held) > _LONGEST_LINE:
            raise DataFileError(f"the line from byte {begun:,} on has over 256 MiB")


@dataclass(kw_only=True, eq=False, repr=False)
class CSVDataset(TextDataset):
    r"""The rows of CSV files; a sample is a dict with one value per column.

    Workers and ranks divide even one file: a shard is a range of 1 MiB, or of a 32nd of all bytes if files
    are small, but at least 64 KiB of a local file. Each worker reads its own lines, and Arrow parses them. A
    compressed file is one shard, read from start to end; gzip, bzip2 and Zstandard are recognized by their
    first bytes. With the loader's `shard`, every rank reads everything, and the loader divides the samples
    equally.

    Numbers and booleans become arrays, and anything else becomes one Python object per row, as in a
    `ParquetDataset`.

    Memory: a worker holds about 1 MiB of text and its rows, and up to 16 MiB more for remote files. A
    `shuffle_buffer` adds that many rows, and twice that while a window is assembled.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files, all with the same columns, in any order. A pattern such as ``data/*.csv.gz`` or a folder
        stands for the files that match, in order of their names; a remote folder ends with a slash. fsspec
        reads URLs with a scheme.
    columns : list of str or None
        The columns to read; None reads all.
    schema : pyarrow.Schema, dict or None
        The types of columns, such as ``{"price": "float32"}``. The other columns get their types from the
        first MiB of the first file.
    delimiter : str
        The character between values: a tab in TSV files.
    quote : str or None
        The character around values that contain delimiters; doubled, it stands for itself. None means that
        there are no such values.
    column_names : list of str or None
        The names of the columns, for files without a header. None takes them from each file's first line.
    newlines_in_values : bool
        Whether values in quotes may hold line breaks. A file is then one shard.
    shuffle : bool
        True reads the shards in an order drawn from `seed` and the epoch. False reads them in order.
    shuffle_buffer : int or None
        The number of rows, from several shards, to shuffle together. None keeps the rows of a shard in order.
    seed : int
        The seed of all orders; must be the same on all ranks. It is independent of the loader's seed, but the
        epoch is the loader's.
    filters, fill, map, attempts, timeout, storage_options, cache_dir, cache_size
        As for `ParquetDataset`; `filters` names columns that are read.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns read and their types.

    Raises
    ------
    MissingPackage
        pyarrow is not installed, or fsspec is not and a URL needs it.
    SourceError
        A file cannot be read, or none matches a pattern.
    DataFileError
        A file lacks a column, or has columns different from the first file's. Also raised while reading: a
        value does not fit the type of its column, a number is missing, a quote is not closed, or a file is
        damaged or has changed. The message names the file and the position in it.

    Examples
    --------
    >>> import tempfile, pytest
    >>> from pathlib import Path
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("pyarrow")
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "a.csv").write_text("price,name\n1.5,a\n2,b\n2.5,c\n")
    >>> dataset = CSVDataset(f"{folder.name}/a.csv", schema={"price": "float32"})
    >>> for batch in DataLoader(dataset, places="cpu", batch_size=2):
    ...     print(batch)
    {'price': array([1.5, 2. ], dtype=float32), 'name': ['a', 'b']}
    {'price': array([2.5], dtype=float32), 'name': ['c']}
    >>> folder.cleanup()
    """

    delimiter: str = ","
    quote: str | None = '"'
    column_names: Sequence[str] | None = None
    newlines_in_values: bool = False

    _pattern = "*.csv*"

    def __post_init__(self) -> None:
        self._header = None if self.column_names is None else check_names("column_names", self.column_names)
        for name, value in (("delimiter", self.delimiter), ("quote", self.quote or '"')):
            if not isinstance(value, str) or len(value.encode()) != 1 or value in "\r\n":
                raise ValueError(f"{name} must be a single ASCII character, got {value!r}")
        self._blank = self._blank.replace(self.delimiter.encode(), b"")  # rows of nulls have delimiters
        if self.newlines_in_values and self.quote:
            self._quote = self.quote.encode()
        super().__post_init__()

    def _look_at(self, url: str) -> TextFile:
        file = super()._look_at(url)
        if self._header is not None:
            return file._replace(names=tuple(self._header))
        with self._opened(file, url, 0, 1) as pieces:
            header, names = next(pieces, b""), []
            if header:
                table = self._parse(header, file, None)
                names = table.column_names
                if len(table):  # lines end in carriage returns alone
                    header = header[: header.index(b"\r", len(header) - len(header.lstrip(b"\r"))) + 1]
        if header.translate(None, b"\xef\xbb\xbf [\t\r\n")[:2] in (b'{"', b"{"):
            raise DataFileError("begins with JSON, not with names of columns; try JSONLDataset", file=url)
        return file._replace(first=len(header), names=tuple(names))

    def _parse(self, text: bytes, file: TextFile, schema: pa.Schema | None) -> pa.Table:
        from pyarrow import BufferReader, csv

        quote = self.quote
        if quote and not self._quote and (mark := quote.encode()) in text and text.count(mark) % 2:
            raise DataFileError(
                f"quotes ({quote}) are not in pairs; if values hold line breaks, pass "
                "newlines_in_values=True; if these quotes belong to the text, pass quote=None"
            )
        if schema and {one.name for one in schema if str(one.type) == "binary"}.difference(self._given):
            text.decode()  # says where it is not UTF-8, which Arrow infers to be bytes
        return csv.read_csv(
            BufferReader(text),
            csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=file.names or None),
            csv.ParseOptions(
                delimiter=self.delimiter, quote_char=quote or False, newlines_in_values=bool(self._quote)
            ),
            csv.ConvertOptions(column_types=schema, include_columns=None if schema is None else schema.names),
        )


@dataclass(kw_only=True, eq=False, repr=False)
class JSONLDataset(TextDataset):
    r"""The objects of JSON Lines files, one per line; a sample is a dict with one value per field.

    Workers and ranks divide even one file, and files may be compressed, as in a `CSVDataset`. Numbers and
    booleans become arrays, lists of numbers need the loader's `ragged` or `pad`, and anything else becomes
    one Python object per row, as in a `ParquetDataset`.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files. A pattern such as ``data/*.jsonl.gz`` stands for the files that match, in order of their
        names. A folder stands for the files with ``.json`` in their names; a remote folder ends with a slash.
        fsspec reads URLs with a scheme.
    columns : list of str or None
        The fields to read; all others are left out. None reads all; a field that is neither in the first MiB
        of the first file nor in `schema` is then an error.
    schema : pyarrow.Schema, dict or None
        The types of fields, such as ``{"score": "float32"}``. The other fields get their types from the first
        MiB of the first file.
    filters, fill, map, shuffle, shuffle_buffer, seed
        As for `CSVDataset`.
    attempts, timeout, storage_options, cache_dir, cache_size
        As for `CSVDataset`.

    Attributes
    ----------
    schema : pyarrow.Schema
        The fields read and their types.

    Raises
    ------
    MissingPackage, SourceError, DataFileError
        As for `CSVDataset`.

    Examples
    --------
    >>> import tempfile, pytest
    >>> from pathlib import Path
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("pyarrow")
    >>> folder = tempfile.TemporaryDirectory()
    >>> lines = '{"text": "one", "label": 1}\n{"text": "two", "label": 2}\n'
    >>> _ = Path(folder.name, "a.jsonl").write_text(lines)
    >>> dataset = JSONLDataset(f"{folder.name}/a.jsonl", columns=["label", "text"])
    >>> [batch] = DataLoader(dataset, places="cpu", batch_size=2)
    >>> batch
    {'label': array([1, 2]), 'text': ['one', 'two']}
    >>> folder.cleanup()
    """

    _pattern = "*.json*"

    def _parse(self, text: bytes, file: TextFile, schema: pa.Schema | None) -> pa.Table:  # noqa: ARG002
        from pyarrow import BufferReader, json

        begin = text.lstrip(self._blank + b"\xef\xbb\xbf")
        if begin.startswith(b"["):
            raise DataFileError("expected lines with an object each, got an array")
        if begin.startswith(b"null"):  # Arrow takes it for an object of nulls, but crashes on it here
            text = begin.replace(b"null", b"{}", 1)
        how = None
        if schema is not None:
            others = "error" if self._names is None else "ignore"
            how = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
        reading = json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = json.read_json(BufferReader(text), reading, how)
        if len(table) > text.strip().count(b"\n") + 1:
            raise DataFileError("a line has more than one value; write one object per line")
        return table if schema is None else table.select(schema.names)
