"""Arrays in a store, row by row: `ZarrDataset` and `HDF5Dataset`, opened by each process for itself."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import PurePath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.checks import check_count
from gpuloader.base.errors import DataFileError, SourceError, describe_error, missing_package
from gpuloader.sources.dataset_base import Dataset, check_index
from gpuloader.sources.files.opening import ATTEMPTS, BUFFER, as_url, is_remote, open_source, persist


class StoredArrays(Dataset[dict[str, Any]]):
    """The rows of arrays that share their first dimension; the base of the two datasets below.

    Whoever reads opens the store: a process that was forked, or that was sent the dataset, does so anew. Any
    thread may read. A batch is read chunk by chunk, each once, whatever the order of its samples; of an array
    without chunks, rows that lie side by side are read at once.
    """

    def __init__(
        self, url: str | os.PathLike[str], arrays: Sequence[str] | None = None, *, attempts: int = ATTEMPTS
    ) -> None:
        if isinstance(arrays, str):
            raise TypeError(f"arrays must be a list of names, got {arrays!r}")
        self._url = as_url(url)
        self._attempts = check_count("attempts", attempts)
        self._names = None if arrays is None else list(arrays)
        if self._names is not None and (not self._names or len(set(self._names)) < len(self._names)):
            raise ValueError(f"arrays must be different names, one or more, got {self._names}")
        self._lock = threading.Lock()
        self._held: tuple[int, Any, dict[str, Any]] | None = None
        try:
            lengths = {name: _count_rows(name, array) for name, array in self._arrays().items()}
            if not lengths:
                raise DataFileError("it has no arrays at its top; name those to read in arrays")
            if len(set(lengths.values())) > 1:
                raise DataFileError(f"arrays must have equally many rows, got {lengths}")
        except DataFileError as error:
            error.file = self._url
            raise
        finally:
            self.close()  # so that forked workers do not share it
        self._length = next(iter(lengths.values()))

    def _open(self) -> Any:
        """Open the store."""
        raise NotImplementedError

    def _list(self, store: Any) -> list[str]:
        """Return the names of the arrays at the top of a store."""
        raise NotImplementedError

    def _close(self, store: Any) -> None:
        """Close the store."""

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        (sample,) = self.__getitems__([index])
        return sample

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Read several samples, each chunk of an array once."""
        rows = np.array([check_index(self, index) for index in indices], np.int64)
        columns = {name: self._take(name, array, rows) for name, array in self._arrays().items()}
        return [{name: column[row] for name, column in columns.items()} for row in range(len(rows))]

    def _take(self, name: str, array: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows of an array."""
        wanted, places = np.unique(rows, return_inverse=True)
        chunks = getattr(array, "chunks", None)
        runs = wanted // chunks[0] if chunks else wanted - np.arange(len(wanted))
        taken = np.empty((len(wanted), *array.shape[1:]), array.dtype)
        for part in np.split(np.arange(len(wanted)), np.flatnonzero(np.diff(runs)) + 1):
            first, last = int(wanted[part[0]]), int(wanted[part[-1]])
            taken[part] = self._read(name, array, first, last + 1)[wanted[part] - first]
        return taken[places]

    def _read(self, name: str, array: Any, start: int, stop: int) -> NDArray[Any]:
        read: NDArray[Any]
        if is_remote(self._url):
            read = persist(lambda: array[start:stop], self._url, self._attempts)
            return read
        try:
            read = array[start:stop]
        except Exception as error:
            problem = f"rows {start} to {stop - 1} cannot be read: {describe_error(error)}"
            raise DataFileError(problem, file=self._url, column=name) from error
        return read

    def _arrays(self) -> dict[str, Any]:
        """Return the arrays, opened by this process."""
        with self._lock:
            if self._held is None or self._held[0] != os.getpid():
                store = self._open()
                self._held = os.getpid(), store, self._choose(store)
            return self._held[2]

    def _choose(self, store: Any) -> dict[str, Any]:
        if hasattr(store, "shape"):
            return {PurePath(self._url).stem: store}
        # A server need not tell what it has: what has a name is asked for by it.
        names = self._list(store) if self._names is None else self._names
        return {name: self._find(store, name) for name in names}

    def _find(self, store: Any, name: str) -> Any:
        try:
            found = persist(lambda: store[name], self._url, self._tries)
        except SourceError as error:
            if not isinstance(error.__cause__, KeyError):
                raise
            found = None
        if not hasattr(found, "shape"):
            raise DataFileError("there is no such array", file=self._url, column=name)
        return found

    @property
    def _tries(self) -> int:
        return self._attempts if is_remote(self._url) else 1

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


class ZarrDataset(StoredArrays):
    """The rows of Zarr arrays; a sample is a dict of one row an array.

    Parameters
    ----------
    url : path or URL
        A group, or one array, which then goes by the name of the store without its suffix. Those with a
        scheme are read through fsspec.
    arrays : list of str or None
        Which arrays of the group; None: all at its top, where the store can list them, as HTTP cannot.
    attempts : int
        How often to ask for what a dropped connection did not bring, with growing waits of 5 s at most.

    Raises
    ------
    MissingPackage
        zarr is not installed, or fsspec where a URL needs it.
    TypeError, ValueError
        `arrays` is no list of different names.
    SourceError
        There is no such store, or it cannot be read.
    DataFileError
        It lacks an array, or they differ in their number of rows; while reading, a chunk is damaged (in a
        loader it is then the cause of a `SampleError`).

    Examples
    --------
    >>> import tempfile, pytest
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
        return persist(lambda: zarr.open(self._url, mode="r"), self._url, self._tries)

    def _list(self, store: Any) -> list[str]:
        return sorted(store.array_keys())  # listed in whatever order


class HDF5Dataset(StoredArrays):
    """The rows of arrays in an HDF5 file; a sample is a dict of one row an array.

    Parameters
    ----------
    url : path or URL
        The file. One with a scheme is copied here when the dataset is made, through fsspec, into a temporary
        file without a name; worker processes read that one (on Linux).
    arrays : list of str or None
        Which arrays of the file; None: all at its top.
    attempts : int
        How often to ask for what a dropped connection did not bring, with growing waits of 5 s at most.

    Raises
    ------
    MissingPackage
        h5py is not installed, or fsspec where a URL needs it.
    TypeError, ValueError
        `arrays` is no list of different names.
    SourceError
        There is no such file, or it cannot be read.
    DataFileError
        It is truncated, no HDF5 file, lacks an array, or they differ in their number of rows; while
        reading, a chunk is damaged (in a loader it is then the cause of a `SampleError`).

    Examples
    --------
    >>> import tempfile, pytest
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
        self, url: str | os.PathLike[str], arrays: Sequence[str] | None = None, *, attempts: int = ATTEMPTS
    ) -> None:
        self._path, self._copied = as_url(url), is_remote(as_url(url))
        if self._copied:
            # HDF5 reads under a lock that whatever thread collects garbage may ask for, that of a remote file
            # system too: each would wait for the other. So nothing remote is read under it.
            copy = _copy_here(self._path, attempts)
            weakref.finalize(self, copy.close)
            self._path = f"/proc/{os.getpid()}/fd/{copy.fileno()}"
        super().__init__(url, arrays, attempts=attempts)

    def _open(self) -> Any:
        try:
            import h5py
        except ImportError:
            raise missing_package("reading HDF5 files", "h5py", "hdf5") from None
        source = open_source(self._path)  # which says what is wrong, if it is not there
        try:
            # By the name of a file without one HDF5 would not find it.
            store = h5py.File(source if self._copied else self._path, "r")
        except OSError as error:
            source.close()
            problem = f"it is truncated or no HDF5 file: {error}"
            raise DataFileError(problem, file=self._url) from error
        if self._copied:
            weakref.finalize(store, source.close)
        else:
            source.close()
        return store

    def _list(self, store: Any) -> list[str]:
        return [name for name, item in store.items() if hasattr(item, "shape")]

    def _close(self, store: Any) -> None:
        store.close()


def _copy_here(url: str, attempts: int) -> IO[bytes]:
    """Return a copy of a remote file, without a name, so that nothing of it is left behind."""
    with open_source(url, attempts, buffered=True) as source:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - the dataset closes it
        try:
            shutil.copyfileobj(source, copy, BUFFER)
            copy.flush()
        except BaseException:
            copy.close()
            raise
    return copy


def _count_rows(name: str, array: Any) -> int:
    if not array.shape:
        raise DataFileError("an array of rows is expected, got a single value", column=name)
    return int(array.shape[0])
