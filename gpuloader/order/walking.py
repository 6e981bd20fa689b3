"""Asking the user's samplers for their indices, and skipping what was delivered before."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from gpuloader.base.errors import BadType, BadValue, LoaderError, QueueClosed, describe_error
from gpuloader.base.once import Steady

T = TypeVar("T")


def walk(sampler: Iterable[T]) -> Iterator[T]:
    """Yield what a sampler yields.

    Raises
    ------
    TypeError
        The sampler's ``__iter__`` returns no iterator.
    LoaderError
        The sampler raised `QueueClosed`, which would end the epoch without an error.

    >>> list(walk([3, 1]))
    [3, 1]
    """
    try:
        yield from open_sampler(sampler)
    except QueueClosed as error:
        raise LoaderError(f"the sampler or batch sampler raised {describe_error(error)}") from error


def open_sampler(sampler: Iterable[T]) -> Iterator[T]:
    """Return a sampler's iterator, which does not start over; raise `TypeError` if it is no iterator.

    >>> next(open_sampler([3, 1]))
    3
    """
    try:
        return Steady.of(iter(sampler))
    except TypeError as error:
        if "non-iterator" not in str(error):
            raise
        kind = type(sampler).__name__
        raise BadType(
            f"{kind}.__iter__ of the sampler or batch sampler must return an iterator ({error}); return "
            "iter(...) of a list, or write it as a generator"
        ) from error


def skip(items: Iterator[object], count: int, size: int, what: str) -> None:
    """Drop items that were delivered before a loader's state, in batches of `size`.

    Raises
    ------
    ValueError
        There are fewer items than that, even if the last batch was incomplete.

    >>> skip(iter(range(5)), 6, 2, "the reader")
    >>> skip(iter(range(4)), 6, 2, "the reader")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.base.errors.BadValue: the reader ended after 4 items, but the state was taken after 6 of ...
    """
    last = deque(enumerate(itertools.islice(items, count), 1), maxlen=1)  # counts as fast as C
    found = last[0][0] if last else 0
    if found <= count - size:
        raise BadValue(
            f"{what} ended after {found} items, but the state was taken after {count} of them: it comes from "
            "another dataset, reader or sampler"
        )
