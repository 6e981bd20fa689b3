"""IDX files, the format in which MNIST was first published: a header of big-endian sizes, then raw bytes."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import DataFileError
from gpuloader.sources.mnist.digits import HIGHEST_LABEL, MAXIMUM_IMAGES, PIXELS, DigitSet, Mnist, from_bytes

MAXIMUM_DATA_BYTES = MAXIMUM_IMAGES * PIXELS
"""The most data bytes to read from one file, 54.9 MB; the largest file of MNIST has 60,000 images."""

_UNSIGNED_BYTES = 0x08
_GZIP_MARK = b"\x1f\x8b"


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes, plain or compressed with gzip.

    The file's first bytes, not its name, tell whether it is compressed. Whatever the file holds, memory never
    exceeds twice the number of bytes that the header states, which may be at most 54.9 MB.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    ndarray of uint8
        The data in the shape that the header states, with 1 to 3 dimensions.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    DataFileError
        The file is not an IDX file of bytes, holds more than MNIST can, holds more or less than its header
        states, or is a damaged gzip file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels-idx1-ubyte")
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([5, 0, 4]))
    ...     read_idx(path)
    array([5, 0, 4], dtype=uint8)
    """
    path = Path(path)
    with path.open("rb") as plain:
        packed = plain.read(2) == _GZIP_MARK
        plain.seek(0)
        file = cast("BinaryIO", gzip.GzipFile(fileobj=plain)) if packed else plain
        try:
            shape = _read_header(file, path)
            size = math.prod(shape)
            data = file.read(size + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _problem(path, f"expected a whole gzip file, got a damaged one ({error})") from None
    if len(data) != size:
        got = "more" if len(data) > size else f"{len(data):,}"
        raise _problem(path, f"expected {size:,} bytes of data for shape {shape} in its header, got {got}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def load_idx(folder: str | os.PathLike[str], valid_count: int = 10_000) -> Mnist:
    """Read the four files of MNIST from a folder; the last training digits become the validation set.

    The files have their original names, such as ``train-images-idx3-ubyte``, with or without ``.gz``, and
    with a dot or a dash before ``idx``. The validation set is the same as in the JSON file.

    Parameters
    ----------
    folder : path-like
        The folder with the four files.
    valid_count : int
        The number of training digits that become the validation set, 1 or more. At least one must remain.

    Returns
    -------
    Mnist
        The three sets; images are float32, k / 256 for gray level k.

    Raises
    ------
    FileNotFoundError
        One of the four files is missing.
    DataFileError
        A file is not the expected one, or there are too few training digits to set some aside.
    ValueError
        The count is not an integer of 1 or more.
    """
    count = check_count("valid_count", valid_count)
    train = _read_pair(Path(folder), "train")
    test = _read_pair(Path(folder), "t10k")
    split = len(train) - count
    if split < 1:
        raise _problem(
            Path(folder),
            f"expected more than {count:,} training digits, the size of the validation set, "
            f"got {len(train):,}",
        )
    return Mnist(
        DigitSet(train.images[:split], train.labels[:split]),
        DigitSet(train.images[split:], train.labels[split:]),
        test,
    )


def _read_header(file: BinaryIO, path: Path) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTES or not 1 <= magic[3] <= 3:
        raise _problem(
            path, f"expected the file to begin with 00 00 08 and 01, 02 or 03, got {magic.hex(' ')!r}"
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise _problem(path, f"expected {magic[3]} sizes of 4 bytes in the header, got {len(sizes)} bytes")
    shape: tuple[int, ...] = struct.unpack(f">{magic[3]}I", sizes)
    if math.prod(shape) > MAXIMUM_DATA_BYTES:
        raise _problem(
            path,
            f"expected at most {MAXIMUM_DATA_BYTES:,} bytes of data, got a header that states "
            f"{math.prod(shape):,}",
        )
    return shape


def _read_pair(folder: Path, name: str) -> DigitSet:
    images_path = _find(folder, f"{name}-images", "idx3-ubyte")
    labels_path = _find(folder, f"{name}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.shape[1:] != (28, 28) or not len(images):
        raise _problem(images_path, f"expected 1 or more images of 28 x 28, got shape {images.shape}")
    if labels.shape != images.shape[:1]:
        raise _problem(labels_path, f"expected {len(images):,} labels, got shape {labels.shape}")
    wrong = np.flatnonzero(labels > HIGHEST_LABEL)
    if wrong.size:
        got = f"{labels[wrong[0]]} at row {wrong[0]}"
        raise _problem(labels_path, f"expected labels from 0 to {HIGHEST_LABEL}, got {got}")
    return from_bytes(images, labels)


def _find(folder: Path, stem: str, ending: str) -> Path:
    names = [f"{stem}{mark}{ending}{packed}" for mark in "-." for packed in ("", ".gz")]
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{folder} contains none of {', '.join(names)}; put one of them there")


def _problem(path: Path, problem: str) -> DataFileError:
    return DataFileError(f"{path}: {problem}; download the file again from where MNIST is published")
