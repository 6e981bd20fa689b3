"""Every exception the package raises.

LoaderError
 ├── SampleError        a sample cannot be had or does not fit its field (also a ValueError)
 │    └── FeedError     the same, met while feeding by hand          (also a ValueError)
 ├── ReaderError        a reader, generator or setter is misused     (also a TypeError)
 ├── ComposeNotAligned  composed readers differ in length             (also a ValueError)
 ├── DataFileError      a data file is truncated, foreign or too big  (also a ValueError)
 ├── SourceError        a file or URL cannot be read, now or at all   (also an OSError)
 ├── PlaceError         a place is unknown or its device is missing  (also a ValueError)
 ├── MissingPackage     an optional package is not installed           (also an ImportError)
 ├── StagingMemoryError the host or device memory asked for is not there (also a MemoryError)
 ├── WorkerError        a process that fetched for the loader died
 │    └── WorkerTimeout one did not answer in time                   (also a TimeoutError)
 ├── QueueClosed        the other end of a queue or ring went away
 └── EOFException       a start/reset epoch has no further batch

An exception raised by the user's own reader is never wrapped: it reaches the consumer as it is, with a
note that names the batch (see :func:`note_batch`). One raised by a dataset is the cause of a
`SampleError`, which says which sample it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any


class LoaderError(Exception):
    """The root of everything gpuloader raises on its own account.

    >>> issubclass(EOFException, LoaderError)
    True
    """


class SampleError(LoaderError, ValueError):
    """A sample or a ready batch does not fit the field it belongs to.

    Attributes
    ----------
    batch : int or None
        Position of the batch in its epoch, from 0.
    index : int or None
        Position of the sample in its batch, from 0.
    field : str or None
        Name of the field.
    dataset_index : object
        Where the sample lies in its dataset: the index the sampler gave. None for readers.
    worker : int or None
        Number of the worker that fetched it, None where there are no workers.

    >>> error = SampleError("expected shape (784,), got (100,)", batch=3, index=7, field="image")
    >>> str(error)
    "batch 3, sample 7, field 'image': expected shape (784,), got (100,)"
    """

    def __init__(
        self,
        problem: str,
        *,
        batch: int | None = None,
        index: int | None = None,
        field: str | None = None,
        dataset_index: object = None,
        worker: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.batch = batch
        self.index = index
        self.field = field
        self.dataset_index = dataset_index
        self.worker = worker

    def __str__(self) -> str:
        where = [
            f"batch {self.batch}" if self.batch is not None else "",
            f"sample {self.index}" if self.index is not None else "",
            f"dataset index {self.dataset_index!r}" if self.dataset_index is not None else "",
            f"field {self.field!r}" if self.field is not None else "",
            f"worker {self.worker}" if self.worker is not None else "",
        ]
        place = ", ".join(part for part in where if part)
        return f"{place}: {self.problem}" if place else self.problem


class FeedError(SampleError):
    """A sample handed to a `DataFeeder` does not fit its feed, or a feed list is wrong."""


class ReaderError(LoaderError, TypeError):
    """A reader is not what a reader must be: a function without arguments that gives an iterable."""


class ComposeNotAligned(LoaderError, ValueError):
    """Readers given to `compose` do not have equally many items."""


class DataFileError(LoaderError, ValueError):
    """A data file does not hold what its format promises; the message says where it departs.

    Attributes
    ----------
    file : str or None
        Its path or URL, where the message does not name it otherwise.
    row_group : int or None
        Of a Parquet file, from 0.
    column : str or None
        Column or array.

    >>> print(DataFileError("3 values are null", file="a.parquet", row_group=2, column="label"))
    a.parquet, row group 2, column 'label': 3 values are null
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        row_group: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.file = file
        self.row_group = row_group
        self.column = column

    def __str__(self) -> str:
        where = [
            self.file or "",
            f"row group {self.row_group}" if self.row_group is not None else "",
            f"column {self.column!r}" if self.column is not None else "",
        ]
        place = ", ".join(part for part in where if part)
        return f"{place}: {self.problem}" if place else self.problem


class SourceError(LoaderError, OSError):
    """A file or URL cannot be read: it is not there, may not be read, or its server stays away.

    Attributes
    ----------
    url : str
        What was to be read.
    attempts : int
        How often that was tried.

    >>> print(SourceError("the connection was refused", url="http://host/a.tar", attempts=5))
    http://host/a.tar: the connection was refused (5 attempts)
    """

    def __init__(self, problem: str, *, url: str = "", attempts: int = 1) -> None:
        super().__init__(problem)
        self.problem = problem
        self.url = url
        self.attempts = attempts

    def __str__(self) -> str:
        tried = f" ({self.attempts} attempts)" if self.attempts > 1 else ""
        return f"{self.url}: {self.problem}{tried}" if self.url else f"{self.problem}{tried}"


class PlaceError(LoaderError, ValueError):
    """A place is not known, or the device it names is not there."""


class MissingPackage(LoaderError, ImportError):
    """What was asked for needs a package that is not installed; the message says how to install it.

    >>> issubclass(MissingPackage, ImportError)
    True
    """


class StagingMemoryError(LoaderError, MemoryError):
    """The memory for the slots could not be had; the message gives the bytes and what to change."""


class WorkerError(LoaderError):
    """A process that fetched for the loader died.

    Attributes
    ----------
    pid : int
        The process that died.
    signal : int or None
        The signal that ended it, None if it exited by itself.
    indices : tuple of int
        The samples it held.
    """

    def __init__(
        self, problem: str, *, pid: int, signal: int | None = None, indices: Sequence[int] = ()
    ) -> None:
        super().__init__(problem)
        self.pid = pid
        self.signal = signal
        self.indices = tuple(indices)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is made again from its positional arguments, and `pid` is none of them.
        return partial(type(self), pid=self.pid), self.args, self.__dict__


class WorkerTimeout(WorkerError, TimeoutError):
    """A worker did not bring its batch within the loader's ``timeout``."""


class QueueClosed(LoaderError):
    """The other end of a queue or ring was closed, so nothing more can pass."""


class EOFException(LoaderError):
    """The epoch begun by ``start()`` has no further batch; call ``reset()`` before the next."""


def note_batch(error: BaseException, batch: int) -> None:
    """Say in a note on the user's own exception which batch was being read."""
    note = f"gpuloader: raised by the reader while it produced batch {batch} of the epoch"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def describe_error(error: BaseException) -> str:
    """Return an exception in a line: its type and what it says, if it says anything.

    >>> describe_error(KeyError("label")), describe_error(StopIteration())
    ("KeyError: 'label'", 'StopIteration')
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = "its message cannot be had"
    return f"{name}: {text}" if text else name


def missing_package(what: str, package: str, extra: str) -> MissingPackage:
    """Return the error that says which optional package is needed for what, and how to install it.

    >>> print(missing_package("reading Parquet files", "pyarrow", "parquet"))
    reading Parquet files needs pyarrow, which is not installed: pip install 'gpuloader[parquet]'
    """
    return MissingPackage(
        f"{what} needs {package}, which is not installed: pip install 'gpuloader[{extra}]'", name=package
    )
