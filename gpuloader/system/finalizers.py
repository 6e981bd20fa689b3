"""Finalizers that cannot lose a Ctrl-C that arrives while they run.

Python prints exceptions that are raised while it frees an object, and continues. A Ctrl-C raises in whatever
Python code runs next, so a Ctrl-C during a ``__del__`` or a callback of `weakref` or `weakref.finalize` is
lost. The package has none of these. Where C code is enough, `calling` makes a ``__del__`` without Python
code, and the Ctrl-C stays pending. Where it is not, a `Finalizer` delivers the Ctrl-C again.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter, call
from time import sleep
from typing import Generic, TypeVar


def calling(name: str) -> property:
    """Return a ``__del__`` that calls what the object's attribute `name` holds and runs no Python code.

    That must be a function written in C, such as one that `once` returns, and it must be an attribute of the
    object: later versions of Python turn `partial` objects in a class into methods.

    >>> class Thing:
    ...     __del__ = calling("_release")
    ...
    ...     def __init__(self):
    ...         self._release = partial(print, "gone")
    >>> Thing() and None
    gone
    """
    return property(attrgetter(name))


def once(*functions: Callable[[], object]) -> Callable[[], object]:
    """Return a function that calls the given functions on its first call only.

    Any thread may call it. It runs no Python code of its own, and the functions must not raise.

    >>> say = once(partial(print, "first"), partial(print, "second"))
    >>> _ = say(), say()
    first
    second
    """
    return partial(deque, map(call, functions), 0)


def closing_once(*descriptors: int | None) -> Callable[[], object]:
    """Return a function that closes file descriptors once, without Python code, and ignores errors.

    None and negative numbers stand for no descriptor.

    >>> close = closing_once(None, -1)
    >>> _ = close()
    """
    # Unlike `os.close`, `os.closerange` raises nothing.
    return once(*[partial(os.closerange, fd, fd + 1) for fd in descriptors if fd is not None and fd >= 0])


class Finalizer:
    """Calls a function when this object is called or dropped, whichever comes first.

    Make it an attribute of the object whose end matters. The function must refer to what has to be ended, not
    to that object, and must be callable again after a Ctrl-C has cut it short.

    >>> finalizer = Finalizer(lambda: print("gone"))
    >>> del finalizer
    gone
    """

    __slots__ = ("_due", "_keeper")

    def __init__(self, function: Callable[[], object] | None = None) -> None:
        # Created before the generators that its function closes, it also ends them: the garbage collector
        # finalizes the oldest objects first. Otherwise a Ctrl-C could arrive while a generator is collected.
        self._due = [] if function is None else [function]
        self._keeper = _keep(self._due)
        next(self._keeper)

    def watch(self, function: Callable[[], object]) -> None:
        """Set the function, for a finalizer that was made without one."""
        self._due.append(function)

    def __call__(self) -> None:
        """Call the function now and never again; do nothing if it was called before."""
        for function in self._due[:1]:
            function()
        self.end()

    def end(self) -> None:
        """Forget the function; then no Python code runs when this object is dropped."""
        self._due.clear()
        self._keeper.close()

    @property
    def alive(self) -> bool:
        """Whether the function is still to be called."""
        return bool(self._due)


def _keep(due: list[Callable[[], object]]) -> Generator[None, None, None]:
    """Call the function when this generator is dropped."""
    # When a generator is dropped, it continues in the block below without first looking for signals. A
    # function does look for signals at its beginning.
    try:
        yield
    finally:
        if due:
            function = due[0]
            del due[0]  # a call such as `pop` would look for signals
            try:
                function()
            except KeyboardInterrupt:
                # Python would print it and continue.
                _thread.start_new_thread(_deliver_interrupt, (function,))
            except Exception:  # there is nobody to raise it to
                pass


def _deliver_interrupt(function: Callable[[], object]) -> None:
    """Deliver an interrupt in a separate thread."""
    # A finalizer may run while its thread holds the locks of `threading`, so it must not start a thread of
    # that module. But a thread that `threading` does not know stays in its list once it has asked for its own
    # name.
    threading.Thread(target=_deliver, args=(function,), name="gpuloader-interrupt", daemon=True).start()


def _deliver(function: Callable[[], object]) -> None:
    """Interrupt the main thread again, after the object has been freed, and finish what was cut short."""
    sleep(0.01)
    if hasattr(signal, "pthread_kill"):  # a signal also wakes a thread that sleeps or waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()
    with suppress(Exception):
        function()


_watched: dict[weakref.ref[object], Finalizer] = {}


def when_dropped(one: object, function: Callable[[], object]) -> None:
    """Call a function when an object of another package is freed, as a `Finalizer` does.

    >>> class Thing: pass
    >>> thing = Thing()
    >>> when_dropped(thing, lambda: print("gone"))
    >>> del thing
    gone
    """
    _watched[weakref.ref(one, _watched.pop)] = Finalizer(function)


# Weak collections that run no Python code when one of their objects is freed. Those of `weakref` remove an
# object in a Python function, and a Ctrl-C that arrives there is lost.

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


class LivingKeys(Generic[T, V]):
    """Values that live as long as the objects they belong to; any thread may call the methods.

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
        """Set the value of an object whose class must not define equality."""
        self._values[weakref.ref(key, self._values.pop)] = value

    def get(self, key: T) -> V | None:
        """Return the value of an object; None if it has none."""
        return self._values.get(weakref.ref(key))

    def discard(self, key: T) -> None:
        """Forget an object and its value, if present."""
        self._values.pop(weakref.ref(key), None)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the objects that are alive now."""
        found = [reference() for reference in self._values.copy()]
        return iter([one for one in found if one is not None])

    def __len__(self) -> int:
        return len(self._values)


class Living(LivingKeys[T, None]):
    """The objects that were added and still live; any thread may call the methods.

    >>> class Thing: pass
    >>> things, thing = Living(), Thing()
    >>> things.add(thing); list(things) == [thing]
    True
    >>> del thing; list(things)
    []
    """

    def add(self, one: T) -> None:
        """Add an object whose class must not define equality."""
        self._values[weakref.ref(one, self._values.pop)] = None


class LivingValues(Generic[K, T]):
    """Objects by key, for as long as they live; any thread may call the methods.

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
        """Set the object for a key."""
        self._references[key] = weakref.ref(value, partial(self._references.pop, key))

    def get(self, key: K) -> T | None:
        """Return the object for a key; None if there is none, or no longer."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def items(self) -> list[tuple[K, T]]:
        """Return the keys and objects that are alive now."""
        found = [(key, reference()) for key, reference in self._references.copy().items()]
        return [(key, one) for key, one in found if one is not None]
