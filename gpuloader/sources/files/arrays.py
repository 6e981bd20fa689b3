"""The rows of stored arrays, the base of `ZarrDataset` and `HDF5Dataset`; each process opens the store."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.errors import DataFileError, SourceError, describe_error
from gpuloader.sources.block import each_row
from gpuloader.sources.dataset_base import Dataset
from gpuloader.sources.files.opening import ATTEMPTS, PLAIN, TIMEOUT, Tries, as_url, is_remote, persist
from gpuloader.sources.indexing import check_index, locate
from gpuloader.sources.sample_fields import SampleFields, of_arrays

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
