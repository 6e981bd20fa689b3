"""Which datasets have pictures as fields of their samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.fields.convert import find_kind
from gpuloader.fields.ragged import Ragged
from gpuloader.fields.spec import is_stageable, native
from gpuloader.fields.tensors import as_array, can_stage, describe_dtype, is_tensor
from gpuloader.order.batching import find_classes
from gpuloader.sources.array_rows import array_source, own_method, reads_like
from gpuloader.sources.block import Chunked, Column
from gpuloader.sources.dataset import ComposeDataset, ConcatDataset, Subset
from gpuloader.sources.dataset_base import refuse_mix

# The datasets that a dataset is composed of, whether this package, PyTorch or Paddle composes it.


def refuse_hidden_mix(dataset: object) -> None:
    """Raise `TypeError` if a dataset of PyTorch or Paddle is composed of a `MixDataset`.

    Those of this package refuse it when they are made.

    >>> refuse_hidden_mix("abc")
    """
    kinds = (Subset, ComposeDataset, *find_classes("Subset", "ComposeDataset", "StackDataset"))
    inner = chained(dataset)
    if not inner and isinstance(dataset, kinds):
        found: Any = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
        inner = list(found.values() if isinstance(found, Mapping) else found)
    for one in inner:
        reader = f"a {type(dataset).__name__}"
        refuse_mix(one, reader, "split or concatenate its datasets first, then mix those")
        refuse_hidden_mix(one)


def chained(dataset: object) -> Sequence[Any]:
    """Return the datasets that a dataset reads one after another; none if it is not such a dataset.

    A class derived from one of those that are known counts as another class if it reads in another way.

    >>> chained(ConcatDataset(["ab", "cd"])), chained("ab")
    (['ab', 'cd'], ())
    """
    if reads_like(dataset, ConcatDataset, *find_classes("ConcatDataset")):
        found: Sequence[Any] = getattr(dataset, "datasets", ())
        return found
    return ()


def name_part(dataset: Any, index: object) -> str:
    """Return which of the datasets that `dataset` chains holds a sample; empty if it is not composed so.

    Parameters
    ----------
    dataset : object
        The dataset. The indices of a subset are followed.
    index : object
        The index of the sample in it.

    Examples
    --------
    >>> name_part(ConcatDataset(["ab", "cd"]), 2), name_part("ab", 1)
    ('dataset 1 (str)', '')
    """
    found = _find(dataset, index)
    if not found:
        return ""
    numbers, part = found
    return f"dataset {'.'.join(map(str, numbers))} ({type(part).__name__})"


def _find(dataset: Any, index: object) -> tuple[list[int], Any] | None:
    """Return the numbers of the datasets on the way to a sample, and the last of them."""
    numbers: list[int] = []
    while isinstance(index, int | np.integer):
        if reads_like(dataset, Subset, *find_classes("Subset")):
            dataset, index = dataset.dataset, dataset.indices[index]
            continue
        parts = chained(dataset)
        if not parts:
            break
        ends = np.cumsum([len(part) for part in parts]).tolist()
        index = int(index) + (ends[-1] if index < 0 else 0)
        number = bisect_right(ends, index)
        if not 0 <= number < len(parts):
            return None
        numbers.append(number)
        index -= ends[number - 1] if number else 0
        dataset = parts[number]
    return (numbers, dataset) if numbers else None


# What is known of a dataset's samples before any is read, to find datasets that do not fit together.

Field = tuple[np.dtype[Any] | None, tuple[int, ...] | None]
"""A field's dtype, None for Python objects, and the shape of a sample's value, None if it varies."""


@dataclass(frozen=True, slots=True)
class SampleFields:
    """What the samples of a dataset consist of.

    Attributes
    ----------
    kind : str
        'tuple' or 'dict'; 'value' if a sample is a single value.
    fields : dict of str to (dtype, tuple)
        Each field's dtype and shape.
    """

    kind: str
    fields: Mapping[str, Field]


def check_alike(dataset: object, varying: Collection[str] = ()) -> None:
    """Raise if datasets that are chained have samples that do not fit into one batch, as far as is known.

    No sample is read: arrays and tables tell dtypes and shapes, other datasets tell nothing. Integers of
    different size pass, because the numbers in them usually fit into either.

    Parameters
    ----------
    dataset : object
        A `ConcatDataset` or `MixDataset`; any other dataset passes.
    varying : collection of str
        The fields whose shape may vary.

    Raises
    ------
    SampleError
        Two of the datasets have different fields, or a field of different dtypes or shapes.

    Examples
    --------
    >>> from gpuloader import ConcatDataset, TensorDataset
    >>> parts = [TensorDataset(np.zeros(2, "float32")), TensorDataset(np.zeros(2, "int64"))]
    >>> check_alike(ConcatDataset(parts))
    Traceback (most recent call last):
    gpuloader.errors.SampleError: field '0': dataset 0 (TensorDataset) has float32, but dataset 1 (Te...
    """
    parts = list(_walk(dataset, ""))
    for name, fields in parts[1:]:
        _compare(*parts[0], name, fields, varying)


def _walk(dataset: Any, number: str) -> Iterator[tuple[str, SampleFields]]:
    """Yield the name and the fields of every chained dataset that is not empty and whose fields are known."""
    for position, part in enumerate(chained(dataset)):
        at = f"{number}.{position}" if number else str(position)
        if chained(part):
            yield from _walk(part, at)
        elif len(part) and (fields := find_fields(part)) is not None:
            yield f"dataset {at} ({type(part).__name__})", fields


def _compare(
    first: str, wanted: SampleFields, second: str, found: SampleFields, varying: Collection[str]
) -> None:
    if wanted.kind != found.kind or sorted(wanted.fields) != sorted(found.fields):
        raise SampleError(
            f"{first} has samples that are {_describe(wanted)}, but {second} has {_describe(found)}, and a "
            "batch may mix them: make their fields the same, or pass a collate_fn"
        )
    for name, field in wanted.fields.items():
        other = found.fields[name]
        if not _fit(field[0], other[0]):
            raise SampleError(
                f"{first} has {_name(field[0])}, but {second} has {_name(other[0])}, and a batch may mix "
                "them: convert one of them, declare the field in feed_list, or pass a collate_fn",
                field=name,
            )
        if None not in (field[1], other[1]) and field[1] != other[1] and name not in varying:
            raise SampleError(
                f"{first} has the shape {field[1]}, but {second} has {other[1]}, and a batch may mix them: "
                "make their shapes the same, name the field in pad or ragged if its length varies, or pass "
                "a collate_fn",
                field=name,
            )


def _fit(one: np.dtype[Any] | None, other: np.dtype[Any] | None) -> bool:
    """Return whether a field of one dtype holds numbers of the other, and the other way round."""
    if one is None or other is None or one == other:
        return one == other
    return find_kind(one) == find_kind(other) == "i"


def _name(dtype: np.dtype[Any] | None) -> str:
    return "Python objects" if dtype is None else describe_dtype(dtype)


def describe_field(field: Field) -> str:
    """Return the dtype of a field, and its shape if it is not a number.

    >>> describe_field((np.dtype("float32"), ())), describe_field((np.dtype("int64"), (2,)))
    ('float32', 'int64 of shape (2,)')
    >>> describe_field((np.dtype("int64"), None)), describe_field((None, None))
    ('int64 of varying shape', 'Python objects')
    """
    dtype, shape = field
    if dtype is None or shape == ():
        return _name(dtype)
    return f"{_name(dtype)} of {'varying shape' if shape is None else f'shape {shape}'}"


def _describe(fields: SampleFields) -> str:
    if fields.kind == "value":
        return "single values"
    names = list(fields.fields)
    return f"dicts with the keys {names}" if fields.kind == "dict" else f"tuples of {len(names)}"


def find_fields(dataset: Any) -> SampleFields | None:
    """Return what is known of a dataset's samples without reading any; None if nothing is.

    >>> find_fields(np.zeros((5, 3), "float32")), find_fields(["a"])
    (SampleFields(kind='value', fields={'0': (dtype('float32'), (3,))}), None)
    """
    source = array_source(dataset)
    if source is not None:
        kind = "value" if source.bare else "tuple" if source.names is None else "dict"
        return of_arrays(kind, source.names, source.arrays)
    tell: Callable[[], SampleFields] | None = own_method(dataset, "_sample_fields")
    if tell is not None:
        return tell()
    if reads_like(dataset, Subset, *find_classes("Subset")):
        return None if chained(dataset.dataset) else find_fields(dataset.dataset)
    if reads_like(dataset, *find_classes("TensorDataset")):
        kind, tensors = "tuple", dataset.tensors
    elif isinstance(dataset, np.ndarray) or is_tensor(dataset):
        kind, tensors = "value", (dataset,)
    else:
        return None
    return of_arrays(kind, None, [as_array(one) for one in tensors]) if all(map(can_stage, tensors)) else None


def of_arrays(kind: str, names: Iterable[str] | None, arrays: Sequence[Any]) -> SampleFields:
    """Return the fields of samples that are rows of arrays, whose first axis counts the samples.

    >>> of_arrays("tuple", None, [np.zeros((5, 3)), np.array(["a"])]).fields
    {'0': (dtype('float64'), (3,)), '1': (None, None)}
    """
    keys = map(str, range(len(arrays))) if names is None else names
    return SampleFields(kind, {name: _of_array(array) for name, array in zip(keys, arrays, strict=True)})


def of_columns(
    columns: Mapping[str, Column], dtypes: Mapping[str, np.dtype[Any]] | None = None
) -> SampleFields:
    """Return the fields of samples that lie in the columns of a table.

    Parameters
    ----------
    columns : mapping of str to column
        The columns.
    dtypes : mapping of str to numpy.dtype, optional
        The dtypes that the numbers of columns are converted to, if that is not their own.

    Examples
    --------
    >>> of_columns({"x": np.zeros(2)}, {"x": np.dtype("float32")}).fields
    {'x': (dtype('float32'), ())}
    """
    found: dict[str, Field] = {}
    for name, column in columns.items():
        piece: Any = column.piece(0) if isinstance(column, Chunked) else column
        if isinstance(piece, Ragged):
            field: Field = np.dtype(piece.values.dtype), None
        else:
            field = _of_array(piece) if isinstance(piece, np.ndarray) else (None, None)
        found[name] = (dtypes or {}).get(name, field[0]), field[1]
    return SampleFields("dict", found)


def _of_array(array: Any) -> Field:
    dtype = np.dtype(array.dtype)
    return (native(dtype), tuple(array.shape[1:])) if is_stageable(dtype) else (None, None)


_OF_TORCH = ("Subset", "ConcatDataset", "ComposeDataset", "StackDataset")


def holds_pictures(dataset: object) -> bool:
    """Return whether a dataset has pictures, or is composed of one that has; no sample is read.

    A dataset says so with its attribute ``holds_pictures``, as an `ImageFolder` does.

    >>> holds_pictures([1, 2])
    False
    """
    if getattr(dataset, "holds_pictures", False) is True:
        return True
    if not reads_like(dataset, Subset, ConcatDataset, ComposeDataset, *find_classes(*_OF_TORCH)):
        return False
    inner = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    if isinstance(inner, Mapping):
        inner = inner.values()
    return isinstance(inner, Iterable) and any(map(holds_pictures, inner))
