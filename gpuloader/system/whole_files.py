"""Files that appear under their names only when they are complete, and locks that end with their process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces the one at `path` at the end; after an exception, nothing is replaced.

    Only one process may do this at a time: the next program reuses the file of one that was killed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     with replacing(path) as file:
    ...         _ = file.write(b"whole")
    ...         print(path.exists())
    ...     print(path.read_bytes(), os.listdir(folder))
    False
    b'whole' ['a.txt']
    """
    written = path.with_name(f".{path.name}.part")
    try:
        with written.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash of the system could leave an incomplete file
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, creating the file if needed; the system frees the lock when the process ends.

    Raises `BlockingIOError` if another process holds it and `wait` is False.
    """
    with path.open("ab") as file:
        try:
            import fcntl
        except ImportError:  # on Windows, nothing keeps others out
            yield
            return
        # Without limit: the system frees the lock when the process that holds it ends.
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield  # closing the file frees the lock
