"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def import_on_demand(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package; `homes` maps names to modules that define them, or they are.

    >>> find = import_on_demand("gpuloader.system", {"check_count": "gpuloader.checks"})
    >>> find("check_count")("capacity", 4)
    4
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        found = home if homes[name] == f"{package}.{name}" else getattr(home, name)
        setattr(sys.modules[package], name, found)
        return found

    return __getattr__


def step_aside(name: str, file: str) -> None:
    """Make ``import name`` find the package that a module of ours, with the path `file`, hides."""
    # Python was started in our folder, and looks for modules there first.
    here = Path(file).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    del sys.modules[name]
    import_module(name)
