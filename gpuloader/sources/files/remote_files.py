"""Open files by path or URL: local files directly, remote files through fsspec, with retries.

A remote file is read in ranges. A range that does not arrive whole is requested again, so a dropped
connection neither loses nor repeats a sample.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, TypeVar, cast

from gpuloader.checks import check_count
from gpuloader.errors import BadValue, SourceError, describe_error, missing_package
from gpuloader.system.threads import LONGEST_WAIT as LONGEST_CALL
from gpuloader.system.threads import start_thread

ATTEMPTS = 5
"""How many times to request a range of a remote file before raising an error."""

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds to wait before the second attempt; doubled before each later one, up to the longest wait."""

TIMEOUT = 60.0
"""Seconds that one request to a server may take, whether it connects, asks for a size or reads a range."""

BUFFER = 4 << 20
"""Bytes per request when a remote file is read from its start to its end."""

_LASTING: tuple[type[Exception], ...] = (FileNotFoundError, PermissionError, IsADirectoryError)
_LASTING += (NotADirectoryError, ImportError, LookupError, NotImplementedError, TypeError, ValueError)
_WORTH_ANOTHER_TRY = (408, 425, 429)  # the client errors (4xx) that may pass with time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tries:
    """How often and how long to try to read a remote file.

    Attributes
    ----------
    attempts : int
        How many times to make each request, 1 or more.
    timeout : float
        Seconds after which an attempt has failed; 0 means no limit.
    """

    attempts: int = ATTEMPTS
    timeout: float = TIMEOUT

    @classmethod
    def of(cls, attempts: object, timeout: object) -> Tries:
        """Return the tries that a dataset's parameters describe; raise `ValueError` for bad ones.

        >>> Tries.of(3, 10)
        Tries(attempts=3, timeout=10.0)
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
            raise BadValue(f"timeout must be a number of seconds of 0 or more, got {timeout!r}")
        return cls(check_count("attempts", attempts), float(timeout))


PLAIN = Tries(1, 0)
"""For local files: an error is final, and the system answers."""


def is_remote(url: str) -> bool:
    """Return whether fsspec is needed to read a path or URL.

    >>> is_remote("data/a.parquet"), is_remote("file:///data/a.tar"), is_remote("s3://bucket/a.tar")
    (False, False, True)
    """
    return "://" in url and not url.startswith("file://")


def as_url(name: str | os.PathLike[str]) -> str:
    """Return a path or URL as a string; a local URL becomes a path.

    >>> as_url("file:///data/a.tar"), as_url("s3://bucket/a.tar")
    ('/data/a.tar', 's3://bucket/a.tar')
    """
    return os.fspath(name).removeprefix("file://")


def as_urls(names: object) -> list[str]:
    """Return one path or URL, or a list of them, as a list of strings.

    Raises
    ------
    TypeError
        `names` is neither a path or URL nor a list of them.
    ValueError
        The list is empty.

    >>> as_urls("a.tar"), as_urls([Path("a.tar"), "b.tar"])
    (['a.tar'], ['a.tar', 'b.tar'])
    """
    if isinstance(names, str | os.PathLike):
        return [as_url(names)]
    if not isinstance(names, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in names):
        raise TypeError(f"urls must be a path or URL or a list of them, got {type(names).__name__}")
    if not names:
        raise ValueError("urls must hold at least one path or URL, got none")
    return [as_url(one) for one in names]


def open_source(url: str, tries: Tries | None = None, *, buffered: bool = False) -> BinaryIO:
    """Open a file for reading; the caller closes it.

    Parameters
    ----------
    url : str
        A local path, or a URL of any scheme that fsspec knows.
    tries : Tries or None
        How to try each request over connections that drop; None means the defaults.
    buffered : bool
        Request large ranges, for a caller that reads from start to end in small pieces.

    Raises
    ------
    SourceError
        The file cannot be opened.
    MissingPackage
        The file is remote, and fsspec is not installed.
    """
    if not is_remote(url):
        try:
            return Path(url).open("rb")
        except OSError as error:
            raise SourceError(f"cannot open the file: {error.strerror or error}", url=url) from error
    file = RemoteFile(url, tries or Tries())
    return io.BufferedReader(file, BUFFER) if buffered else cast("BinaryIO", file)


class RemoteFile(io.RawIOBase):
    """A remote file, read range by range; like any file, for one thread at a time.

    Parameters
    ----------
    url : str
        A URL whose scheme fsspec knows.
    tries : Tries
        How to try each request.

    Raises
    ------
    SourceError
        The size of the file cannot be determined.
    """

    def __init__(self, url: str, tries: Tries) -> None:
        super().__init__()
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise missing_package(f"reading {url}", "fsspec", "remote") from None
        self._url = url
        self._tries = tries
        self._system, self._path = persist(lambda: url_to_fs(url), url, PLAIN)
        self._size: int = persist(self._find_size, url, tries)
        self._position = 0

    def _find_size(self) -> int:
        size = self._system.info(self._path).get("size")
        if size is None:
            raise ValueError("the server does not report the file's size, so ranges cannot be requested")
        return int(size)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position of the next read and return it."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(origin + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, up to the end of the file; raise `SourceError` if the read fails."""
        target = memoryview(buffer).cast("B")
        start = self._position
        stop = min(start + len(target), self._size)
        if stop <= start:
            return 0
        target[: stop - start] = persist(lambda: self._read(start, stop), self._url, self._tries)
        self._position = stop
        return stop - start

    def _read(self, start: int, stop: int) -> bytes:
        found: bytes = self._system.cat_file(self._path, start=start, end=stop)
        if len(found) > stop - start:
            raise ValueError(
                f"requested bytes {start} to {stop}, got {len(found)}: the server does not return parts of "
                "files; use one that supports Range requests"
            )
        if len(found) < stop - start:
            raise ConnectionError(f"requested bytes {start} to {stop}, got {len(found)}")
        return found


def persist(action: Callable[[], T], url: str, tries: Tries) -> T:
    """Return what `action` returns; after an error that may pass, wait and call it again.

    An attempt that takes longer than the timeout is left to a thread of its own, which ends when it does.

    Raises
    ------
    SourceError
        The last attempt failed, or the error will not pass. Its cause is the last exception.
    """
    for attempt in itertools.count(1):
        try:
            return _within(tries.timeout, action) if tries.timeout else action()
        except Exception as error:
            if attempt >= tries.attempts or is_lasting(error):
                problem = f"cannot be read: {describe_error(_reason(error))}"
                raise SourceError(problem, url=url, attempts=attempt) from error
        time.sleep(min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT))
    raise AssertionError("not reached")


def _within(seconds: float, action: Callable[[], T]) -> T:
    """Return what `action` returns, or raise TimeoutError if that takes longer.

    Not every file system of fsspec has a timeout, and those of the others do not cover every wait.
    """
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            answers.put((action(), None))
        except BaseException as error:
            answers.put((None, error))

    start_thread("gpuloader-request", run)
    try:
        found, error = answers.get(timeout=min(seconds, LONGEST_CALL))
    except Empty:
        raise TimeoutError(f"no answer within the timeout of {seconds:g} s") from None
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return cast("T", found)


def is_lasting(error: BaseException) -> bool:
    """Return whether another attempt would fail with the same error.

    >>> is_lasting(ConnectionResetError()), is_lasting(PermissionError())
    (False, True)
    """
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in _WORTH_ANOTHER_TRY
    reason = _reason(error)
    return is_lasting(reason) if reason is not error else isinstance(error, _LASTING)


def _reason(error: BaseException) -> BaseException:
    """Return the real error: fsspec reports every failure to determine a file's size as a missing file."""
    hidden = isinstance(error, FileNotFoundError) and error.__cause__ is not None
    return error.__cause__ if hidden and error.__cause__ is not None else error
