"""MNIST from one gzip-compressed JSON file, read as a stream in bounded memory.

The file is a list of three sets: train, valid and test. A set is ``[images, labels]``, an image is a list of
784 numbers from 0 to 1, and a label is an integer from 0 to 9. ``json.load`` would make 55 million Python
objects of it, which take gigabytes. This reader moves a window of a few hundred KiB over the text and writes
into one float32 array.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataFileError
from gpuloader.sources.mnist.digits import HIGHEST_LABEL, MAXIMUM_IMAGES, PIXELS, DigitSet, Mnist
from gpuloader.sources.mnist.number_rows import parse_numbers, parse_plain_rows, parse_row

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
    plain = parse_plain_rows(rows, PIXELS)
    if plain is not None:
        return plain
    block = np.empty((len(rows), PIXELS), np.float32)
    for number, row in enumerate(rows):
        try:
            block[number] = parse_row(row, PIXELS)
        except ValueError as error:
            text.where = f"set {name!r}, image {first + number}"
            text.fail(str(error))
    return block


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
