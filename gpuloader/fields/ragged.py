"""Fields whose samples differ in size: delivered as `Ragged`, or filled up to one size as a `Padding` says.

A `Ragged` has all steps in one array, with row splits that mark each sequence.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import check_count, check_number, check_word
from gpuloader.errors import BadType, BadValue, SampleError
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
            rows = self._rows[np.concatenate([np.arange(bounds[row], bounds[row + 1]) for row in chosen])]
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


def list_targets(batch: Any) -> dict[str, Any]:
    """Return a batch whose `Ragged` fields have become a list of dicts, one for each sample.

    Raises `SampleError` if it is not a dict with such fields.

    >>> list_targets({"image": 0, "boxes": Ragged.from_samples([[1, 2], [3]], "int64")})
    {'image': 0, 'targets': [{'boxes': array([1, 2])}, {'boxes': array([3])}]}
    """
    fields = batch if isinstance(batch, dict) else {}
    ragged = {name: value for name, value in fields.items() if isinstance(value, Ragged)}
    if not ragged or "targets" in fields:
        needed = (
            "samples that are dicts, with fields of varying length (see ragged=) and none named 'targets'"
        )
        raise SampleError(f"targets='list' needs {needed}, got {sorted(fields) or type(batch).__name__}")
    targets = [dict(zip(ragged, row, strict=True)) for row in zip(*ragged.values(), strict=True)]
    return {name: value for name, value in fields.items() if name not in ragged} | {"targets": targets}


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
    columns = np.arange(round_up(int(np.diff(bounds).max(initial=0)), multiple))
    steps = columns + (bounds[:-1] if side == "right" else bounds[1:] - len(columns))[:, None]
    inside = (bounds[:-1, None] <= steps) & (steps < bounds[1:, None])
    chosen, outside = np.where(inside, steps, 0), ~inside
    xp = array_module(values)
    if xp.__name__ == "cupy":  # it takes no NumPy indices
        chosen, outside = xp.asarray(chosen), xp.asarray(outside)
    padded = values[chosen]
    if hasattr(padded, "at"):  # a JAX array, which is immutable
        return padded.at[outside].set(fill)
    if str(padded.dtype) in ("torch.uint16", "torch.uint32", "torch.uint64"):  # which PyTorch cannot fill
        mask = xp.asarray(outside, device=padded.device).reshape(*outside.shape, *[1] * (padded.ndim - 2))
        return xp.where(mask, padded.new_full((), fill), padded)
    padded[outside] = fill
    return padded


# How a field of varying size is padded: the loader's option `pad`, and the lengths and masks it adds.


@dataclass(frozen=True)
class Padding:
    """How to pad a field whose samples differ in size; see `pad` of `DataLoader`.

    Attributes
    ----------
    value : float
        The number that fills up samples.
    axes : sequence of int
        The axes of a sample that vary, counted from 0; all others must have the same size within a batch.
    side : str
        Where samples are filled up: 'right', behind their values, or 'left'.
    multiple : int
        Padded sizes are rounded up to a multiple of this.
    lengths : str or None
        The name of an additional field with the sizes before padding: int64, of shape (batch,) for one axis
        and (batch, axes) for several. It becomes another key if samples are dicts, and comes last in batches
        of tuples.
    mask : str or None
        The name of an additional field, True at a sample's values and False at padding, of shape (batch, size
        of each padded axis).

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> samples = [{"audio": np.ones(3)}, {"audio": np.ones(1)}]
    >>> pad = {"audio": Padding(value=-1, side="left", lengths="length", mask="mask")}
    >>> [batch] = DataLoader(samples, places="cpu", batch_size=2, pad=pad)
    >>> for name, array in batch.items():
    ...     print(name, array.tolist())
    audio [[1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]]
    length [3, 1]
    mask [[True, True, True], [False, False, True]]
    """

    value: float = 0
    axes: Sequence[int] = (0,)
    side: str = "right"
    multiple: int = 1
    lengths: str | None = None
    mask: str | None = None

    def __post_init__(self) -> None:
        check_number("value", self.value)
        axes = self.axes if isinstance(self.axes, list | tuple) else [self.axes]
        if not axes or not all(type(axis) is int and axis >= 0 for axis in axes) or len({*axes}) < len(axes):
            raise BadValue(f"axes must be different integers of 0 or more, got {self.axes!r}")
        object.__setattr__(self, "axes", tuple(sorted(axes)))
        check_word("side", self.side, SIDES)
        check_count("multiple", self.multiple)
        for name in (self.lengths, self.mask):
            if not isinstance(name, str | None):
                raise BadType(f"lengths and mask must be names of fields, got {name!r}")


Pad = Padding
"""A shorter name; `gpuloader.transforms.Pad` is a transform of ragged fields."""


def as_pad(pad: float | Padding) -> Padding:
    """Return how a field is padded; a bare number is the value to pad with.

    >>> as_pad(3).value
    3
    """
    return pad if isinstance(pad, Padding) else Padding(pad)


def name_extras(fields: Iterable[str], pads: Mapping[str, Padding]) -> tuple[str, ...]:
    """Return the names of lengths and masks, in the order in which they follow all fields of a batch."""
    padded = [pads[field] for field in fields if field in pads]
    return tuple(name for pad in padded for name in (pad.lengths, pad.mask) if name is not None)


def settle_shape(pad: Padding, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which samples of these shapes are padded.

    Raises `SampleError` if they differ along another axis.
    """
    shape = list(shapes[0])
    for axis in range(len(shape)):
        sizes = [one[axis] for one in shapes]
        if axis in pad.axes:
            shape[axis] = round_up(max(sizes), pad.multiple)
        elif sizes.count(shape[axis]) < len(sizes):
            differs = [size != shape[axis] for size in sizes].index(True)
            raise SampleError(
                f"expected {shape[axis]} along axis {axis} as in the batch's first sample, got "
                f"{sizes[differs]}; name the axis in axes of Padding if it varies",
                index=differs,
            )
    return tuple(shape)


def write_padded(pad: Padding, samples: Sequence[Array], target: Array) -> None:
    """Write samples into an array and fill up the rest."""
    target[...] = pad.value
    for row, sample in zip(target, samples, strict=True):
        if pad.side == "right":
            inside = tuple(map(slice, sample.shape))
        else:
            inside = tuple(
                slice(whole - own, None) for whole, own in zip(row.shape, sample.shape, strict=True)
            )
        row[inside] = sample


def find_inside(pad: Padding, sizes: Array, longest: int) -> Array:
    """Return where the values lie in rows of these sizes that are padded along one axis.

    >>> find_inside(Padding(side="left"), np.array([1, 2]), 3)
    array([[False, False,  True],
           [False,  True,  True]])
    """
    place, size = np.arange(longest), sizes[:, None]
    return place < size if pad.side == "right" else place >= longest - size


def write_mask(pad: Padding, sizes: Array, target: Array) -> None:
    """Write True where a sample's values are, given its sizes along the padded axes."""
    target[...] = True
    for axis, longest in enumerate(target.shape[1:]):
        inside = find_inside(pad, sizes[:, axis], longest)
        target &= np.expand_dims(inside, [one for one in range(1, target.ndim) if one != axis + 1])
