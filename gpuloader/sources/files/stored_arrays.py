"""`ZarrDataset`: the rows of Zarr arrays."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import itertools
import json
import math
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import pairwise
from operator import getitem
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import DataFileError, LoaderError, SourceError, describe_error, import_package
from gpuloader.order.order import IndexArray, shuffle_chunks
from gpuloader.order.randomness import current_draw
from gpuloader.order.samplers import ChunkSampler
from gpuloader.order.worker_info import own_worker_info
from gpuloader.sources.array_rows import as_rows
from gpuloader.sources.block import Block, Part, Rows, SampleFields, number_rows, of_arrays
from gpuloader.sources.column_dataset import ColumnDataset
from gpuloader.sources.files import remote_files
from gpuloader.sources.files.remote_files import is_remote, named, open_source, persist
from gpuloader.system.finalizers import when_dropped
from gpuloader.system.threads import exit_first

# The rows of stored arrays, the base of `ZarrDataset` and `HDF5Dataset`; each process opens the store.

AHEAD_NBYTES, CHUNK_NBYTES = 8 << 20, 64 << 20
"""Bytes of rows to read at a time while batches follow one another, and the largest chunk to keep whole.

Several chunks in one call cost Zarr half of the time that as many calls take.
"""

WINDOW_NBYTES, WINDOW_ROWS, OBJECT_NBYTES = 16 << 20, 1 << 18, 64 << 10
"""The most that a window has by default, counting that much for a value of unknown size.

The C library returns blocks above 32 MiB to the system, so each window would be new memory, which is slow.
"""

TOGETHER_NBYTES = 256 << 10
"""The largest chunks of which Zarr is asked for parts together."""

RAW_NBYTES, GAP_NBYTES, PIECE_NBYTES = 16 << 10, 16 << 10, 1 << 20
"""For HDF5's arrays that are read from the file itself.

The smallest chunks, because each takes a call; the bytes between two rows that are read along, because
another call would take longer; and how much of an array without chunks to read at a time.
"""

T = TypeVar("T")
Spans = Sequence[tuple[int, int]]  # of rows: the first, and the one after the last
Outs = Sequence[NDArray[Any] | None]  # arrays for the rows of the spans
_DAMAGE = (json.JSONDecodeError, UnicodeDecodeError, TypeError, AttributeError)


_NOTHING: tuple[int, int, dict[str, Any]] = 0, 0, {}


class StoredArrays(ColumnDataset):
    """The rows of arrays that share their first dimension; the base of the two datasets below.

    Each process that reads opens the store itself: so does a forked process, or one that received the dataset
    in a pickle. Any thread may read. Whatever the order of its samples, a batch reads each chunk once. In an
    array without chunks, adjacent rows are read together.
    """

    _decodes = True  # so that worker processes are used, although samples are read in columns
    _buffer: int | None = None  # pickles of earlier releases have none
    _ahead_nbytes = AHEAD_NBYTES
    _length = 0  # until the arrays have been opened once

    def __init__(
        self,
        url: str | os.PathLike[str],
        arrays: Sequence[str] | None = None,
        *,
        shuffle_buffer: int | None = None,
        attempts: int = remote_files.ATTEMPTS,
        timeout: float = remote_files.TIMEOUT,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self._url = remote_files.as_url(url)
        self._buffer = None if shuffle_buffer is None else check_count("shuffle_buffer", shuffle_buffer)
        tries = remote_files.Tries.of(attempts, timeout, storage_options)
        self._tries = tries if is_remote(self._url) else remote_files.PLAIN
        self._names = None if arrays is None else remote_files.check_names("arrays", arrays)
        self._path = self._fetch()
        self._lock = threading.Lock()
        self._held: tuple[int, Any, dict[str, Any]] | None = None
        self._ahead = _NOTHING
        self._stored: set[tuple[str, str]] = set()  # chunks known to exist
        try:
            with self._naming_damage():
                arrays_here = self._arrays()
                self._fields = of_arrays("dict", arrays_here, list(arrays_here.values()))
            lengths = {name: int(array.shape[0]) for name, array in arrays_here.items()}
            if not lengths:
                raise self._fault("there are no arrays at the top level; name those to read in arrays")
            if len(set(lengths.values())) > 1:
                raise self._fault(f"arrays must have the same number of rows, got {lengths}")
        finally:
            self.close()  # so that forked workers do not share the store
        self._length = next(iter(lengths.values()))

    def _fetch(self) -> str:
        """Return the path or URL to open, after copying there what cannot be read in its original place."""
        return self._url

    def _fault(self, problem: str, name: str | None = None) -> DataFileError:
        return DataFileError(problem, file=self._url, column=name)

    def _open(self) -> Any:
        """Open the store."""
        raise NotImplementedError

    def _list(self, store: Any) -> list[str]:
        """Return the names of the arrays at the top level of a store."""
        raise NotImplementedError

    def _close(self, store: Any) -> None:
        """Close the store."""

    def take_block(self, indices: Sequence[int] | NDArray[np.int64]) -> Block:
        """Return the samples at `indices` in columns that the caller must not change.

        Raises `IndexError` if there is no such sample.
        """
        rows = as_rows(self, indices, len(self))
        worker = own_worker_info()
        # Of several workers, each has every so many batches, and what it read ahead would be the others'.
        if not isinstance(rows, slice) or (worker is not None and worker.num_workers > 1):
            return self._take(rows)
        first, last, read = self._ahead  # together, because several loaders may set it
        parts = []
        # At the first row, another pass has begun, and the store may have changed.
        if first < rows.start < last:
            parts.append(Part(read, slice(rows.start - first, min(rows.stop, last) - first)))
        if rows.stop > last or not parts:
            start, stop = rows.start if not parts else last, rows.stop
            if parts or start == last:  # this batch follows the one before
                stop = self._find_end(start, stop)
            try:
                read = self._read_columns(slice(start, stop))
            except DataFileError:  # perhaps of a chunk that only later batches need
                stop = rows.stop
                read = self._read_columns(slice(start, stop))
            self._ahead = start, stop, read
            parts.append(Part(read, slice(0, rows.stop - start)))
        if rows.stop == len(self):
            self._ahead = _NOTHING
        return Block(parts)

    def _find_end(self, start: int, stop: int) -> int:
        """Return up to which row to read at once, from `start` to at least `stop`: whole chunks."""
        arrays = self._arrays().values()
        if any(one.dtype.hasobject for one in arrays):  # text or rows of any length: their size is unknown
            return stop
        nbytes = sum(map(_row_nbytes, arrays))
        chunk: int = max((one.chunks[0] for one in arrays if getattr(one, "chunks", None)), default=1)
        end: int = max(stop, start + self._ahead_nbytes // nbytes)
        if chunk * nbytes <= CHUNK_NBYTES:
            whole = end // chunk * chunk
            end = whole if whole >= stop else -(-stop // chunk) * chunk
        return min(end, len(self))

    def _take(self, rows: Rows) -> Block:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return Block([Part(self._read_columns(rows), slice(0, count))])

    def _by_chunks(self, members: IndexArray | None) -> ChunkWindows:
        """Return the dataset, or some of its rows, as a loader with ``shuffle="chunks"`` reads it."""
        arrays = self._arrays().values()
        nbytes = sum(map(_row_nbytes, arrays))
        # Chunks of the array with the largest rows: to read parts of the others' chunks again costs less. An
        # array without chunks has as many rows in one as fit into 1 MiB.
        chunks = getattr(max(arrays, key=_row_nbytes), "chunks", None) or (max((1 << 20) // nbytes, 1),)
        buffer = self._buffer or min(WINDOW_NBYTES // nbytes, WINDOW_ROWS)
        size = int(chunks[0])
        present = np.arange(-(-len(self) // size)) if members is None else np.unique(members // size)
        return ChunkWindows(self, size, max(buffer // size, 1), present)

    def _read_columns(self, rows: Rows) -> dict[str, Any]:
        with self._naming_damage():
            return {name: self._gather(name, array, rows) for name, array in self._arrays().items()}

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Raise `DataFileError` for anything that a library raises when it meets something unexpected."""
        try:
            yield
        except LoaderError:
            raise
        except Exception as error:
            raise self._fault(f"the data are damaged: {describe_error(error)}") from error

    def _sample_fields(self) -> SampleFields:
        return self._fields

    def _gather(self, name: str, array: Any, rows: Rows) -> NDArray[Any]:
        """Return rows of an array, in the order of `rows`."""
        if isinstance(rows, slice):
            with suppress(DataFileError):  # chunk by chunk, the error names the rows that cannot be read
                return np.asarray(self._read(name, array, rows.start, rows.stop))
        rows = number_rows(rows)
        ascending = (rows[1:] > rows[:-1]).all()
        wanted, places = (rows, None) if ascending else np.unique(rows, return_inverse=True)
        chunks = getattr(array, "chunks", None)
        if isinstance(array, _RawArray):
            apart = array.are_apart(wanted)
        else:
            apart = np.diff(wanted // chunks[0]) > 0 if chunks else np.diff(wanted) > 1
        taken = np.empty((len(wanted), *array.shape[1:]), array.dtype)
        cuts = list(pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(wanted)]))
        spans = [(int(wanted[start]), int(wanted[stop - 1]) + 1) for start, stop in cuts if stop]
        outs = [taken[start:stop] for start, stop in cuts]
        read = self._read_spans(name, array, spans, outs)
        for (start, stop), (first, last), out, values in zip(cuts, spans, outs, read, strict=False):
            if values is not out:  # rows without a gap, such as whole chunks, are copied in one piece
                out[...] = values if last - first == stop - start else values[wanted[start:stop] - first]
        return taken if places is None else taken[places]

    def _read_spans(self, name: str, array: Any, spans: Spans, outs: Outs) -> Iterator[Any]:
        """Yield the rows of each span, from its start to its stop, perhaps written into its `outs`."""
        return (self._read(name, array, *span, out) for span, out in zip(spans, outs, strict=False))

    def _check(self, name: str, array: Any, start: int, stop: int) -> None:
        """Raise `DataFileError` if a chunk of these rows is missing and has no substitute."""

    def _read(self, name: str, array: Any, start: int, stop: int, out: NDArray[Any] | None = None) -> Any:
        self._check(name, array, start, stop)
        if isinstance(array, _RawArray):
            read = partial(array.read, start, stop, out)
        else:
            read = partial(getitem, array, slice(start, stop))
        if is_remote(self._url):
            return persist(read, self._url, self._tries)
        try:
            return read()
        except LoaderError:
            raise
        except Exception as error:
            problem = f"cannot read rows {start} to {stop - 1}: {describe_error(error)}"
            raise self._fault(problem, name) from error

    def _arrays(self) -> dict[str, Any]:
        """Return the arrays by name, opened by this process."""
        with self._lock:
            if self._held is None or self._held[0] != os.getpid():
                store = self._open()
                arrays = self._choose(store)
                for name, array in arrays.items():
                    if not array.shape:
                        raise self._fault("expected an array with a first dimension, got one value", name)
                    if array.shape[0] < self._length:  # a slice beyond the end is cut off without an error
                        left = f"{array.shape[0]} of {self._length} rows are left"
                        raise self._fault(f"{left}: make the dataset after the file was written", name)
                self._held = os.getpid(), store, arrays
            return self._held[2]

    def _choose(self, store: Any) -> dict[str, Any]:
        if hasattr(store, "shape"):
            return {PurePath(self._url).stem: store}
        # A server may be unable to list its contents, so named arrays are requested by name.
        names = self._list(store) if self._names is None else self._names
        return {name: self._find(store, name) for name in names}

    def _ask(self, action: Callable[[], T], name: str | None = None, within: float = math.inf) -> T:
        """Return what a request for metadata returns.

        Raises
        ------
        SourceError
            The store cannot be read.
        DataFileError
            Its metadata are damaged.
        """
        try:
            return persist(action, self._url, self._tries, within)
        except SourceError as error:
            cause: Any = error.__cause__
            by_zarr = type(cause).__module__.startswith("zarr.") and isinstance(cause, ValueError)
            if isinstance(cause, FileNotFoundError) or not (by_zarr or isinstance(cause, _DAMAGE)):
                raise
            problem = f"the metadata are damaged: {describe_error(cause)}"
            raise self._fault(problem, name) from cause

    def _find(self, store: Any, name: str) -> Any:
        try:
            found = self._ask(lambda: store[name], name)
        except SourceError as error:
            if not isinstance(error.__cause__, KeyError):
                raise
            found = None
        if not hasattr(found, "shape"):
            raise self._fault("there is no array of this name", name)
        return found

    def close(self) -> None:
        """Close the store; the next read opens it again."""
        with self._lock:
            held, self._held, self._ahead = self._held, None, _NOTHING
            if held is not None and held[0] == os.getpid():
                self._close(held[1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_lock": None, "_ahead": _NOTHING}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _ahead=_NOTHING)


def _row_nbytes(array: Any) -> int:
    """Return the bytes of a row; text and rows of any length count as 64 KiB."""
    nbytes: int = math.prod(array.shape[1:]) * array.dtype.itemsize
    return OBJECT_NBYTES if array.dtype.hasobject else max(nbytes, 1)


class ChunkWindows(ColumnDataset):
    """Stored arrays as a loader with ``shuffle="chunks"`` reads them: in windows, each read as a whole.

    A window has `chunks` chunks of `rows` rows; in a subset, only chunks that are `present` in it count. Any
    thread may take rows; one reads while the others wait, because they need the same window. A process keeps
    the two latest windows of an epoch: while batches of one end, other threads begin the next.
    """

    _decodes = True

    def __init__(self, stored: StoredArrays, rows: int, chunks: int, present: IndexArray) -> None:
        self._given, self._length = (stored, rows, chunks, present), len(stored)
        self._locks: dict[int, threading.Lock] = {}
        self._epoch: tuple[Any, ...] = ()
        self._kept: dict[int, dict[str, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkWindows, self._given

    def _sample_fields(self) -> SampleFields:
        return self._given[0]._fields

    def sample_chunks(self, members: IndexArray | None) -> ChunkSampler:
        """Return the sampler of an epoch, of all rows or of a subset of them."""
        _, rows, chunks, present = self._given
        if members is None:
            return ChunkSampler(np.diff(present * rows, append=self._length), chunks)
        sizes = np.bincount(members // rows)[present]
        return ChunkSampler(sizes, chunks, np.argsort(members // rows, kind="stable"))

    def _take(self, rows: Rows) -> Block:
        stored, size, count, present = self._given
        numbers, within = np.divmod(number_rows(rows), size)
        if len(present) * size < self._length:  # some chunks are absent
            numbers = present.searchsorted(numbers)
        draw = current_draw()
        epoch = os.getpid(), draw.seed, draw.epoch
        with self._locks.setdefault(epoch[0], threading.Lock()):  # a fork may have copied one that is held
            if self._epoch != epoch:
                turns = shuffle_chunks(len(present), draw.seed or 0, draw.epoch)
                self._epoch, self._kept = (), {}
                self._owners, self._firsts = np.argsort(turns) // count, np.empty_like(turns)
                self._epoch = epoch  # last, in case a Ctrl-C comes in between
            owners = self._owners[numbers]
            starts = [0, *((owners[1:] != owners[:-1]).nonzero()[0] + 1).tolist()]
            needed = {*owners[starts].tolist()}
            windows = {window: one for window, one in self._kept.items() if window in needed}
            for window in needed - windows.keys():
                for old in [*self._kept][:-1]:  # before the next one is read, so that it gets this memory
                    del self._kept[old]
                chunks = np.flatnonzero(self._owners == window)
                self._firsts[chunks] = -size
                read, found = self._read_chunks(present[chunks])
                self._kept[window] = windows[window] = read
                self._firsts[present.searchsorted(found)] = np.arange(len(found)) * size
            places = self._firsts[numbers] + within
        if places.min() < 0:  # of a damaged chunk, which raises the error that names it
            return stored._take(rows)
        cuts = pairwise([*starts, len(owners)])
        return Block([Part(windows[owners[at]], places[at:stop]) for at, stop in cuts])

    def _read_chunks(self, chunks: IndexArray) -> tuple[dict[str, Any], IndexArray]:
        """Return the rows of chunks, and which of them could be read."""
        stored, size, *_ = self._given
        whole = np.add.outer(chunks * size, np.arange(size)).ravel()
        try:
            return stored._read_columns(whole[: whole.searchsorted(self._length)]), chunks
        except DataFileError:
            if len(chunks) == 1:
                return {}, chunks[:0]
        # One by one, and only once more: of a damaged chunk's window, no other samples are lost.
        parts = [self._read_chunks(one[None]) for one in chunks]
        good = [read for read, found in parts if len(found)]
        columns = {name: np.concatenate([read[name] for read in good]) for name in (good[0] if good else ())}
        return columns, np.concatenate([found for _, found in parts])


# `HDF5Dataset`: the rows of arrays in an HDF5 file.


class HDF5Dataset(StoredArrays):
    """The rows of arrays in an HDF5 file; a sample is a dict with one row per array.

    Memory: an ordered epoch without workers reads ahead 2 MiB, or a whole chunk of up to 64 MiB. With
    ``DataLoader(..., shuffle="chunks")``, a process holds two windows of chunks.

    Parameters
    ----------
    url : path or URL
        The file. If it has a scheme, fsspec copies it to an unnamed temporary file when the dataset is made;
        on Linux, worker processes read that copy.
    arrays : list of str or None
        The arrays of the file to read. None reads all at its top level.
    shuffle_buffer : int or None
        The rows of a window, in which the loader's ``shuffle="chunks"`` shuffles: as many whole chunks as
        fit, at least one. None makes a window of up to 16 MiB and 262,144 rows, where text and rows of
        varying length count as 64 KiB. The chunks are those of the array with the largest rows; an array
        without chunks is cut into blocks of 1 MiB.
    attempts : int
        How many times to try a read if connections drop. The waits in between grow to at most 5 s.
    timeout : float
        Seconds after which one attempt to read from a server has failed; 0 means no limit. By default, a
        server must also have answered once within 10 s.
    storage_options : dict or None
        Options for fsspec along with URLs, such as credentials. Workers receive them; nothing prints them.

    Raises
    ------
    MissingPackage
        h5py is not installed, or fsspec is not and the URL needs it.
    TypeError, ValueError
        `arrays` is not a list of different names.
    SourceError
        The file does not exist or cannot be read.
    DataFileError
        The file is truncated, is not an HDF5 file or lacks an array, or the arrays differ in their number of
        rows. Also raised while reading if a chunk is damaged; in a loader it is then the cause of a
        `SampleError`.

    Examples
    --------
    >>> import tempfile, numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> h5py = pytest.importorskip("h5py")
    >>> folder = tempfile.TemporaryDirectory()
    >>> with h5py.File(f"{folder.name}/a.h5", "w") as file:
    ...     file["label"] = np.arange(5)
    >>> loader = DataLoader(HDF5Dataset(f"{folder.name}/a.h5"), places="cpu", batch_size=4)
    >>> [batch["label"].tolist() for batch in loader]
    [[0, 1, 2, 3], [4]]
    >>> loader.dataset.close()
    >>> folder.cleanup()
    """

    # HDF5 reads two chunks as fast as ten. What has just been read is then still in the processor's caches
    # when batches are made of it: an epoch with 8 MiB takes 1.15 times as long.
    _ahead_nbytes = 2 << 20

    def _fetch(self) -> str:
        if not is_remote(self._url):
            return self._url
        # HDF5 reads under a lock that any thread may need while it collects garbage, including the thread of
        # a remote file system. Each would wait for the other, so HDF5 only reads local files.
        problem = "cannot be copied to the folder for temporary files (TMPDIR)"
        with named(self._url, problem), open_source(self._url, self._tries, buffered=True) as source:
            copy = tempfile.TemporaryFile()  # noqa: SIM115 - unnamed, so it leaves nothing behind
            when_dropped(self, copy.close)
            try:
                shutil.copyfileobj(source, copy, remote_files.BUFFER)
                copy.flush()
            except BaseException:
                copy.close()
                raise
        return f"/proc/{os.getpid()}/fd/{copy.fileno()}"

    def _open(self) -> Any:
        h5py = import_package("h5py", "reading HDF5 files", "hdf5")
        _stop_readers_at_exit()
        source = open_source(self._path)  # raises a SourceError with the reason if the file is missing
        try:
            # HDF5 cannot open the unnamed copy by path.
            store = h5py.File(source if is_remote(self._url) else self._path, "r")
        except OSError as error:
            source.close()
            raise self._fault(f"the file is truncated or not an HDF5 file: {error}") from error
        if is_remote(self._url):
            when_dropped(store, source.close)
        else:
            source.close()
        return store

    def _list(self, store: Any) -> list[str]:
        return [name for name, item in store.items() if hasattr(item, "shape")]

    def _choose(self, store: Any) -> dict[str, Any]:
        arrays = super()._choose(store)
        h5f, h5o = map(importlib.import_module, ("h5py.h5f", "h5py.h5o"))
        # What this process is writing may lie in HDF5's memory only, other drivers may use several files, and
        # up to h5py 3.11 a chunk's place does not count the block in front of HDF5's part of the file.
        is_plain = store.driver == "sec2" and store.id.get_intent() == h5f.ACC_RDONLY
        if not is_plain or store.userblock_size or not hasattr(os, "preadv"):
            return arrays
        file = h5o.get_info(store.id).fileno
        for name, array in arrays.items():
            if h5o.get_info(array.id).fileno == file and _is_raw(array):  # not linked from another file
                arrays[name] = _RawArray(array, store.id.get_vfd_handle())
        return arrays

    def _close(self, store: Any) -> None:
        store.close()


def _is_raw(array: Any) -> bool:
    """Return whether rows lie in the file as NumPy has them in memory: in large chunks, or in one piece."""
    same = importlib.import_module("h5py.h5t").py_create(array.dtype) == array.id.get_type()
    if array.dtype.kind not in "iuf" or not same or not array.shape or not array.size:
        return False
    if not array.chunks:
        # What was never written, lies in other files or among the metadata has no place, or a wrong one.
        written = not array.external and array.id.get_storage_size() == array.nbytes
        return written and array.id.get_offset() is not None
    is_large = array.chunks[0] * _row_nbytes(array) >= RAW_NBYTES
    return is_large and array.chunks[1:] == array.shape[1:] and not array.id.get_create_plist().get_nfilters()


class _RawArray:
    """An array in an HDF5 file whose rows are read from the file itself, in 0.5 to 0.8 of HDF5's time."""

    def __init__(self, array: Any, descriptor: int) -> None:
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, array.chunks
        self._array, self._descriptor = array, descriptor
        self._row_nbytes, self._rows = _row_nbytes(array), (array.chunks or array.shape)[0]
        # Where each chunk, or all of it, lies in the file: 0 if it was never written, -1 until it is known.
        self._places = np.full(-(-len(array) // self._rows), -1 if array.chunks else array.id.get_offset())
        self._lock = importlib.import_module("h5py._objects").phil

    def are_apart(self, rows: IndexArray) -> NDArray[np.bool_]:
        """Return for each of some ascending rows whether to read the next one apart from it."""
        piece = self._rows if self.chunks else max(PIECE_NBYTES // self._row_nbytes, 1)
        gap = max(GAP_NBYTES // self._row_nbytes, 1)
        found: NDArray[np.bool_] = (np.diff(rows) > gap) | (np.diff(rows // piece) > 0)
        return found

    def read(self, start: int, stop: int, out: NDArray[Any] | None) -> NDArray[Any]:
        """Return some rows, in `out` if they are as many."""
        if out is None or len(out) != stop - start:
            out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        rows = self._rows
        # HDF5's own lock, so that no other thread closes the file, whose descriptor may then be another's.
        with self._lock:
            for first in range(start - start % rows, stop, rows):
                begin, end = max(first, start), min(first + rows, stop)
                part, place = out[begin - start : end - start], self._find(first)
                if not place:  # HDF5 knows the fill value
                    part[...] = self._array[begin:end]
                    continue
                place += (begin - first) * self._row_nbytes
                left = part.reshape(-1).view(np.uint8).data
                while left:  # a call reads at most 2 GiB
                    done = os.preadv(self._descriptor, [left], place)
                    if not done:
                        raise ValueError(f"the file ends before row {end - 1}")
                    left, place = left[done:], place + done
        return out

    def _find(self, first: int) -> int:
        """Return where the chunk that begins with a row lies; raises `ValueError`."""
        if not self._array:
            raise ValueError("the dataset was closed meanwhile")
        place = int(self._places[first // self._rows])
        if place < 0:
            corner = first, *[0] * (len(self.shape) - 1)
            chunk, nbytes = self._array.id.get_chunk_info_by_coord(corner), self._rows * self._row_nbytes
            if chunk.size not in (0, nbytes):
                raise ValueError(f"the chunk of row {first} has {chunk.size} bytes, not {nbytes}")
            place = self._places[first // self._rows] = chunk.byte_offset if chunk.size else 0
        return place


@cache
def _stop_readers_at_exit() -> None:
    """Let no thread read HDF5 while the interpreter exits."""
    # A thread that ends within h5py keeps h5py's single lock, and everything that frees an h5py object waits
    # for it. This takes the lock after our own loops have ended, and before h5py undoes its own setup.
    atexit.register(importlib.import_module("h5py._objects").phil.acquire)
    exit_first()


class ZarrDataset(StoredArrays):
    """The rows of Zarr arrays; a sample is a dict with one row per array.

    By Zarr's specification, a chunk that is not stored holds the array's ``fill_value``, and writers leave
    out chunks that contain nothing else. A lost chunk therefore looks like one that was left out, unless the
    ``fill_value`` is null: then a missing chunk is an error. Name the `arrays` that you need: without names,
    an array whose folder is lost goes unnoticed.

    Memory: an ordered epoch without workers reads ahead 8 MiB, or a whole chunk of up to 64 MiB. With
    ``DataLoader(..., shuffle="chunks")``, a process holds two windows of chunks.

    Parameters
    ----------
    url : path or URL
        The group, or a single array, which is then named after the store, without its suffix. fsspec reads
        URLs with a scheme.
    arrays : list of str or None
        The arrays of the group to read. None reads all at its top level, if the store can list them; HTTP
        cannot.
    shuffle_buffer, attempts, timeout, storage_options : int or None, int, float, dict or None
        As for `HDF5Dataset`.

    Raises
    ------
    MissingPackage
        zarr is not installed, or fsspec is not and the URL needs it.
    TypeError, ValueError
        `arrays` is not a list of different names.
    SourceError
        The store does not exist or cannot be read.
    DataFileError
        The store lacks an array, its metadata are damaged, or the arrays differ in their number of rows. Also
        raised while reading if a chunk is damaged, or is missing and the array has no ``fill_value``; in a
        loader it is then the cause of a `SampleError`.

    Examples
    --------
    >>> import tempfile, numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> zarr = pytest.importorskip("zarr")
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = zarr.save_group(f"{folder.name}/a.zarr", image=np.zeros((5, 8, 8), "f4"), label=np.arange(5))
    >>> loader = DataLoader(ZarrDataset(f"{folder.name}/a.zarr"), places="cpu", batch_size=4)
    >>> [(batch["image"].shape, batch["label"].tolist()) for batch in loader]
    [((4, 8, 8), [0, 1, 2, 3]), ((1, 8, 8), [4])]
    >>> folder.cleanup()
    """

    def _open(self) -> Any:
        zarr = import_package("zarr", "reading Zarr arrays", "zarr")
        if Path(self._url).is_file():
            raise self._fault("a Zarr store is a folder, and this is a file; unpack a .zip")
        options = getattr(self._tries, "options", None) or None
        action = partial(zarr.open, self._url, mode="r", storage_options=options)
        return self._ask(action, within=self._tries.first_answer)

    def _read_spans(self, name: str, array: Any, spans: Spans, outs: Outs) -> Iterator[Any]:
        # Requested together, chunks cost Zarr half of the time that as many calls take. Parts of large chunks
        # cost more that way, because it then holds several decoded chunks.
        rows, *others = array.chunks or (1,)
        nbytes = max(rows * math.prod(others) * array.dtype.itemsize, 1)
        whole = all(not first % rows and last in (first + rows, len(self)) for first, last in spans)
        at_once = max(AHEAD_NBYTES // nbytes, 1) if whole or nbytes <= TOGETHER_NBYTES else 1
        for start in range(0, len(spans), at_once):
            several, into = spans[start : start + at_once], outs[start : start + at_once]
            try:
                for span in several:
                    self._check(name, array, *span)
                read = partial(_read_together, array.async_array, several, into)
                found = persist(read, self._url, self._tries) if is_remote(self._url) else read()
            except LoaderError:
                raise
            except Exception:  # one by one, the error names the rows that cannot be read
                found = super()._read_spans(name, array, several, [None] * len(several))
            yield from found

    def _list(self, store: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            names = self._ask(lambda: sorted(store.array_keys()))  # Zarr lists them in no fixed order
        for warning in heard:
            said = str(warning.message)
            name = said.removeprefix("Object at ").partition(" is not recognized")[0]
            if name == said:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            elif is_remote(self._url) or Path(self._url, name).is_dir():
                raise self._fault(
                    "its metadata are missing, so that it is neither an array nor a group; restore them, or "
                    "name the arrays to read in arrays",
                    name,
                )
        return names

    def _choose(self, store: Any) -> dict[str, Any]:
        arrays = super()._choose(store)
        for name, array in arrays.items():
            # Not every release of the package numcodecs refuses to unpickle.
            if any("pickle" in codec for codec in _name_codecs(array)):
                raise self._fault(
                    "the array is compressed by pickling, and unpickling it could run any code; write it "
                    "with another codec",
                    name,
                )
        return arrays

    def _check(self, name: str, array: Any, start: int, stop: int) -> None:
        if getattr(array, "fill_value", 0) is not None or not array.chunks:
            return
        counts = [-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True)]
        rows = range(start // array.chunks[0], -(-stop // array.chunks[0]))
        for at in itertools.product(rows, *map(range, counts[1:])):
            key = array.metadata.encode_chunk_key(at)
            if (name, key) in self._stored:
                continue
            if not self._ask(partial(_exists, array.store_path / key), name):
                problem = f"chunk {key!r} is missing, and the array declares no fill_value to replace it"
                raise self._fault(problem, name)
            self._stored.add((name, key))


def _read_together(array: Any, spans: Spans, outs: Outs) -> Iterator[Any]:
    from zarr.core.buffer.cpu import NDBuffer
    from zarr.core.sync import sync

    async def read_one(first: int, last: int, out: Any) -> Any:
        # Early releases of Zarr 3 only make new arrays. Rows with gaps are picked from a new array, too.
        if out is None or len(out) < last - first or not hasattr(array, "get_orthogonal_selection"):
            return await array.getitem(slice(first, last))
        return await array.get_orthogonal_selection(slice(first, last), out=NDBuffer.from_ndarray_like(out))

    async def read() -> list[Any]:
        return await asyncio.gather(*[read_one(*span, out) for span, out in zip(spans, outs, strict=True)])

    return iter(sync(read()))


def _name_codecs(array: Any) -> list[str]:
    """Return the names of the codecs that decode an array's chunks."""
    metadata = array.metadata
    codecs = [getattr(metadata, "compressor", None), *(getattr(metadata, "filters", None) or ())]
    codecs += getattr(metadata, "codecs", ())
    return [str(getattr(one, "codec_id", None) or getattr(one, "codec_name", "")) for one in codecs]


def _exists(path: Any) -> bool:
    from zarr.core.sync import sync

    return bool(sync(path.exists()))
