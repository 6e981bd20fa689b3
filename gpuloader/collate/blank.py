"""Blanks: a sample's container without its entries, for classes that hold more than entries."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from typing import Any

_PLAIN = (dict, list, tuple, OrderedDict)
_CLEAR: tuple[tuple[type, Callable[[Any], None]], ...] = (
    # By the base class: a method of the user's class might reach into the sample that was copied.
    (dict, dict.clear),
    (list, list.clear),
    (UserDict, lambda blank: setattr(blank, "data", {})),
)


class Blank:
    """An empty copy of a container, such as a `defaultdict` or the user's own dict with attributes.

    Batches are filled into copies of it, so they have the class and the attributes of their first sample, as
    torch's ``default_collate`` returns them. Two blanks are equal if they are of one class and copies of them
    would have equal attributes.

    Parameters
    ----------
    value : dict, list or UserDict
        The empty container; nobody changes it.

    Examples
    --------
    >>> from collections import defaultdict
    >>> blank = Blank.of(defaultdict(list, a=1))
    >>> blank.fill({"a": "batch"})
    defaultdict(<class 'list'>, {'a': 'batch'})
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    @classmethod
    def of(cls, value: Any) -> Blank | None:
        """Return the blank of a container; None if its class alone is enough to make it again."""
        if type(value) in _PLAIN:
            return None
        for base, clear in _CLEAR:
            if isinstance(value, base):
                try:
                    blank = copy.copy(value)
                    if blank is value or type(blank) is not type(value):
                        return None
                    clear(blank)
                except Exception:  # the user's class may raise anything
                    return None
                return cls(blank)
        return None

    def fill(self, entries: Any) -> Any:
        """Return a new container with these entries: a mapping or a list."""
        filled = copy.copy(self._value)
        if isinstance(entries, Mapping):
            filled.update(entries)
        else:
            filled.extend(entries)
        return filled

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blank) or type(self._value) is not type(other._value):
            return False
        try:
            return bool(self._value.__reduce_ex__(2)[1:3] == other._value.__reduce_ex__(2)[1:3])
        except Exception:  # for example, because attributes are arrays
            return False

    def __hash__(self) -> int:
        return hash(type(self._value))

    def __reduce__(self) -> tuple[Any, ...]:
        return Blank, (self._value,)
