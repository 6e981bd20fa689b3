"""`ZarrDataset`: the rows of Zarr arrays."""

from __future__ import annotations

import itertools
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from gpuloader.base.errors import DataFileError, missing_package
from gpuloader.sources.files.arrays import StoredArrays
from gpuloader.sources.files.opening import is_remote


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
