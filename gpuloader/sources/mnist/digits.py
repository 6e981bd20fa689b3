"""MNIST: in memory, as readers of digits, and in the files in which it is stored.

Each of `Mnist`'s three sets is a `DigitSet`. The files are one gzip-compressed JSON file, or four IDX files.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import DataFileError

PIXELS = 28 * 28
HIGHEST_LABEL = 9
GREY_LEVELS = 256
"""Gray level k of the original files becomes the float k / 256, so pixels lie in [0, 1)."""
MAXIMUM_IMAGES = 70_000
"""The images in all of MNIST: 60,000 training and 10,000 test images. No reader accepts more."""


@dataclass(frozen=True, slots=True, eq=False)
class DigitSet:
    """Images of digits and their labels.

    Attributes
    ----------
    images : ndarray of float32, shape (n, 784)
        Gray levels in [0, 1), row by row of the 28 x 28 image; 0 is the background.
    labels : ndarray of int64, shape (n,)
        The digits in the images, 0 to 9.

    Examples
    --------
    >>> digits = DigitSet(np.zeros((3, 784), np.float32), np.array([5, 0, 4]))
    >>> len(digits)
    3
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Mnist:
    """The three sets of MNIST.

    Attributes
    ----------
    train : DigitSet
        The training set: 50,000 images in the full data.
    valid : DigitSet
        The validation set, for choosing hyperparameters: 10,000 images in the full data.
    test : DigitSet
        The test set, for the final evaluation: 10,000 images in the full data.
    """

    train: DigitSet
    valid: DigitSet
    test: DigitSet


def from_bytes(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> DigitSet:
    """Return a set made from gray levels 0 to 255 and labels, both as bytes.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, ...)
        The images, 784 pixels each.
    labels : ndarray of uint8, shape (n,)
        The labels.

    Returns
    -------
    DigitSet
        The digits, with k / 256 for gray level k, which float32 represents exactly.

    Examples
    --------
    >>> images = np.full((1, 28, 28), 64, np.uint8)
    >>> from_bytes(images, np.array([7], np.uint8)).images[0, 0].item()
    0.25
    """
    levels: NDArray[Any] = images.reshape(len(images), PIXELS)
    pixels = np.multiply(levels, np.float32(1 / GREY_LEVELS), dtype=np.float32)
    return DigitSet(pixels, labels.astype(np.int64))


def sample() -> Mnist:
    """Return the 5,000 digits in the package: 4,000 for training, 500 for validation, 500 for testing.

    They are the first digits of each set of the full data.

    Returns
    -------
    Mnist
        The three sets, in the same form as from the full files; 15.7 MB.

    Examples
    --------
    >>> digits = sample()
    >>> digits.train.images.shape, digits.test.labels[:3].tolist()
    ((4000, 784), [7, 2, 1])
    """
    packed = resources.files("gpuloader.sources.mnist").joinpath("mnist-5k.npz")
    with packed.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        train, valid, test = (
            from_bytes(arrays[f"{name}_images"], arrays[f"{name}_labels"])
            for name in ("train", "valid", "test")
        )
    return Mnist(train, valid, test)


def reader(
    digits: DigitSet,
    batch_size: int = 100,
    shuffle: bool = True,
    seed: int | None = None,
    *,
    flat_labels: bool = False,
) -> Callable[[], Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]]:
    """Return a reader of ready batches that visits every digit once per epoch; the last batch may be short.

    Parameters
    ----------
    digits : DigitSet
        The digits to read.
    batch_size : int
        Digits per batch, 1 or more.
    shuffle : bool
        True draws a new order each time the reader is called. False keeps the order of `digits`.
    seed : int or None
        The seed of the orders. The epochs of one reader differ, and readers with the same seed agree epoch by
        epoch. None draws other orders in each run. A reader that runs in its own process begins each epoch
        from the random state it was sent with, so every epoch there has the same order.
    flat_labels : bool
        True returns labels of shape (n,) rather than (n, 1). A squared error against predictions of shape
        (n, 1) then broadcasts over all pairs: see `gpuloader.demo.training`.

    Returns
    -------
    callable
        A reader for `set_batch_generator`. It returns an iterator of (images, labels): float32 of shape
        (n, 784) and float32 of shape (n, 1), or (n,) with `flat_labels`. Batches are copies.

    Raises
    ------
    ValueError
        The batch size is not an integer of 1 or more.

    Examples
    --------
    >>> read = reader(sample().test, batch_size=300, seed=0)
    >>> [(images.shape, labels.shape) for images, labels in read()]
    [((300, 784), (300, 1)), ((200, 784), (200, 1))]
    """
    size = check_count("batch_size", batch_size)
    orders = np.random.default_rng(seed)
    labels = digits.labels.astype(np.float32)
    if not flat_labels:
        labels = labels.reshape(-1, 1)

    def read() -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        # Drawn here, not at the first batch, so that overlapping epochs get their orders as they begin.
        order: NDArray[Any] = orders.permutation(len(digits)) if shuffle else np.arange(len(digits))
        chosen = (order[start : start + size] for start in range(0, len(order), size))
        return ((digits.images[indices], labels[indices]) for indices in chosen)

    return read


def sample_reader(digits: DigitSet) -> Callable[[], Iterator[tuple[NDArray[np.float32], int]]]:
    """Return a reader of single digits in order, for `set_sample_generator`.

    Parameters
    ----------
    digits : DigitSet
        The digits to read.

    Returns
    -------
    callable
        A reader that returns an iterator of (image, label): a view of shape (784,) into `digits.images`, and
        an integer.

    Examples
    --------
    >>> image, label = next(sample_reader(sample().test)())
    >>> image.shape, label
    ((784,), 7)
    """
    return lambda: zip(digits.images, digits.labels.tolist(), strict=True)


def load(path: str | os.PathLike[str] | None = None) -> Mnist:
    """Load MNIST from a file, from a folder or from the package.

    Parameters
    ----------
    path : path-like or None
        A gzip JSON file (see `read_json`) or a folder with the four IDX files (see `load_idx`). None loads
        the sample in the package.

    Returns
    -------
    Mnist
        The training, validation and test sets.

    Raises
    ------
    FileNotFoundError
        The file does not exist, or the folder lacks one of the four files.
    DataFileError
        The file is truncated, has another format, or is larger than MNIST can be.

    Examples
    --------
    >>> len(load().train)
    4000
    """
    if path is None:
        return sample()
    return load_idx(path) if Path(path).is_dir() else read_json(Path(path))


MAXIMUM_TEXT_BYTES = 2**31
"""The most decompressed bytes to read from a file; the known file has 339,000,000."""

# The JSON file: a list of three sets, train, valid and test. A set is `[images, labels]`, an image is a list
# of 784 numbers from 0 to 1, and a label is an integer from 0 to 9. `json.load` would make 55 million Python
# objects of it, which take gigabytes. This reader cuts the text at its closing brackets, a few hundred KiB at
# a time, and writes into one float32 array.

_WINDOW_BYTES = 2**18
_MAXIMUM_LIST_BYTES = 8 * MAXIMUM_IMAGES
_WHITESPACE = b" \t\r\n"
_ON_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_LABELS = {b"%d" % label: label for label in range(HIGHEST_LABEL + 1)}


def read_json(path: str | Path) -> Mnist:
    """Read ``mnist.json.gz``.

    Whatever the file holds, memory never exceeds the result plus 16 MiB. The result is at most 70,000 x 784
    float32 (219.5 MB), reserved at the start and touched as images arrive.

    Parameters
    ----------
    path : str or Path
        A gzip file in the format that this module's docstring describes.

    Returns
    -------
    Mnist
        The three sets, whose images are parts of one array.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    DataFileError
        The file is truncated, damaged, not gzip, not JSON, or JSON of another shape. Or it holds numbers out
        of range, more than 70,000 images or more than 2 GiB of text. The message names the set and the row.

    Examples
    --------
    >>> import json, tempfile
    >>> one_digit = [[[0.5] * 784], [7]]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mnist.json.gz")
    ...     _ = path.write_bytes(gzip.compress(json.dumps([one_digit] * 3).encode()))
    ...     mnist = read_json(path)
    >>> mnist.test.images.shape, mnist.test.labels
    ((1, 784), array([7]))
    """
    # Left uninitialized, so that the system provides memory only for the rows that are written.
    images = np.empty((MAXIMUM_IMAGES, PIXELS), np.float32)
    ends: list[int] = [0]
    labels: list[NDArray[np.int64]] = []
    where = "start of the file"
    with gzip.open(path) as file:
        lists = _cut(cast("BinaryIO", file))
        try:
            for name in ("train", "valid", "test"):
                end, opening = ends[-1], b",[[[" if labels else b"[[[["
                while True:
                    where = f"set {name!r}, image {end - ends[-1]}"
                    text = next(lists)
                    if opening == b",[" and not text.strip(_WHITESPACE):  # the bracket after the last image
                        break
                    if end == MAXIMUM_IMAGES:
                        raise ValueError(f"expected at most {end:,} images in the three sets, got more")
                    images[end] = parse_row(_inside(text, opening, f"a list of {PIXELS} numbers"), PIXELS)
                    end, opening = end + 1, b",["
                where = f"labels of set {name!r}"
                text = _inside(next(lists), b",[", "the labels after the images")
                labels.append(_parse_labels(text, end - ends[-1]))
                ends.append(end)
                _inside(next(lists), b"", "']' after the images and labels")
            where = "end of the file"
            _inside(next(lists), b"", "']' after three sets")
            for text in lists:
                _inside(text + b"]", b"", "nothing after the three sets")
        except (StopIteration, ValueError) as error:
            problem = str(error) or f"expected more, but the text ends after {file.tell():,} bytes"
            raise DataFileError(
                f"{path}: {where}: {problem}; download the file again, or write it as gzip-compressed JSON "
                f"[[images, labels], [images, labels], [images, labels]] with {PIXELS} numbers from 0 to 1 "
                "in each image"
            ) from None
    # Frees the memory that was reserved but not used; no view of the array exists yet.
    images.resize((ends[-1], PIXELS), refcheck=False)
    parts = zip(ends[:-1], ends[1:], labels, strict=True)
    return Mnist(*(DigitSet(images[start:end], label) for start, end, label in parts))


def _cut(file: BinaryIO) -> Iterator[bytes]:
    """Yield the text before each closing bracket; raise `ValueError` if a list is too long or gzip fails."""
    rest = b""
    try:
        while more := file.read(_WINDOW_BYTES):
            *texts, rest = (rest + more).split(b"]")
            yield from texts
            if len(rest) > _MAXIMUM_LIST_BYTES or file.tell() > MAXIMUM_TEXT_BYTES:
                most = f"{_MAXIMUM_LIST_BYTES:,} bytes of text in a list, {MAXIMUM_TEXT_BYTES:,} in all"
                raise ValueError(f"expected at most {most}, got more")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        read = f"{file.tell():,} bytes of text"
        if isinstance(error, EOFError):
            raise ValueError(f"expected a whole gzip file, but it is cut off after {read}") from None
        raise ValueError(f"expected a valid gzip file, but after {read}: {error}") from None
    if rest.strip(_WHITESPACE):
        last = _quote(rest[-20:])
        raise ValueError(f"expected ']', but the text ends after {file.tell():,} bytes with {last}")


def _inside(text: bytes, opening: bytes, wanted: str) -> bytes:
    """Return the text after `opening`, in which there may be white space."""
    start = text.rfind(b"[") + 1
    if (text[:start] or text).translate(None, _WHITESPACE) != opening:
        raise ValueError(f"expected {wanted}, got {_quote(text + b']')}")
    return text[start:]


def _quote(text: bytes) -> str:
    return repr(text[:20].decode("ascii", "replace"))


def parse_row(text: bytes, count: int) -> NDArray[np.float32]:
    """Return the `count` numbers from 0 to 1 in `text`, the inside of a JSON array.

    NumPy's parser rounds each number once, to float64, as ``json.loads`` does. It also reads what JSON
    forbids: ``.5``, ``5.`` and ``00.5`` mean what they say.

    Raises
    ------
    ValueError
        The row does not hold that; the message says what differs and where in the row.

    Examples
    --------
    >>> parse_row(b"0.0, 1, 5e-1", 3)
    array([0. , 1. , 0.5], dtype=float32)
    >>> parse_row(b"0.0, 1.5", 2)
    Traceback (most recent call last):
    ...
    ValueError: expected numbers from 0 to 1, got 1.5 at position 1
    """
    if not text.strip(_WHITESPACE):  # of which NumPy would warn
        raise ValueError(f"expected {count} numbers, got 0")
    line = text.translate(_ON_ONE_LINE) if b"\n" in text or b"\r" in text else text
    row: NDArray[np.float32]
    try:
        row = np.loadtxt([line], np.float32, comments=None, delimiter=",", encoding="latin1", ndmin=1)
    except ValueError as error:
        raise ValueError(f"expected only numbers: {error}") from None
    if len(row) != count:
        raise ValueError(f"expected {count} numbers, got {len(row)}")
    valid = (row >= 0) & (row <= 1)
    if not valid.all():
        at = int(np.argmin(valid))
        raise ValueError(f"expected numbers from 0 to 1, got {row[at]:g} at position {at}")
    return row


def _parse_labels(text: bytes, count: int) -> NDArray[np.int64]:
    words = [word.strip(_WHITESPACE) for word in text.split(b",")]
    if len(words) != count:
        raise ValueError(f"expected {count} labels, one for each image, got {len(words)}")
    for row, word in enumerate(words):
        if word not in _LABELS:
            raise ValueError(f"expected integers from 0 to {HIGHEST_LABEL}, got {_quote(word)} at row {row}")
    return np.array([_LABELS[word] for word in words], np.int64)


# The IDX files: in the format in which MNIST was first published, a header of big-endian sizes and raw bytes.

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
        expected = f"more than {count:,} training digits, the size of the validation set"
        raise _problem(Path(folder), f"expected {expected}, got {len(train):,}")
    kept, valid = (DigitSet(train.images[part], train.labels[part]) for part in np.s_[:split, split:])
    return Mnist(kept, valid, test)


def _read_header(file: BinaryIO, path: Path) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTES or not 1 <= magic[3] <= 3:
        expected = "the file to begin with 00 00 08 and 01, 02 or 03"
        raise _problem(path, f"expected {expected}, got {magic.hex(' ')!r}")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise _problem(path, f"expected {magic[3]} sizes of 4 bytes in the header, got {len(sizes)} bytes")
    shape: tuple[int, ...] = struct.unpack(f">{magic[3]}I", sizes)
    if (size := math.prod(shape)) > MAXIMUM_DATA_BYTES:
        expected = f"at most {MAXIMUM_DATA_BYTES:,} bytes of data"
        raise _problem(path, f"expected {expected}, got a header that states {size:,}")
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
