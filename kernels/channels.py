"""What kernels that make pictures of bytes do with each channel at the end.

The device's part is in channels.cuh.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.kernels.dtypes import FLOATS
from gpuloader.kernels.normalize import find_constants, normalize_on_host
from gpuloader.kernels.windows import Layout, as_pixels

CHANNELS = (1, 3)
"""The numbers of channels that pictures of bytes may have."""

TARGETS = (*(name for name in FLOATS if name != "float64"), "uint8")
"""The dtypes that pictures of bytes are made into."""

_CONSTANTS = np.dtype([("factor", np.float32, 4), ("offset", np.float32, 4)])


def make_constants(name: str, mean: ArrayLike, std: ArrayLike, scale: float, channels: int) -> NDArray[Any]:
    """Return the kernels' constants for a result of the named dtype.

    Raises
    ------
    ValueError
        A number is out of range, or bytes would be normalized.

    >>> make_constants("float32", 0, 2, 1, channels=1)["factor"].tolist()
    [0.5, 0.0, 0.0, 0.0]
    """
    constants = np.zeros((), _CONSTANTS)
    factor, offset = find_constants(mean, std, scale, channels)
    if name == "uint8" and not ((factor == 1).all() and (offset == 0).all()):
        raise ValueError("a result of dtype uint8 is not normalized: leave mean, std and scale out")
    constants["factor"][:channels], constants["offset"][:channels] = factor, offset
    return constants


def finish_on_host(
    pixels: NDArray[np.uint8],
    out: NDArray[Any],
    mean: ArrayLike,
    std: ArrayLike,
    scale: float,
    out_layout: Layout,
    dtype: DTypeLike,
) -> None:
    """Write pictures of bytes, in the layout HWC, to the result: normalized, unless that is uint8.

    >>> out = np.zeros((1, 1, 1, 2), np.float32)
    >>> finish_on_host(np.array([[[[4], [8]]]], np.uint8), out, 2, 1, 1, "CHW", "float32")
    >>> out.tolist()
    [[[[2.0, 6.0]]]]
    """
    if out.dtype == np.uint8:
        as_pixels(out, out_layout)[...] = pixels
    else:
        normalize_on_host(pixels, mean, std, scale=scale, out_layout=out_layout, dtype=dtype, out=out)
