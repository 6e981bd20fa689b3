"""`TensorDataset`: the rows of arrays, or of PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike, NDArray

from gpuloader.base.errors import BadType, BadValue
from gpuloader.fields.convert import check_mask
from gpuloader.fields.spec import is_stageable
from gpuloader.fields.tensors import as_array, is_tensor, needs_gradient, tensor_over
from gpuloader.sources.array_rows import ArrayRows
from gpuloader.sources.dataset_base import Dataset
from gpuloader.sources.indexing import locate


class TensorDataset(Dataset[tuple[Any, ...]]):
    """The rows of arrays: a sample is a tuple of one row from each array.

    Parameters
    ----------
    *arrays : array-like
        Arrays of numbers with the same number of rows, or one list of such arrays. They are not copied.
    tensors : list of array-like, optional
        Paddle's name for the list of arrays; excludes `arrays`.

    Attributes
    ----------
    tensors : tuple
        What was passed: PyTorch's tensors as they are, anything else as NumPy arrays.

    Raises
    ------
    TypeError
        There are no arrays, one does not hold numbers, has masked ones or is not in host memory, or a list of
        lists is passed, which may hold rows.
    ValueError
        An array has no first dimension, or the numbers of rows differ.

    Notes
    -----
    As in PyTorch, a slice, or a list, NumPy array or tensor of indices or booleans, selects several rows at
    once. All datasets of this package take these. The rows of tensors are tensors.

    Examples
    --------
    >>> import numpy as np
    >>> dataset = TensorDataset(np.zeros((2, 3)), [[7], [8]])
    >>> dataset[1]
    (array([0., 0., 0.]), array([8]))
    >>> dataset[[1, 0]][1].tolist()
    [[8], [7]]
    """

    tensors: tuple[Any, ...]

    def __init__(
        self, *arrays: ArrayLike | Sequence[ArrayLike], tensors: Sequence[ArrayLike] | None = None
    ) -> None:
        if arrays and tensors is not None:
            raise BadType("pass the arrays either one by one or as tensors=, not both")
        arrays = arrays if tensors is None else (tensors,)
        given: Any = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], list | tuple) else arrays
        if not given:
            raise BadType("a TensorDataset needs at least one array, got none")
        if given is not arrays and all(isinstance(array, list | tuple) for array in given):
            raise BadType(
                f"a TensorDataset takes one array per field, got a list of {len(given)} lists; if these are "
                "rows, write TensorDataset(numpy.array(rows)), if they are fields, TensorDataset(*fields)"
            )
        rows = [_as_rows(position, array) for position, array in enumerate(given)]
        for position, array in enumerate(rows):
            if len(array) != len(rows[0]):
                raise BadValue(
                    f"arrays must have the same number of rows, but array 0 has {len(rows[0])} "
                    f"and array {position} has {len(array)}"
                )
        self.tensors = tuple(one if is_tensor(one) else array for one, array in zip(given, rows, strict=True))

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The rows as NumPy arrays, which share the memory of what was passed."""
        return tuple([as_array(tensor) for tensor in self.tensors])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        rows = locate(self, index)
        return tuple([tensor[rows] for tensor in self.tensors])

    def __len__(self) -> int:
        return len(self.tensors[0])

    def _array_rows(self) -> ArrayRows:
        return ArrayRows(self.arrays)

    def __getstate__(self) -> dict[str, Any]:
        # As arrays, because worker processes share the memory of arrays, but would copy that of tensors.
        were_tensors = [is_tensor(tensor) for tensor in self.tensors]
        return {**vars(self), "tensors": self.arrays, "were_tensors": were_tensors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        were_tensors = state.pop("were_tensors")
        vars(self).update(state)
        if any(were_tensors):
            pairs = zip(self.tensors, were_tensors, strict=True)
            self.tensors = tuple(tensor_over(array) if was_tensor else array for array, was_tensor in pairs)


def _as_rows(position: int, values: ArrayLike) -> NDArray[Any]:
    held: Any = values
    try:
        check_mask(values)
        # Its rows keep the gradient, so there is nothing to warn of yet.
        array = as_array(held.detach() if needs_gradient(held) else held)
    except (TypeError, ValueError, RuntimeError) as error:  # SampleError: masked, or not dense
        raise TypeError(
            f"array {position}: cannot make an array of numbers from {type(values).__name__}: {error}"
        ) from None
    if not is_stageable(array.dtype):
        raise TypeError(f"array {position} must hold numbers or booleans, got dtype {array.dtype}")
    if array.ndim == 0:
        raise ValueError(f"array {position} must have a first dimension, got the single number {array}")
    return array
