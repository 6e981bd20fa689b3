"""`write_shards`: any dataset as Parquet or tar files, which loaders read in parallel."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import tarfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from gpuloader.api.loader import DataLoader
from gpuloader.api.options import check_optional_count
from gpuloader.checks import check_count, check_word
from gpuloader.errors import import_package
from gpuloader.sources.dataset import IterableDataset, is_iterable
from gpuloader.sources.describing import describe
from gpuloader.sources.files.remote_files import as_folder, named
from gpuloader.sources.files.shards import ShardDataset
from gpuloader.sources.files.stored_samples import to_fields, to_members, to_table
from gpuloader.system.platforms import locked, replacing

SAMPLES = 64
"""Samples that a worker reads and encodes at a time."""

GROUP_NBYTES = 4 << 20
"""Uncompressed bytes of rows that fill a row group of a Parquet file."""

INDEX = "index.json"
_FAILED = "cannot be written (complete files stay, and the same call continues after them)"


def write_shards(
    dataset: Any,
    folder: str | os.PathLike[str],
    *,
    rows: int | None = None,
    size: int = 64 << 20,
    format: str = "parquet",  # noqa: A002 - what users call it
    num_workers: int = 0,
    worker_type: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[str]:
    """Write a dataset's samples into files for `ParquetDataset` or `TarDataset`; return their paths.

    Workers read and encode the samples, in the order in which a loader without ``shuffle`` delivers them. As
    in a loader, each worker writes all that an `IterableDataset` yields in it.
    A file appears under its name once it is complete. After an interruption, call this again with the same
    arguments: it continues after the last complete file, without reading a map-style dataset again.
    ``index.json`` in the folder says how many samples each file has.

    Parameters
    ----------
    dataset : dataset
        Anything that a loader takes. A sample is a dict, or a tuple whose fields are named by their
        positions.
    folder : path
        The local folder, which is created if it does not exist. Only one process at a time may write into it.
    rows : int or None
        The most samples per file; a file that reaches `size` first has fewer.
    size : int
        The bytes that fill a file: of a tar file, or of a Parquet file's rows before they are compressed. A
        file ends with the sample that reaches them.
    format : str
        'parquet' stores numbers, text, bytes and arrays as columns, and an encoded image as its bytes; arrays
        of several shapes become nested lists. 'tar' stores members like webdataset: images as they are, the
        label as ``cls``, text as ``txt``, arrays as ``npy`` and other values as ``json``. Names of fields
        must be in lower case; ``__key__`` and ``__url__`` of a `TarDataset` are left out.
        ``TarDataset(folder, "image")`` reads images and labels back.
    num_workers, worker_type
        As for `DataLoader`; workers read and encode.
    progress : callable or None
        Called with the number of samples written so far, after every 64.

    Raises
    ------
    ValueError
        The folder holds shards of another format, of other sizes, of other files or of a dataset of another
        length, or another process is writing into it. Or workers are asked for, but the iterable is not an
        `IterableDataset`, so that they could not divide it. Or samples of a Parquet file differ in their
        fields, in the types or shapes of a field, or in the keys of a dict; numbers may be narrower, and
        values may be None.
    SampleError
        A sample cannot be read, or the format cannot hold a value or the name of a field of it. Or samples
        that a worker encodes together differ in their fields or types.
    SourceError
        The folder is a URL, or cannot be created. Or a file cannot be written, for example because the disk
        is full; the message names it. Nothing of it is left, and the same call continues there.
    MissingPackage
        The format is Parquet, and pyarrow is not installed.

    Examples
    --------
    >>> import tempfile, numpy as np, pytest
    >>> from gpuloader import ParquetDataset, TensorDataset
    >>> _ = pytest.importorskip("pyarrow")
    >>> folder = tempfile.TemporaryDirectory()
    >>> dataset = TensorDataset(np.zeros((10, 2), "float32"), np.arange(10))
    >>> [os.path.basename(path) for path in write_shards(dataset, folder.name, rows=4)]
    ['shard-000000.parquet', 'shard-000001.parquet', 'shard-000002.parquet']
    >>> [int(row["1"]) for row in ParquetDataset(folder.name)]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> folder.cleanup()
    """
    check_word("format", format, tuple(_SHARDS))
    target = as_folder(folder)
    limits: dict[str, Any] = {
        "format": format,
        "size": check_count("size", size),
        "rows": check_optional_count("rows", rows),
    }
    if format == "parquet":
        import_package("pyarrow", "writing Parquet files", "parquet")
    source = describe(dataset, encoded=True, reads="rows")
    # What tells one dataset from another without reading it.
    if not source.iterable:
        limits["samples"] = len(source.dataset)
    elif isinstance(source.dataset, ShardDataset):
        # By their names alone, so that the index holds no credentials of a URL.
        limits["files"] = [PurePath(url.partition("?")[0]).name for url in source.dataset._urls]
    elif num_workers and not is_iterable(source.dataset):
        raise ValueError(
            "each worker would read all of the iterable, and write it again; pass num_workers=0, or an "
            "IterableDataset whose workers divide its samples (see get_worker_info)"
        )
    loader = DataLoader(
        (_EncodedStream if source.iterable else _Encoded)(source.dataset),
        places="cpu",
        batch_size=SAMPLES,
        collate_fn=partial(_encode, _SHARDS[format][0]),
        num_workers=num_workers,
        worker_type=worker_type,
    )
    with ExitStack() as stack:
        with named(str(target), "no files can be written into this folder; pass another one"):
            target.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(locked(target / ".lock", wait=False))
            except BlockingIOError:
                raise ValueError(f"{target}: another process writes shards into this folder") from None
        index = _read_index(target, limits)
        if not index["complete"]:
            _write_rest(loader, target, index, progress)
    return [str(target / shard["file"]) for shard in index["shards"]]


def _write_rest(
    loader: DataLoader[Any], target: Path, index: dict[str, Any], progress: Callable[[int], object] | None
) -> None:
    """Write the shards that an earlier call has not written; note each in the index once it is complete."""
    if index["state"] is not None:
        loader.load_state_dict(index["state"])
    # Of the first batch, `begun` samples are already written.
    rows, begun, shards = index["rows"], index["taken"], index["shards"]
    total = sum(shard["samples"] for shard in shards)
    opened, path, state = ExitStack(), target, loader.state_dict()
    _, kind = _SHARDS[index["format"]]
    shard: Any = None

    def finish(state: Any, taken: int) -> None:
        """Close the shard, and note at which sample of which batch the next one begins."""
        nonlocal shard, total
        shard.finish()
        opened.close()
        total += shard.count
        shards.append({"file": path.name, "samples": shard.count})
        try:
            json.dumps(state)
        except TypeError:  # a dataset's own state may hold anything; then the dataset is read from its start
            state, taken = None, total
        index.update(state=state, taken=taken)
        _write_index(target, index)
        shard = None

    with opened:
        for chunk in loader:
            samples = pickle.loads(chunk)
            at = min(begun, len(samples))
            begun -= at
            while at < len(samples):
                path = target / f"shard-{len(shards):06}.{index['format']}"
                with named(str(path), _FAILED):
                    if shard is None:
                        first = target / shards[0]["file"] if shards else path
                        shard = kind(opened.enter_context(replacing(path)), first, total)
                        opened.callback(_leave, shard)
                    stop = len(samples) if rows is None else min(at + rows - shard.count, len(samples))
                    at += shard.write(samples[at:stop], index["size"])
                    if shard.count == rows or shard.nbytes >= index["size"]:
                        finish(state, at)
            state = loader.state_dict()
            if progress is not None:
                progress(total + (shard.count if shard else 0))
        with named(str(path), _FAILED):
            if shard is not None:
                finish(None, 0)
            _write_index(target, {**index, "state": None, "complete": True})


def _leave(shard: Any) -> None:
    """Close a shard that is complete, or that an error ends, which closing must not replace by its own."""
    with suppress(OSError):
        shard.release()


class _Encoded:
    """Samples as dicts of fields, in which a loader finds no images to decode."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        for name in ("state_dict", "load_state_dict", "default_sampler"):
            if callable(found := getattr(dataset, name, None)):
                setattr(self, name, found)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return to_fields(self._dataset[index])

    def __len__(self) -> int:
        return len(self._dataset)


class _EncodedStream(_Encoded, IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(to_fields, self._dataset)


def _read_index(folder: Path, limits: dict[str, Any]) -> dict[str, Any]:
    """Return what an earlier call noted; raise `ValueError` if it wrote other shards."""
    new = {**limits, "shards": [], "state": None, "taken": 0, "complete": False}
    try:
        found: dict[str, Any] = json.loads((folder / INDEX).read_bytes())
    except FileNotFoundError:
        return new
    except ValueError as error:
        raise ValueError(f"{folder / INDEX} is damaged: {error}; write into another folder") from error
    for name, value in limits.items():
        if found.get(name, value) != value:
            raise ValueError(
                f"{folder} has shards with {name}={found.get(name)!r}, but {value!r} was asked for; write "
                "into another folder"
            )
    return {**new, **found}


def _write_index(folder: Path, index: dict[str, Any]) -> None:
    with replacing(folder / INDEX) as file:
        file.write(json.dumps(index, indent=1).encode())


class _ParquetShard:
    """A Parquet file being written; its schema is the first file's, but for what is None there."""

    def __init__(self, file: BinaryIO, first: Path, total: int) -> None:
        from pyarrow import parquet

        self.count = self.nbytes = 0
        self._file, self._total = file, total
        self._schema: Any = None
        self._writer: Any = None
        self._held: list[Any] = []
        with suppress(FileNotFoundError):
            self._schema = parquet.read_schema(first)

    def write(self, table: Any, size: int) -> int:
        """Add rows until they have `size` bytes; return their number."""
        import pyarrow as pa

        known, new = self._schema or table.schema, table.schema
        try:
            if self._writer is None:  # None in all samples so far tells no type
                known = pa.schema(new.field(one.name) if one.type == pa.null() else one for one in known)
            # A cast would also round floats, cut off times, parse text and drop fields of structs.
            for field in pa.unify_schemas([known, new], promote_options="permissive"):
                expected = known.field(field.name).type
                if field.type != expected or not _is_kept(new.field(field.name).type, expected):
                    raise TypeError(f"field {field.name!r} is {new.field(field.name).type}, not {expected}")
            fitting = table.select(known.names).cast(known)
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            first = self._total + self.count
            raise ValueError(
                f"samples {first} to {first + len(table) - 1} differ from earlier ones: {error}; give each "
                "field one type and shape"
            ) from error
        self._schema = known
        # A slice counts its own rows. At least one is added, and at most all of them.
        count = (
            bisect_left(range(1, len(table)), size - self.nbytes, key=lambda rows: fitting[:rows].nbytes) + 1
        )
        self._held.append(fitting[:count])
        self.count += count
        self.nbytes += self._held[-1].nbytes
        if sum(one.nbytes for one in self._held) >= GROUP_NBYTES:
            self._write_group()
        return count

    def finish(self) -> None:
        """Write the buffered rows and the footer."""
        self._write_group()
        self.release()

    def release(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _write_group(self) -> None:
        from pyarrow import concat_tables, parquet

        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, self._schema)
        if self._held:
            self._writer.write_table(concat_tables([one.cast(self._schema) for one in self._held]))
            self._held = []


def _is_kept(new: Any, known: Any) -> bool:
    """Return whether values stay what they are in a type that can represent them."""
    from pyarrow import types

    if types.is_struct(new):  # a field that is missing would become None
        return new.num_fields == known.num_fields and all(
            _is_kept(one.type, known.field(one.name).type) for one in new
        )
    if types.is_nested(new):
        return _is_kept(new.value_type, known.value_type)
    return types.is_string(known) or not types.is_string(new)  # text would become bytes


class _TarShard:
    """A tar file being written; samples are named by their numbers in the dataset."""

    def __init__(self, file: BinaryIO, first: Path, total: int) -> None:  # noqa: ARG002 - as of a Parquet file
        self.count = self.nbytes = 0
        self._file, self._total = file, total
        self._tar = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115 - closed by `finish`

    def write(self, samples: Sequence[dict[str, bytes]], size: int) -> int:
        """Add samples until the file has `size` bytes; return their number."""
        count = self.count
        for members in itertools.takewhile(lambda _: self.nbytes < size, samples):
            for ending, data in members.items():
                member = tarfile.TarInfo(f"{self._total + self.count:09}.{ending}")
                member.size = len(data)
                self._tar.addfile(member, io.BytesIO(data))
            self.count += 1
            self.nbytes = self._file.tell()
        return self.count - count

    def finish(self) -> None:
        """Write the end of the file."""
        self._tar.close()

    release = finish


def _encode(convert: Callable[[Sequence[Any]], Any], samples: Sequence[Any]) -> bytes:
    """Return samples pickled into one object, which the loader passes on unchanged."""
    return pickle.dumps(convert(samples), pickle.HIGHEST_PROTOCOL)


_SHARDS: dict[str, tuple[Callable[[Sequence[Any]], Any], Any]] = {
    "parquet": (to_table, _ParquetShard),
    "tar": (to_members, _TarShard),
}
