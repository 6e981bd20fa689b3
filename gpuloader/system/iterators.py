"""Iterators that can be read only once, that start over when asked for an iterator again, or that resume."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator
from types import FunctionType, GeneratorType
from typing import Any, TypeVar

from gpuloader.errors import BadValue, ReaderError

T = TypeVar("T")


def group(items: Iterator[T], size: int, drop_last: bool) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last one may be shorter unless `drop_last` is set.

    >>> list(group(iter("abcde"), 2, drop_last=False))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    while batch := list(itertools.islice(items, size)):
        if len(batch) == size or not drop_last:
            yield batch


def refuse_read(items: object, what: str, instead: str) -> None:
    """Raise `ReaderError` if an object is a generator that has ended, so that nothing can be read from it.

    `what` names the object, with a verb; `instead` says what to do.

    >>> numbers = (number for number in [1])
    >>> refuse_read(numbers, "the dataset is", "pass a list")
    >>> list(numbers)
    [1]
    >>> refuse_read(numbers, "the dataset is", "pass a list")
    Traceback (most recent call last):
    gpuloader.errors.ReaderError: the dataset is a generator that has been read already: pass a list
    """
    if isinstance(items, GeneratorType) and items.gi_frame is None:
        raise ReaderError(f"{what} a generator that has been read already: {instead}")


def find_kept(begin: Callable[[], object]) -> Iterator[Any] | None:
    """Return the iterator that `begin` returns in every call; None if each call returns a different one.

    Call it only after a pass that has yielded nothing, because it begins two more.

    >>> kept = iter([1, 2])
    >>> find_kept(lambda: kept) is kept, find_kept(lambda: iter([1, 2]))
    (True, None)
    """
    first = begin()
    if not isinstance(first, Iterator):
        return None
    second = begin()
    if second is first:
        return first
    for items in (first, second):
        if isinstance(items, Generator):
            items.close()
    return None


def may_start_over(items: object) -> bool:
    """Return whether an iterator may start over when asked for an iterator, as a user's class may.

    >>> may_start_over(iter([1])), may_start_over(map(int, "1"))
    (False, False)
    """
    return isinstance(getattr(type(items), "__iter__", None), FunctionType)


def close_iterator(items: object) -> None:
    """Close an iterator that can be closed, such as a generator."""
    close = getattr(items, "close", None)
    if callable(close):
        close()


class Steady(Iterator[Any]):
    """An iterator over the rest of another one, without asking that one for an iterator again.

    A user's class may start over in `__iter__` and return itself. `for`, ``yield from`` and `itertools` all
    call that, so each use of such an iterator would begin again.

    >>> class Countdown:
    ...     def __iter__(self):
    ...         self.left = 3
    ...         return self
    ...
    ...     def __next__(self):
    ...         self.left -= 1
    ...         return self.left
    >>> items = Steady.of(iter(Countdown()))
    >>> next(iter(items)), next(iter(items))
    (2, 1)
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    @staticmethod
    def of(items: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator that never starts over: the given one, unless its class may do so."""
        return Steady(items) if may_start_over(items) else items

    def __iter__(self) -> Steady:
        return self

    def __next__(self) -> Any:
        return next(self._items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)


def skip(items: Iterator[object], count: int, size: int, what: str) -> None:
    """Drop `count` items that were delivered before a loader's state, in batches of `size`.

    >>> skip(iter(range(5)), 6, 2, "the reader")
    >>> skip(iter(range(4)), 6, 2, "the reader")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.errors.BadValue: the reader ended after 4 items, but the state was taken after 6 of ...
    """
    # A deque of one entry drains the iterator as fast as C, and its entry has the count.
    last = deque(enumerate(itertools.islice(items, count), 1), maxlen=1)
    found = last[0][0] if last else 0
    if found <= count - size:  # the last batch may have been incomplete
        raise BadValue(
            f"{what} ended after {found} items, but the state was taken after {count} of them: it comes from "
            "another dataset, reader or sampler"
        )
