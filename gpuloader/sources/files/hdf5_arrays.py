"""`HDF5Dataset`: the rows of arrays in an HDF5 file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import IO, Any

from gpuloader.base.errors import DataFileError, missing_package
from gpuloader.base.finalizers import when_dropped
from gpuloader.sources.files.arrays import StoredArrays
from gpuloader.sources.files.opening import ATTEMPTS, BUFFER, TIMEOUT, Tries, as_url, is_remote, open_source


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
