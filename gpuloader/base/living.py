"""Weak collections that run no Python code when one of their objects goes.

Those of `weakref` remove an object in a Python function. A Ctrl-C that arrives there is lost, because Python
prints an exception in such a function and continues.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


class Living(Generic[T]):
    """The objects that were added and still live; any thread may call the methods.

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


class LivingKeys(Generic[T, V]):
    """Values that are kept as long as the objects that they belong to; any thread may call the methods.

    Examples
    --------
    >>> class Thing: pass
    >>> names, thing = LivingKeys(), Thing()
    >>> names.set(thing, "a thing"); names.get(thing)
    'a thing'
    >>> del thing; len(names)
    0
    """

    def __init__(self) -> None:
        self._values: dict[weakref.ref[T], V] = {}

    def set(self, key: T, value: V) -> None:
        """Set the value of an object, which must not define what equals it."""
        self._values[weakref.ref(key, self._values.pop)] = value

    def get(self, key: T) -> V | None:
        """Return the value of an object; None if it has none."""
        return self._values.get(weakref.ref(key))

    def __len__(self) -> int:
        return len(self._values)


class LivingValues(Generic[K, T]):
    """Objects by their keys, as long as they live; any thread may call the methods.

    Examples
    --------
    >>> class Thing: pass
    >>> things, thing = LivingValues(), Thing()
    >>> things.set("a", thing); things.get("a") is thing
    True
    >>> del thing; things.get("a"), things.items()
    (None, [])
    """

    def __init__(self) -> None:
        self._references: dict[K, weakref.ref[T]] = {}

    def set(self, key: K, value: T) -> None:
        """Set the object of a key."""
        self._references[key] = weakref.ref(value, partial(self._references.pop, key))

    def get(self, key: K) -> T | None:
        """Return the object of a key; None if there is none, or no longer."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def items(self) -> list[tuple[K, T]]:
        """Return the keys and objects that are there now."""
        found = [(key, reference()) for key, reference in self._references.copy().items()]
        return [(key, one) for key, one in found if one is not None]
