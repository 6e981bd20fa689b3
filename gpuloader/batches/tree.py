"""The tree of a sample: the only module that takes containers apart and puts them together again.

A sample is flattened into its leaves, which become the fields of a batch. The batch is then built in the same
tree, with the classes that torch's ``default_collate`` uses: tuples become lists, and everything else stays.
A field's name is its path from the top: ``image``, ``boxes.0``.

`Tree.of` infers a tree. `flatten` takes a sample apart by it, and explains differences; by `Branch.match`, it
does so only for the very same classes, and returns None for others. `build` puts the parts together.
`entries_of` and `with_entries` change values in containers whose tree is unknown.
"""

# Why not optree: on a tuple of an image and a label, its `flatten_up_to` takes 0.65 of the time of `flatten`
# and 1.3 of its time by `Branch.match`, because there we only hand the sequence on. Its `unflatten` takes 0.9
# of the time of `build`. On nested dicts it is 5 to 8 times as fast, which saves less than a tenth of what
# reading such a sample costs. It would not replace this module: it sorts the keys of dicts, treats subclasses
# of list and dict as leaves unless they are registered, builds no dataclass or graph without calling its
# class, keeps tuples as tuples, and its errors name neither the field nor what to do about it.

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import is_, itemgetter
from typing import Any, NamedTuple

import numpy as np

from gpuloader.errors import SampleError, unlike_first
from gpuloader.fields.convert import IF_A_LIST, IF_IT_VARIES
from gpuloader.fields.ragged import Ragged, gather_fields
from gpuloader.fields.spec import is_stageable
from gpuloader.foreign import can_stage, is_instance
from gpuloader.sources.block import WholeList

# Templates: containers without their entries, for classes with more than entries, and for dataclasses.

_PLAIN = (dict, list, tuple, OrderedDict)
_SEQUENCES = (list, tuple)  # `list | tuple` would make a new union for each sample


class Template:
    """An object without its entries: a container, a dataclass's object, or a graph of PyTorch Geometric.

    Batches are filled into copies of it, without calling the class. So a `defaultdict`, or a dict with
    attributes, has the class and the attributes of its first sample, as in torch's ``default_collate``.
    Frozen dataclasses, those whose `__init__` takes other arguments, and attributes that are not fields all
    come out as they went in. `names` are the fields of such an object, None for a container. For a graph,
    `keys` has each field's store number and its key there.

    >>> from collections import defaultdict
    >>> Template.of(defaultdict(list, a=1)).fill({"a": "batch"})
    defaultdict(<class 'list'>, {'a': 'batch'})
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pair:
    ...     first: int
    ...     second: str
    >>> template = Template.of(Pair(1, "a"), opens=True)
    >>> template.entries(Pair(2, "b")), template.fill({"first": 3, "second": "c"})
    ([2, 'b'], Pair(first=3, second='c'))
    """

    __slots__ = ("_keys", "_value", "names")

    def __init__(self, value: Any, names: tuple[str, ...] | None, keys: list[tuple[int, str]] | None) -> None:
        self._value = value
        self.names = names
        self._keys = keys

    @classmethod
    def of(cls, value: Any, *, opens: bool = False) -> Template | None:
        """Return the template of a value; None if its class alone is enough to make it again.

        Also None for what cannot be copied, and for objects with fields, unless it `opens` those.
        """
        names: tuple[str, ...] | None = None
        clear: Callable[[Any], None] | None = None
        if type(value) in _PLAIN:  # calling it with the batch's entries is cheaper than copying a template
            return None
        if not opens:
            # By the base class, because a method of the user's class might reach into the copied sample.
            if isinstance(value, dict | list):
                clear = dict.clear if isinstance(value, dict) else list.clear
            elif isinstance(value, UserDict):
                clear = partial(_set_fields, entries={"data": {}})
        elif is_instance(value, "torch_geometric.data.data", "BaseData"):
            keys, found = [], []
            empty = copy.copy(value)
            for number, store in enumerate(value.stores):
                kind = store._key if isinstance(store._key, str | None) else "__".join(store._key)
                for key in store:
                    keys.append((number, key))
                    found.append(key if kind is None else f"{kind}.{key}")
                    empty.stores[number][key] = None  # deletes it
            return cls(empty, tuple(found), keys)
        elif hasattr(type(value), "__dataclass_fields__") and not isinstance(value, Ragged):  # one value
            names = tuple(one.name for one in dataclasses.fields(value) if hasattr(value, one.name))
            clear = partial(_set_fields, entries=dict.fromkeys(names))
        else:
            return None
        try:
            empty = None if clear is None else copy.copy(value)
            if clear is None or empty is value or type(empty) is not type(value):
                return None
            clear(empty)
        except Exception:  # the user's class may raise anything
            return None
        return cls(empty, names, None)

    def entries(self, value: Any) -> list[Any]:
        """Return the values of the fields of an object of the same class."""
        if self._keys is None:
            return [getattr(value, name) for name in self.names or ()]
        stores = value.stores
        return [stores[number][key] for number, key in self._keys]

    def fill(self, entries: Any) -> Any:
        """Return a new object with these entries: a mapping, or a list for a container without keys."""
        filled = copy.copy(self._value)
        if self._keys is not None:
            for (number, key), entry in zip(self._keys, entries.values(), strict=True):
                filled.stores[number][key] = entry
        elif self.names is not None:
            _set_fields(filled, entries)
        else:
            (filled.update if isinstance(entries, Mapping) else filled.extend)(entries)
        return filled

    def __eq__(self, other: object) -> bool:
        # Two templates are equal if they have the same class and copies of them have equal attributes.
        if not isinstance(other, Template) or type(self._value) is not type(other._value):
            return False
        try:
            return bool(self._value.__reduce_ex__(2)[1:3] == other._value.__reduce_ex__(2)[1:3])
        except Exception:  # for example, because attributes are arrays
            return False

    def __hash__(self) -> int:
        return hash(type(self._value))


def _set_fields(value: Any, entries: Mapping[str, Any]) -> None:
    for name, entry in entries.items():
        object.__setattr__(value, name, entry)  # a frozen dataclass refuses any other way


# The nodes of a tree.


class Leaf(NamedTuple):
    """A field, named by its path from the top; an array field is staged, any other stays a Python object."""

    name: str
    is_array: bool


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Branch:
    """A dict, tuple or list of further nodes, or an object with fields.

    `keys` are a dict's keys or an object's fields; None for sequences. `template` is the container without
    its entries if its class has more than entries.
    """

    kind: type
    keys: tuple[Any, ...] | None
    children: tuple[Node, ...]
    name: str
    template: Template | None = None
    of_leaves: bool = dataclasses.field(init=False, compare=False)  # whether all children are fields

    def __post_init__(self) -> None:
        self.of_leaves = set(map(type, self.children)) <= {Leaf}

    def entries(self, value: Any) -> Sequence[Any]:
        """Return the values below `value`, one per child; raise `SampleError` if keys or length differ."""
        # Not only the first sample's own class will do: a JSON reader yields lists where another had tuples.
        if self.keys is None:
            if isinstance(value, _SEQUENCES) and len(value) == len(self.children):
                return value
        elif self.template is not None and self.template.names is not None:
            return self.template.entries(value)
        elif (type(value) is dict or isinstance(value, Mapping)) and len(value) == len(self.keys):
            try:
                return [value[key] for key in self.keys]
            except KeyError:
                pass
        advice = ""
        if self.keys is None and isinstance(value, list | tuple):
            advice = IF_IT_VARIES if self.name else IF_A_LIST
        raise unlike_first(self.describe(), _describe(value), advice, field=self.name or None)

    def match(self, value: Any) -> Sequence[Any] | None:
        """Return the values below `value` if it has the very same class and keys; None otherwise.

        Also None if that is unclear, because a class has more than entries.
        """
        kind: object = self.kind  # because of this annotation, mypy continues to treat the value as an object
        if type(value) is not kind or self.template is not None or len(value) != len(self.children):
            return None
        if self.keys is None:
            return (*value,)
        return (*value.values(),) if (*value,) == self.keys else None

    def describe(self) -> str:
        """Return what the container is, for messages."""
        if self.keys is not None:
            return f"a {self.kind.__name__} with the keys {list(self.keys)}"
        return f"a {self.kind.__name__} of {len(self.children)}"


Node = Leaf | Branch
EntriesOf = Callable[[Branch, Any], Sequence[Any] | None]
"""`Branch.entries` or `Branch.match`."""


class Tree:
    """The nesting of a sample, inferred from a batch's first one.

    `leaves` are the fields in the order of `flatten`; `is_flat` says whether a sample is a tuple or list
    without nesting. With `keeps_tuples`, `build` leaves tuples as they are. Otherwise they become lists,
    except for named tuples.

    >>> tree = Tree.of({"image": np.zeros(2), "meta": ("cat", 3)})
    >>> [leaf.name for leaf in tree.leaves]
    ['image', 'meta.0', 'meta.1']
    >>> tree.flatten({"image": np.ones(2), "meta": ("dog", 4)})
    [array([1., 1.]), 'dog', 4]
    >>> tree.build(["images", "names", "numbers"])
    {'image': 'images', 'meta': ['names', 'numbers']}
    """

    def __init__(self, root: Node, keeps_tuples: bool = False) -> None:
        self.root = root
        self.keeps_tuples = keeps_tuples
        leaves: list[Leaf] = []
        nodes: list[tuple[Node, bool]] = [(root, False)]
        self.array_names: list[str] = []
        self.in_sequences: list[int] = []  # the objects that are entries of a list or tuple
        # 1 and True are equal keys, but not the same. With keys that are strings, what matches is the same.
        self.has_plain_keys = True
        while nodes:
            node, in_sequence = nodes.pop()
            if isinstance(node, Branch):
                nodes += zip(reversed(node.children), repeat(node.keys is None), strict=False)
                self.has_plain_keys &= set(map(type, node.keys or ())) <= {str}
                continue
            if node.is_array:
                self.array_names.append(node.name)
            elif in_sequence:
                self.in_sequences.append(len(leaves) - len(self.array_names))
            leaves.append(node)
        self.leaves = tuple(leaves)
        # Most samples have no nesting. Theirs are not walked: 0 is a bare leaf, 1 a container of leaves.
        self.depth = 0 if isinstance(root, Leaf) else 1 if root.of_leaves else 2
        self.is_flat = self.depth == 1 and isinstance(root, Branch) and root.keys is None
        # Where each leaf's value lies among the values of all arrays, followed by those of all other leaves.
        arrays, others = iter(range(len(leaves))), iter(range(len(self.array_names), len(leaves)))
        self.order: list[int] = []
        for leaf in leaves:
            self.order.append(next(arrays if leaf.is_array else others))
        self._is_in_order = self.order == [*range(len(leaves))]

    @classmethod
    def of(
        cls,
        sample: Any,
        whole: Collection[str] = (),
        *,
        staged: Callable[[Any], bool] | None = None,
        keeps_tuples: bool = False,
        opens: bool = False,
        kept: Collection[str] = (),
        keeps_classes: bool = False,
    ) -> Tree:
        """Return the tree of a sample.

        `whole` names lists of numbers that stay one field each, instead of one per number. `staged` returns
        whether a value is staged; None means `is_array`, and that there must be a field. `opens` makes fields
        of a dataclass's fields; otherwise its object is a single value. Fields and containers in `kept` are
        not staged, whatever they hold. `keeps_classes` takes apart only containers that are certainly the
        same when made again.

        Raises
        ------
        SampleError
            The sample has no field, or contains itself.
        """

        def grow(value: Any, name: str, staged: Callable[[Any], bool]) -> Node:
            if name in kept:
                staged = _never
            if keeps_classes and type(value) not in _PLAIN and not hasattr(type(value), "_make"):
                return Leaf(name or "0", staged(value))
            if isinstance(value, Mapping):
                nodes = [grow(entry, join_name(name, key), staged) for key, entry in value.items()]
                return Branch(type(value), tuple(value), tuple(nodes), name, Template.of(value))
            if isinstance(value, list | tuple):
                if name in whole:
                    return Leaf(name, True)
                # Lists in a table's column vary in length from row to row, so they are not containers of
                # fields.
                if isinstance(value, WholeList):
                    return Leaf(name or "0", False)
                packed = opens and is_instance(value, "torch.nn.utils.rnn", "PackedSequence")
                nodes = []
                for at, (part, entry) in enumerate(_with_names(value)):
                    # PyTorch wants the batch sizes of a packed sequence in host memory, wherever its data is.
                    nodes.append(grow(entry, join_name(name, part), _never if packed and at == 1 else staged))
                return Branch(type(value), None, tuple(nodes), name, Template.of(value))
            template = Template.of(value, opens=True) if opens else None
            if template is None or template.names is None:
                return Leaf(name or "0", staged(value))
            entries = zip(template.names, template.entries(value), strict=True)
            nodes = [grow(entry, join_name(name, key), staged) for key, entry in entries]
            return Branch(type(value), template.names, tuple(nodes), name, template)

        try:
            tree = cls(grow(sample, "", staged or is_array), keeps_tuples)
        except RecursionError:
            raise SampleError(
                f"expected containers that end, got {_describe(sample)} that contains itself or is nested "
                "too deeply; return what the model needs of it"
            ) from None
        if not tree.leaves and staged is None:
            raise SampleError(f"expected a sample with at least one value, got {_describe(sample)}")
        return tree

    @classmethod
    def flat(cls, names: Sequence[str], kind: type = tuple) -> Tree:
        """Return the tree of a tuple of array fields, or of a dict of them."""
        keys = tuple(names) if kind is dict else None
        return cls(Branch(kind, keys, tuple(Leaf(name, True) for name in names), ""))

    def extend(self, names: Sequence[str]) -> Tree:
        """Return this tree with more array fields at its top: keys of a dict, or the last ones of a tuple.

        Raises `SampleError` if the names are keys already, or a sample is neither a dict nor a tuple.

        >>> Tree.of({"a": np.zeros(2)}).extend(["b"]).build(["a's", "b's"])
        {'a': "a's", 'b': "b's"}
        """
        root = self.root
        if isinstance(root, Branch) and getattr(root.kind, "_names_fields", False):
            root = dataclasses.replace(root, kind=tuple, template=None)  # an `AudioSample` has two fields
        # Further fields of an object would be lost.
        is_open = isinstance(root, Branch) and root.template is not None and root.template.names is not None
        if not isinstance(root, Branch) or is_open or (root.keys is None and root.kind not in (list, tuple)):
            raise SampleError(
                f"expected samples that are dicts or tuples, to which pad adds the fields {list(names)}, got "
                f"{self.describe()}"
            )
        if len({*names, *(root.keys or ())}) < len(names) + len(root.keys or ()):
            raise SampleError(
                f"pad adds the fields {list(names)}, but the fields {list(root.keys or ())} are there "
                "already: give lengths and mask names of their own"
            )
        keys = None if root.keys is None else (*root.keys, *names)
        children = (*root.children, *(Leaf(name, True) for name in names))
        return Tree(dataclasses.replace(root, keys=keys, children=children), self.keeps_tuples)

    def describe(self) -> str:
        """Return what a sample of this tree is, for error messages.

        >>> Tree.of({"a": 1, "b": "cat"}).describe()
        "a dict with the keys ['a', 'b'] and the array fields ['a']"
        """
        whole = "a single value" if isinstance(self.root, Leaf) else self.root.describe()
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

    def flatten(self, sample: Any, entries_of: EntriesOf = Branch.entries) -> Any:
        """Return the values of a sample's leaves; raise `SampleError` if its tree differs.

        A list instead of a tuple, another mapping, or another order of keys is accepted. With `Branch.match`,
        returns None for all but samples of the very same classes and keys, and raises nothing.
        """
        root = self.root
        if isinstance(root, Leaf):
            return (sample,)
        if root.of_leaves:
            return entries_of(root, sample)
        found: list[Any] = []
        return found if _collect(root, sample, entries_of, found) else None

    def build(self, fields: Iterable[Any], below: Node | None = None) -> Any:
        """Return one value per leaf in the tree of a sample, or in the part of the tree `below` a node."""
        node, rest = self.root if below is None else below, iter(fields)
        if isinstance(node, Leaf):
            return next(rest)
        values: list[Any] = []
        for child in node.children:
            values.append(next(rest) if isinstance(child, Leaf) else self.build(rest, child))
        kind = node.kind
        make: Callable[[Any], Any] = kind if node.template is None else node.template.fill
        entries: Any = values
        plain: Any = values  # what the batch becomes if the class does not accept the entries
        if node.keys is not None:
            entries = plain = dict(zip(node.keys, values, strict=True))
            if kind is dict:
                return entries
        elif kind is list or (kind is tuple and not self.keeps_tuples):
            return values
        elif hasattr(kind, "_make"):  # a named tuple; its `__new__` may take other arguments
            make, plain = kind._make, tuple(values) if self.keeps_tuples else values
        elif not issubclass(kind, list):
            if not self.keeps_tuples:
                return values
            plain = tuple(values)
        try:
            return make(entries)
        except Exception:  # the user's class may raise anything
            return plain

    def build_batch(
        self,
        levels: Sequence[int],
        arrays: Sequence[Any],
        objects: Sequence[Any],
        *,
        transposed: bool = False,
    ) -> Any:
        """Return a batch in the tree of a sample, built from delivered arrays and columns of objects.

        `transposed` makes tuples of the columns below lists and tuples, as torch's ``default_collate`` does.

        >>> Tree.of(([1.0], "cat")).build_batch([0], ["images"], [["cat", "dog"]])
        [['images'], ['cat', 'dog']]
        """
        # Most batches have neither sequences nor objects, and are built from their arrays directly.
        fields = gather_fields(levels, arrays) if any(levels) else arrays
        if not objects:
            return self.build(fields)
        if transposed and self.in_sequences and not self.keeps_tuples:
            objects = list(objects)
            for number in self.in_sequences:
                objects[number] = tuple(objects[number])
        values = (*fields, *objects)
        return self.build(values if self._is_in_order else [values[place] for place in self.order])


def _never(value: Any) -> bool:  # noqa: ARG001
    return False


def _collect(branch: Branch, value: Any, entries_of: EntriesOf, found: list[Any]) -> bool:
    """Append the values of the leaves below a branch; return False if `entries_of` returns None."""
    entries = entries_of(branch, value)
    if entries is None:
        return False
    if branch.of_leaves:
        found += entries
        return True
    for child, entry in zip(branch.children, entries, strict=True):
        if isinstance(child, Leaf):
            found.append(entry)
        elif not _collect(child, entry, entries_of, found):
            return False
    return True


# Which leaves are arrays.


def is_array(value: Any) -> bool:
    """Return whether a value is a number or an array of numbers, from any library.

    >>> is_array(3), is_array(np.zeros(2)), is_array("cat"), is_array(None), is_array(np.array(["a"]))
    (True, True, False, False, False)
    """
    # By what a value offers, not by its class, because no library is imported for asking.
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):  # also rules out other libraries' arrays of text or objects
        return is_stageable(dtype)
    if isinstance(value, bool | int | float | complex | Ragged):
        return True
    if isinstance(value, str | bytes | bytearray):
        return False
    # Tensors have `__array__`, and images of Pillow only the interface.
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


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


def is_object(value: Any) -> bool:
    """Return whether a value is a field by itself, and stays a Python object.

    >>> is_object("cat"), is_object(3), is_object(["cat"])
    (True, False, False)
    """
    if isinstance(value, WholeList):
        return True
    return not isinstance(value, Mapping | list | tuple) and not is_array(value)


# Containers whose tree is unknown.


def _with_names(value: Sequence[Any]) -> Iterable[tuple[object, Any]]:
    # The fields of most named tuples are numbered, because a batch keeps only their order.
    kind: Any = type(value)
    is_named = kind not in _PLAIN and getattr(kind, "_names_fields", False)
    return zip(kind._fields, value, strict=True) if is_named else enumerate(value)


def entries_of(value: Any) -> list[tuple[object, Any]] | None:
    """Return name and value of each entry of a container; None for anything else.

    Lists of numbers and whole lists count as values.

    >>> entries_of({"x": 1}), entries_of(("a", "b")), entries_of("ab")
    ([('x', 1)], [(0, 'a'), (1, 'b')], None)
    """
    if not isinstance(value, list | tuple):
        return [*value.items()] if isinstance(value, Mapping) else None
    if isinstance(value, WholeList):
        return None
    # Checking the ends is enough, and takes no longer for a million numbers.
    ends = value[:1] + value[-1:] if isinstance(value, list) else ()
    if ends and all(isinstance(end, int | float) for end in ends):
        return None
    return [*_with_names(value)]


def with_entries(value: Any, entries: Sequence[Any]) -> Any:
    """Return a container with new values for the entries that `entries_of` returned; itself if all stay.

    >>> with_entries({"x": 1, "y": 2}, [3, 4]), with_entries((5, 6), [7, 8])
    ({'x': 3, 'y': 4}, (7, 8))
    """
    if isinstance(value, tuple):
        if all(map(is_, value, entries)):
            return value
        return value._make(entries) if hasattr(value, "_make") else tuple(entries)
    changed = None
    for key, entry in zip(value if isinstance(value, Mapping) else range(len(value)), entries, strict=True):
        if value[key] is not entry:
            changed = copy.copy(value) if changed is None else changed
            changed[key] = entry
    return value if changed is None else changed


def join_name(name: str, key: object) -> str:
    """Return the name of an entry, given the name of its container.

    >>> join_name("", "boxes"), join_name("boxes", 0)
    ('boxes', 'boxes.0')
    """
    return f"{name}.{key}" if name else str(key)


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {list(value)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


# The leaves of many samples: arrays go into the slot, other objects are collected separately.

ObjectColumns = dict[int, list[Any]]
"""Maps a field's number to its Python objects, one per sample."""


def object_columns(tree: Tree, count: int) -> ObjectColumns:
    """Return an empty column for each field that is not an array.

    >>> object_columns(Tree.of((1, "cat")), 2)
    {1: [None, None]}
    """
    if len(tree.array_names) == len(tree.leaves):  # true for most samples; spares small batches a loop
        return {}
    return {field: [None] * count for field, leaf in enumerate(tree.leaves) if not leaf.is_array}


def all_leaves(tree: Tree, samples: Iterable[Any], start: int = 0) -> Iterator[Sequence[Any]]:
    """Yield the fields of each sample; raise `SampleError` with its number for one with another tree."""
    root = tree.root
    # A dict with several fields is the most common sample with names: C looks up all of them together.
    pick = None
    if tree.depth == 1 and isinstance(root, Branch) and root.kind is dict and len(root.children) > 1:
        pick, count = itemgetter(*root.keys or ()), len(root.children)
    for index, sample in enumerate(samples, start):
        if pick is not None and type(sample) is dict and len(sample) == count:
            try:
                leaves: Sequence[Any] = pick(sample)
            except KeyError:
                pass
            else:
                yield leaves
                continue
        try:
            leaves = tree.flatten(sample)
        except SampleError as error:
            error.index = index
            raise
        yield leaves


def array_leaves(tree: Tree, samples: Iterable[Any], start: int, objects: ObjectColumns) -> Iterable[Any]:
    """Return the array fields of each sample; put the others into `objects`, starting at row `start`.

    Raises what `all_leaves` raises, while the fields are iterated.
    """
    if tree.is_flat and not objects:
        return samples  # `SampleRows.write` checks their length anyway
    # In C: a sample that is a single value.
    leaves = all_leaves(tree, samples, start) if tree.depth else zip(samples)
    return _set_aside(tree, leaves, start, objects) if objects else leaves


def array_columns(
    tree: Tree, samples: list[Any], start: int, objects: ObjectColumns
) -> list[Sequence[Any]] | None:
    """Return what `array_leaves` does, but the values of one field after another.

    Returns None unless all samples have the very classes and keys of the tree.
    """
    columns: list[Sequence[Any]] = []
    if not _transpose(tree.root, samples, columns):
        return None
    for field, column in objects.items():
        column[start : start + len(samples)] = columns[field]
    return [column for field, column in enumerate(columns) if field not in objects] if objects else columns


def _transpose(node: Node, values: Sequence[Any], columns: list[Sequence[Any]]) -> bool:
    # C goes through the samples, once for each field: a tenth of the time of `flatten` for nested dicts.
    if isinstance(node, Leaf):
        columns.append(values)
        return True
    if node.template is not None or {*map(type, values)} != {node.kind}:
        return False
    try:
        if node.keys is None:
            parts: list[Sequence[Any]] = [*zip(*values, strict=True)]
        elif {*map(len, values)} == {len(node.keys)}:
            parts = [[*map(itemgetter(key), values)] for key in node.keys]
        else:
            return False
    except (KeyError, ValueError):
        return False
    return len(parts) == len(node.children) and all(map(_transpose, node.children, parts, repeat(columns)))


def _set_aside(
    tree: Tree, leaves: Iterable[Sequence[Any]], start: int, objects: ObjectColumns
) -> Iterator[Any]:
    columns, arrays = [*objects.items()], [field for field in range(len(tree.leaves)) if field not in objects]
    for index, values in enumerate(leaves, start):
        for field, column in columns:
            column[index] = values[field]
        yield [values[field] for field in arrays] if arrays else ()
