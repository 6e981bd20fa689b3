"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def import_on_demand(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package; `homes` maps modules to the names in each, apart by spaces.

    The names in the package itself are its modules.

    >>> find = import_on_demand("gpuloader.system", {"gpuloader.checks": "check_count check_word"})
    >>> find("check_count")("capacity", 4)
    4
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        found = import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)
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
