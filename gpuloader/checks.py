"""Argument checks shared by several packages."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuloader.errors import BadType, BadValue

AUTO = "auto"
"""The value that lets the loader choose an option itself."""
THREAD = "thread"
"""The value that makes a loader read ahead in a thread, whether or not that helps."""


def check_count(name: str, value: object) -> int:
    """Return `value` as an int; raise `ValueError` naming the parameter unless it is an integer of 1 or more.

    The largest allowed is what the standard library counts, `sys.maxsize`.

    >>> check_count("capacity", 4)
    4
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise BadValue(f"{name} must be an integer of 1 or more, got {value!r}")
    if value > sys.maxsize:
        raise BadValue(f"{name} must be an integer of at most {sys.maxsize}, got {value!r}")
    return int(value)


def check_integer(name: str, value: object) -> int:
    """Return a whole number, such as 2.0, as an int; raise `ValueError` naming the parameter otherwise.

    >>> check_integer("n", -1), check_integer("n", 2.0)
    (-1, 2)
    """
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise BadValue(f"{name} must be an integer, got {value!r}")
    return int(number)


def check_number(name: str, value: object) -> None:
    """Raise `TypeError` naming the parameter unless `value` is a number.

    >>> check_number("fill", 0.5)
    """
    if not isinstance(value, int | float | np.number):
        raise BadType(f"{name} must be a number, got {value!r}")


def check_seconds(name: str, value: object) -> float:
    """Return a finite number of 0 or more; raise `ValueError` naming the parameter for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadValue(f"{name} must be a number of seconds of 0 or more, got {value!r}")
    return value if isinstance(value, int) else float(value)


def check_word(name: str, value: object, known: tuple[str, ...], *, optional: bool = False) -> None:
    """Raise `ValueError` naming the parameter unless `value` is in `known`, or is None and `optional` is set.

    >>> check_word("split", "shards", ("batches", "shards"))
    """
    # An array would be compared element by element.
    if not (isinstance(value, str) and value in known) and not (optional and value is None):
        words = ", ".join(map(repr, known)) + (" or None" if optional else "")
        raise BadValue(f"{name} must be one of {words}, got {value!r}")


def check_switch(word: str, name: str, value: object) -> bool | str:
    """Return True, False or the only word that a switch knows; raise `TypeError` for anything else.

    >>> check_switch("thread", "use_buffer_reader", "thread")
    'thread'
    """
    if isinstance(value, str) and value == word:
        return word
    if not isinstance(value, bool | np.bool_):
        raise BadType(f"{name} must be True, False or {word!r}, got {value!r}")
    return bool(value)


def check_function(name: str, value: Any) -> Any:
    """Return a function; raise `TypeError` for anything else."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    return value


def check_flags(**flags: object) -> None:
    """Raise `TypeError` naming the parameter if a flag is neither True nor False.

    >>> check_flags(shuffle=True)
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise BadType(f"{name} must be True or False, got {value!r}")


# Parameters that are declared with their checks, as the fields of a dataclass.

Check = Callable[[str, Any], Any] | type[bool] | tuple[str, ...]
"""A function that checks a value, `bool`, or the words that a parameter allows besides a default of None.

The function takes the parameter's name and its value, and returns the value that `Options` use; `Checked`
keeps what was passed.
"""


def checked(check: Check, default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a dataclass, to be checked by `check_parameter`."""
    return dataclasses.field(default=default, metadata={"check": check})


def check_parameter(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return the checked value of a field."""
    check = field.metadata.get("check")
    if check is bool:
        check_flags(**{field.name: value})
        return bool(value)  # also of NumPy's
    if isinstance(check, tuple):
        check_word(field.name, value, check, optional=field.default is None)
        return value
    return value if check is None else check(field.name, value)


class Checked:
    """The base of dataclasses whose fields are checked, in their order, unless they have their defaults."""

    def __post_init__(self: Any) -> None:
        for field in dataclasses.fields(self):
            first = field
            # A subclass that gives a parameter another default declares it again, without the check.
            for one in type(self).__mro__:
                declared = vars(one).get("__dataclass_fields__", {}).get(field.name)
                if declared is not None and "check" in declared.metadata:
                    first = declared
                    break
            if (value := getattr(self, field.name)) is not first.default:
                check_parameter(first, value)
