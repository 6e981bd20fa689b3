"""Blanks: a sample's container without its entries, for classes with more than entries and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from typing import Any

from gpuloader.sources.recognizing import is_instance

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


class BlankObject:
    """An object of a dataclass without the values of its fields.

    Batches are filled into copies of it, without a call of the class. So frozen dataclasses, those whose
    `__init__` takes other arguments, and attributes that are no fields all come out as they went in.

    Parameters
    ----------
    value : object
        The object with empty fields; nobody changes it.
    names : tuple of str
        The names of its fields.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pair:
    ...     first: int
    ...     second: str
    >>> blank = BlankObject.of(Pair(1, "a"))
    >>> blank.entries(Pair(2, "b")), blank.fill({"first": 3, "second": "c"})
    ([2, 'b'], Pair(first=3, second='c'))
    """

    __slots__ = ("_value", "names")

    def __init__(self, value: Any, names: tuple[str, ...]) -> None:
        self._value = value
        self.names = names

    @classmethod
    def of(cls, value: Any) -> BlankObject | None:
        """Return the blank of a dataclass's object or a graph; None for others, or if it cannot be copied."""
        if is_instance(value, "torch_geometric.data.data", "BaseData"):
            return BlankGraph.of_graph(value)
        if not hasattr(type(value), "__dataclass_fields__"):
            return None
        names = tuple(one.name for one in dataclasses.fields(value) if hasattr(value, one.name))
        try:
            blank = copy.copy(value)
            if blank is value or type(blank) is not type(value):
                return None
            for name in names:
                object.__setattr__(blank, name, None)
        except Exception:  # the user's class may raise anything
            return None
        return cls(blank, names)

    def entries(self, value: Any) -> list[Any]:
        """Return the values of the fields of an object of the same class."""
        return [getattr(value, name) for name in self.names]

    def fill(self, entries: Mapping[str, Any]) -> Any:
        """Return a new object with these values of its fields."""
        filled = copy.copy(self._value)
        for name, entry in entries.items():
            object.__setattr__(filled, name, entry)
        return filled


class BlankGraph(BlankObject):
    """A graph or a batch of graphs of PyTorch Geometric, without its attributes.

    Parameters
    ----------
    value : torch_geometric.data.data.BaseData
        The graph, empty; nobody changes it.
    places : tuple of (int, str)
        For each attribute, the number of the graph's store that has it, and its name there.
    names : tuple of str
        The attributes' names; those of a node or edge type begin with it.
    """

    __slots__ = ("_places",)

    def __init__(self, value: Any, places: tuple[tuple[int, str], ...], names: tuple[str, ...]) -> None:
        super().__init__(value, names)
        self._places = places

    @classmethod
    def of_graph(cls, value: Any) -> BlankGraph:
        """Return the blank of a graph."""
        places, names = [], []
        blank = copy.copy(value)
        for number, store in enumerate(value.stores):
            kind = store._key if isinstance(store._key, str | None) else "__".join(store._key)
            for key in store:
                places.append((number, key))
                names.append(key if kind is None else f"{kind}.{key}")
                blank.stores[number][key] = None  # which deletes it
        return cls(blank, tuple(places), tuple(names))

    def entries(self, value: Any) -> list[Any]:
        """Return the attributes of a graph of the same kind."""
        stores = value.stores
        return [stores[number][key] for number, key in self._places]

    def fill(self, entries: Mapping[str, Any]) -> Any:
        """Return a new graph with these attributes."""
        filled = copy.copy(self._value)
        stores = filled.stores
        for (number, key), entry in zip(self._places, entries.values(), strict=True):
            stores[number][key] = entry
        return filled
