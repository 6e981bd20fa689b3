"""Splits samples into leaves: arrays go into the slot, other objects are collected separately."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.fields.convert import IF_A_LIST, IF_IT_VARIES
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import is_stageable
from gpuloader.fields.tensors import can_stage
from gpuloader.sources.block import WholeList
from gpuloader.system.imported import is_instance

# Blanks: a sample's container without its entries, for classes with more than entries and dataclasses.

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


# The tree of a sample: dicts, tuples and lists, nested as the dataset returns them.
#
# A sample is flattened into its leaves, which become the fields of a batch. The batch is then built in the
# same tree, with the classes that torch's ``default_collate`` builds it of: tuples become lists, and
# everything else stays. A field's name is its path from the top: ``image``, ``boxes.0``.


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
    """A dict, tuple or list of further nodes, or an object with fields.

    Attributes
    ----------
    kind : type
        The sample's class at this node: dict, tuple, list, a class derived from one of them, or a dataclass.
    keys : tuple or None
        A dict's keys, or an object's fields, in order; None for sequences.
    children : tuple of Leaf or Branch
        One node per key or element.
    name : str
        The path from the top; empty at the top itself.
    blank : Blank, BlankObject or None
        The container without its entries, if its class has more than entries; None for plain classes.
    """

    kind: type
    keys: tuple[Any, ...] | None
    children: tuple[Node, ...]
    name: str
    blank: Blank | BlankObject | None = None

    def entries(self, value: Any) -> Sequence[Any]:
        """Return the values below `value`, one per child; raise `SampleError` if keys or length differ."""
        if self.keys is None:
            if isinstance(value, list | tuple) and len(value) == len(self.children):
                return value
        elif isinstance(self.blank, BlankObject):
            return self.blank.entries(value)
        elif isinstance(value, Mapping) and len(value) == len(self.keys):
            try:
                return [value[key] for key in self.keys]
            except KeyError:
                pass
        advice = ""
        if self.keys is None and isinstance(value, list | tuple):
            advice = f"; {IF_IT_VARIES if self.name else IF_A_LIST}"
        raise SampleError(
            f"expected {_describe(self)} as in the batch's first sample, got {_describe_value(value)}"
            f"{advice}",
            field=self.name or None,
        )


Node = Leaf | Branch


class Tree:
    """The nesting of a sample, inferred from a batch's first one.

    Parameters
    ----------
    root : Leaf or Branch
        The top node.
    keeps_tuples : bool
        Whether `build` leaves tuples as they are. If not, they become lists, except for named tuples.

    Attributes
    ----------
    leaves : tuple of Leaf
        The fields, in the order of `flatten`.
    is_flat : bool
        Whether a sample is a tuple or list without nesting.

    Examples
    --------
    >>> tree = Tree.of({"image": np.zeros(2), "meta": ("cat", 3)})
    >>> [leaf.name for leaf in tree.leaves]
    ['image', 'meta.0', 'meta.1']
    >>> tree.flatten({"image": np.ones(2), "meta": ("dog", 4)})
    [array([1., 1.]), 'dog', 4]
    >>> tree.build(["images", "names", "numbers"])
    {'image': 'images', 'meta': ['names', 'numbers']}
    """

    __slots__ = ("_array_names", "_keys", "_places", "is_flat", "keeps_tuples", "leaves", "root")

    def __init__(self, root: Node, keeps_tuples: bool = False) -> None:
        self.root = root
        self.keeps_tuples = keeps_tuples
        self.leaves = tuple(_leaves(root))
        self._array_names: list[str] | None = None
        self._places: list[int] | None = None
        flat = root if isinstance(root, Branch) else None
        if flat is not None and not all(isinstance(child, Leaf) for child in flat.children):
            flat = None
        self.is_flat = flat is not None and flat.keys is None
        self._keys = flat.keys if flat is not None and flat.kind is dict else None

    @classmethod
    def of(
        cls,
        sample: Any,
        whole: Collection[str] = (),
        *,
        staged: Callable[[Any], bool] | None = None,
        may_be_empty: bool = False,
        keeps_tuples: bool = False,
        opens: bool = False,
        kept: Collection[str] = (),
    ) -> Tree:
        """Return the tree of a sample.

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
        keeps_tuples : bool
            Whether tuples in the sample stay tuples in the batch.
        opens : bool
            Whether the fields of a dataclass become fields. If not, its object is a single value.
        kept : collection of str
            Names of fields, or of containers of fields, that are not staged, whatever they hold.

        Raises
        ------
        SampleError
            The sample has no field, or contains itself.
        """
        rules = _Rules(whole, staged or is_array, opens, kept)
        try:
            tree = cls(_node(sample, "", rules), keeps_tuples)
        except RecursionError:
            raise SampleError(
                f"expected containers that end, got {_describe_value(sample)} that contains itself or is "
                "nested too deeply; return what the model needs of it"
            ) from None
        if not tree.leaves and not may_be_empty:
            raise SampleError(f"expected a sample with at least one value, got {_describe_value(sample)}")
        return tree

    @classmethod
    def flat(cls, names: Sequence[str]) -> Tree:
        """Return the tree of a tuple of array fields."""
        return cls(Branch(tuple, None, tuple(Leaf(name, True) for name in names), ""))

    @classmethod
    def keyed(cls, names: Sequence[str]) -> Tree:
        """Return the tree of a dict of array fields."""
        return cls(Branch(dict, tuple(names), tuple(Leaf(name, True) for name in names), ""))

    @property
    def array_names(self) -> list[str]:
        """Names of the leaves that are arrays; callers must not change the list."""
        names = self._array_names
        if names is None:  # asked for with every batch
            names = self._array_names = [leaf.name for leaf in self.leaves if leaf.is_array]
        return names

    @property
    def places(self) -> list[int]:
        """Where each leaf's value is among those of all arrays, followed by those of all other leaves.

        >>> Tree.of(["cat", 3, None, 4.5]).places
        [2, 0, 3, 1]
        """
        places = self._places
        if places is None:  # asked for with every batch
            leaves = range(len(self.leaves))
            places = self._places = [0] * len(leaves)
            for place, number in enumerate(sorted(leaves, key=lambda one: not self.leaves[one].is_array)):
                places[number] = place
        return places

    def describe(self) -> str:
        """Return what a sample of this tree is, for error messages.

        >>> Tree.of({"a": 1, "b": "cat"}).describe()
        "a dict with the keys ['a', 'b'] and the array fields ['a']"
        """
        whole = "a single value" if isinstance(self.root, Leaf) else _describe(self.root)
        joint = "and" if isinstance(self.root, Branch) and self.root.keys is not None else "with"
        return f"{whole} {joint} the array fields {self.array_names}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return False
        return self.root == other.root and self.keeps_tuples == other.keeps_tuples

    def __hash__(self) -> int:
        return hash(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tree, (self.root, self.keeps_tuples)

    def flatten(self, sample: Any) -> Sequence[Any]:
        """Return the values of a sample's leaves; raise `SampleError` if its tree differs."""
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
        """Return one value per leaf in the tree of a sample."""
        if self._keys is not None:
            return dict(zip(self._keys, fields, strict=True))
        if self.is_flat and not self.keeps_tuples and type(self.root) is Branch and self.root.kind is tuple:
            return list(fields)
        return _build(self.root, iter(fields), self.keeps_tuples)


@dataclass(frozen=True, slots=True)
class _Rules:
    """How a sample is taken apart; the attributes are parameters of `Tree.of`."""

    whole: Collection[str]
    staged: Callable[[Any], bool]
    opens: bool
    kept: Collection[str]

    def within(self, value: Any, number: int) -> _Rules:
        """Return the rules for an element of a list or tuple.

        PyTorch wants the batch sizes of a packed sequence in host memory, wherever its data is.
        """
        stays = number == 1 and self.opens and is_instance(value, "torch.nn.utils.rnn", "PackedSequence")
        return replace(self, staged=_never) if stays else self


def _node(value: Any, name: str, rules: _Rules) -> Node:
    if rules.kept and name in rules.kept:
        rules = replace(rules, staged=_never, kept=())
    if isinstance(value, Mapping):
        children = tuple(_node(entry, join_name(name, key), rules) for key, entry in value.items())
        return Branch(type(value), tuple(value), children, name, Blank.of(value))
    if isinstance(value, list | tuple):
        if name in rules.whole:
            return Leaf(name, True)
        if isinstance(value, WholeList):
            return Leaf(name or "0", False)
        children = tuple(
            _node(entry, join_name(name, part), rules.within(value, at))
            for at, (part, entry) in enumerate(_parts(value))
        )
        return Branch(type(value), None, children, name, Blank.of(value))
    if rules.opens and not isinstance(value, Ragged) and (blank := BlankObject.of(value)) is not None:
        entries = zip(blank.names, blank.entries(value), strict=True)
        children = tuple(_node(entry, join_name(name, key), rules) for key, entry in entries)
        return Branch(type(value), blank.names, children, name, blank)
    return Leaf(name or "0", rules.staged(value))


def _never(value: Any) -> bool:  # noqa: ARG001
    return False


def is_proper_array(value: Any) -> bool:
    """Return whether a value is an array of numbers that can be staged, not a single number.

    >>> is_proper_array(np.zeros(())), is_proper_array(3), is_proper_array(np.float32(3))
    (True, False, False)
    """
    return is_proper_value(value) and not isinstance(value, np.generic)


def is_proper_value(value: Any) -> bool:
    """Return whether a value is an array or one of NumPy's numbers, not one of Python's.

    >>> is_proper_value(np.zeros(())), is_proper_value(3), is_proper_value(np.float32(3))
    (True, False, True)
    """
    if isinstance(value, np.generic):
        return is_array(value)
    return is_array(value) and not isinstance(value, int | float | complex) and can_stage(value)


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


def _parts(value: Sequence[Any]) -> Iterator[tuple[object, Any]]:
    """Return the names and the entries of a list or tuple; its class may ask for the names of its fields."""
    if getattr(type(value), "_names_fields", False):
        return zip(type(value)._fields, value, strict=True)  # type: ignore[attr-defined]
    return enumerate(value)


def entries_of(value: Any) -> Iterator[tuple[Any, object, Any]] | None:
    """Return key, name and value of each entry of a container; None for anything else.

    Lists of numbers and whole lists count as values.

    >>> list(entries_of({"x": 1})), list(entries_of(("a", "b"))), entries_of("ab")
    ([('x', 'x', 1)], [(0, 0, 'a'), (1, 1, 'b')], None)
    """
    if isinstance(value, Mapping):
        return ((key, key, entry) for key, entry in value.items())
    if not isinstance(value, list | tuple) or isinstance(value, WholeList):
        return None
    if isinstance(value, list) and value and all(isinstance(value[at], int | float) for at in (0, -1)):
        return None
    return ((at, part, entry) for at, (part, entry) in enumerate(_parts(value)))


def join_name(name: str, key: object) -> str:
    """Return the name of an entry, given that of its container.

    >>> join_name("", "boxes"), join_name("boxes", 0)
    ('boxes', 'boxes.0')
    """
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


def _build(node: Node, fields: Iterator[Any], keeps_tuples: bool) -> Any:
    if isinstance(node, Leaf):
        return next(fields)
    values = [_build(child, fields, keeps_tuples) for child in node.children]
    kind = node.kind
    if node.keys is not None:
        entries = dict(zip(node.keys, values, strict=True))
        if kind is dict:
            return entries
        return _make(kind if node.blank is None else node.blank.fill, entries, entries)
    if kind is list or (kind is tuple and not keeps_tuples):
        return values
    if hasattr(kind, "_make"):  # a named tuple; its `__new__` may take other arguments
        return _make(kind._make, values, tuple(values) if keeps_tuples else values)
    if issubclass(kind, list):
        return _make(kind if node.blank is None else node.blank.fill, values, values)
    return _make(kind, values, tuple(values)) if keeps_tuples else values


def _make(make: Callable[[Any], Any], entries: Any, plain: Any) -> Any:
    """Return entries in the sample's own class, or in the plain one if that class does not accept them."""
    try:
        return make(entries)
    except Exception:  # the user's class may raise anything
        return plain


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


ObjectColumns = dict[int, list[Any]]
"""Maps a field's number to its Python objects, one per sample."""


def object_columns(tree: Tree, count: int) -> ObjectColumns:
    """Return an empty column for each field that is not an array.

    >>> object_columns(Tree.of((1, "cat")), 2)
    {1: [None, None]}
    """
    return {field: [None] * count for field, leaf in enumerate(tree.leaves) if not leaf.is_array}


def array_leaves(tree: Tree, samples: Iterator[Any], start: int, objects: ObjectColumns) -> Iterator[Any]:
    """Yield the array fields of each sample; put the other fields into `objects`, starting at row `start`.

    Raises
    ------
    SampleError
        A sample has a different tree; the error names the sample.
    """
    if tree.is_flat and not objects:
        return samples  # `SampleRows.write` checks their length anyway
    return _array_leaves(tree, samples, start, objects)


def all_leaves(tree: Tree, samples: Iterable[Any], start: int = 0) -> Iterator[Sequence[Any]]:
    """Yield the fields of each sample; raises what `array_leaves` raises."""
    for index, sample in enumerate(samples, start):
        try:
            yield tree.flatten(sample)
        except SampleError as error:
            error.index = index
            raise


def _array_leaves(tree: Tree, samples: Iterator[Any], start: int, objects: ObjectColumns) -> Iterator[Any]:
    for index, leaves in enumerate(all_leaves(tree, samples, start), start):
        if objects:
            for field, column in objects.items():
                column[index] = leaves[field]
            yield [value for field, value in enumerate(leaves) if field not in objects]
        else:
            yield leaves
