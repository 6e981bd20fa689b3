"""The files in which MNIST is stored: one gzip-compressed JSON file, or four IDX files.

The JSON file is a list of three sets: train, valid and test. A set is ``[images, labels]``, an image is a
list of 784 numbers from 0 to 1, and a label is an integer from 0 to 9. ``json.load`` would make 55 million
Python objects of it, which take gigabytes. This reader moves a window of a few hundred KiB over the text and
writes into one float32 array.

An IDX file, the format in which MNIST was first published, is a header of big-endian sizes and raw bytes.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_count
from gpuloader.errors import DataFileError
from gpuloader.sources.mnist.digits import (
    HIGHEST_LABEL,
    MAXIMUM_IMAGES,
    PIXELS,
    DigitSet,
    Mnist,
    from_bytes,
    sample,
)


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

_WINDOW_BYTES = 2**18
_ROWS_AT_ONCE = 64
_MAXIMUM_ROW_BYTES = 32 * PIXELS
_MAXIMUM_LABELS_BYTES = 8 * MAXIMUM_IMAGES
_SET_NAMES = ("train", "valid", "test")
_WHITESPACE = re.compile(rb"[ \t\r\n]*")


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
    path = Path(path)
    with path.open("rb") as file:
        text = _Text(file, path)
        # Left uninitialized, so that the system provides memory only for the rows that are written.
        images = np.empty((MAXIMUM_IMAGES, PIXELS), np.float32)
        ends, labels = [0], []
        text.expect(b"[", "a list of three sets, train, valid and test")
        for number, name in enumerate(_SET_NAMES):
            text.where = f"set {name!r}"
            if number:
                text.expect(b",", "a comma and the next of three sets")
            text.expect(b"[", "a pair of images and labels")
            ends.append(_read_images(text, images, ends[-1], name))
            text.where = f"labels of set {name!r}"
            text.expect(b",", "a comma and the labels after the images")
            labels.append(_read_labels(text, ends[-1] - ends[-2]))
            text.expect(b"]", "']' after the images and labels")
        text.where = "end of the file"
        text.expect(b"]", "']' after three sets")
        text.expect_end()
    # Frees the memory that was reserved but not used; no view of the array exists yet.
    images.resize((ends[-1], PIXELS), refcheck=False)
    train, valid, test = (
        DigitSet(images[start:end], label)
        for start, end, label in zip(ends[:-1], ends[1:], labels, strict=True)
    )
    return Mnist(train, valid, test)


def _read_images(text: _Text, images: NDArray[np.float32], start: int, name: str) -> int:
    """Read the images of one set into `images`, from row `start` on, and return the row where they end."""
    text.expect(b"[", "a list of images")
    end = start
    rows: list[bytes] = []
    separator = b","
    while separator == b",":
        row_number = end + len(rows) - start
        text.where = f"set {name!r}, image {row_number}"
        if end + len(rows) == MAXIMUM_IMAGES:
            text.fail(f"expected at most {MAXIMUM_IMAGES:,} images in the three sets together, got more")
        rows.append(text.take_list(_MAXIMUM_ROW_BYTES, f"{PIXELS} numbers"))
        separator = text.expect(b",]", "a comma or the end of the images")
        if len(rows) == _ROWS_AT_ONCE or separator == b"]":
            images[end : end + len(rows)] = _parse_images(text, rows, name, end - start)
            end += len(rows)
            rows.clear()
    return end


def _parse_images(text: _Text, rows: list[bytes], name: str, first: int) -> NDArray[np.float32]:
    images = parse_plain_rows(rows, PIXELS)
    if images is not None:
        return images
    images = np.empty((len(rows), PIXELS), np.float32)
    for number, row in enumerate(rows):
        try:
            images[number] = parse_row(row, PIXELS)
        except ValueError as error:
            text.where = f"set {name!r}, image {first + number}"
            text.fail(str(error))
    return images


def _read_labels(text: _Text, count: int) -> NDArray[np.int64]:
    listed = text.take_list(_MAXIMUM_LABELS_BYTES, f"{count} integers")
    try:
        labels = parse_numbers(listed)
    except ValueError as error:
        text.fail(str(error))
    if len(labels) != count:
        text.fail(f"expected {count} labels, one for each image, got {len(labels)}")
    for row, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label <= HIGHEST_LABEL:
            text.fail(f"expected integers from 0 to {HIGHEST_LABEL}, got {str(label)[:20]} at row {row}")
    return np.array(labels, np.int64)


class _Text:
    """The decompressed text of a file, seen through a window that moves forward.

    Attributes
    ----------
    where : str
        The part that is being read, for error messages.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.where = "start of the file"
        self._path = path
        self._stream = gzip.GzipFile(fileobj=file, mode="rb")
        self._window = b""
        self._position = 0
        self._bytes_read = 0

    def fail(self, problem: str) -> NoReturn:
        raise DataFileError(
            f"{self._path}: {self.where}: {problem}; download the file again, or write it as gzip-compressed "
            f"JSON [[images, labels], [images, labels], [images, labels]] with {PIXELS} numbers from 0 to 1 "
            "per image"
        ) from None

    def expect(self, characters: bytes, wanted: str) -> bytes:
        """Consume the next character, which must be one of `characters`, and return it."""
        self._skip_whitespace()
        got = self._window[self._position : self._position + 1]
        if not got:
            self.fail(f"expected {wanted}, but the text ends after {self._bytes_read:,} bytes")
        if got not in characters:
            excerpt = self._window[self._position : self._position + 20].decode("ascii", "replace")
            self.fail(f"expected {wanted}, got {excerpt!r}")
        self._position += 1
        return got

    def expect_end(self) -> None:
        self._skip_whitespace()
        if self._position < len(self._window):
            excerpt = self._window[self._position : self._position + 20].decode("ascii", "replace")
            self.fail(f"expected nothing after the three sets, got {excerpt!r}")

    def take_list(self, maximum_bytes: int, wanted: str) -> bytes:
        """Consume a JSON array without nested arrays, and return the text between its brackets."""
        self.expect(b"[", f"a list of {wanted}")
        while (end := self._window.find(b"]", self._position)) < 0:
            if len(self._window) - self._position > maximum_bytes:
                break
            if not self._refill():
                self.fail(f"expected {wanted}, but the text ends after {self._bytes_read:,} bytes")
        if end < 0 or end - self._position > maximum_bytes:
            self.fail(f"expected {wanted} in at most {maximum_bytes:,} bytes of text, got more")
        inside = self._window[self._position : end]
        self._position = end + 1
        return inside

    def _skip_whitespace(self) -> None:
        while True:
            match = _WHITESPACE.match(self._window, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._window) or not self._refill():
                return

    def _refill(self) -> bool:
        """Drop the consumed text and read more; return False at the end of the file."""
        try:
            more = self._stream.read(_WINDOW_BYTES)
        except EOFError:
            self.fail(
                f"expected a whole gzip file, but it is cut off after {self._bytes_read:,} bytes of text"
            )
        except (gzip.BadGzipFile, zlib.error) as error:
            self.fail(f"expected a valid gzip file, but after {self._bytes_read:,} bytes of text: {error}")
        self._bytes_read += len(more)
        if self._bytes_read > MAXIMUM_TEXT_BYTES:
            self.fail(f"expected at most {MAXIMUM_TEXT_BYTES:,} bytes of text, got more")
        self._window = self._window[self._position :] + more
        self._position = 0
        return bool(more)


# The numbers in the JSON file.

_NUMBER_CHARACTERS = b"0123456789+-.eE, \t\r\n"
_PLAIN_CHARACTERS = b"0123456789., \t\r\n"


def parse_plain_rows(rows: Sequence[bytes], count: int) -> NDArray[np.float32] | None:
    """Return all rows at once if their numbers have neither signs nor exponents, else None.

    NumPy's parser rounds each number once, to float64, as ``json.loads`` does, in a fraction of its time. It
    also reads what JSON forbids: ``.5``, ``5.`` and ``00.5`` mean what they say, because looking for them
    took longer than reading.

    Parameters
    ----------
    rows : sequence of bytes
        The insides of JSON arrays.
    count : int
        Numbers per row.

    Returns
    -------
    ndarray of float32, shape (len(rows), count), or None
        The same values that `parse_row` returns.

    Examples
    --------
    >>> parse_plain_rows([b"0.0, 0.25", b"0.5,0.75"], 2)
    array([[0.  , 0.25],
           [0.5 , 0.75]], dtype=float32)
    >>> parse_plain_rows([b"0.0, 1e-3"], 2) is None
    True
    """
    if b"".join(rows).translate(None, _PLAIN_CHARACTERS):
        return None
    try:
        numbers = np.loadtxt(rows, np.float32, comments=None, delimiter=",", ndmin=2, encoding="latin1")
    except ValueError:
        return None  # the caller reads row by row and finds the one that is wrong
    return numbers if numbers.shape == (len(rows), count) and numbers.max() <= 1 else None


def parse_numbers(text: bytes) -> list[int | float]:
    """Return the numbers in `text`, the inside of a JSON array.

    Raises
    ------
    ValueError
        The text holds something else, such as NaN, a string or a nested array, or lacks a value.

    Examples
    --------
    >>> parse_numbers(b"1, 2.5e-1, 3")
    [1, 0.25, 3]
    >>> parse_numbers(b"1, NaN")
    Traceback (most recent call last):
    ...
    ValueError: expected only numbers, got 'NaN'
    """
    foreign = text.translate(None, _NUMBER_CHARACTERS)
    if foreign:
        raise ValueError(f"expected only numbers, got {foreign[:20].decode('ascii', 'replace')!r}")
    try:
        numbers: list[int | float] = json.loads(b"[" + text + b"]")
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON numbers, got {error.msg} at character {error.pos}") from None
    return numbers


def parse_row(text: bytes, count: int) -> NDArray[np.float32]:
    """Return one row of `count` numbers from 0 to 1.

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
    numbers = parse_numbers(text)
    if len(numbers) != count:
        raise ValueError(f"expected {count} numbers, got {len(numbers)}")
    for position, number in enumerate(numbers):
        if not 0 <= number <= 1:
            raise ValueError(f"expected numbers from 0 to 1, got {str(number)[:20]} at position {position}")
    return np.array(numbers, np.float32)


# The IDX files.

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
