"""`TarDataset`: samples in tar shards, in the format of the webdataset package."""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from gpuloader.errors import DataFileError, LoaderError, missing_package
from gpuloader.sources.files.remote_files import ATTEMPTS, TIMEOUT, Tries, as_urls, open_source
from gpuloader.sources.files.shards import ShardDataset
from gpuloader.sources.images.folder import EXTENSIONS
from gpuloader.sources.images.image import Image

IMAGE = "image"
SAMPLES = 64
"""The most samples to read at a time without a shuffle buffer."""

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}
"""Maps the first bytes of compressed files to the module that decompresses them.

The bytes decide, not the file name. The modules are imported by name: not every Python has all three.
"""


class TarDataset(ShardDataset[Any, list[Any], list[Any]]):
    """Samples in tar files: consecutive members that share a name up to its first dot form one sample.

    A shard is a file, which one worker of one rank reads. So use several times as many files as there are
    workers on all ranks, of about equal size. Members are read from start to end, a remote file in pieces
    of 4 MiB.

    Memory: the encoded members of 64 samples, or of `shuffle_buffer` samples.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files; ``{000..127}`` in a name expands to a range of files. fsspec reads URLs with a scheme.
    decode : callable, 'image' or None
        Makes a sample from a dict that holds the bytes of each member under its lower-case extension, plus
        ``__key__`` and ``__url__``. None makes the dict the sample. 'image' makes a dict with each image
        under the name before its extension, or under ``image`` if there is none, with the member ``cls`` as
        the whole number ``label``, and with the bytes of all others.
    shuffle : bool
        True reads the shards in an order drawn from `seed` and the epoch. False reads them in turn.
    shuffle_buffer : int or None
        The number of samples to shuffle together, before they are decoded. None keeps the samples of a shard
        in order.
    seed : int
        The seed of all orders; must be the same on all ranks. It is independent of the loader's seed, but the
        epoch is the loader's.
    attempts : int
        How many times to try a read over connections that drop. The waits in between grow to 5 s at most.
    timeout : float
        Seconds after which one attempt to read from a server has failed; 0 means no limit.

    Raises
    ------
    MissingPackage
        webdataset is not installed, or fsspec is not and a URL needs it.
    TypeError
        `decode` is neither callable nor 'image'.
    SourceError
        Raised while reading: a file cannot be read.
    DataFileError
        Raised while reading: a file is truncated or is not a tar file.

    Examples
    --------
    >>> import io, tempfile, numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("webdataset")
    >>> folder = tempfile.TemporaryDirectory()
    >>> with tarfile.open(f"{folder.name}/a-0.tar", "w") as shard:
    ...     for number in range(3):
    ...         member = tarfile.TarInfo(f"{number}.digit")
    ...         member.size = 1
    ...         shard.addfile(member, io.BytesIO(bytes([number])))
    >>> def decode(sample):
    ...     return np.frombuffer(sample["digit"], np.uint8)
    >>> dataset = TarDataset(f"{folder.name}/a-{{0..0}}.tar", decode)
    >>> [batch.ravel() for batch in DataLoader(dataset, places="cpu", batch_size=2)]
    [array([0, 1], dtype=uint8), array([2], dtype=uint8)]
    >>> folder.cleanup()
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        decode: Callable[[dict[str, Any]], Any] | str | None = None,
        *,
        shuffle: bool = False,
        shuffle_buffer: int | None = None,
        seed: int = 0,
        attempts: int = ATTEMPTS,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(shuffle=shuffle, shuffle_buffer=shuffle_buffer, seed=seed)
        if not (decode is None or decode == IMAGE or callable(decode)):
            raise TypeError(f"decode must be callable or 'image', got {decode!r}")
        try:
            from webdataset.shardlists import expand_urls
        except ImportError:
            raise missing_package("reading tar shards", "webdataset", "webdataset") from None
        self._urls: list[str] = [one for url in as_urls(urls) for one in expand_urls(url)]
        self._decode: Any = take_images if decode == IMAGE else decode
        self.holds_pictures = decode == IMAGE
        self._tries = Tries.of(attempts, timeout)

    @property
    def shards(self) -> int:
        """The number of files."""
        return len(self._urls)

    def __iter__(self) -> Iterator[Any]:
        for [(samples, rows)] in self._takes(1):
            sample = samples[rows.start if isinstance(rows, slice) else rows[0]]
            yield sample if self._decode is None else self._decoded(sample)

    def _decoded(self, sample: dict[str, Any]) -> Any:
        key, url = sample["__key__"], sample["__url__"]
        try:
            return self._decode(sample)
        except Exception as error:
            error.add_note(f"gpuloader: raised by decode for {key!r} of {url}")
            raise

    def _read(self, shard: int, skip: int) -> Iterator[list[Any]]:
        from webdataset.tariterators import group_by_keys, tar_file_expander

        url = self._urls[shard]
        with open_source(url, self._tries, buffered=True) as file:
            try:
                with _unpacked(file, url) as stream:
                    samples = group_by_keys(tar_file_expander([{"url": url, "stream": stream}]))
                    for _ in itertools.islice(samples, skip):
                        pass
                    while piece := list(itertools.islice(samples, SAMPLES)):
                        yield piece
            except (LoaderError, MemoryError):
                raise
            except Exception as error:  # tarfile and the decompressors raise many types
                reason = str(error.args[0]) if error.args else repr(error)
                problem = f"the file is truncated or not a tar file: {reason}"
                name, found, _ = reason.partition(": duplicate file name")
                if found:  # by the package webdataset
                    problem = (
                        f"one sample has two members with the name {name!r}, in capitals or not; rename one, "
                        "or write the members of a sample one after another and each once"
                    )
                raise DataFileError(problem, file=url) from error

    def _gather(self, pieces: Sequence[list[Any]]) -> list[Any]:
        return list(itertools.chain.from_iterable(pieces))


def take_images(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample with its encoded images as `Image`, and its class as a whole number.

    >>> take_images({"__key__": "7", "__url__": "a.tar", "jpg": b"...", "seg.png": b"...", "cls": b"3"})
    {'image': <Image a.tar/7.jpg: 3 bytes>, 'seg': <Image a.tar/7.seg.png: 3 bytes>, 'label': 3}
    """
    taken: dict[str, Any] = {}
    where = f"{sample['__url__']}/{sample['__key__']}"
    for name, value in sample.items():
        stem, _, ending = name.rpartition(".")
        if name in ("__key__", "__url__"):
            continue
        if f".{ending}" in EXTENSIONS:
            taken[stem or "image"] = Image(value, f"{where}.{name}")
        elif name == "cls":
            taken["label"] = int(value)
        else:
            taken[name] = value
    return taken


@contextmanager
def _unpacked(file: BinaryIO, url: str) -> Iterator[Any]:
    """Yield a tar file's decompressed contents, and raise `DataFileError` if it is truncated.

    tarfile itself takes a truncated file for a complete one, if it is cut between members or compressed.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - tarfile.BLOCKSIZE, 0))
    whole = file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    file.seek(0)
    head = file.read(max(map(len, _PACKED)))
    file.seek(0)  # costs no request: these bytes are still in the buffer
    for magic, module in _PACKED.items():
        if head.startswith(magic):
            with import_module(module).open(file) as stream:
                yield stream
            return
    if not whole:
        raise DataFileError(
            "the file is truncated or not a tar file: the block of zeros at its end is missing", file=url
        )
    yield file
