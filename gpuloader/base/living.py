"""A weak set that runs no Python code when one of its objects goes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    """The objects that were added and still live; any thread may call the methods.

    A `weakref.WeakSet` removes an object in a Python function. A Ctrl-C that arrives there is lost, because
    Python prints an exception in such a function and continues.

    Examples
    --------
    >>> class Thing: pass
    >>> things, thing = Living(), Thing()
    >>> things.add(thing); list(things) == [thing]
    True
    >>> del thing; list(things)
    []
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def add(self, one: T) -> None:
        """Add an object, which must not define what equals it."""
        self._references.add(weakref.ref(one, self._references.discard))

    def discard(self, one: T) -> None:
        """Remove an object, if it is there."""
        self._references.discard(weakref.ref(one))

    def __iter__(self) -> Iterator[T]:
        """Iterate over the objects that are there now."""
        found = [reference() for reference in self._references.copy()]
        return iter([one for one in found if one is not None])
