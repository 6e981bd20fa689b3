"""The base classes of datasets, `TensorDataset`, and checks that several datasets share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, Protocol, SupportsIndex, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.base.errors import SampleError
from gpuloader.fields.spec import is_stageable
from gpuloader.sources.array_rows import ArrayRows

S = TypeVar("S", covariant=True)
Many = Callable[[Sequence[int]], list[Any]]
"""Reads the samples at several indices in one call."""


class MapStyle(Protocol[S]):
    """What a map-style dataset must have; a list has it too."""

    def __getitem__(self, index: int, /) -> S:
        """Return one sample."""

    def __len__(self) -> int:
        """Return the number of samples."""


class Dataset(Generic[S]):
    """The base class of map-style datasets: a subclass defines `__getitem__` and `__len__`.

    Examples
    --------
    >>> class Squares(Dataset[int]):
    ...     def __getitem__(self, index):
    ...         return index**2
    ...
    ...     def __len__(self):
    ...         return 10
    >>> Squares()[3]
    9
    """

    def __getitem__(self, index: int) -> S:
        raise NotImplementedError(
            f"{type(self).__name__} must define __getitem__(index), which returns a sample"
        )

    def __len__(self) -> int:
        raise NotImplementedError(
            f"{type(self).__name__} must define __len__, which returns the number of samples"
        )


class IterableDataset(Dataset[S]):
    """The base class of iterable datasets: a subclass defines `__iter__`.

    With ``worker_type='thread'``, several threads iterate over the same dataset at once. So each call of
    `__iter__` must keep its position in local variables, not on the dataset.

    Examples
    --------
    >>> class Countdown(IterableDataset[int]):
    ...     def __iter__(self):
    ...         return iter([3, 2, 1])
    >>> list(Countdown())
    [3, 2, 1]
    """

    def __iter__(self) -> Iterator[S]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__, which yields samples")

    def __getitem__(self, index: int) -> S:
        raise TypeError(
            f"{type(self).__name__} is an IterableDataset: it can only be iterated, and has no sample {index}"
        )

    def __len__(self) -> int:
        # `list` asks for the length, and continues without one only after a TypeError.
        raise TypeError(
            f"{type(self).__name__} is an IterableDataset: it can only be iterated, and has no length"
        )


class TensorDataset(Dataset[tuple[Any, ...]]):
    """The rows of arrays: a sample is a tuple of one row from each array.

    Parameters
    ----------
    *arrays : array-like
        Arrays of numbers with the same number of rows, or one list of such arrays. They are not copied.

    Attributes
    ----------
    arrays : tuple of ndarray
        The arrays as NumPy arrays.

    Raises
    ------
    TypeError
        There are no arrays, one does not hold numbers, or a list of lists is passed, which may hold rows.
    ValueError
        An array has no first dimension, or the numbers of rows differ.

    Examples
    --------
    >>> TensorDataset(np.zeros((2, 3)), [[7], [8]])[1]
    (array([0., 0., 0.]), array([8]))
    """

    arrays: tuple[NDArray[Any], ...]

    def __init__(self, *arrays: ArrayLike | Sequence[ArrayLike]) -> None:
        given: Any = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], list | tuple) else arrays
        if not given:
            raise TypeError("a TensorDataset needs at least one array, got none")
        if given is not arrays and all(isinstance(array, list | tuple) for array in given):
            raise TypeError(
                f"a TensorDataset takes one array per field, got a list of {len(given)} lists; if these are "
                "rows, write TensorDataset(numpy.array(rows)), if they are fields, TensorDataset(*fields)"
            )
        self.arrays = tuple(_as_rows(position, array) for position, array in enumerate(given))
        lengths = [len(array) for array in self.arrays]
        for position, length in enumerate(lengths):
            if length != lengths[0]:
                raise ValueError(
                    f"arrays must have the same number of rows, but array 0 has {lengths[0]} "
                    f"and array {position} has {length}"
                )

    @property
    def tensors(self) -> tuple[NDArray[Any], ...]:
        """The arrays, under the name that PyTorch and Paddle use."""
        return self.arrays

    def __getitem__(self, index: int | slice) -> tuple[Any, ...]:
        row = index if isinstance(index, slice) else check_index(self, index)
        return tuple([array[row] for array in self.arrays])

    def __len__(self) -> int:
        return len(self.arrays[0])

    def _array_rows(self) -> ArrayRows:
        return ArrayRows(self.arrays)


def _as_rows(position: int, values: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"array {position}: cannot make an array of numbers from {type(values).__name__}: {error}"
        ) from None
    if not is_stageable(array.dtype):
        raise TypeError(f"array {position} must hold numbers or booleans, got dtype {array.dtype}")
    if array.ndim == 0:
        raise ValueError(f"array {position} must have a first dimension, got the single number {array}")
    return array


def check_index(dataset: Sized, index: SupportsIndex) -> int:
    """Return `index` counted from the front, or raise `IndexError` if it is out of range.

    >>> check_index("abc", -1)
    2
    """
    position, length = operator.index(index), len(dataset)
    if not -length <= position < length:
        raise IndexError(f"{type(dataset).__name__} of {length} samples has no sample {position}")
    return position + length if position < 0 else position


def check_map_style(name: str, dataset: object) -> MapStyle[Any]:
    """Return `dataset` if it is map-style, else raise `TypeError`.

    >>> check_map_style("dataset", "abc")
    'abc'
    """
    if isinstance(dataset, IterableDataset):
        raise TypeError(f"{name} must be map-style, got the IterableDataset {type(dataset).__name__}")
    if not (hasattr(dataset, "__getitem__") and isinstance(dataset, Sized)):
        raise TypeError(f"{name} must have __getitem__ and __len__, got {type(dataset).__name__}")
    return cast("MapStyle[Any]", dataset)


def read_many(dataset: MapStyle[Any], indices: Sequence[int]) -> list[Any]:
    """Return the samples at `indices`, in one call if the dataset has ``__getitems__``.

    >>> read_many("abc", [2, 0])
    ['c', 'a']
    """
    read: Many | None = getattr(dataset, "__getitems__", None)
    if read is None:
        return [dataset[index] for index in indices]
    samples = list(read(indices))
    if len(samples) != len(indices):
        raise SampleError(
            f"{type(dataset).__name__}.__getitems__ returned {len(samples)} samples "
            f"for {len(indices)} indices"
        )
    return samples


def pass_on(outer: object, kind: type, read: Many, inner: Iterable[object]) -> Many:
    """Return `read`, the ``__getitems__`` of a dataset composed of others, or raise `AttributeError`.

    `outer` has it if one of the `inner` datasets does, unless a subclass of `kind` overrides `__getitem__`,
    which would then not run.
    """
    own = getattr(type(outer), "__getitem__", None) is not getattr(kind, "__getitem__", None)
    if own or not any(hasattr(one, "__getitems__") for one in inner):
        raise AttributeError(f"{type(outer).__name__!r} object has no attribute '__getitems__'")
    return read
