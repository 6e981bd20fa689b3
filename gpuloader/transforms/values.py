"""Transforms of any values of a batch: cast, one-hot labels, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import Checked, check_count, check_number, checked
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array, Spec
from gpuloader.kernels.cast import FLOATS, INTEGERS, cast, check_scale, resolve_target
from gpuloader.kernels.one_hot import one_hot
from gpuloader.kernels.pad import pad
from gpuloader.transforms.program import KeepsLayout, KernelCall, Plain

_NUMBERS = (*INTEGERS, *FLOATS)


@dataclass(frozen=True)
class Cast(KeepsLayout):
    """Converts to another dtype, optionally multiplied by a factor.

    Attributes
    ----------
    field : str or None
        The field to transform; None means the first array field, as in ``Cast(dtype="int64")``.
    dtype, scale : dtype-like, float
        The result's dtype, which is required, and the factor that is applied first. Integers wrap around, as
        with NumPy's ``astype``. Floats out of an integer's range saturate and NaN becomes 0, on CPUs and GPUs
        alike. "bfloat16" is a PyTorch dtype; other outputs get its bits in uint16.
    """

    field: str | None = None
    dtype: DTypeLike | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.dtype is None:  # NumPy would take None for float64
            raise TypeError(
                "Cast needs the dtype to convert to: write Cast(dtype='int64'), or Cast(field, dtype)"
            )
        resolve_target(self.dtype, _NUMBERS)
        check_scale(self.scale)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        # A factor would make the kernel convert to floats, which cannot hold every integer.
        scale = None if self.scale == 1 else self.scale
        return KernelCall.settle({"values": _dense(inputs)}, cast, dtype=self.dtype, scale=scale)


@dataclass(frozen=True)
class OneHot(Plain, Checked):
    """Turns labels into rows of zeros with a one in the label's column.

    Attributes
    ----------
    field : str or None
        The field to transform, of integers; None means the first array field.
    classes, dtype : int, dtype-like
        The number of columns, and their dtype. A label outside 0 to ``classes - 1`` gets a row of zeros.
    """

    field: str | None
    classes: int = checked(check_count)
    dtype: DTypeLike = checked(lambda _, dtype: resolve_target(dtype, ("bool", *_NUMBERS)), "float32")

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        labels = _dense(inputs)
        if labels[1].kind not in "iu":
            raise SampleError(f"expected integers as labels, got {labels[1]}")
        return KernelCall.settle({"labels": labels}, one_hot, classes=self.classes, dtype=self.dtype)


@dataclass(frozen=True)
class Pad(Plain, Checked):
    """Pads rows of varying length to a fixed length; the loader's `ragged` option must list the field.

    Attributes
    ----------
    field : str or None
        The field to transform; None means the first array field.
    length, fill : int, float
        The number of steps per row, and the value that fills up short rows. A longer sample is an error.
    """

    field: str | None
    length: int = checked(check_count)
    fill: float = checked(check_number, 0)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        if len(inputs) != 2:
            raise SampleError("expected a ragged field of level 1 to pad; name it in the loader's ragged")
        given, rows = {"values": inputs[0], "row_splits": inputs[1]}, inputs[1][0][0] - 1
        return KernelCall.settle(given, pad, samples=rows, longest=self.length, fill=self.fill)

    def check(self, inputs: Sequence[Array]) -> None:
        """Refuse rows that are too long, because the kernel would truncate them."""
        lengths = np.diff(inputs[1])
        if lengths.size and lengths.max() > self.length:
            row = int(lengths.argmax())
            raise SampleError(f"expected at most {self.length} steps, got {int(lengths[row])}", index=row)


def _dense(inputs: Sequence[Spec]) -> Spec:
    if len(inputs) != 1:
        raise SampleError("expected a dense field, got a ragged one; pad it first")
    return inputs[0]
