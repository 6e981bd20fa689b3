"""How the fields of a sample hang together: dicts, tuples and lists, nested as the dataset gives them.

A sample is taken apart into its leaves, which become the fields of a batch; the batch is put together in
the same form. Fields are named by their way from the top: ``image``, ``boxes.0``.
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
        Its way from the top of the sample.
    is_array : bool
        True for numbers and arrays of numbers, which are staged; False for what stays a Python object.
    """

    name: str
    is_array: bool


@dataclass(frozen=True, slots=True)
class Branch:
    """A dict, tuple or list of further nodes.

    Attributes
    ----------
    kind : type
        What the sample has here: dict, tuple, list, or a class derived from one of them.
    keys : tuple or None
        A dict's keys, in its order; None for sequences.
    children : tuple of Leaf or Branch
        One a key or element.
    name : str
        Way from the top, empty at the top itself.
    """

    kind: type
    keys: tuple[Any, ...] | None
    children: tuple[Node, ...]
    name: str

    def entries(self, value: Any) -> Sequence[Any]:
        """Return the values below `value`, one a child, or raise `SampleError` if it has other ones."""
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
    """The form of a sample, found from the first one.

    Parameters
    ----------
    root : Leaf or Branch
        The top.

    Attributes
    ----------
    leaves : tuple of Leaf
        The fields, in the order of `flatten`.
    is_flat : bool
        Whether it is a tuple or list of leaves, nothing nested.

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
            Fields that are lists of numbers: not taken apart.
        staged : callable or None
            Tells whether a value is staged; None: `is_array`.
        may_be_empty : bool
            Whether there may be no field at all.

        Raises
        ------
        SampleError
            It has no field.
        """
        structure = cls(_node(sample, "", whole, staged or is_array))
        if not structure.leaves and not may_be_empty:
            raise SampleError(f"expected one value or more in a sample, got {_describe_value(sample)}")
        return structure

    @classmethod
    def flat(cls, names: Sequence[str]) -> Structure:
        """Return the structure of a tuple of array fields."""
        return cls(Branch(tuple, None, tuple(Leaf(name, True) for name in names), ""))

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
        """Return the values of the leaves of a sample; raise `SampleError` where it has another form."""
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
        """Put one value a leaf together in the form of a sample; a tuple at the top becomes a list."""
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
    """Return whether a value is an array of numbers, not a number by itself.

    >>> is_proper_array(np.zeros(())), is_proper_array(3), is_proper_array(np.float32(3))
    (True, False, False)
    """
    return is_array(value) and not isinstance(value, int | float | complex | np.generic)


def is_array(value: Any) -> bool:
    """Return whether a value is a number or an array of numbers, of whatever library.

    >>> is_array(3), is_array(np.zeros(2)), is_array("cat"), is_array(None), is_array(np.array(["a"]))
    (True, True, False, False, False)
    """
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):  # other libraries' arrays of text or objects, too
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
    if hasattr(node.kind, "_make"):  # a named tuple, whatever its own `__new__` takes
        return _make(node.kind._make, values, tuple)
    return _make(node.kind, values, list if issubclass(node.kind, list) else tuple)


def _make(kind: Callable[[Any], Any], entries: Any, plain: Callable[[Any], Any]) -> Any:
    """Return entries as the sample's own class, or as the plain one where that cannot be made from them."""
    try:
        return kind(entries)
    except Exception:  # whatever the user's class raises
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
