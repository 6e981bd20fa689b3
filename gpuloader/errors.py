"""Every exception the package raises, and how it warns.

LoaderError             base class of them all                              (also a RuntimeError)
 ├── SampleError        a sample could not be loaded, or does not fit its field (also a ValueError)
 │    ├── FeedError     a sample passed to a DataFeeder does not fit its feed   (also an AssertionError)
 │    └── DecodeError   an encoded image, video or sound cannot be decoded
 ├── ReaderError        a reader, generator, iterator or setter is misused      (also a TypeError)
 ├── ComposeNotAligned  composed readers differ in length                       (also a ValueError)
 ├── DataFileError      a data file is truncated, of a different format, or too big (also a ValueError)
 ├── SourceError        a file or URL could not be read, or a file written      (also an OSError)
 ├── PlaceError         a place is unknown, or its device is missing            (also a ValueError)
 ├── MissingPackage     an optional package is not installed                    (also an ImportError)
 ├── StagingMemoryError host or device memory for batches could not be reserved (also a MemoryError)
 ├── WorkerError        a worker process died
 │    └── WorkerTimeout a worker did not deliver its batch in time              (also a TimeoutError)
 ├── Misuse             a method was called when or where it does not apply  (also an AssertionError)
 ├── QueueClosed        the other end of a queue or ring was closed
 └── EOFException       an epoch begun with start() has no more batches

Invalid arguments raise builtin exceptions. Some of them are `BadValue` or one of its siblings below, which
derive from two builtin exceptions: the one that Paddle raises, and the one that other libraries raise.

An exception raised by the user's own reader is never wrapped: it reaches the consumer unchanged, with a note
that names the batch. An exception raised by a dataset becomes the cause of a `SampleError` that names the
sample. `gpuloader.torch` raises the dataset's exception, as PyTorch does, and the text of the `SampleError`
is its note.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from typing import Any, TypeVar

# The command that installs an optional part of the package, from wherever the package itself came.

_NAME = "gpuloader"
_HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120


def install_command(extra: str = "", *, force: bool = False) -> str:
    """Return the ``pip install`` command for the package, with one of its extras.

    Parameters
    ----------
    extra : str
        The name of the extra, such as 'cli'; empty for the package alone.
    force : bool
        Whether to reinstall what is already there.

    Returns
    -------
    str
        A command that works in the current folder. It installs from the same origin as the package: a
        checkout, a URL or file, or else the package's name.

    Examples
    --------
    >>> install_command("cli")  # doctest: +ELLIPSIS
    "pip install '...[cli]'"
    """
    what = "pip install --force-reinstall" if force else "pip install"
    return f"{what} '{describe_source(_HERE, read_origin(), os.getcwd(), extra)}'"  # noqa: PTH109


def describe_source(here: str, origin: dict[str, object], folder: str, extra: str) -> str:
    """Return the requirement for an extra.

    Parameters
    ----------
    here : str
        The folder that holds the package's folder.
    origin : dict
        The contents of the distribution's ``direct_url.json``; empty if there is none.
    folder : str
        The present folder.
    extra : str
        The name of the extra.

    Examples
    --------
    >>> site, home = "/usr/lib/site-packages", "/home/ann"
    >>> describe_source(site, {}, home, "cli")
    'gpuloader[cli]'
    >>> wheel = {"url": "file:///tmp/gpuloader-1.0-py3-none-any.whl", "archive_info": {}}
    >>> describe_source(site, wheel, home, "cli")
    'gpuloader[cli] @ file:///tmp/gpuloader-1.0-py3-none-any.whl'
    """
    extra = f"[{extra}]" if extra else ""
    with suppress(OSError, UnicodeDecodeError):
        with open(f"{here}/pyproject.toml", encoding="utf-8") as project:  # noqa: PTH123
            is_checkout = f'name = "{_NAME}"' in project.read()
        if is_checkout:
            return f".{extra}" if here == folder else f"{here}{extra}"
    url, version_control = origin.get("url"), origin.get("vcs_info")
    if not isinstance(url, str):
        return f"{_NAME}{extra}"
    if isinstance(version_control, dict):
        url = f"{version_control.get('vcs')}+{url}@{version_control.get('commit_id')}"
    return f"{_NAME}{extra} @ {url}"


@cache
def read_origin() -> dict[str, object]:
    """Return where the installed distribution came from, as pip recorded it; empty if from an index.

    >>> isinstance(read_origin(), dict)
    True
    """
    # Imported late, because these modules take long to import and only errors need them.
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    with suppress(PackageNotFoundError, ValueError, OSError):
        noted = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
        return noted if isinstance(noted, dict) else {}
    return {}


def _locate(problem: str, where: Mapping[str, object], file: str | None = None) -> str:
    """Return a problem, preceded by what is known of its location."""
    found = [f"{name} {one!r}" for name, one in where.items() if one is not None]
    place = ", ".join([file, *found] if file else found)
    return f"{place}: {problem}" if place else problem


class LoaderError(RuntimeError):
    """Base class of all exceptions gpuloader raises itself; a RuntimeError, as in PyTorch.

    >>> issubclass(EOFException, LoaderError), issubclass(WorkerError, RuntimeError)
    (True, True)
    """

    _tells_of_user = False  # whether the user's code raised its cause


class SampleError(LoaderError, ValueError):
    """A sample could not be loaded, or a sample or ready-made batch does not fit its field.

    Attributes
    ----------
    batch : int or None
        Position of the batch in its epoch, from 0.
    index : int or None
        Position of the sample in its batch, from 0.
    field : str or None
        Name of the field.
    dataset_index : object
        The sample's index in its dataset, as the sampler yielded it. None for readers.
    worker : int or None
        Number of the worker that fetched the sample; None without workers.

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
        where = {"batch": self.batch, "sample": self.index, "dataset index": self.dataset_index}
        return _locate(self.problem, {**where, "field": self.field, "worker": self.worker})


def unlike_first(expected: object, got: object, advice: str = "", **where: Any) -> SampleError:
    """Return the error for a value that differs from the one in the batch's first sample.

    >>> print(unlike_first("shape (2,)", "(3,)", "use pad", index=1))
    sample 1: expected shape (2,) as in the batch's first sample, got (3,); use pad
    """
    advice = advice and f"; {advice}"
    return SampleError(f"expected {expected} as in the batch's first sample, got {got}{advice}", **where)


class FeedError(SampleError, AssertionError):
    """A sample passed to a `DataFeeder` does not fit its feed, or a feed list is invalid."""


class DecodeError(SampleError):
    """An encoded image, video or sound cannot be decoded: it is empty, damaged, truncated, or too large.

    Attributes
    ----------
    file : str
        The file or its name; empty if it has none.

    >>> print(DecodeError("the file is empty", file="cat/1.jpg", index=3))
    sample 3: cat/1.jpg: the file is empty
    """

    def __init__(self, problem: str, *, file: str = "", index: int | None = None) -> None:
        super().__init__(f"{file}: {problem}" if file else problem, index=index)
        self.file = file


PictureError = DecodeError
"""Its name in 0.1."""


class ReaderError(LoaderError, TypeError):
    """A reader, generator, iterator or setter is misused.

    A reader must be a function without arguments that returns an iterable. A dataset, sampler or reader that
    can be read only once has nothing left for a second epoch.
    """


class ComposeNotAligned(LoaderError, ValueError):
    """The readers passed to `compose` have different numbers of items."""


class DataFileError(LoaderError, ValueError):
    """A data file violates its format; the message says where.

    Attributes
    ----------
    file : str or None
        The file's path or URL, unless `problem` names it.
    row_group : int or None
        Number of the Parquet row group, from 0.
    column : str or None
        Name of the column or array.

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
        return _locate(self.problem, {"row group": self.row_group, "column": self.column}, self.file)


class SourceError(LoaderError, OSError):
    """A file or URL could not be read, or a file written: access is denied, or a disk is full, for example.

    Attributes
    ----------
    url : str
        The path or URL.
    attempts : int
        Number of attempts to read it.

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
    """A place is unknown, or the device it names is missing."""


class MissingPackage(ImportError, LoaderError):  # ImportError first: it takes the package's name
    """An optional package is not installed; the message says how to install it.

    >>> issubclass(MissingPackage, ImportError)
    True
    """


class StagingMemoryError(LoaderError, MemoryError):
    """Memory for the slots could not be reserved; the message names the size and what to change."""


class WorkerError(LoaderError):
    """A worker process died.

    Attributes
    ----------
    pid : int
        Process id of the worker.
    signal : int or None
        The signal that killed it; None if it exited by itself.
    indices : tuple of int
        Dataset indices of the samples in the batches it was working on.
    """

    def __init__(
        self, problem: str, *, pid: int, signal: int | None = None, indices: Sequence[int] = ()
    ) -> None:
        super().__init__(problem)
        self.pid = pid
        self.signal = signal
        self.indices = tuple(indices)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling calls the class with the positional arguments, and `pid` is keyword-only.
        return partial(type(self), pid=self.pid), self.args, self.__dict__


class WorkerTimeout(WorkerError, TimeoutError):
    """A worker did not deliver its batch within the loader's ``timeout``."""


class Misuse(LoaderError, AssertionError):
    """A method was called when or where it does not apply, such as `reset` of a loader that is looped over.

    >>> issubclass(Misuse, AssertionError)
    True
    """


def in_a_fork(what: str) -> LoaderError:
    """Return the error for using, in this forked process, something that belongs to the parent."""
    return LoaderError(f"{what} cannot be used in this forked process; start a new epoch here")


class QueueClosed(LoaderError):
    """The other end of a queue or ring was closed."""


class EOFException(LoaderError):
    """The epoch begun with ``start()`` has no more batches; call ``reset()`` before the next ``start()``."""


class BadValue(ValueError, AssertionError):
    """An argument is out of range, or excludes another one; Paddle asserts most of these."""


class BadType(TypeError, AssertionError):
    """An argument has the wrong type; Paddle asserts most of these."""


class BadTypeOrValue(TypeError, ValueError):
    """An argument has the wrong type, for which Paddle raises ValueError in some places."""


class BadIndex(IndexError, ValueError):
    """A negative index is out of range, where Paddle raises ValueError."""


class NoIndices(TypeError, RuntimeError, AssertionError):
    """An iterable dataset was indexed, asked for its length, or given to a sampler of indices.

    Paddle raises RuntimeError for the first two and AssertionError for the last. It is a TypeError because
    `list` asks for a length, and does without one only after a TypeError.
    """


E = TypeVar("E", bound=LoaderError)


def caused_by(raised: BaseException, failure: E) -> E:
    """Return an error that tells of an exception, which the user's code or a framework's function raised."""
    failure.__cause__, failure._tells_of_user = raised, True
    return failure


def find_raised(failure: Exception) -> Exception | None:
    """Return the exception of the user's code that an error tells of, with the error as a note.

    None if it tells of no such exception, or of one that would end a loop instead of breaking it.

    >>> raised = find_raised(caused_by(KeyError("cow"), SampleError("the dataset raised", dataset_index=7)))
    >>> raised, raised.__notes__
    (KeyError('cow'), ['gpuloader: dataset index 7: the dataset raised'])
    """
    raised = failure.__cause__
    tells = isinstance(failure, LoaderError) and failure._tells_of_user
    if not tells or not isinstance(raised, Exception) or isinstance(raised, StopIteration):
        return None
    with suppress(Exception):  # not every class has notes, such as a frozen dataclass
        # Without those of earlier samples: some programs raise the same exception again and again.
        kept = [one for one in getattr(raised, "__notes__", ()) if not one.startswith("gpuloader: batch ")]
        raised.__notes__ = [*kept, f"gpuloader: {failure}"]
    return raised


@contextmanager
def damaged(problem: str, *kinds: type[Exception], advice: str = "", **where: Any) -> Iterator[None]:
    """Raise errors of these kinds in the block as a `DataFileError`: with a problem, their text, and advice.

    A `DataFileError` that does not name its file gets what is known of its place from `where`, too. A thread
    that the system refuses is a `SourceError`: the file is not damaged.

    >>> with damaged("the file is truncated: ", EOFError, file="a.tar"):
    ...     raise EOFError("no more bytes")
    Traceback (most recent call last):
    gpuloader.errors.DataFileError: a.tar: the file is truncated: no more bytes
    """
    try:
        yield
    except DataFileError as error:
        if error.file is None:
            vars(error).update(where)
        raise
    except (LoaderError, MemoryError):  # Arrow's ArrowMemoryError is a MemoryError, too
        raise
    except kinds as error:
        text = str(error) or repr(error)
        if "Failed to launch worker thread" in text:  # by Arrow, which has no type of error for it
            problem = f"the system refused Arrow a thread (ulimit -u shows the limit): {text}"
            raise SourceError(problem, url=where.get("file") or "") from error
        raise DataFileError(f"{problem}{text}{advice}", **where) from error


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line that called this package; Python 3.11 cannot skip a package's frames itself.

    >>> with warnings.catch_warnings(record=True) as heard:
    ...     warnings.simplefilter("always")
    ...     warn("this is slow")
    >>> [str(one.message) for one in heard]
    ['this is slow']
    """
    depth, frame, own = 1, sys._getframe(), os.path.dirname(__file__) + os.sep  # noqa: PTH120
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth)


def describe_error(error: BaseException) -> str:
    """Return a one-line description of an exception: its type, and its message if it has one.

    >>> describe_error(KeyError("label")), describe_error(StopIteration())
    ("KeyError: 'label'", 'StopIteration')
    """
    # Users know the builtin exceptions that these stand for, but not the names of these.
    own = (BadValue, BadType, BadTypeOrValue, BadIndex, NoIndices)
    name = next(one.__name__ for one in type(error).__mro__ if one not in own)
    try:
        text = str(error)
    except Exception:
        text = "the message is unavailable: str() raised"
    return f"{name}: {text}" if text else name


def import_package(module: str, what: str, extra: str, package: str = "") -> Any:
    """Return a module of an optional package; raise `MissingPackage` if it is not installed.

    An empty `extra` stands for a package that none of ours brings.

    >>> import_package("no_such_module", "reading Parquet files", "parquet", "pyarrow")
    Traceback (most recent call last):
        ...
    gpuloader.errors.MissingPackage: reading Parquet files needs pyarrow, which is not installed: ...
    """
    try:
        return import_module(module)
    except ImportError as error:
        command = install_command(extra) if extra else f"pip install {package or module}"
        missing = f"{what} needs {package or module}, which is not installed: {command}"
        raise MissingPackage(missing, name=package or module) from error
