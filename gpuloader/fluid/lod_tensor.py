"""The names of ``paddle.fluid.lod_tensor``: arrays of sequences of varying length, made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloader.devices.places import parse_place
from gpuloader.errors import BadValue
from gpuloader.fields.convert import check_mask

__all__ = ["LoDTensor", "create_lod_tensor"]

Lengths = Sequence[Sequence[int]]


class LoDTensor:
    """All steps of several sequences in one host array, and the length of each sequence.

    A generator of batches may yield it for a feed with a lod_level. The loader then delivers a
    `gpuloader.Ragged`.

    Examples
    --------
    >>> words = LoDTensor()
    >>> words.set([[1], [2], [3], [4]], "cpu")
    >>> words.set_recursive_sequence_lengths([[3, 1]])
    >>> words.shape(), words.lod(), words.recursive_sequence_lengths()
    ([4, 1], [[0, 3, 4]], [[3, 1]])
    """

    def __init__(self) -> None:
        self._values: NDArray[Any] = np.zeros(0, np.float32)
        self._lengths: list[list[int]] = []

    def set(self, array: ArrayLike, place: Any) -> None:
        """Copy an array into the tensor. It stays on the host; the loader moves batches to their place.

        Raises
        ------
        PlaceError
            The place is unknown.
        SampleError
            The array has masked elements.
        """
        parse_place(place)
        check_mask(array)
        self._values = np.array(array)

    def set_recursive_sequence_lengths(self, recursive_sequence_lengths: Lengths) -> None:
        """Set the lengths of the sequences, one list per level, outermost first.

        Raises
        ------
        ValueError
            The lengths of a level do not sum to the number of rows of the level below it.
        """
        lengths = [[int(length) for length in level] for level in recursive_sequence_lengths]
        _check(lengths, len(self._values))
        self._lengths = lengths

    def set_lod(self, lod: Lengths) -> None:
        """Set the lengths by the offsets at which the sequences begin and end, one list per level.

        Raises
        ------
        ValueError
            The offsets do not begin at 0, shrink, or do not end where the level below ends.
        """
        for level in lod:
            if not len(level) or level[0] != 0:
                raise BadValue(f"offsets must begin at 0, got {list(level)}")
        lengths = [[end - start for start, end in itertools.pairwise(level)] for level in lod]
        self.set_recursive_sequence_lengths(lengths)

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return the lengths of the sequences, one list per level; an empty list for a dense array."""
        return [list(level) for level in self._lengths]

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return whether the lengths sum to the number of rows; false only after `set` changed the rows."""
        try:
            _check(self._lengths, len(self._values))
        except ValueError:
            return False
        return True

    def lod(self) -> list[list[int]]:
        """Return the offsets at which the sequences begin and end, one list per level."""
        return [list(itertools.accumulate(level, initial=0)) for level in self._lengths]

    def shape(self) -> list[int]:
        """Return the shape of the array of all steps."""
        return list(self._values.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._values, dtype) if copy else np.asarray(self._values, dtype)


def create_lod_tensor(data: Any, recursive_seq_lens: Lengths, place: Any) -> LoDTensor:
    """Return a `LoDTensor` of an array of all steps, or of a list of sequences of numbers.

    Parameters
    ----------
    data : array, LoDTensor or list of list of int
        The steps of all sequences. A list of sequences becomes an array of shape (steps, 1).
    recursive_seq_lens : list of list of int
        The lengths of the sequences, one list per level, outermost first.
    place : place or str
        Accepted for compatibility with Paddle; the tensor lies on the host.

    Raises
    ------
    ValueError
        The lengths do not fit the data.
    TypeError
        The data is neither an array nor a list.

    Examples
    --------
    >>> words = create_lod_tensor([[1, 2, 3], [4]], [[3, 1]], "cpu")
    >>> words.shape(), words.recursive_sequence_lengths()
    ([4, 1], [[3, 1]])
    """
    if not isinstance(data, list | np.ndarray | LoDTensor):
        raise TypeError(f"data must be an array, a list or a LoDTensor, got {type(data).__name__}")
    tensor = LoDTensor()
    if isinstance(data, list):
        found = [len(sequence) for sequence in data]
        if [found] != [list(level) for level in recursive_seq_lens]:
            raise BadValue(f"data has sequences of the lengths {found}, got {list(recursive_seq_lens)}")
        tensor.set(np.array([step for sequence in data for step in sequence])[..., None], place)
    else:
        tensor.set(data if isinstance(data, np.ndarray) else np.asarray(data), place)
    tensor.set_recursive_sequence_lengths(recursive_seq_lens)
    return tensor


def _check(lengths: Lengths, rows: int) -> None:
    for number, level in enumerate(lengths):
        below = len(lengths[number + 1]) if number + 1 < len(lengths) else rows
        if min(level, default=0) < 0 or sum(level) != below:
            what = "sequences of the level below" if number + 1 < len(lengths) else "rows of the array"
            raise BadValue(
                f"level {number}: expected lengths that sum to the {below} {what}, got {list(level)}"
            )
