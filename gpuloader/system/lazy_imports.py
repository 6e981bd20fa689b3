"""Names of a package that are imported on first use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def import_on_demand(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package; `homes` maps each name to its module.

    Names that live in the package itself are its modules.

    >>> find = import_on_demand("gpuloader.system", {"check_count": "gpuloader.checks"})
    >>> find("check_count")("capacity", 4)
    4
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        found = import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)
        setattr(sys.modules[package], name, found)
        return found

    return __getattr__


def read_stub(file: str) -> dict[str, str]:
    """Return the module of each name of a package, read from the stub next to its `file`.

    So each name is written down only once, where type checkers and editors look for it.
    """
    # Not with `pathlib`, here and in other modules that every program imports: with all that it imports, that
    # takes as long as ten of our modules.
    with open(file.removesuffix("py") + "pyi", encoding="utf-8") as stub:  # noqa: PTH123
        lines = map(str.split, stub)
        return {line[3]: line[1] for line in lines if line[:1] == ["from"]}  # from HOME import NAME as NAME


def step_aside(name: str, file: str) -> None:
    """Let ``import name`` find the package that our module with the path `file` hides."""
    # Python was started in our folder, and looks for modules there first.
    here = os.path.dirname(os.path.realpath(file))  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]
    del sys.modules[name]
    import_module(name)
