"""IDX files, the form in which MNIST was first published: a header of big-endian sizes, then raw bytes."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataFileError
from gpuloader.sources.mnist import PIXELS, DigitSet, Mnist, from_bytes

MAX_BYTES = 100_000 * PIXELS
"""Of one file's data; the largest of MNIST has 60,000 images."""

_UNSIGNED_BYTES = 0x08
_VALID = 10_000


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes, plain or gzip.

    Returns
    -------
    numpy.ndarray
        uint8, in the shape its header gives.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    DataFileError
        It is not IDX, holds another type, announces more than MNIST can have, or is truncated.
    """
    path = Path(path)
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        file = cast("IO[bytes]", gzip.GzipFile(fileobj=plain)) if packed else plain
        try:
            shape = _read_header(file, path.name)
            size = math.prod(shape)
            data = file.read(size + 1)  # never more than the header announced and the bound allows
        except (EOFError, OSError, zlib.error) as error:
            raise DataFileError(f"{path.name}: the gzip stream is truncated or damaged ({error})") from error
    if len(data) != size:
        got = "more" if len(data) > size else f"{len(data):,}"
        raise DataFileError(f"{path.name}: expected {size:,} bytes of data for shape {shape}, got {got}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _read_header(file: IO[bytes], name: str) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTES or not 1 <= magic[3] <= 3:
        raise DataFileError(
            f"{name} is no IDX file of unsigned bytes: expected 00 00 08 and the number of dimensions, "
            f"1 to 3, got {magic.hex(' ')}"
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataFileError(f"{name}: the header ends early; the file is truncated")
    shape: tuple[int, ...] = struct.unpack(f">{magic[3]}I", sizes)
    if math.prod(shape) > MAX_BYTES:
        raise DataFileError(
            f"{name}: the header announces {math.prod(shape):,} bytes, at most {MAX_BYTES:,} fit"
        )
    return shape


def load_idx(folder: str | os.PathLike[str]) -> Mnist:
    """Read the four files of MNIST from a folder; the last 10,000 training digits become the valid set.

    File names are the original ones, such as ``train-images-idx3-ubyte``, with or without ``.gz``, and
    with a dot or a dash before ``idx``.

    Raises
    ------
    FileNotFoundError
        One of the four files is missing.
    DataFileError
        One of them is not what it should be.
    """
    train = _read_pair(Path(folder), "train")
    test = _read_pair(Path(folder), "t10k")
    split = max(len(train) - _VALID, 0)
    return Mnist(
        DigitSet(train.images[:split], train.labels[:split]),
        DigitSet(train.images[split:], train.labels[split:]),
        test,
    )


def _read_pair(folder: Path, name: str) -> DigitSet:
    images = _read_named(folder, f"{name}-images", "idx3-ubyte")
    labels = _read_named(folder, f"{name}-labels", "idx1-ubyte")
    if images.shape[1:] != (28, 28):
        raise DataFileError(f"{name}-images: expected images of 28 x 28, got shape {images.shape}")
    if labels.ndim != 1 or len(labels) != len(images):
        raise DataFileError(f"{name}-labels: expected {len(images)} labels, got shape {labels.shape}")
    if labels.size and labels.max() > 9:
        raise DataFileError(f"{name}-labels: expected labels of 0 to 9, got {labels.max()}")
    return from_bytes(images, labels)


def _read_named(folder: Path, stem: str, ending: str) -> NDArray[Any]:
    names = [f"{stem}{mark}{ending}{packed}" for mark in "-." for packed in ("", ".gz")]
    for name in names:
        if (folder / name).exists():
            return read_idx(folder / name)
    raise FileNotFoundError(f"none of {', '.join(names)} is in {folder}")
