"""The names of ``paddle.fluid.dataset``: datasets of text files, for `DataLoader.from_dataset`.

Each line of a file is a sample. It holds one slot per field: the number of values, then the values, all
separated by spaces. ``2 0.5 1.5 1 7`` is a sample with the two numbers 0.5 and 1.5, and the number 7.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.checks import check_count, check_word
from gpuloader.errors import DataFileError, Misuse
from gpuloader.fields.spec import Array, FeedSpec, resolve_feeds
from gpuloader.system.platforms import kill_session

# The files.

_EXIT_S = 10.0  # a command must exit within this time after it has closed its output, or was killed


def read_slots(
    paths: Iterable[str | os.PathLike[str]], feeds: Sequence[FeedSpec], command: str = "cat"
) -> Generator[tuple[Array, ...], None, None]:
    r"""Yield the samples of several files, one file after another.

    A sample has one array per slot, with as many values as the line has: int64 for integer dtypes, otherwise
    float64. Each file is piped through the shell command `command`.

    Raises
    ------
    DataFileError
        A line is not what the feeds declare, or the command fails, or it has not exited 10 s after it closed
        its output. The message names the file and the line.
    FileNotFoundError
        A file does not exist.

    Examples
    --------
    >>> import tempfile
    >>> feeds = [FeedSpec("image", [None, 2]), FeedSpec("label", [None, 1], "int64")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "part-0")
    ...     _ = path.write_text("2 0.5 1.5 1 7\n")
    ...     [(image, label)] = read_slots([path], feeds)
    >>> image, label
    (array([0.5, 1.5]), array([7]))
    """
    for path in paths:
        with closing(_lines(Path(path), command)) as lines:
            for number, line in enumerate(lines, 1):
                if not line.isspace():
                    yield _parse(line, feeds, f"{path}, line {number}")


def _parse(line: bytes, feeds: Sequence[FeedSpec], where: str) -> tuple[Array, ...]:
    words = line.split()
    at = 0
    slots = []
    for feed in feeds:
        try:
            count = int(words[at])
            values = words[at + 1 : at + 1 + count]
            slot = np.array(values, dtype=np.int64 if feed.dtype.kind in "iub" else np.float64)
        except (IndexError, ValueError) as error:
            raise _problem(where, feed, f"expected a count and as many numbers, got {error}") from None
        if count < 0 or len(values) < count:
            got = f"{len(values)} before the end of the line"
            raise _problem(where, feed, f"expected {count} values, got {got}")
        slots.append(slot)
        at += 1 + count
    if at < len(words):
        raise DataFileError(f"{where}: expected {len(feeds)} slots, got {len(words) - at} more words")
    return tuple(slots)


def _problem(where: str, feed: FeedSpec, problem: str) -> DataFileError:
    return DataFileError(f"{where}, slot {feed.name!r}: {problem}")


def _lines(path: Path, command: str) -> Generator[bytes, None, None]:
    """Yield the lines of a file after piping it through the command."""
    with path.open("rb") as file:
        if command.strip() == "cat":
            yield from file
            return
        import subprocess  # imported late: few programs need it

        pipe = subprocess.PIPE
        process = subprocess.Popen(command, shell=True, stdin=file, stdout=pipe, start_new_session=True)
        assert process.stdout is not None
        try:
            yield from process.stdout
            code = process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            problem = f"the pipe command {command!r} closed its output, but did not exit within {_EXIT_S:g} s"
            raise DataFileError(f"{path}: {problem}; make it exit once it has written all lines") from None
        finally:
            if process.returncode is None:  # reading ended early
                kill_session(process.pid)
            process.stdout.close()
            # Killed, but the system may hold it, for example because of a dead disk.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_S)
    if code:
        raise DataFileError(f"{path}: the pipe command {command!r} exited with code {code}")


__all__ = ["DatasetFactory", "InMemoryDataset", "QueueDataset"]


# The datasets.


class QueueDataset:
    r"""Samples in text files, read again in every epoch.

    A line of a file is a sample. It holds one slot per feed: the number of values, then the values.

    Attributes
    ----------
    feeds : tuple of FeedSpec
        The feeds of `set_use_var`.
    batch_size : int
        Samples per batch; 1 unless `set_batch_size` says otherwise.

    Examples
    --------
    >>> import tempfile
    >>> from gpuloader import data
    >>> dataset = QueueDataset()
    >>> dataset.set_use_var([data("x", [None, 2])])
    >>> with tempfile.NamedTemporaryFile("w") as file:
    ...     _ = file.write("2 0.5 1.5\n2 2.5 3.5\n")
    ...     file.flush()
    ...     dataset.set_filelist([file.name])
    ...     dataset.set_pipe_command("tail -n 1")
    ...     print(list(dataset.read()))
    [(array([2.5, 3.5]),)]
    """

    def __init__(self) -> None:
        self.feeds: tuple[FeedSpec, ...] = ()
        self.batch_size = 1
        self._files: list[str] = []
        self._command = "cat"

    def set_batch_size(self, batch_size: int) -> None:
        """Set the number of samples per batch; raise `ValueError` unless it is an integer of 1 or more."""
        self.batch_size = check_count("batch_size", batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Accept the number of threads, as Paddle does; the loader reads in one thread, in a fixed order."""
        check_count("thread_num", thread_num)

    def set_filelist(self, filelist: Sequence[str | os.PathLike[str]]) -> None:
        """Set the files, in the order in which to read them."""
        self._files = [os.fspath(path) for path in filelist]

    def set_use_var(self, var_list: Sequence[FeedSpec | str]) -> None:
        """Set the feeds, in the order of a line's slots; errors are those of a loader's feed_list."""
        self.feeds = resolve_feeds(var_list)

    def set_pipe_command(self, pipe_command: str) -> None:
        """Set a shell command that each file is passed through, such as ``zcat``; 'cat' changes nothing."""
        self._command = pipe_command

    def read(self) -> Iterator[tuple[Array, ...]]:
        """Return an iterator over the samples of all files."""
        if not self.feeds:
            raise Misuse("the dataset has no feeds: call set_use_var first")
        return read_slots(self._files, self.feeds, self._command)


class InMemoryDataset(QueueDataset):
    r"""Samples in text files, read once into memory.

    Examples
    --------
    >>> import tempfile
    >>> from gpuloader import data
    >>> dataset = InMemoryDataset()
    >>> dataset.set_use_var([data("x", [None, 1])])
    >>> with tempfile.NamedTemporaryFile("w") as file:
    ...     _ = file.write("1 0.5\n1 1.5\n")
    ...     file.flush()
    ...     dataset.set_filelist([file.name])
    ...     dataset.load_into_memory()
    >>> dataset.local_shuffle()
    >>> sorted(dataset.read()), dataset.get_memory_data_size()
    ([(array([0.5]),), (array([1.5]),)], 2)
    """

    _samples: list[tuple[Array, ...]] | None = None

    def load_into_memory(self) -> None:
        """Read all files."""
        self._samples = list(super().read())

    def local_shuffle(self) -> None:
        """Shuffle the samples with Python's `random`, so that `random.seed` repeats an order."""
        random.shuffle(self._loaded())

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:  # noqa: ARG002
        """Shuffle the samples, which are all in this process."""
        self.local_shuffle()

    def get_memory_data_size(self, fleet: Any = None) -> int:  # noqa: ARG002
        """Return the number of samples in memory."""
        return len(self._loaded())

    def release_memory(self) -> None:
        """Forget the samples."""
        self._samples = None

    def read(self) -> Iterator[tuple[Array, ...]]:
        """Return an iterator over the samples in memory."""
        return iter(self._loaded())

    def _loaded(self) -> list[tuple[Array, ...]]:
        if self._samples is None:
            raise Misuse("the dataset is not in memory: call load_into_memory first")
        return self._samples


class DatasetFactory:
    """Makes datasets of text files by the name of their class.

    >>> type(DatasetFactory().create_dataset("InMemoryDataset")).__name__
    'InMemoryDataset'
    """

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> QueueDataset:
        """Return an empty dataset: 'QueueDataset' or 'InMemoryDataset'.

        Raises
        ------
        ValueError
            The name is unknown.
        """
        kinds = {kind.__name__: kind for kind in (QueueDataset, InMemoryDataset)}
        check_word("datafeed_class", datafeed_class, tuple(kinds))
        return kinds[datafeed_class]()
