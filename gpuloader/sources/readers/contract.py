"""The contract of a reader: a function without arguments that returns an iterable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuloader.base.errors import ReaderError
from gpuloader.base.once import Steady, refuse_read

Reader = Callable[[], Iterable[Any]]


def check_reader(reader: object) -> Reader:
    """Return `reader` if it is a function without arguments.

    Raises
    ------
    ReaderError
        The reader is not callable, such as a generator object, or needs arguments.

    >>> check_reader(lambda: [1, 2])()
    [1, 2]
    """
    if not callable(reader):
        raise ReaderError(
            f"a reader must be a function without arguments that returns an iterable, got "
            f"{type(reader).__name__}; pass the generator function itself, not a generator object, "
            "so that every epoch can start afresh"
        )
    try:
        signature = inspect.signature(reader)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return reader
    try:
        signature.bind()
    except TypeError as error:
        raise ReaderError(
            f"a reader must take no arguments, but this one needs {signature} ({error}); "
            "wrap it, e.g. lambda: reader(path)"
        ) from None
    return reader


def iterate(reader: Reader) -> Iterator[Any]:
    """Start a new iteration of the reader and return its iterator.

    Raises
    ------
    ReaderError
        The reader returned something that is not iterable, or a generator that has been read already.
    """
    items = reader()
    refuse_read(
        items,
        "the reader returns",
        "make a new one in every call, for example by writing the reader with yield",
    )
    try:
        return Steady.of(iter(items))
    except TypeError:
        raise ReaderError(
            f"a reader must return an iterable, got {type(items).__name__}; use yield in it, or return a list"
        ) from None
