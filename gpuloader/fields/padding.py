"""How a field of varying size is padded: the loader's option `pad`, and the lengths and masks it adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuloader.checks import check_count, check_word
from gpuloader.errors import BadType, BadValue, SampleError
from gpuloader.fields.ragged import SIDES, round_up
from gpuloader.fields.spec import Array


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
        if not isinstance(self.value, int | float | np.number):
            raise BadType(f"value must be a number, got {self.value!r}")
        axes = self.axes if isinstance(self.axes, list | tuple) else [self.axes]
        if (
            not axes
            or not all(type(axis) is int and axis >= 0 for axis in axes)
            or len(set(axes)) < len(axes)
        ):
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


def name_extras(fields: Iterable[str], pads: Mapping[str, float | Padding]) -> tuple[str, ...]:
    """Return the names of lengths and masks, in the order in which they follow all fields of a batch."""
    padded = [as_pad(pads[field]) for field in fields if field in pads]
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


def write_lengths(sizes: Array, target: Array) -> None:
    """Write the sizes of each sample along the padded axes, shape (samples, axes)."""
    target[...] = sizes.reshape(target.shape)


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
