"""Checks of arguments that several rooms make."""

from __future__ import annotations

import numpy as np

AUTO = "auto"
"""The word for an option that the loader chooses itself."""


def check_count(name: str, value: object) -> int:
    """Return `value` if it is an integer of 1 or more, else raise `ValueError` naming the parameter.

    >>> check_count("capacity", 4)
    4
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of 1 or more, got {value!r}")
    return int(value)


def check_word(name: str, value: object, known: tuple[str, ...], *, optional: bool = False) -> None:
    """Raise `ValueError` naming the parameter unless `value` is one of the known words, or None if optional.

    >>> check_word("split", "shards", ("batches", "shards"))
    """
    if value not in known and not (optional and value is None):
        words = ", ".join(map(repr, known)) + (" or None" if optional else "")
        raise ValueError(f"{name} must be one of {words}, got {value!r}")


def check_flags(**flags: object) -> None:
    """Raise `TypeError` naming the parameter for a flag that is neither True nor False.

    >>> check_flags(shuffle=True)
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {value!r}")
