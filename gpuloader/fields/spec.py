"""Field declarations: a field's name, shape and dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.base.errors import BadTypeOrValue

Array = NDArray[Any]
Dims = tuple[int | None, ...]
Indices = Sequence[Any] | NDArray[np.int64]
"""The indices of a batch: a range, an int64 array, or a list of whatever a sampler yields."""


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """A declared field: its name, the shape of one batch of it, and its dtype.

    Attributes
    ----------
    name : str
        The field's key in a dict batch.
    shape : tuple of int or None
        Shape of a batch, batch dimension first; None stands for any size.
    dtype : numpy.dtype
        The dtype samples are converted to; None means float32.
    lod_level : int
        0 for dense fields, 1 for sequences of varying length, 2 for sequences of such sequences.

    Examples
    --------
    >>> FeedSpec("image", (None, 784), "float32").sample_shape
    (784,)
    """

    name: str
    shape: Dims
    dtype: np.dtype[Any]
    lod_level: int = 0

    def __init__(
        self, name: str, shape: Sequence[int | None], dtype: DTypeLike = "float32", lod_level: int = 0
    ) -> None:
        if not isinstance(name, str) or not name:
            raise BadTypeOrValue(f"the name of a feed must be a non-empty string, got {name!r}")
        if isinstance(lod_level, bool) or lod_level not in (0, 1, 2):
            raise ValueError(f"feed {name!r}: lod_level must be 0, 1 or 2, got {lod_level!r}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", _parse_dims(name, shape))
        object.__setattr__(self, "dtype", _parse_dtype(name, dtype))
        object.__setattr__(self, "lod_level", lod_level)

    @property
    def sample_shape(self) -> Dims:
        """Shape of one sample; for a ragged field, of one step of its sequence."""
        return self.shape[1:]

    @property
    def keeps_shapes(self) -> bool:
        """Whether values are not reshaped, because two or more free dimensions leave their shape open."""
        return not self.lod_level and self.shape.count(None) > 1


def _parse_dims(name: str, shape: object) -> Dims:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise BadTypeOrValue(f"feed {name!r}: shape must be a list of dimensions, got {shape!r}")
    dims: list[int | None] = []
    for size in shape:
        if size is None or (isinstance(size, int) and size == -1):
            dims.append(None)
        elif isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0:
            dims.append(int(size))
        else:
            raise ValueError(f"feed {name!r}: a dimension must be None, -1 or an integer >= 0, got {size!r}")
    if not dims:
        raise ValueError(f"feed {name!r}: shape must have at least the batch dimension, e.g. [None]")
    return tuple(dims)


def _parse_dtype(name: str, dtype: DTypeLike) -> np.dtype[Any]:
    try:
        parsed = native(np.dtype("float32" if dtype is None else dtype))  # NumPy takes None for float64
    except TypeError as error:
        raise ValueError(f"feed {name!r}: {dtype!r} is not a dtype") from error
    if not is_stageable(parsed):
        raise ValueError(f"feed {name!r}: a field must hold numbers or booleans, got dtype {parsed}")
    return parsed


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return `dtype` in native byte order, the only one devices compute in.

    >>> native(np.dtype(">f4")) is np.dtype("float32")
    True
    """
    # NumPy keeps one object per plain dtype. Looking it up by name returns that object, so that `is` works.
    return dtype if dtype.isnative else np.dtype(dtype.newbyteorder("=").str)


def is_stageable(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of `dtype` can be copied to a device as raw bytes.

    >>> is_stageable(np.dtype("float32")), is_stageable(np.dtype(object))
    (True, False)
    """
    return not dtype.hasobject and dtype.kind not in "USMm"


def describe(shape: Dims) -> str:
    """Return a shape as text, with a dash for a dimension of any size.

    >>> describe((None, 784))
    '(-, 784)'
    """
    sizes = ["-" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
