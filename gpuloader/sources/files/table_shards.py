"""The base of datasets whose shards are Arrow tables: their columns, and how values are converted."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpuloader.errors import DataFileError, SourceError, damaged, describe_error, import_package
from gpuloader.sources.block import Block, Column, Part
from gpuloader.sources.files.remote_files import T, check_names, is_remote
from gpuloader.sources.files.shards import ShardDataset
from gpuloader.sources.skipping import apply
from gpuloader.sources.tables.arrow import are_alike, check_values, columns_of, is_rounded

if TYPE_CHECKING:
    import pyarrow as pa


CHANGED = "the file has changed since the dataset was made; make a new dataset"
_READERS = 16  # threads that read the beginnings or the ends of files


@dataclass(kw_only=True, eq=False, repr=False)
class TableShards(ShardDataset[Any]):
    """The base of datasets whose shards are Arrow tables; a sample is a dict with one value per column.

    The fields are the parameters that all these datasets share; `ParquetDataset` describes them.
    """

    columns: Sequence[str] | None = field(default=None, kw_only=False)
    schema: Any = None
    filters: Any = None
    fill: Mapping[str, Any] | None = None
    map: Callable[[dict[str, Any]], Any] | None = None
    _leaves_out: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        arrow = import_package("pyarrow", "reading tables in files", "parquet")
        self._names = None if self.columns is None else check_names("columns", self.columns)
        given = arrow.schema(self.schema or {})
        self._given = dict(zip(given.names, given.types, strict=True))
        if self.map is not None and not callable(self.map):
            raise TypeError(f"map must be callable, got {self.map!r}")
        if isinstance(self.filters, list | tuple):
            from pyarrow.parquet import filters_to_expression

            try:
                self.filters = filters_to_expression(self.filters)
            except (TypeError, ValueError) as error:
                expected = "an expression or a list of tuples such as ('year', '>', 2020)"
                raise ValueError(f"filters must be {expected}, got {self.filters!r}: {error}") from error

    def __iter__(self) -> Iterator[Any]:
        for block in self._iter_blocks(1):
            yield from block if self.map is None else map(partial(apply, "map", self.map), block)

    @property
    def iter_blocks(self) -> Callable[[int], Iterator[Block]]:
        """Yields this worker's samples in columns, `size` per block; exists only without `map`."""
        if self.map is not None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'iter_blocks'")
        return self._iter_blocks

    def _iter_blocks(self, size: int) -> Iterator[Block]:
        for parts in self._takes(size):
            yield Block([Part(columns, rows) for columns, rows in parts])

    def _gather(self, pieces: Sequence[Any]) -> Mapping[str, Column]:
        from pyarrow import concat_tables

        # Files may disagree on whether a column is nullable; `check_values` has excluded nulls.
        return columns_of(pieces[0] if len(pieces) == 1 else concat_tables(pieces, promote_options="default"))

    def _ask_files(self, ask: Callable[[Any], T], files: Iterable[Any]) -> list[T]:
        """Return what `ask` says of each file, in threads, because it mostly waits for servers or disks."""
        with ThreadPoolExecutor(min(_READERS, len(self._urls))) as pool:
            return list(pool.map(ask, files))

    # Files that change while they are read.

    @contextmanager
    def _reading(self, url: str, problem: str, *kinds: type[Exception], **how: Any) -> Iterator[None]:
        """Raise errors of the block as `damaged` does, unless the file has changed, which says more."""
        self._check_unchanged(url)
        with damaged(problem, *kinds, file=url, **how):
            try:
                yield
            except Exception:
                self._check_unchanged(url)  # another program may be writing it right now
                raise

    def _check_unchanged(self, url: str) -> None:
        """Raise `SourceError` if a local file is not the one that the dataset saw first."""
        if is_remote(url):
            return
        try:
            status = os.stat(url)  # noqa: PTH116 - often, and a Path takes longer
        except OSError:
            return  # opening it says why
        # The sizes and times of local files, which earlier pickles lack.
        seen = vars(self).setdefault("_seen", {})
        # On another machine, a copy of the file has another time. Inodes change on some network mounts.
        for key, found in ((url, status.st_size), ((platform.node(), url), status.st_mtime_ns)):
            if seen.setdefault(key, found) != found:
                raise SourceError(CHANGED, url=url)

    # The columns, and their values.

    def _choose(self, schemas: Iterable[pa.Schema]) -> None:
        """Set the schema: the selected columns of the first file, with the types that the user gave.

        Raises
        ------
        DataFileError
            A file lacks a column, has two of the same name, or has one that differs by more than width or
            encoding.
        """
        from pyarrow import null
        from pyarrow import schema as make_schema

        first, *_ = found = list(schemas)
        types = dict(zip(first.names, first.types, strict=True))
        for name in [name for name, kind in types.items() if kind == null()]:
            # A file without values tells no type, such as an empty one that pandas wrote.
            kinds = [one.type for schema in found for one in schema if one.name == name]
            types[name] = next((kind for kind in kinds if kind != null()), null())
        types |= self._given
        if not types:
            raise DataFileError("the file has no columns, or no rows that tell them", file=self._urls[0])
        names = self._names or list(types)
        for name in names:
            if name not in types:
                problem = f"no column of this name; the file has {list(types)}"
                raise DataFileError(problem, file=self._urls[0], column=name)
        if unknown := set(self.fill or {}) - set(names):
            raise ValueError(f"fill has columns that are not read: {sorted(unknown)}; these are {names}")
        self.schema = make_schema([(name, types[name]) for name in names])
        for url, schema in zip(self._urls, found, strict=False):
            for name, kind in zip(names, self.schema.types, strict=True):
                kinds = [one.type for one in schema if one.name == name]
                if len(kinds) != 1:
                    problem = "several columns have" if kinds else "no column has"
                    problem += f" this name; the file has {schema.names}"
                elif name in self._given or kinds[0] == null() or are_alike(kinds[0], kind):
                    continue
                else:
                    problem = f"expected {kind} as in {self._urls[0]}, got {kinds[0]}; "
                    problem += "give schema a type that holds the values of all files"
                raise DataFileError(problem, file=url, column=name)

    def _check_filters(self, schema: pa.Schema) -> None:
        """Raise `ValueError` if the filters do not fit rows of a schema."""
        from pyarrow import ArrowException

        try:
            if self.filters is not None:
                schema.empty_table().filter(self.filters)
        except (ArrowException, TypeError) as error:
            problem = describe_error(error).partition("\n")[0]
            raise ValueError(f"filters do not fit the columns {schema.names}: {problem}") from error

    def _prepare(self, table: pa.Table, **where: Any) -> pa.Table:
        """Return a table in the dataset's schema, with nulls filled; raise `DataFileError` if that fails."""
        from pyarrow import ArrowException, types

        self._check_unchanged(where["file"])  # only now, because the bytes may have changed until here
        if table.schema.names != self.schema.names:
            table = table.select(self.schema.names)
        fill = self.fill or {}
        for number, (name, kind) in enumerate(zip(self.schema.names, self.schema.types, strict=True)):
            column = stored = table.column(number)
            try:
                if column.type != kind:
                    column = column.cast(kind)
                    if name not in self._given and is_rounded(stored, column):
                        raise TypeError(f"Arrow would round {stored.type} to {kind}")
                if name in fill:
                    is_float = isinstance(fill[name], float | np.floating)
                    if is_float and types.is_integer(kind) and not float(fill[name]).is_integer():
                        raise TypeError(f"Arrow would cut {fill[name]!r} off to {kind}")
                    column = column.fill_null(fill[name])
            except (ArrowException, OverflowError, TypeError) as error:
                problem = f"{describe_error(error)}; give schema or fill what fits all values"
                raise DataFileError(problem, column=name, **where) from error
            if column is not stored:
                table = table.set_column(number, name, column)
        check_values(table, **where)
        return table
