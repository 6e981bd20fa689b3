"""The structure of a sample: dicts, tuples and lists, nested as the dataset returns them.

A sample is flattened into its leaves, which become the fields of a batch. The batch is then built in the same
structure. A field's name is its path from the top: ``image``, ``boxes.0``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import is_stageable
from gpuloader.sources.block import WholeList


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field.

    Attributes
    ----------
    name : str
        The field's path from the top of the sample.
    is_array : bool
        Whether the field is staged: True for numbers and arrays of numbers, False for other Python objects.
    """

    name: str
    is_array: bool


@dataclass(frozen=True, slots=True)
class Branch:
    """A dict, tuple or list of further nodes.

    Attributes
    ----------
    kind : type
        The sample's class at this node: dict, tuple, list, or a class derived from one of them.
    keys : tuple or None
        A dict's keys, in its order; None for sequences.
    children : tuple of Leaf or Branch
        One node per key or element.
    name : str
        The path from the top; empty at the top itself.
    """

    kind: type
    keys: tuple[Any, ...] | None
    children: tuple[Node, ...]
    name: str

    def entries(self, value: Any) -> Sequence[Any]:
        """Return the values below `value`, one per child; raise `SampleError` if keys or length differ."""
        if self.keys is None:
            if isinstance(value, list | tuple) and len(value) == len(self.children):
                return value
        elif isinstance(value, Mapping) and len(value) == len(self.keys):
            try:
                return [value[key] for key in self.keys]
            except KeyError:
                pass
        raise SampleError(
            f"expected {_describe(self)} as in the first sample, got {_describe_value(value)}",
            field=self.name or None,
        )


Node = Leaf | Branch


class Structure:
    """The nesting of a sample, inferred from the first one.

    Parameters
    ----------
    root : Leaf or Branch
        The top node.

    Attributes
    ----------
    leaves : tuple of Leaf
        The fields, in the order of `flatten`.
    is_flat : bool
        Whether a sample is a tuple or list without nesting.

    Examples
    --------
    >>> structure = Structure.of({"image": np.zeros(2), "meta": ("cat", 3)})
    >>> [leaf.name for leaf in structure.leaves]
    ['image', 'meta.0', 'meta.1']
    >>> structure.flatten({"image": np.ones(2), "meta": ("dog", 4)})
    [array([1., 1.]), 'dog', 4]
    >>> structure.build(["images", "names", "numbers"])
    {'image': 'images', 'meta': ('names', 'numbers')}
    """

    __slots__ = ("is_flat", "leaves", "root")

    def __init__(self, root: Node) -> None:
        self.root = root
        self.leaves = tuple(_leaves(root))
        self.is_flat = (
            isinstance(root, Branch)
            and root.keys is None
            and all(isinstance(child, Leaf) for child in root.children)
        )

    @classmethod
    def of(
        cls,
        sample: Any,
        whole: Collection[str] = (),
        *,
        staged: Callable[[Any], bool] | None = None,
        may_be_empty: bool = False,
    ) -> Structure:
        """Return the structure of a sample.

        Parameters
        ----------
        sample : object
            The sample.
        whole : collection of str
            Names of fields that are lists of numbers. Each stays one field, instead of one per number.
        staged : callable or None
            Returns whether a value is staged; None means `is_array`.
        may_be_empty : bool
            Whether a sample without any field is accepted.

        Raises
        ------
        SampleError
            The sample has no field.
        """
        structure = cls(_node(sample, "", whole, staged or is_array))
        if not structure.leaves and not may_be_empty:
            raise SampleError(f"expected a sample with at least one value, got {_describe_value(sample)}")
        return structure

    @classmethod
    def flat(cls, names: Sequence[str]) -> Structure:
        """Return the structure of a tuple of array fields."""
        return cls(Branch(tuple, None, tuple(Leaf(name, True) for name in names), ""))

    @classmethod
    def keyed(cls, names: Sequence[str]) -> Structure:
        """Return the structure of a dict of array fields."""
        return cls(Branch(dict, tuple(names), tuple(Leaf(name, True) for name in names), ""))

    @property
    def array_names(self) -> list[str]:
        """Names of the leaves that are arrays."""
        return [leaf.name for leaf in self.leaves if leaf.is_array]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return Structure, (self.root,)

    def flatten(self, sample: Any) -> Sequence[Any]:
        """Return the values of a sample's leaves; raise `SampleError` if its structure differs."""
        root = self.root
        if isinstance(root, Leaf):
            return (sample,)
        entries = root.entries(sample)
        if self.is_flat:
            return entries
        found: list[Any] = []
        _flatten(root.children, entries, found)
        return found

    def build(self, fields: Sequence[Any]) -> Any:
        """Return one value per leaf in the structure of a sample; a tuple at the top becomes a list."""
        if self.is_flat and type(self.root) is Branch and self.root.kind in (tuple, list):
            return list(fields)
        built = _build(self.root, iter(fields))
        return list(built) if type(built) is tuple else built


def _node(value: Any, name: str, whole: Collection[str], staged: Callable[[Any], bool]) -> Node:
    if isinstance(value, Mapping):
        children = tuple(_node(entry, _join(name, key), whole, staged) for key, entry in value.items())
        return Branch(type(value), tuple(value), children, name)
    if isinstance(value, list | tuple):
        if name in whole:
            return Leaf(name, True)
        if isinstance(value, WholeList):
            return Leaf(name or "0", False)
        children = tuple(_node(entry, _join(name, at), whole, staged) for at, entry in enumerate(value))
        return Branch(type(value), None, children, name)
    return Leaf(name or "0", staged(value))


def is_proper_array(value: Any) -> bool:
    """Return whether a value is an array of numbers, not a single number.

    >>> is_proper_array(np.zeros(())), is_proper_array(3), is_proper_array(np.float32(3))
    (True, False, False)
    """
    return is_array(value) and not isinstance(value, int | float | complex | np.generic)


def is_array(value: Any) -> bool:
    """Return whether a value is a number or an array of numbers, from any library.

    >>> is_array(3), is_array(np.zeros(2)), is_array("cat"), is_array(None), is_array(np.array(["a"]))
    (True, True, False, False, False)
    """
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):  # also rules out other libraries' arrays of text or objects
        return is_stageable(dtype)
    if isinstance(value, bool | int | float | complex | Ragged):
        return True
    if isinstance(value, str | bytes | bytearray):
        return False
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _leaves(node: Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    else:
        for child in node.children:
            yield from _leaves(child)


def _flatten(children: Sequence[Node], values: Sequence[Any], found: list[Any]) -> None:
    for child, value in zip(children, values, strict=True):
        if isinstance(child, Leaf):
            found.append(value)
        else:
            _flatten(child.children, child.entries(value), found)


def _build(node: Node, fields: Iterator[Any]) -> Any:
    if isinstance(node, Leaf):
        return next(fields)
    values = [_build(child, fields) for child in node.children]
    if node.keys is not None:
        return _make(node.kind, dict(zip(node.keys, values, strict=True)), dict)
    if hasattr(node.kind, "_make"):  # a named tuple; its `__new__` may take other arguments
        return _make(node.kind._make, values, tuple)
    return _make(node.kind, values, list if issubclass(node.kind, list) else tuple)


def _make(kind: Callable[[Any], Any], entries: Any, plain: Callable[[Any], Any]) -> Any:
    """Return entries as the sample's own class, or as the plain class if that one does not accept them."""
    try:
        return kind(entries)
    except Exception:  # the user's class may raise anything
        return plain(entries)


def _describe(branch: Branch) -> str:
    if branch.keys is not None:
        return f"a {branch.kind.__name__} with the keys {list(branch.keys)}"
    return f"a {branch.kind.__name__} of {len(branch.children)}"


def _describe_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {list(value)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
