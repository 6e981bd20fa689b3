"""Transforms of values: casts, one-hot labels, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import check_count
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.kernels.cast import FLOATS, INTEGERS, cast, cast_on_host, check_scale, resolve_target
from gpuloader.kernels.one_hot import one_hot, one_hot_on_host
from gpuloader.kernels.pad import pad, pad_on_host
from gpuloader.transforms.program import KernelCall, Plain, Spec, no_rows

_NUMBERS = (*INTEGERS, *FLOATS)


@dataclass(frozen=True)
class Cast(Plain):
    """Converts to another dtype, optionally multiplied by a factor.

    Attributes
    ----------
    field : str or None
        The field to transform; None means the first array field.
    dtype : dtype-like
        The result's dtype. Integers wrap around, as with NumPy's ``astype``. Floats out of an integer's range
        saturate and NaN becomes 0, on CPUs and GPUs alike. "bfloat16" is a dtype of PyTorch's; other outputs
        get its bits in uint16.
    scale : float
        The factor, applied before the cast.
    """

    field: str | None
    dtype: DTypeLike
    scale: float = 1.0

    def __post_init__(self) -> None:
        resolve_target(self.dtype, _NUMBERS)
        check_scale(self.scale)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        shape, _ = _dense(inputs)
        _, held = resolve_target(self.dtype, _NUMBERS)
        # A factor would make the kernel convert to floats, which cannot hold every integer.
        scale = None if self.scale == 1 else self.scale
        empty = {"values": no_rows(inputs[0])}
        return KernelCall.settle(empty, (shape, held), cast, cast_on_host, dtype=self.dtype, scale=scale)


@dataclass(frozen=True)
class OneHot(Plain):
    """Turns labels into rows of zeros with a one in the label's column.

    Attributes
    ----------
    field : str or None
        The field to transform, of integers; None means the first array field.
    classes : int
        The number of columns. A label outside 0 to ``classes - 1`` gets a row of zeros.
    dtype : dtype-like
        The result's dtype.
    """

    field: str | None
    classes: int
    dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        check_count("classes", self.classes)
        resolve_target(self.dtype, ("bool", *_NUMBERS))

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        shape, dtype = _dense(inputs)
        if dtype.kind not in "iu":
            raise SampleError(f"expected integers as labels, got {dtype}")
        _, held = resolve_target(self.dtype, ("bool", *_NUMBERS))
        empty, output = {"labels": no_rows(inputs[0])}, ((*shape, self.classes), held)
        return KernelCall.settle(
            empty, output, one_hot, one_hot_on_host, classes=self.classes, dtype=self.dtype
        )


@dataclass(frozen=True)
class Pad(Plain):
    """Pads rows of varying length to a fixed length; the loader's `ragged` option must list the field.

    Attributes
    ----------
    field : str or None
        The field to transform; None means the first array field.
    length : int
        The number of steps per row. A longer sample is an error.
    fill : float
        The value that fills up short rows.
    """

    field: str | None
    length: int
    fill: float = 0

    def __post_init__(self) -> None:
        check_count("length", self.length)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        if len(inputs) != 2:
            raise SampleError("expected a ragged field of level 1 to pad; name it in the loader's ragged")
        (values, dtype), (splits, _) = inputs
        output = (splits[0] - 1, self.length, *values[1:]), dtype
        empty = {"values": no_rows(inputs[0]), "row_splits": no_rows(inputs[1], 1)}
        return KernelCall.settle(empty, output, pad, pad_on_host, longest=self.length, fill=self.fill)

    def check(self, inputs: Sequence[Array]) -> None:
        """Refuse rows that are too long, which the kernel would cut."""
        lengths = np.diff(inputs[1])
        if lengths.size and lengths.max() > self.length:
            row = int(lengths.argmax())
            raise SampleError(f"expected at most {self.length} steps, got {int(lengths[row])}", index=row)


def _dense(inputs: Sequence[Spec]) -> Spec:
    if len(inputs) != 1:
        raise SampleError("expected a dense field, got a ragged one; pad it first")
    return inputs[0]
