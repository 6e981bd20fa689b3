"""Transforms: what is done to fields where a batch lands.

On a GPU they are kernels on the copy stream, right behind the copy, so that small raw bytes cross the bus;
on a CPU place their NumPy twins run where the batch is fetched. What is drawn at random follows from the
loader's seed, the epoch and the sample's index, so both give the same pictures.

>>> import numpy as np
>>> from gpuloader import DataLoader, TensorDataset
>>> pictures = TensorDataset(np.full((4, 8, 8, 3), 255, "uint8"), np.array([0, 2, 1, 1]))
>>> steps = [RandomCropFlip("0", (6, 6)), Normalize("0", mean=0.5, std=0.5, scale=1 / 255), OneHot("1", 3)]
>>> loader = DataLoader(pictures, places="cpu", batch_size=2, transforms=steps)
>>> for images, labels in loader:
...     print(images.shape, images.dtype, round(float(images.max()), 5), labels.tolist())
(2, 3, 6, 6) float32 1.0 [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
(2, 3, 6, 6) float32 1.0 [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import check_count
from gpuloader.errors import SampleError
from gpuloader.kernels.cast import cast, cast_on_host, check_scale
from gpuloader.kernels.dtypes import FLOATS, INTEGERS, resolve_target
from gpuloader.kernels.one_hot import one_hot, one_hot_on_host
from gpuloader.kernels.pad import pad, pad_on_host
from gpuloader.operations import KernelCall, Plain, Spec, no_rows
from gpuloader.pictures import Normalize, RandomCropFlip
from gpuloader.program import Transform
from gpuloader.spec import Array

__all__ = ["Cast", "Normalize", "OneHot", "Pad", "RandomCropFlip"]

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


def fuse(transforms: Sequence[Transform]) -> list[Transform]:
    """Return transforms with a `RandomCropFlip` and the `Normalize` right behind it made one.

    A `Normalize` of another field, or with a window of its own, stays apart.

    Raises
    ------
    ValueError
        Of two that would be one, each names another layout.

    >>> [type(one).__name__ for one in fuse([RandomCropFlip(None, (4, 4)), Normalize(None)])]
    ['Normalize']
    """
    fused: list[Transform] = []
    for transform in transforms:
        before = fused[-1] if fused else None
        if (
            isinstance(before, RandomCropFlip)
            and isinstance(transform, Normalize)
            and transform.field == before.field
            and not transform.draws
        ):
            if before.layout not in (None, transform.layout):
                raise ValueError(
                    f"RandomCropFlip has the layout {before.layout} and the Normalize right behind it "
                    f"{transform.layout}"
                )
            fused[-1] = replace(transform, crop=before.size, flip=before.flip)
        else:
            fused.append(transform)
    return fused


def _dense(inputs: Sequence[Spec]) -> Spec:
    if len(inputs) != 1:
        raise SampleError("expected a dense field, got a ragged one; pad it first")
    return inputs[0]
