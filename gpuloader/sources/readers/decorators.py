"""Reader decorators: from one reader to another, as in Paddle's ``paddle.reader``.

A reader is a function without arguments that gives an iterable; calling it again starts afresh.
Whatever ends an iteration (its end, `break`, ``close()``, an exception) also closes the generators under
it, at once and in the same thread.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from gpuloader.base.checks import check_count
from gpuloader.base.errors import ComposeNotAligned
from gpuloader.sources.readers.contract import Reader, check_reader, iterate

_MISSING = object()


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Group items into lists of `batch_size`.

    Parameters
    ----------
    reader : callable
        Gives the items.
    batch_size : int
        1 or more.
    drop_last : bool
        Whether a last shorter list is dropped.

    Returns
    -------
    callable
        A reader of lists.

    Raises
    ------
    ValueError
        The batch size is not an integer of 1 or more.

    Examples
    --------
    >>> list(batch(lambda: range(5), 2)())
    [[0, 1], [2, 3], [4]]
    """
    check_reader(reader)
    size = check_count("batch_size", batch_size)

    def batches() -> Iterator[list[Any]]:
        with _opened(reader) as (items,):
            while group := list(itertools.islice(items, size)):
                if len(group) == size or not drop_last:
                    yield group

    return batches


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Shuffle items within windows of `buf_size`, with Python's `random`, so `random.seed` repeats it.

    Parameters
    ----------
    reader : callable
        Gives the items.
    buf_size : int
        Items in a window, 1 or more.

    Returns
    -------
    callable
        A reader of the same items in another order.

    Raises
    ------
    ValueError
        The size is not an integer of 1 or more.

    Examples
    --------
    >>> sorted(shuffle(lambda: range(5), 3)())
    [0, 1, 2, 3, 4]
    """
    check_reader(reader)
    size = check_count("buf_size", buf_size)

    def shuffled() -> Iterator[Any]:
        with _opened(reader) as (items,):
            while window := list(itertools.islice(items, size)):
                random.shuffle(window)
                yield from window

    return shuffled


def cache(reader: Reader) -> Reader:
    """Read everything when first used, and replay it from memory ever after.

    A first read that fails keeps nothing, so the next one tries again. Threads that start their first
    epochs at the same moment may each read, and all replay what was kept first.

    Parameters
    ----------
    reader : callable
        Gives the items; all of them must fit in memory.

    Returns
    -------
    callable
        A reader of the same items.

    Examples
    --------
    >>> numbers = cache(lambda: iter([1, 2]))
    >>> list(numbers()), list(numbers())
    ([1, 2], [1, 2])
    """
    check_reader(reader)
    kept: list[tuple[Any, ...]] = []

    def replay() -> Iterator[Any]:
        if not kept:
            with _opened(reader) as (items,):
                kept.append(tuple(items))
        yield from kept[0]

    return replay


def chain(*readers: Reader) -> Reader:
    """Give the items of the first reader, then those of the next.

    Parameters
    ----------
    *readers : callable
        Each is started when the one before it has ended.

    Returns
    -------
    callable
        A reader of all their items.

    Examples
    --------
    >>> list(chain(lambda: [1, 2], lambda: [3])())
    [1, 2, 3]
    """
    for reader in readers:
        check_reader(reader)

    def chained() -> Iterator[Any]:
        for reader in readers:
            with _opened(reader) as (items,):
                # `islice` hides `close` from `yield from`: a file the user rewinds each epoch stays open.
                yield from itertools.islice(items, None)

    return chained


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Put the items of several readers side by side in one tuple; tuples among them are flattened.

    Parameters
    ----------
    *readers : callable
        Read in step.
    check_alignment : bool
        False stops at the shortest reader.

    Returns
    -------
    callable
        A reader of tuples.

    Raises
    ------
    ComposeNotAligned
        While reading, after the last aligned item: one reader has ended before another.

    Examples
    --------
    >>> list(compose(lambda: [1, 2], lambda: [(3, 4), (5, 6)])())
    [(1, 3, 4), (2, 5, 6)]
    """
    for reader in readers:
        check_reader(reader)

    def composed() -> Iterator[tuple[Any, ...]]:
        with _opened(*readers) as sources:
            if not check_alignment:
                for row in zip(*sources, strict=False):
                    yield _flatten(row)
                return
            for count, row in enumerate(itertools.zip_longest(*sources, fillvalue=_MISSING)):
                ended = [str(index) for index, item in enumerate(row) if item is _MISSING]
                if ended:
                    raise ComposeNotAligned(
                        f"of {len(readers)} composed readers, {', '.join(ended)} ended after {count} items "
                        "and another did not; pass check_alignment=False to stop at the shortest"
                    )
                yield _flatten(row)

    return composed


def _flatten(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(itertools.chain.from_iterable(item if isinstance(item, tuple) else (item,) for item in row))


def firstn(reader: Reader, n: int) -> Reader:
    """Give at most the first `n` items, and read no further.

    Parameters
    ----------
    reader : callable
        Gives the items.
    n : int
        0 or more.

    Returns
    -------
    callable
        A reader of the first items.

    Raises
    ------
    ValueError
        `n` is not an integer of 0 or more.

    Examples
    --------
    >>> list(firstn(lambda: range(100), 3)())
    [0, 1, 2]
    """
    check_reader(reader)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise ValueError(f"n must be an integer of 0 or more, got {n!r}")

    def first() -> Iterator[Any]:
        with _opened(reader) as (items,):
            yield from itertools.islice(items, n)

    return first


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Give ``func(one item of each reader)``; stops at the shortest reader.

    Parameters
    ----------
    func : callable
        Takes as many items as there are readers.
    *readers : callable
        Read in step.

    Returns
    -------
    callable
        A reader of what `func` returns.

    Examples
    --------
    >>> list(map_readers(lambda a, b: a + b, lambda: [1, 2, 3], lambda: [10, 20])())
    [11, 22]
    """
    for reader in readers:
        check_reader(reader)

    def mapped() -> Iterator[Any]:
        with _opened(*readers) as sources:
            # Not `map`: a StopIteration that escapes from `func` would end it early without a word.
            for row in zip(*sources, strict=False):
                yield func(*row)

    return mapped


@contextmanager
def _opened(*readers: Reader) -> Iterator[list[Iterator[Any]]]:
    """Start every reader; on leaving, close those that gave a generator."""
    with ExitStack() as closing:
        sources = []
        for reader in readers:
            items = iterate(reader)
            if isinstance(items, Generator):
                closing.callback(items.close)
            sources.append(items)
        yield sources
