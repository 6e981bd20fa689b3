"""Classes of packages that the program may have imported; asking for them imports nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

DATA_MODULES = ("torch.utils.data", "paddle.io")
"""Where PyTorch and Paddle keep their datasets and samplers."""


def find_classes(*names: str, modules: Iterable[str] = DATA_MODULES) -> tuple[type[Any], ...]:
    """Return the classes of these names in those of the modules that are imported.

    >>> find_classes("NoSuchSampler")
    ()
    """
    found: list[type[Any]] = []
    for module in modules:
        # A package that nobody imported cannot have made the user's object, so its classes need no import.
        loaded = sys.modules.get(module)
        for name in names if loaded is not None else ():
            kind = getattr(loaded, name, None)
            if isinstance(kind, type):
                found.append(kind)
    return tuple(found)


def is_instance(value: object, module: str, *names: str) -> bool:
    """Return whether a value is of one of a module's classes; False if the program has not imported it.

    >>> import fractions
    >>> is_instance(fractions.Fraction(1, 2), "fractions", "Fraction"), is_instance(1, "no_such", "One")
    (True, False)
    """
    return isinstance(value, find_classes(*names, modules=(module,)))
