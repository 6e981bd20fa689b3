"""Recognize objects of other libraries without importing these libraries."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_FRAMES = {
    "pandas": ("DataFrame",),
    "polars": ("DataFrame", "LazyFrame"),
    "pyarrow": ("Table", "RecordBatch"),
}


def is_instance(value: object, module: str, *names: str) -> bool:
    """Return whether a value is of one of a module's classes; False if the program has not imported it.

    >>> import fractions
    >>> is_instance(fractions.Fraction(1, 2), "fractions", "Fraction"), is_instance(1, "no_such", "One")
    (True, False)
    """
    loaded: Any = sys.modules.get(module)
    kinds = [getattr(loaded, name, None) for name in names]
    return any(isinstance(value, kind) for kind in kinds if isinstance(kind, type))


def is_frame(value: object) -> bool:
    """Return whether a value is a data frame of pandas or Polars, or a table of Arrow.

    >>> is_frame({"a": [1, 2]})
    False
    """
    return any(is_instance(value, module, *names) for module, names in _FRAMES.items())


def values_by_position(value: Any) -> Any:
    """Return the values of a series of pandas, which are read by position and not by label; others unchanged.

    >>> values_by_position([1, 2])
    [1, 2]
    """
    return value.array if is_instance(value, "pandas", "Series") else value


def is_dict_of_columns(value: object) -> bool:
    """Return whether a value is a dict whose keys are all text, as that of a table's columns.

    >>> is_dict_of_columns({"a": [1, 2]}), is_dict_of_columns({0: "first sample"}), is_dict_of_columns({})
    (True, False, False)
    """
    return isinstance(value, Mapping) and bool(value) and all(isinstance(key, str) for key in value)
