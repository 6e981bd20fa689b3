"""`ZarrDataset`: the rows of Zarr arrays."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataFileError, SourceError, describe_error, missing_package
from gpuloader.sources.array_rows import check_index, locate
from gpuloader.sources.block import SampleFields, each_row, of_arrays
from gpuloader.sources.dataset import Dataset
from gpuloader.sources.files.remote_files import (
    ATTEMPTS,
    BUFFER,
    PLAIN,
    TIMEOUT,
    Tries,
    as_url,
    is_remote,
    open_source,
    persist,
)
from gpuloader.system.finalizers import when_dropped

# The rows of stored arrays, the base of `ZarrDataset` and `HDF5Dataset`; each process opens the store.

T = TypeVar("T")
_DAMAGE = (json.JSONDecodeError, UnicodeDecodeError, TypeError, AttributeError)


class StoredArrays(Dataset[dict[str, Any]]):
    """The rows of arrays that share their first dimension; the base of the two datasets below.

    The process that reads opens the store, so a forked process, or one that received the dataset in a
    pickle, opens it again. Any thread may read. Whatever the order of its samples, a batch reads each chunk
    once. In an array without chunks, adjacent rows are read together.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        arrays: Sequence[str] | None = None,
        *,
        attempts: int = ATTEMPTS,
        timeout: float = TIMEOUT,
    ) -> None:
        if isinstance(arrays, str):
            raise TypeError(f"arrays must be a list of names, got {arrays!r}")
        self._url = as_url(url)
        tries = Tries.of(attempts, timeout)
        self._tries = tries if is_remote(self._url) else PLAIN
        self._names = None if arrays is None else list(arrays)
        if self._names is not None and (not self._names or len(set(self._names)) < len(self._names)):
            raise ValueError(f"arrays must be one or more different names, got {self._names}")
        self._lock = threading.Lock()
        self._held: tuple[int, Any, dict[str, Any]] | None = None
        self._stored: set[tuple[str, str]] = set()  # chunks that were found
        try:
            arrays_here = self._arrays()
            lengths = {name: _count_rows(name, array) for name, array in arrays_here.items()}
            self._fields = of_arrays("dict", arrays_here, list(arrays_here.values()))
            if not lengths:
                raise DataFileError("there are no arrays at the top level; name those to read in arrays")
            if len(set(lengths.values())) > 1:
                raise DataFileError(f"arrays must have the same number of rows, got {lengths}")
        except DataFileError as error:
            error.file = self._url
            raise
        finally:
            self.close()  # so that forked workers do not share the store
        self._length = next(iter(lengths.values()))

    def _open(self) -> Any:
        """Open the store."""
        raise NotImplementedError

    def _list(self, store: Any) -> list[str]:
        """Return the names of the arrays at the top level of a store."""
        raise NotImplementedError

    def _close(self, store: Any) -> None:
        """Close the store."""

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> dict[str, Any]:
        found = locate(self, index)
        if isinstance(found, int):
            (sample,) = self.__getitems__([found])
            return sample
        return self._read_columns(np.fromiter(each_row(found), np.int64))

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Read several samples, reading each chunk of an array once."""
        rows = np.array([check_index(self, index) for index in indices], np.int64)
        columns = self._read_columns(rows)
        return [{name: column[row] for name, column in columns.items()} for row in range(len(rows))]

    def _read_columns(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        return {name: self._take(name, array, rows) for name, array in self._arrays().items()}

    def _sample_fields(self) -> SampleFields:
        return self._fields

    def _take(self, name: str, array: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of an array, in the order of `rows`."""
        wanted, places = np.unique(rows, return_inverse=True)
        chunks = getattr(array, "chunks", None)
        runs = wanted // chunks[0] if chunks else wanted - np.arange(len(wanted))
        taken = np.empty((len(wanted), *array.shape[1:]), array.dtype)
        parts = np.split(np.arange(len(wanted)), np.flatnonzero(np.diff(runs)) + 1)
        for part in parts if len(wanted) else ():
            first, last = int(wanted[part[0]]), int(wanted[part[-1]])
            taken[part] = self._read(name, array, first, last + 1)[wanted[part] - first]
        return taken[places]

    def _check(self, name: str, array: Any, start: int, stop: int) -> None:
        """Raise `DataFileError` if a chunk of these rows is missing and has no substitute."""

    def _read(self, name: str, array: Any, start: int, stop: int) -> NDArray[Any]:
        self._check(name, array, start, stop)
        read: NDArray[Any]
        if is_remote(self._url):
            read = persist(lambda: array[start:stop], self._url, self._tries)
            return read
        try:
            read = array[start:stop]
        except Exception as error:
            problem = f"cannot read rows {start} to {stop - 1}: {describe_error(error)}"
            raise DataFileError(problem, file=self._url, column=name) from error
        return read

    def _arrays(self) -> dict[str, Any]:
        """Return the arrays by name, opened by this process."""
        with self._lock:
            if self._held is None or self._held[0] != os.getpid():
                store = self._open()
                self._held = os.getpid(), store, self._choose(store)
            return self._held[2]

    def _choose(self, store: Any) -> dict[str, Any]:
        if hasattr(store, "shape"):
            return {PurePath(self._url).stem: store}
        # A server may be unable to list its contents, so named arrays are requested by name.
        names = self._list(store) if self._names is None else self._names
        return {name: self._find(store, name) for name in names}

    def _ask(self, action: Callable[[], T], name: str | None = None) -> T:
        """Return what a request for metadata returns.

        Raises
        ------
        SourceError
            The store cannot be read.
        DataFileError
            Its metadata are damaged.
        """
        try:
            return persist(action, self._url, self._tries)
        except SourceError as error:
            cause = error.__cause__
            by_zarr = type(cause).__module__.startswith("zarr.") and isinstance(cause, ValueError)
            if (
                cause is None
                or isinstance(cause, FileNotFoundError)
                or not (by_zarr or isinstance(cause, _DAMAGE))
            ):
                raise
            problem = f"the metadata are damaged: {describe_error(cause)}"
            raise DataFileError(problem, file=self._url, column=name) from cause

    def _find(self, store: Any, name: str) -> Any:
        try:
            found = self._ask(lambda: store[name], name)
        except SourceError as error:
            if not isinstance(error.__cause__, KeyError):
                raise
            found = None
        if not hasattr(found, "shape"):
            raise DataFileError("there is no array of this name", file=self._url, column=name)
        return found

    def close(self) -> None:
        """Close the store; the next read opens it again."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None and held[0] == os.getpid():
                self._close(held[1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def _count_rows(name: str, array: Any) -> int:
    if not array.shape:
        raise DataFileError("expected an array with a first dimension, got a single value", column=name)
    return int(array.shape[0])


# `HDF5Dataset`: the rows of arrays in an HDF5 file.


class HDF5Dataset(StoredArrays):
    """The rows of arrays in an HDF5 file; a sample is a dict with one row per array.

    Parameters
    ----------
    url : path or URL
        The file. If it has a scheme, fsspec copies it to an unnamed temporary file when the dataset is made;
        on Linux, worker processes read that copy.
    arrays : list of str or None
        The arrays of the file to read. None reads all at its top level.
    attempts : int
        How many times to try a read over connections that drop. The waits in between grow to 5 s at most.
    timeout : float
        Seconds after which one attempt to read from a server has failed; 0 means no limit.

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

    def __init__(
        self,
        url: str | os.PathLike[str],
        arrays: Sequence[str] | None = None,
        *,
        attempts: int = ATTEMPTS,
        timeout: float = TIMEOUT,
    ) -> None:
        self._path, self._copied = as_url(url), is_remote(as_url(url))
        if self._copied:
            # HDF5 reads under a lock that any thread may need while it collects garbage, including the thread
            # of a remote file system. Each would wait for the other, so HDF5 only reads local files.
            copy = _copy_here(self._path, Tries.of(attempts, timeout))
            when_dropped(self, copy.close)
            self._path = f"/proc/{os.getpid()}/fd/{copy.fileno()}"
        super().__init__(url, arrays, attempts=attempts, timeout=timeout)

    def _open(self) -> Any:
        try:
            import h5py
        except ImportError:
            raise missing_package("reading HDF5 files", "h5py", "hdf5") from None
        source = open_source(self._path)  # raises a SourceError with the reason if the file is missing
        try:
            # HDF5 cannot open the unnamed copy by path.
            store = h5py.File(source if self._copied else self._path, "r")
        except OSError as error:
            source.close()
            problem = f"the file is truncated or not an HDF5 file: {error}"
            raise DataFileError(problem, file=self._url) from error
        if self._copied:
            when_dropped(store, source.close)
        else:
            source.close()
        return store

    def _list(self, store: Any) -> list[str]:
        return [name for name, item in store.items() if hasattr(item, "shape")]

    def _close(self, store: Any) -> None:
        store.close()


def _copy_here(url: str, tries: Tries) -> IO[bytes]:
    """Copy a remote file to an unnamed temporary file, which leaves nothing behind, and return that."""
    with open_source(url, tries, buffered=True) as source:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - the dataset closes it
        try:
            shutil.copyfileobj(source, copy, BUFFER)
            copy.flush()
        except BaseException:
            copy.close()
            raise
    return copy


class ZarrDataset(StoredArrays):
    """The rows of Zarr arrays; a sample is a dict with one row per array.

    By the specification of Zarr, a chunk that is not stored holds the array's ``fill_value``, and writers
    leave out chunks that are full of it. So a lost chunk cannot be told from one that was left out, unless
    the ``fill_value`` is null: then a missing chunk is an error. Name the `arrays` that must be there:
    without names, an array whose folder is gone is one array less.

    Parameters
    ----------
    url : path or URL
        The group, or a single array, whose name is then that of the store without its suffix. fsspec reads
        URLs with a scheme.
    arrays : list of str or None
        The arrays of the group to read. None reads all at its top level, if the store can list them; HTTP
        cannot.
    attempts : int
        How many times to try a read over connections that drop. The waits in between grow to 5 s at most.
    timeout : float
        Seconds after which one attempt to read from a server has failed; 0 means no limit.

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
        try:
            import zarr
        except ImportError:
            raise missing_package("reading Zarr arrays", "zarr", "zarr") from None
        return self._ask(lambda: zarr.open(self._url, mode="r"))

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
                raise DataFileError(
                    "its metadata are missing, so that it is neither an array nor a group; restore them, or "
                    "name the arrays to read in arrays",
                    file=self._url,
                    column=name,
                )
        return names

    def _choose(self, store: Any) -> dict[str, Any]:
        arrays = super()._choose(store)
        for name, array in arrays.items():
            # Not every release of the package numcodecs refuses to unpickle.
            if any("pickle" in codec for codec in _name_codecs(array)):
                raise DataFileError(
                    "the array is compressed by pickling, and unpickling it could run any code; write it "
                    "with another codec",
                    file=self._url,
                    column=name,
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
                raise DataFileError(
                    f"chunk {key!r} is missing, and the array declares no fill_value to take its place",
                    file=self._url,
                    column=name,
                )
            self._stored.add((name, key))


def _name_codecs(array: Any) -> list[str]:
    """Return the names of the codecs by which an array's chunks are decoded."""
    metadata = array.metadata
    codecs = [getattr(metadata, "compressor", None), *(getattr(metadata, "filters", None) or ())]
    codecs += getattr(metadata, "codecs", ())
    return [str(getattr(one, "codec_id", None) or getattr(one, "codec_name", "")) for one in codecs]


def _exists(path: Any) -> bool:
    from zarr.core.sync import sync

    return bool(sync(path.exists()))
