"""Transforms of values: other dtypes, one-hot labels, padded rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.base.checks import check_count
from gpuloader.base.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.kernels.cast import cast, cast_on_host, check_scale
from gpuloader.kernels.dtypes import FLOATS, INTEGERS, resolve_target
from gpuloader.kernels.one_hot import one_hot, one_hot_on_host
from gpuloader.kernels.pad import pad, pad_on_host
from gpuloader.transforms.operations import KernelCall, Plain, Spec, no_rows

_NUMBERS = (*INTEGERS, *FLOATS)


@dataclass(frozen=True)
class Cast(Plain):
    """Another dtype, and a factor on the way.

    Attributes
    ----------
    field : str or None
        Which field; None: the first that is an array.
    dtype : dtype-like
        What to convert to: integers wrap around, as with NumPy's ``astype``; floats out of an integer's
        range become its nearest end, and NaN 0, on a CPU as on a GPU. "bfloat16" gives its bits in uint16.
    scale : float
        What values are multiplied by.
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
        # A factor has the numbers go through floats, which do not hold every integer.
        options: dict[str, Any] = {"dtype": self.dtype, "scale": None if self.scale == 1 else self.scale}
        call, twin = partial(cast, **options), partial(cast_on_host, **options)
        return KernelCall.settle([no_rows(inputs[0])], (shape, held), call, twin)


@dataclass(frozen=True)
class OneHot(Plain):
    """Rows of zeros with a one in the label's column.

    Attributes
    ----------
    field : str or None
        Which field, of integers; None: the first that is an array.
    classes : int
        Columns. A label outside 0 to ``classes - 1`` gives a row of zeros.
    dtype : dtype-like
        Of the result.
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
        options: dict[str, Any] = {"classes": self.classes, "dtype": self.dtype}
        call, twin = partial(one_hot, **options), partial(one_hot_on_host, **options)
        return KernelCall.settle([no_rows(inputs[0])], ((*shape, self.classes), held), call, twin)


@dataclass(frozen=True)
class Pad(Plain):
    """Rows of varying length to a dense array of fixed width; the field must be among the loader's `ragged`.

    Attributes
    ----------
    field : str or None
        Which field; None: the first that is an array.
    length : int
        Steps of every row. A longer sample is an error.
    fill : float
        What short rows are filled up with.
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
        options: dict[str, Any] = {"longest": self.length, "fill": self.fill}
        call, twin = partial(pad, **options), partial(pad_on_host, **options)
        return KernelCall.settle([no_rows(inputs[0]), no_rows(inputs[1], 1)], output, call, twin)

    def check(self, inputs: Sequence[Array]) -> None:
        """Refuse rows that are too long: the kernel would cut them."""
        lengths = np.diff(inputs[1])
        if lengths.size and lengths.max() > self.length:
            row = int(lengths.argmax())
            raise SampleError(f"expected {self.length} steps at most, got {int(lengths[row])}", index=row)


def _dense(inputs: Sequence[Spec]) -> Spec:
    if len(inputs) != 1:
        raise SampleError("expected a dense field, got a ragged one; pad it first")
    return inputs[0]
