"""Dataclasses that are quick to import: their ``__init__`` is compiled when somebody first asks for it.

The names here do the same as those of the standard library's `dataclasses`. Its decorator compiles up to six
functions for each class. That is nine tenths of its time, and was half of this package's time to import.
Here all classes share the other functions, and most programs never make an object of most classes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY as KW_ONLY
from dataclasses import MISSING
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import replace as replace
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple


class _Init(NamedTuple):
    """Stands for the ``__init__`` of a class until somebody calls or inspects it; then replaces itself."""

    cls: Any

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        cls = self.cls
        types: dict[str, Any] = {}
        scope: dict[str, Any] = {"_set": object.__setattr__, "_given": object(), "__name__": cls.__module__}
        parameters, keywords, body = ["self"], ["*"], ["pass"]
        for one in fields(cls):
            name, value = one.name, f"_default_{one.name}"
            has_factory, has_default = one.default_factory is not MISSING, one.default is not MISSING
            scope[value] = one.default_factory if has_factory else one.default
            if one.init:
                types[name] = one.type
                default = "=_given" if has_factory else f"={value}" if has_default else ""
                (keywords if one.kw_only else parameters).append(name + default)
                value = f"{value}() if {name} is _given else {name}" if has_factory else name
            elif has_factory or ("__slots__" in vars(cls) and has_default):
                value += "()" * has_factory
            else:
                continue  # ``__post_init__`` sets it, or the class has its default as an attribute
            is_frozen = cls.__setattr__ is _refuse
            body.append(f"_set(self, {name!r}, {value})" if is_frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        names = ", ".join(parameters + keywords * (len(keywords) > 1))
        exec(f"def __init__({names}):\n " + "\n ".join(body), scope)
        method = scope["__init__"]
        method.__qualname__, method.__annotations__ = f"{cls.__qualname__}.__init__", types | {"return": None}
        cls.__init__ = method  # two threads at once compile the same
        return method.__get__(instance, owner)


@recursive_repr()
def _show(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, one.name) for one in fields(self) if one.compare])


def _equal(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _refuse(self: Any, name: str, *value: Any) -> None:
    cls = type(self)
    # A subclass that is not itself a dataclass may have further attributes.
    if "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__:
        what = "assign to" if value else "delete"
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")
    (object.__setattr__ if value else object.__delattr__)(self, name, *value)


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=False):  # an older pickle may have fewer
        object.__setattr__(self, one.name, value)


def _make(cls: Any, *, frozen: bool = False, eq: bool = True, slots: bool = False, **options: Any) -> Any:
    made = dataclasses.dataclass(cls, slots=slots, **{**options, "init": False, "eq": False, "repr": False})
    methods: dict[str, Any] = {"__init__": _Init(made)}
    methods |= {"__repr__": _show} if options.get("repr", True) else {}
    methods |= {"__eq__": _equal, "__hash__": _hash if frozen else None} if eq else {}
    methods |= {"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}
    if frozen and slots:  # Python's own would assign to the fields
        methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
    for name, method in methods.items():
        if vars(made).get(name) is None:  # Python gives a class with its own ``__eq__`` a hash of None
            setattr(made, name, method)
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(**options: Any) -> Any:
        """Return a decorator with the options of the standard one."""
        return lambda cls: _make(cls, **options)
