"""Reader decorators, which make a reader from another one, as in Paddle's ``paddle.reader``.

A reader is a function without arguments that returns an iterable; each call starts over. However an iteration
ends (its last item, `break`, ``close()``, an exception), the decorator immediately closes the generators
below it, in the same thread.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from gpuloader.checks import check_count, check_integer
from gpuloader.errors import ComposeNotAligned, ReaderError
from gpuloader.system.iterators import Steady, group, refuse_read

# The contract of a reader: a function without arguments that returns an iterable.

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
            "so that every epoch can start over"
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
    advice = "make a new one in every call, for example by writing the reader with yield"
    refuse_read(items, "the reader returns", advice)
    try:
        return Steady.of(iter(items))
    except TypeError:
        raise ReaderError(
            f"a reader must return an iterable, got {type(items).__name__}; use yield in it, or return a list"
        ) from None


_MISSING = object()


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Group items into lists of `batch_size`.

    Parameters
    ----------
    reader : callable
        A reader of items.
    batch_size : int
        Items per list, 1 or more; a whole number such as 2.0 counts as an integer.
    drop_last : bool
        Whether to drop a shorter last list.

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
    size = check_count("batch_size", check_integer("batch_size", batch_size))
    return _over([reader], partial(group, size=size, drop_last=drop_last))


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Shuffle items within windows of `buf_size`, with Python's `random`, so `random.seed` repeats an order.

    Parameters
    ----------
    reader : callable
        A reader of items.
    buf_size : int
        Items per window; 1 or less leaves the order as it is.

    Returns
    -------
    callable
        A reader of the same items in another order.

    Raises
    ------
    ValueError
        The size is not an integer.

    Examples
    --------
    >>> sorted(shuffle(lambda: range(5), 3)())
    [0, 1, 2, 3, 4]
    """
    import random  # imported late: only this needs it

    size = max(check_integer("buf_size", buf_size), 1)

    def shuffled(items: Iterator[Any]) -> Iterator[Any]:
        while window := list(itertools.islice(items, size)):
            random.shuffle(window)
            yield from window

    return _over([reader], shuffled)


def cache(reader: Reader) -> Reader:
    """Read all items on first use, and replay them from memory afterwards.

    If the first read fails, nothing is kept and the next use reads again. Threads that start their first
    epochs at the same moment may each read, but all replay the items that were kept first.

    Parameters
    ----------
    reader : callable
        A reader of items, which must all fit in memory.

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
    read = _over([reader], iter)
    kept: list[tuple[Any, ...]] = []

    def replay() -> Iterator[Any]:
        if not kept:
            kept.append(tuple(read()))
        yield from kept[0]

    return replay


def chain(*readers: Reader) -> Reader:
    """Yield the items of the first reader, then those of the next.

    Parameters
    ----------
    *readers : callable
        The readers; each starts when the previous one has ended.

    Returns
    -------
    callable
        A reader of all their items.

    Examples
    --------
    >>> list(chain(lambda: [1, 2], lambda: [3])())
    [1, 2, 3]
    """
    # `islice` hides `close` from `yield from`, so that a file that the user rewinds stays open.
    parts = [_over([reader], lambda items: itertools.islice(items, None)) for reader in readers]

    def chained() -> Iterator[Any]:
        for part in parts:
            yield from part()

    return chained


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Combine one item of each reader into a tuple; items that are tuples are flattened into it.

    Parameters
    ----------
    *readers : callable
        The readers, read in step.
    check_alignment : bool
        True raises an error if the readers differ in length. False stops at the shortest reader.

    Returns
    -------
    callable
        A reader of tuples.

    Raises
    ------
    ComposeNotAligned
        Raised while reading, after the last aligned item: one reader ended before another.

    Examples
    --------
    >>> list(compose(lambda: [1, 2], lambda: [(3, 4), (5, 6)])())
    [(1, 3, 4), (2, 5, 6)]
    """

    def composed(*sources: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
        longest = itertools.zip_longest(*sources, fillvalue=_MISSING)
        for count, row in enumerate(longest if check_alignment else zip(*sources, strict=False)):
            ended = [str(index) for index, item in enumerate(row) if item is _MISSING]
            if ended:
                raise ComposeNotAligned(
                    f"reader {', '.join(ended)} of {len(readers)}, counted from 0, ended after {count} "
                    "items, before the others; pass check_alignment=False to stop at the shortest"
                )
            parts = (item if isinstance(item, tuple) else (item,) for item in row)
            yield tuple(itertools.chain.from_iterable(parts))

    return _over(readers, composed)


def firstn(reader: Reader, n: int) -> Reader:
    """Yield at most the first `n` items, and read no further.

    Parameters
    ----------
    reader : callable
        A reader of items.
    n : int
        The number of items; a negative number yields all of them.

    Returns
    -------
    callable
        A reader of the first items.

    Raises
    ------
    ValueError
        `n` is not an integer.

    Examples
    --------
    >>> list(firstn(lambda: range(100), 3)())
    [0, 1, 2]
    """
    count = check_integer("n", n)
    return _over([reader], lambda items: itertools.islice(items, None if count < 0 else count))


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Call `func` with one item of each reader and yield its results; stop at the shortest reader.

    Parameters
    ----------
    func : callable
        A function that takes one item of each reader.
    *readers : callable
        The readers, read in step.

    Returns
    -------
    callable
        A reader of the results of `func`.

    Examples
    --------
    >>> list(map_readers(lambda a, b: a + b, lambda: [1, 2, 3], lambda: [10, 20])())
    [11, 22]
    """

    def mapped(*sources: Iterator[Any]) -> Iterator[Any]:
        # Not `map`: a StopIteration raised by `func` would silently end the iteration early.
        for row in zip(*sources, strict=False):
            yield func(*row)

    return _over(readers, mapped)


def _over(readers: Sequence[Reader], read: Callable[..., Iterator[Any]]) -> Reader:
    """Return a reader of what `read` makes from an iterator of each reader; their generators end with it."""
    for reader in readers:
        check_reader(reader)

    def opened() -> Iterator[Any]:
        with ExitStack() as closing:
            sources = []
            for reader in readers:
                items = iterate(reader)
                if isinstance(items, Generator):
                    closing.callback(items.close)
                sources.append(items)
            yield from read(*sources)

    return opened
