"""Text files of slots, the format of Paddle's file datasets: each line is a sample.

A line holds one slot per field: the number of values, then the values, all separated by spaces.
``2 0.5 1.5 1 7`` is a sample with the two numbers 0.5 and 1.5, and the number 7.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from gpuloader.errors import DataFileError
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.system.platforms import kill_session

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
            raise _problem(
                where, feed, f"expected {count} values, got {len(values)} before the end of the line"
            )
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
            with suppress(
                subprocess.TimeoutExpired
            ):  # killed, but the system holds it, for example because of a dead disk
                process.wait(_EXIT_S)
    if code:
        raise DataFileError(f"{path}: the pipe command {command!r} exited with code {code}")
