"""Sequences of varying length: all steps in one array, with row splits that mark each sequence."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import check_count, check_word
from gpuloader.errors import SampleError
from gpuloader.fields.convert import Conversion, convert
from gpuloader.fields.spec import Array, Dims

SIDES = ("right", "left")


def array_module(array: Any) -> Any:
    """Return the top-level module of the array's type: numpy, cupy or another array library.

    >>> import numpy as np
    >>> array_module(np.zeros(3)).__name__
    'numpy'
    """
    return sys.modules[type(array).__module__.partition(".")[0]]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A batch of sequences, or of sequences of sequences, of varying length.

    It has the length of the batch, and iterates over its rows: arrays, or `Ragged` at level 2. A number
    selects one row. A slice, or a list or array of numbers or booleans, selects several, as a `Ragged`.

    Attributes
    ----------
    values : array
        All steps concatenated, shape (steps, ...). A NumPy or CuPy array, or a tensor of the framework that
        the loader's `output` names.
    row_splits : tuple of array
        One int64 array per level, outermost first. Row i of a level spans ``splits[i]`` to
        ``splits[i + 1]`` of the level below; the last level indexes the steps of `values`.

    Examples
    --------
    >>> batch = Ragged.from_samples([[1, 2, 3], [4]], "int64", (1,))
    >>> batch.values.tolist(), batch.row_splits[0].tolist(), len(batch)
    ([[1], [2], [3], [4]], [0, 3, 4], 2)
    >>> batch[0].tolist(), [len(row) for row in batch[::-1]]
    ([[1], [2], [3]], [1, 3])
    """

    values: Any
    row_splits: tuple[Any, ...]

    @classmethod
    def from_samples(
        cls, samples: Sequence[Any], dtype: DTypeLike, step_shape: Dims = (), lod_level: int = 1
    ) -> Ragged:
        """Build a batch from samples that are sequences (level 1) or sequences of sequences (level 2).

        Parameters
        ----------
        samples : sequence
            One entry per sample.
        dtype : dtype-like
            The dtype of the steps.
        step_shape : tuple of int or None
            Shape of one step; steps are reshaped to it if the element counts match.
        lod_level : int
            The nesting level, 1 or 2.

        Raises
        ------
        SampleError
            A step does not match dtype or shape, or a sample of level 2 is not a sequence of sequences.
        """
        parts, row_splits = split_rows(samples, np.dtype(dtype), step_shape, lod_level)
        # Without steps, there is nothing to concatenate, so nothing tells the dtype and the shape.
        none = np.zeros((0, *(size or 0 for size in step_shape)), dtype)
        return cls(np.concatenate(parts) if parts else none, row_splits)

    def __len__(self) -> int:
        return len(self.row_splits[0]) - 1

    @property
    def _rows(self) -> Any:
        """What the outermost row splits index: the steps, or a `Ragged` of the level below."""
        return Ragged(self.values, tuple(self.row_splits[1:])) if self.row_splits[1:] else self.values

    def __iter__(self) -> Iterator[Any]:
        rows = self._rows
        # One copy of the row splits to the host, instead of two for each row.
        for start, stop in itertools.pairwise(self.row_splits[0].tolist()):
            yield rows[start:stop]

    def __getitem__(self, index: Any) -> Any:
        chosen = np.arange(len(self))[index]
        splits = self.row_splits[0]
        if not chosen.ndim:
            return self._rows[int(splits[int(chosen)]) : int(splits[int(chosen) + 1])]
        if (np.diff(chosen) == 1).all():  # a view, also of no rows
            first = int(chosen[0]) if len(chosen) else 0
            splits = splits[first : first + len(chosen) + 1]
            start = int(splits[0])
            rows, splits = self._rows[start : int(splits[-1])], splits - start
        else:
            bounds = np.array(splits.tolist(), np.int64)
            steps = np.concatenate([np.arange(bounds[row], bounds[row + 1]) for row in chosen])
            rows = self._rows[steps]
            # The first difference is 0, with which row splits begin.
            before = np.concatenate([chosen[:1], chosen])
            after = np.concatenate([chosen[:1], chosen + 1])
            splits = (splits[after] - splits[before]).cumsum(0)
        below = rows if isinstance(rows, Ragged) else Ragged(rows, ())
        return Ragged(below.values, (splits, *below.row_splits))

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def lengths(self) -> Any:
        """The length of every row, as an array next to the values; at level 2, its number of sequences.

        >>> Ragged.from_samples([[1, 2, 3], [4]], "int64").lengths
        array([3, 1])
        """
        return self.row_splits[0][1:] - self.row_splits[0][:-1]

    @property
    def cu_seqlens(self) -> Any:
        """The innermost row splits as int32, which variable-length attention takes.

        >>> Ragged.from_samples([[1, 2, 3], [4]], "int64").cu_seqlens
        array([0, 3, 4], dtype=int32)
        """
        splits = self.row_splits[-1]
        return splits.int() if array_module(splits).__name__ == "torch" else splits.astype("int32")

    def to_nested(self) -> Any:
        """Return the rows as a nested tensor of PyTorch, in its jagged layout, without a copy of the values.

        Raises `TypeError` unless the values are a tensor of PyTorch, and the level is 1.
        """
        torch = array_module(self.values)
        if torch.__name__ != "torch" or len(self.row_splits) != 1:
            raise TypeError(
                "a nested tensor is made of PyTorch tensors with one level of row splits, got an array of "
                f"{torch.__name__} with {len(self.row_splits)}; pass output='torch' to the loader"
            )
        lengths = self.lengths.tolist() or [0]
        # Without the greatest length, PyTorch pads each row to the length of all rows together.
        return torch.nested.nested_tensor_from_jagged(
            self.values, self.row_splits[0], min_seqlen=min(lengths), max_seqlen=max(lengths)
        )

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return the length of every row, one list per level, like Paddle's LoDTensor.

        >>> Ragged.from_samples([[1, 2, 3], [4]], "int64").recursive_sequence_lengths()
        [[3, 1]]
        """
        return [(splits[1:] - splits[:-1]).tolist() for splits in self.row_splits]

    def to_padded(self, fill: float = 0, *, side: str = "right", multiple: int = 1) -> Any:
        """Return a dense array on the device of the values, with short rows padded with `fill`.

        Parameters
        ----------
        fill : float
            The value that fills up short rows.
        side : str
            Where short sequences are filled up: 'right', behind their steps, or 'left'.
        multiple : int
            The length of the sequences is rounded up to a multiple of this.

        Returns
        -------
        array
            Shape (rows, longest, ...) at level 1, (rows, most sequences, longest, ...) at level 2.

        Examples
        --------
        >>> Ragged.from_samples([[1, 2, 3], [4]], "int64").to_padded(fill=-1).tolist()
        [[1, 2, 3], [4, -1, -1]]
        >>> Ragged.from_samples([[1, 2, 3], [4]], "int64").to_padded(side="left", multiple=4).tolist()
        [[0, 1, 2, 3], [0, 0, 0, 4]]
        """
        check_word("side", side, SIDES)
        *outer, innermost = self.row_splits
        dense = _pad_rows(self.values, innermost, fill, side, check_count("multiple", multiple))
        for splits in reversed(outer):
            dense = _pad_rows(dense, splits, fill, "right", 1)
        return dense


def as_ragged(value: Any) -> Any:
    """Return a tensor with sequence lengths, such as Paddle's LoDTensor, as `Ragged`; others unchanged.

    >>> as_ragged(np.arange(3))
    array([0, 1, 2])
    """
    find = getattr(value, "recursive_sequence_lengths", None)
    if find is None or isinstance(value, Ragged):
        return value
    array = np.asarray(value)
    lengths = find()
    return Ragged(array, tuple(splits_of(level) for level in lengths)) if lengths else array


def gather_fields(levels: Sequence[int], arrays: Sequence[Any]) -> list[Any]:
    """Return one value per field: an array unchanged, or values and row splits combined into a `Ragged`.

    >>> [type(field).__name__ for field in gather_fields([1, 0], [np.zeros(3), np.array([0, 3]), np.ones(1)])]
    ['Ragged', 'ndarray']
    """
    rest = iter(arrays)
    fields: list[Any] = []
    for level in levels:
        values = next(rest)
        fields.append(Ragged(values, tuple(next(rest) for _ in range(level))) if level else values)
    return fields


def split_rows(
    samples: Sequence[Any],
    dtype: np.dtype[Any],
    step_shape: Dims,
    lod_level: int,
    conversion: Conversion = convert,
) -> tuple[list[Array], tuple[Array, ...]]:
    """Return the converted innermost sequences of `samples`, not concatenated yet, and the row splits."""
    levels: list[Array] = []
    rows: list[Any] = list(samples)
    owners = list(range(len(rows)))
    if lod_level == 2:
        for index, row in enumerate(rows):
            if not isinstance(row, Sequence | np.ndarray):
                raise SampleError(f"expected a sequence of sequences, got {type(row).__name__}", index=index)
        levels.append(splits_of([len(row) for row in rows]))
        owners = [index for index, row in enumerate(rows) for _ in row]
        rows = [inner for row in rows for inner in row]
    parts = []
    for owner, row in zip(owners, rows, strict=True):
        try:
            parts.append(conversion(row, dtype, (None, *step_shape)))
            check_step(parts[0].shape[1:], parts[-1].shape[1:])
        except SampleError as error:
            error.index = owner
            raise
    levels.append(splits_of([len(part) for part in parts]))
    return parts, tuple(levels)


def check_step(first: Dims, step: Dims, index: int | None = None) -> None:
    """Raise `SampleError` if the steps of a sequence differ in shape from those of the batch's first one."""
    if step != first:
        problem = f"expected steps of shape {first} as in the batch's first sequence, got {step}"
        raise SampleError(problem, index=index)


def splits_of(lengths: list[int] | Array) -> Array:
    """Return the row splits of sequences of these lengths."""
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits


def round_up(length: int, multiple: int) -> int:
    """Return the smallest multiple that is at least a given length."""
    return -(-length // multiple) * multiple


def _pad_rows(values: Any, splits: Any, fill: float, side: str, multiple: int) -> Any:
    """Pad rows only by indexing, which all array libraries support, each on its own stream."""
    bounds = np.array(splits.tolist(), np.int64)
    lengths = np.diff(bounds)
    columns = np.arange(round_up(int(lengths.max(initial=0)), multiple))
    steps = columns + (bounds[:-1] if side == "right" else bounds[1:] - len(columns))[:, None]
    inside = (bounds[:-1, None] <= steps) & (steps < bounds[1:, None])
    chosen, outside = np.where(inside, steps, 0), ~inside
    xp = array_module(values)
    if xp.__name__ == "cupy":  # it takes no NumPy indices
        chosen, outside = xp.asarray(chosen), xp.asarray(outside)
    padded = values[chosen]
    if hasattr(padded, "at"):  # a JAX array, which is immutable
        return padded.at[outside].set(fill)
    padded[outside] = fill
    return padded
