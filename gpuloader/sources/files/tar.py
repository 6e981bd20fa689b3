"""`TarDataset`: samples in tar shards, in the format of the webdataset package, but without needing it."""

from __future__ import annotations

import itertools
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, BinaryIO, ClassVar, Self

from gpuloader.errors import DataFileError, damaged
from gpuloader.sources.files.remote_files import open_source
from gpuloader.sources.files.shards import ShardDataset
from gpuloader.sources.images.folder import EXTENSIONS
from gpuloader.sources.images.image import Image
from gpuloader.sources.skipping import apply

IMAGE = "image"
SAMPLES, SAMPLES_NBYTES = 64, 1 << 20
"""The most samples to read at a time, and the bytes of members after which reading pauses."""

# The format of webdataset: which members belong to a sample, and which hold something else.
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")
_SKIPPED = re.compile(r"__[^/]*__($|/)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}
"""Maps the first bytes of compressed files to the module that decompresses them.

The bytes decide, not the file name. The modules are imported by name: not every Python has all three.
"""


@dataclass(eq=False, repr=False)
class TarDataset(ShardDataset[Any]):
    """Samples in tar files: consecutive members that share a name up to its first dot form one sample.

    A shard is a file, and one worker of one rank reads it. So use several times as many files as there are
    workers on all ranks, of about equal size. Members are read from start to end, remote files in pieces of
    4 MiB.

    Memory: about 1 MiB of encoded members, or those of `shuffle_buffer` samples. Two remote files are read at
    a time, about 7 MiB of each.

    Parameters
    ----------
    urls : path, URL, or list of them
        The files; ``{000..127}`` and ``{train,test}`` in a name expand as in a shell, and ``${name}`` to the
        environment variable ``WDS_name``. A pattern such as ``shards/*.tar`` or a folder stands for the files
        that match, in order of their names; a remote folder ends with a slash. fsspec reads URLs with a
        scheme.
    decode : callable, 'image' or None
        Makes a sample from a dict that holds the bytes of each member under its lower-case extension, plus
        ``__key__`` and ``__url__``. None uses the dict as the sample. 'image' makes a dict with each image
        under the name before its extension, or under ``image`` if there is none; the member ``cls`` becomes
        the whole number ``label``, and all other members stay bytes.
    shuffle : bool
        True reads the shards in an order drawn from `seed` and the epoch. False reads them in order.
    shuffle_buffer : int or None
        The number of samples to shuffle together, before they are decoded. None keeps the samples of a shard
        in order.
    seed : int
        The seed of all orders; must be the same on all ranks. It is independent of the loader's seed, but the
        epoch is the loader's.
    attempts : int
        How many times to try a read if connections drop. The waits in between grow to at most 5 s.
    timeout : float
        Seconds after which one attempt to read from a server has failed; 0 means no limit. By default, a
        server must also have answered once within 10 s.
    storage_options : dict or None
        Options for fsspec along with URLs, such as credentials. Workers receive them; nothing prints them.
    cache_dir : path or None
        A local folder for remote files. The first process of the machine that needs a file fetches it whole,
        and all read it there from then on. The contents of a URL must not change. Other files in the folder
        stay. None keeps no files.
    cache_size : int or None
        The most bytes of files to keep; the least recently used files are removed. None sets no limit.

    Raises
    ------
    MissingPackage
        A URL needs fsspec, which is not installed.
    TypeError
        `decode` is neither callable nor 'image'.
    SourceError
        No file matches a pattern; or, raised while reading, a file cannot be read.
    DataFileError
        Raised while reading: a file is truncated, damaged or not a tar file.

    Examples
    --------
    >>> import io, tempfile, numpy as np
    >>> from gpuloader import DataLoader
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

    decode: Callable[[dict[str, Any]], Any] | str | None = None
    _leaves_out: ClassVar[bool] = True

    _pattern = "*.tar*"

    def __post_init__(self) -> None:
        decode = self.decode
        if not (decode is None or decode == IMAGE or callable(decode)):
            raise TypeError(f"decode must be callable or 'image', got {decode!r}")
        super().__post_init__()
        self._decode: Any = take_images if decode == IMAGE else decode
        self.holds_pictures = decode == IMAGE

    def _expand(self, url: str) -> list[str]:
        return [one for part in url.split("::") for one in expand(part)]

    def __iter__(self) -> Iterator[Any]:
        for [(samples, rows)] in self._takes(1):
            sample = samples[rows.start if isinstance(rows, slice) else rows[0]]
            key, url = sample["__key__"], sample["__url__"]
            try:
                yielded = sample if self._decode is None else apply("decode", self._decode, sample)
            except Exception as error:
                error.add_note(f"gpuloader: raised by decode for {key!r} of {url}")
                raise
            yield yielded

    def _read(self, shards: Sequence[int], skip: int) -> Iterator[list[Any]]:
        url = self._urls[shards[0]]
        # tarfile and the decompressors raise many types
        reading = damaged("the file is truncated or not a tar file: ", Exception, file=url)
        with open_source(url, self._tries, buffered=True) as file, reading, _unpacked(file) as stream:
            piece, nbytes = [], 0
            for sample in itertools.islice(_group(stream, url), skip, None):
                piece.append(sample)
                nbytes += sum(map(len, sample.values()))
                if len(piece) == SAMPLES or nbytes >= SAMPLES_NBYTES:
                    yield piece
                    piece, nbytes = [], 0
            if piece:
                yield piece

    def _gather(self, pieces: Sequence[list[Any]]) -> list[Any]:
        return list(itertools.chain.from_iterable(pieces))


class _Header(tarfile.TarInfo):
    """A member's header; tarfile takes any block that is not one for the end of the file, or skips it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if any(buf):  # zeros end an archive, and anything else is damage
                raise tarfile.ReadError(str(error)) from error
            raise


def _group(stream: Any, url: str) -> Iterator[dict[str, Any]]:
    """Yield the samples of a tar file as dicts of their members' bytes, by extension."""
    sample: dict[str, Any] = {}
    nameless = ""  # a member that belongs to no sample
    # Beyond zeros, which end an archive, another may follow: archives are appended as plain files, too.
    with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Header, ignore_zeros=True) as opened:
        members: Any = opened
        end = 0
        for member in members:
            members.members = []  # otherwise tarfile would keep all of them
            end = members.offset
            found = _NAME.match(member.name)
            is_link = member.islnk() or member.issym()
            if not (member.isreg() or is_link) or _SKIPPED.match(member.name):
                continue
            if not found or (is_link and not _NAME.match(member.linkname)):  # perhaps a link to a folder
                nameless = member.name
                continue
            if is_link:  # tar writes hard links for further names of a file; their samples would be lost
                problem = f"{member.name!r} holds no bytes but a link to {member.linkname!r}"
                raise DataFileError(f"{problem}; write the archive with tar --dereference --hard-dereference")
            key, ending = found[1], found[2].lower()
            if sample.get("__key__") != key:
                if sample:
                    yield sample
                sample = {"__key__": key, "__url__": url}
            if ending in sample:
                raise DataFileError(
                    f"one sample has two members with the name {member.name!r}, in capitals or not; rename "
                    "one, or write the members of a sample one after another and each once"
                )
            # Directly, because tarfile's own reader of a member takes longer than its bytes. Only that reader
            # would notice the end of the file: `next` seeks on towards any size that a damaged header claims.
            reader = members.extractfile(member) if member.issparse() else members.fileobj
            sample[ending] = reader.read(member.size)
            if len(sample[ending]) < member.size:
                raise tarfile.ReadError("unexpected end of data")
        if members.offset == end:  # which tarfile would accept
            raise tarfile.ReadError("the block of zeros at its end is missing")
    if sample:
        yield sample
    elif nameless:
        problem = "no member is a file with an extension, such as .jpg, which names its field"
        raise DataFileError(f"{problem}: {nameless!r}")


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern with braces and variables stands for.

    >>> expand("{train,test}-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'test-08.tar', 'test-09.tar', 'test-10.tar']
    """
    pattern = _VARIABLE.sub(lambda found: os.environ.get("WDS_" + found[1], found[0]), pattern)
    depth, cuts = 0, [0]
    for at, char in enumerate(pattern):
        if char == "{":
            depth += 1
            cuts = [at] if depth == 1 else cuts
        elif char in ",}" and depth == 1:
            cuts.append(at)
        if char == "}" and depth:
            depth -= 1
            parts = [pattern[start + 1 : stop] for start, stop in itertools.pairwise(cuts)]
            if not depth and (len(parts) > 1 or (parts := _count(parts[0]))):
                inside, behind = [one for part in parts for one in expand(part)], expand(pattern[at + 1 :])
                return [f"{pattern[: cuts[0]]}{one}{rest}" for one in inside for rest in behind]
    return [pattern]


def _count(text: str) -> list[str]:
    """Return the numbers or letters of a range such as ``08..10`` or ``a..c``; empty for any other text."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return []
    first, last, step = found[1], found[2], abs(int(found[3] or 1)) or 1
    is_letter = not first[-1].isdigit()
    start, stop = (ord(first), ord(last)) if is_letter else (int(first), int(last))
    numbers = range(start, stop + 1, step) if start <= stop else range(start, stop - 1, -step)
    if is_letter:
        return [chr(number) for number in numbers]
    is_padded = any(re.match("-?0[0-9]", one) for one in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    return [f"{number:0{width}d}" for number in numbers]


def take_images(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample with its encoded images as `Image`, and its class as a whole number.

    >>> take_images({"__key__": "7", "__url__": "a.tar", "jpg": b"...", "seg.png": b"...", "cls": b"3"})
    {'image': <Image a.tar/7.jpg: 3 bytes>, 'seg': <Image a.tar/7.seg.png: 3 bytes>, 'label': 3}
    """
    taken: dict[str, Any] = {}
    where = f"{sample['__url__']}/{sample['__key__']}"
    for name, value in sample.items():
        stem, _, ending = name.rpartition(".")
        if f".{ending}" in EXTENSIONS:
            if (stem := stem or "image") in taken:
                raise ValueError(f"two members are the image {stem!r}: rename one to NAME.{ending}")
            taken[stem] = Image(value, f"{where}.{name}")
        elif name == "cls":
            taken["label"] = int(value)
        elif name not in ("__key__", "__url__"):
            taken[name] = value
    return taken


def _unpacked(file: BinaryIO) -> Any:
    """Return a file with the decompressed contents of a tar file."""
    head = file.read(max(map(len, _PACKED)))
    file.seek(0)  # needs no request: these bytes are still in the buffer
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        raise DataFileError("tar files packed by Zstandard are not read; pack it by gzip or not at all")
    for magic, module in _PACKED.items():
        if head.startswith(magic):
            return import_module(module).open(file)
    return file
