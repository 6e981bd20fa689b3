"""Open files by path or URL: local files directly, remote files through fsspec, with retries.

A remote file is read in ranges. A range that does not arrive whole is requested again, so a dropped
connection neither loses nor repeats a sample. Alternatively, the whole file is fetched once, into a folder
that the processes of a machine share, and read from there.
"""

from __future__ import annotations

import base64
import ctypes
import glob
import hashlib
import io
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TypeVar, cast

from gpuloader.checks import check_count, check_seconds
from gpuloader.errors import LoaderError, SourceError, describe_error, import_package
from gpuloader.system.finalizers import LivingValues
from gpuloader.system.platforms import after_fork, locked, replacing
from gpuloader.system.threads import LONGEST_WAIT as LONGEST_CALL
from gpuloader.system.threads import end_if_exiting, start_thread

_END_NBYTES = 64 << 10  # in which Arrow looks for a file's footer

ATTEMPTS = 5
"""How many times to request a range of a remote file before raising an error."""

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds to wait before the second attempt; doubled before each later one, up to the longest wait."""

TIMEOUT = 60.0
"""Seconds that one request to a server may take, whether it connects, asks for a size or reads a range."""

FIRST_ANSWER = 10.0
"""Seconds until a server must have answered for the first time, with a dataset's default tries."""

_LOOK_UP = 0.1  # seconds between checks for interpreter exit while waiting for an answer

BUFFER = 4 << 20
"""Bytes per request when a remote file is read from its start to its end."""

_PIECE = 64 << 10  # bytes of an answer to take at a time, and so the most beyond what was requested

_CACHED = ".gpuloader"  # ends the names of cached files; the folder may hold files of others, which stay

_LOCKS = 64  # locks for files being fetched; two files with the same lock wait for each other

_LASTING: tuple[type[Exception], ...] = (FileNotFoundError, PermissionError, IsADirectoryError)
_LASTING += (NotADirectoryError, ImportError, LookupError, NotImplementedError, TypeError, ValueError)
_WORTH_ANOTHER_TRY = (408, 425, 429)  # the client errors (4xx) that may pass with time

T = TypeVar("T")

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path or URL of files, a pattern or folder, or a list of them."""


@dataclass(frozen=True, slots=True)
class Tries:
    """How often and how long to try to read a remote file.

    Attributes
    ----------
    attempts : int
        How many times to make each request, 1 or more.
    timeout : float
        Seconds after which an attempt has failed; 0 means no limit.
    options : dict
        Options for fsspec along with the URL. They may hold credentials, so no repr shows them.
    cache_dir : str or None
        The folder in which to keep whole files.
    cache_size : int or infinity
        The most bytes that the kept files may have together.
    """

    attempts: int = ATTEMPTS
    timeout: float = TIMEOUT
    options: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    cache_dir: str | None = field(default=None, repr=False, compare=False)
    cache_size: float = field(default=math.inf, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        attempts: object,
        timeout: object,
        options: object = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: object = None,
    ) -> Tries:
        """Return the tries that a dataset's parameters describe; raise `ValueError` for invalid ones.

        >>> Tries.of(3, 10)
        Tries(attempts=3, timeout=10)
        """
        seconds = check_seconds("timeout", timeout)
        if not isinstance(options, dict | None):
            raise TypeError(f"storage_options must be a dict or None, got {type(options).__name__}")
        if cache_dir is None and cache_size is not None:
            raise ValueError("cache_size needs cache_dir, the folder whose files it limits")
        most = math.inf if cache_size is None else check_count("cache_size", cache_size)
        folder = None if cache_dir is None else str(Path(cache_dir).absolute())
        return cls(check_count("attempts", attempts), seconds, dict(options or {}), folder, most)

    @property
    def first_answer(self) -> float:
        """Seconds until a server must have answered for the first time; no limit if a user chose tries."""
        return FIRST_ANSWER if self == Tries() else math.inf


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


def as_folder(name: str | os.PathLike[str]) -> Path:
    """Return the path of a folder to write into; raise `SourceError` for a URL."""
    if is_remote(url := as_url(name)):  # a Path would take it for a local folder of this name
        raise SourceError("is not a local folder; write into one, then upload its files", url=url)
    return Path(url)


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


def find_files(urls: Sequence[str], pattern: str, tries: Tries) -> list[str]:
    """Return the files that paths and URLs stand for; some of them may be folders or glob patterns.

    A folder stands for all files in it and in its subfolders that match one of the patterns, which spaces
    separate, in order of their names. A remote folder ends with a slash. Only the asterisk makes a URL a
    pattern, because others may hold question marks.

    Raises
    ------
    SourceError
        No file matches, or a server cannot be asked.
    """
    found: list[str] = []
    for url in urls:
        asked = named = [url]
        if is_remote(url):
            asked = [f"{url}**/{one}" for one in pattern.split()] if url.endswith("/") else asked
            if "*" in url or url.endswith("/"):
                fsspec = import_package("fsspec.core", f"reading {url}", "remote", "fsspec")
                named = persist(partial(_list_remote, fsspec, asked, tries), url, tries, tries.first_answer)
        else:
            if is_folder := Path(url).is_dir():
                asked = [str(Path(glob.escape(url), "**", one)) for one in pattern.split()]
            if is_folder or (glob.has_magic(url) and not Path(url).exists()):
                # `Path.glob` does not accept absolute patterns.
                named = sorted(one for name in asked for one in glob.glob(name, recursive=True))  # noqa: PTH207
            if is_folder:  # of its folders, some may be named like files, as Spark names its tables
                named = [one for one in named if not Path(one).is_dir()]
        if not named:
            raise SourceError(f"no file matches {' or '.join(asked)}", url=url)
        found += named
    return found


def _list_remote(fsspec: Any, patterns: Sequence[str], tries: Tries) -> list[str]:
    found = [_find_system(fsspec, one, tries) for one in patterns]
    return sorted(system.unstrip_protocol(one) for system, path in found for one in system.glob(path))


def check_names(what: str, names: Sequence[str]) -> list[str]:
    """Return the names of what to read from a file; raise `TypeError` or `ValueError` for a bad list.

    >>> check_names("columns", ("x", "label"))
    ['x', 'label']
    """
    if isinstance(names, str):
        raise TypeError(f"{what} must be a list of names, got {names!r}")
    listed = list(names)
    if not listed or len(set(listed)) < len(listed):
        raise ValueError(f"{what} must be one or more different names, got {listed}")
    return listed


def open_source(
    url: str, tries: Tries | None = None, *, buffered: bool = False, known: tuple[int, bytes] | None = None
) -> BinaryIO:
    """Open a file for reading; the caller closes it.

    Parameters
    ----------
    url : str
        A local path, or a URL of any scheme that fsspec knows.
    tries : Tries or None
        How to try each request if connections drop; None means the defaults.
    buffered : bool
        Request large ranges, for a caller that reads from start to end in small pieces.
    known : tuple of int and bytes, or None
        As for `RemoteFile`.

    Raises
    ------
    SourceError
        The file cannot be opened.
    MissingPackage
        The file is remote, and fsspec is not installed.
    """
    if not is_remote(url):
        with named(url, "cannot open the file"):
            return Path(url).open("rb")
    tries = tries or Tries()
    if getattr(tries, "cache_dir", None):  # pickles of earlier releases have none
        with named(url, f"cannot be kept in cache_dir={tries.cache_dir!r}"):
            return _open_cached(url, tries)
    file = RemoteFile(url, tries, known)
    return io.BufferedReader(file, BUFFER) if buffered else cast("BinaryIO", file)


@contextmanager
def named(url: str, problem: str) -> Iterator[None]:
    """Raise an `OSError` of the block as a `SourceError` that names the URL and the problem."""
    try:
        yield
    except LoaderError:
        raise
    except OSError as error:
        raise SourceError(f"{problem}: {error.strerror or error}", url=url) from error


def _open_cached(url: str, tries: Tries) -> BinaryIO:
    """Open a remote file in the cache; fetch it if no process of this machine has done so.

    An open file can be read to its end even if another process removes it in the meantime.
    """
    folder = Path(cast("str", tries.cache_dir))
    folder.mkdir(parents=True, exist_ok=True)
    # The options, too, decide where the data lies, such as the endpoint of a store. Only their digest shows.
    name = hashlib.sha256(repr((url, sorted(tries.options.items()))).encode()).hexdigest()
    path = folder / f"{name}{_CACHED}"
    while True:
        with suppress(FileNotFoundError):
            # Before the file is open, because another process may remove both. Earlier releases note no size.
            noted = note.read_text() if (note := _note(path)).exists() else ""
            file = path.open("rb")
            if noted in ("", str(os.fstat(file.fileno()).st_size)):
                os.utime(file.fileno())  # the least recently used files are removed first
                return file
            file.close()
            path.unlink(missing_ok=True)  # it was cut
        with locked(folder / f".lock-{int(name, 16) % _LOCKS}"):
            if not path.exists():
                _fetch(url, path, tries)


def _note(path: Path) -> Path:
    """Return the path of the file that notes the size of a cached file."""
    return path.with_name(f".{path.stem}.size")


def _fetch(url: str, path: Path, tries: Tries) -> None:
    """Write a remote file to a path of the cache, and remove other files to make space."""
    digest = hashlib.md5(usedforsecurity=False)
    with RemoteFile(url, tries) as source:
        size = source.seek(0, io.SEEK_END)
        source.seek(0)
        if size > tries.cache_size:
            raise SourceError(f"has {size:,} bytes, more than cache_size={tries.cache_size:,}", url=url)
        _make_room(path.parent, tries.cache_size - size)
        with replacing(path) as target:
            while piece := source.read(BUFFER):
                digest.update(piece)
                target.write(piece)
            if source.checksum not in (None, base64.b64encode(digest.digest()).decode()):
                raise SourceError("arrived with an MD5 checksum that differs from the store's", url=url)
            _note(path).write_text(str(size))
    _make_room(path.parent, tries.cache_size)  # again, because others fetch files at the same time


def _make_room(folder: Path, nbytes: float) -> None:
    """Remove the least recently used files of the cache until the rest have at most `nbytes`."""
    with locked(folder / ".lock"):
        found = []
        for path in folder.glob(f"{'[0-9a-f]' * 64}{_CACHED}"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        held = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if held > nbytes:
                path.unlink(missing_ok=True)
                _note(path).unlink(missing_ok=True)
                held -= size


class RemoteFile(io.RawIOBase):
    """A remote file, read range by range; like any file, it serves one thread at a time.

    Parameters
    ----------
    url : str
        A URL whose scheme fsspec knows.
    tries : Tries
        How to try each request.
    known : tuple of int and bytes, or None
        The size of the file and its last bytes, which are not requested again; None requests the size.

    Raises
    ------
    SourceError
        The size of the file cannot be determined.
    """

    def __init__(self, url: str, tries: Tries, known: tuple[int, bytes] | None = None) -> None:
        super().__init__()
        fsspec = import_package("fsspec.core", f"reading {url}", "remote", "fsspec")
        self._url = url
        self._tries = tries
        self.checksum: str | None = None  # MD5 in Base64, if the store provides it
        self._system, self._path = persist(partial(_find_system, fsspec, url, tries), url, PLAIN)
        self._size, self._end = known or (persist(self._find_size, url, tries, tries.first_answer), b"")
        self._position = 0

    def keep_end(self) -> tuple[int, bytes]:
        """Read the last bytes in one request and keep them; return what is now known."""
        start = max(self._size - _END_NBYTES, 0)
        self._end = persist(lambda: self._read(start, self._size), self._url, self._tries)
        return self._size, self._end

    def _find_size(self) -> int:
        found = self._system.info(self._path)
        # Not the ETag of S3: that is a checksum of the file only if the file is not encrypted.
        size, self.checksum = found.get("size"), found.get("md5Hash")
        if size is None:
            raise ValueError("the server does not report the file's size, so ranges cannot be requested")
        return int(size)

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

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
        kept = self._size - len(self._end)
        middle = min(max(kept, start), stop)
        if start < middle:
            target[: middle - start] = persist(lambda: self._read(start, middle), self._url, self._tries)
        target[middle - start : stop - start] = self._end[middle - kept : stop - kept]
        self._position = stop
        return stop - start

    def _read(self, start: int, stop: int) -> bytes:
        if "http" in self._system.protocol:
            found = self._read_http(start, stop)
        else:
            found = self._system.cat_file(self._path, start=start, end=stop)
        if len(found) > stop - start:
            raise ValueError(
                f"requested bytes {start} to {stop}, got {len(found)}: the server does not return parts of "
                "files; use one that supports Range requests"
            )
        if len(found) < stop - start:
            raise ConnectionError(f"requested bytes {start} to {stop}, got {len(found)}")
        return found

    def _read_http(self, start: int, stop: int) -> bytes:
        """Request a range over HTTP, and read little more of the answer than was asked for."""
        # fsspec reads the whole answer. From a server that never stops, that would fill the memory.
        from fsspec.asyn import sync

        system = self._system
        # Some servers, such as nginx, compress what may be compressed, and then return no parts of it.
        asked = {"Accept-Encoding": "identity", **system.kwargs.get("headers", {})}
        asked["Range"] = f"bytes={start}-{stop - 1}"

        async def read() -> bytes:
            session = await system.set_session()
            found = bytearray()
            how = {**system.kwargs, "headers": asked}
            async with session.get(system.encode_url(self._path), **how) as answer:
                system._raise_not_found_for_status(answer, self._path)
                total = answer.headers.get("Content-Range", "").rpartition("/")[2]
                if total.isdigit() and int(total) != self._size:  # otherwise rows could be lost in silence
                    raise ValueError(f"it had {self._size} bytes and has {total}: make a new dataset")
                while len(found) <= stop - start and (piece := await answer.content.read(_PIECE)):
                    found += piece
            return bytes(found)

        return cast("bytes", sync(system.loop, read))


_systems: LivingValues[int, Any] = LivingValues()  # those in use, by their ids, because they define equality


def _find_system(fsspec: Any, url: str, tries: Tries) -> tuple[Any, str]:
    """Return the file system for a URL, and the path there."""
    # Pickles of earlier releases have no options.
    system, path = fsspec.url_to_fs(url, **getattr(tries, "options", {}))
    part = system
    while part is not None:  # a chained URL has one around another
        _systems.set(id(part), part)
        part = getattr(part, "fs", None)
    return system, path


def _leave_alone() -> None:
    """Keep this forked process from closing its parent's connections, as fsspec would in time or at exit."""
    # It would first wait a second for the thread of its event loop, which the fork lacks. Then it would
    # remove the connections from the epoll object that both processes share, so that no answer would reach
    # the parent.
    for _, system in _systems.items():
        for reference in weakref.getweakrefs(system):
            one = reference.__callback__  # a `weakref.finalize` is the callback of its own reference
            found = one.peek() if isinstance(one, weakref.finalize) else None
            if found is not None and getattr(found[1], "__name__", "") == "close_session":
                # Forever: at exit, sessions would complain that they were not closed.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(one.detach()))


after_fork(_leave_alone)


def persist(action: Callable[[], T], url: str, tries: Tries, within: float = math.inf) -> T:
    """Return what `action` returns; after an error that may pass, wait and call it again.

    An attempt that takes longer than the timeout is left to a separate thread, which ends with it. No attempt
    starts later than `within` seconds.

    Raises
    ------
    SourceError
        The last attempt failed, or the error will not pass. Its cause is the last exception.
    """
    until = time.monotonic() + within
    attempt, pause = 1, FIRST_WAIT
    while True:
        try:
            timeout = min(tries.timeout, max(until - time.monotonic(), FIRST_WAIT))
            return _within(timeout, action) if timeout else action()
        except Exception as error:
            if attempt >= tries.attempts or is_lasting(error) or time.monotonic() + pause > until:
                _forget_headers(error)
                problem = f"cannot be read: {describe_error(_reason(error))}"
                raise SourceError(problem, url=url, attempts=attempt) from error
        time.sleep(pause)
        end_if_exiting()
        attempt, pause = attempt + 1, min(2 * pause, LONGEST_WAIT)


def _forget_headers(error: BaseException) -> None:
    """Take the request's headers, and in them any token, out of aiohttp's errors, whose `repr` shows them."""
    found = [error]
    for one in found:
        asked: Any = getattr(one, "request_info", None)
        if hasattr(asked, "real_url"):
            one.__dict__.update(request_info=SimpleNamespace(real_url=asked.real_url), history=())
            one.args = ()
        found += [part for part in (one.__cause__, one.__context__) if part and part not in found]


def _within(seconds: float, action: Callable[[], T]) -> T:
    """Return what `action` returns, or raise TimeoutError if that takes longer.

    Not every file system of fsspec has a timeout, and existing timeouts do not cover every wait.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(action())
        except BaseException as error:
            answer.set_exception(error)

    start_thread("gpuloader-request", run)
    until = time.monotonic() + min(seconds, LONGEST_CALL)
    while wait([answer], min(max(until - time.monotonic(), 0), _LOOK_UP)).not_done:
        end_if_exiting()  # the interpreter's exit waits for threads that read
        if time.monotonic() > until:
            raise TimeoutError(f"no answer within the timeout of {seconds:g} s")
    return answer.result()


def is_lasting(error: BaseException) -> bool:
    """Return whether another attempt would fail with the same error.

    >>> is_lasting(ConnectionResetError()), is_lasting(PermissionError())
    (False, True)
    """
    status = _find_status(error)
    if status is not None:
        return status < 500 and status not in _WORTH_ANOTHER_TRY
    # The errors of Botocore, Google and Azure for missing credentials have no common class.
    if "Credential" in type(error).__name__:
        return True
    reason = _reason(error)
    return is_lasting(reason) if reason is not error else isinstance(error, _LASTING)


def _find_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error from a server, under the names that the various clients use."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # of botocore
        return cast("int | None", response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    names = ("status", "status_code", "code")
    found = (getattr(one, name, None) for one in (error, response) for name in names)
    return next((one for one in found if isinstance(one, int) and 400 <= one < 600), None)


def _reason(error: BaseException) -> BaseException:
    """Return the real error: fsspec reports every failure to determine a file's size as a missing file."""
    return (error.__cause__ or error) if isinstance(error, FileNotFoundError) else error
